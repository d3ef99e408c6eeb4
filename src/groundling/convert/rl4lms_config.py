"""Reads RL4LMs' YAML files (tokenizer, reward_fn, datapool, env, alg, train_evaluation) as a `Config`.

Every entry has a meaning here, or a note that says what stands in its place; an unknown one is an error.

The arithmetic. The original gathers ``n_envs x n_steps`` tokens an iteration, whatever texts they belong to. Here an
update has whole texts: as many as hold so many tokens when none ends early, ⌈n_envs n_steps / tokens of a text⌉. The
training has ``n_iters x n_envs x n_steps`` tokens in both, and as minibatches are of so many tokens too, as many
optimizer steps; texts that end early make updates smaller and more.
"""

import itertools
import math
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from groundling.config.compose import from_values
from groundling.config.grammar import check_runs
from groundling.config.schema import Config
from groundling.convert import entries
from groundling.convert.entries import boolean, number, real, written
from groundling.convert.rl4lms_entries import (
    DEFAULTS,
    EVALUATION,
    KNOWN,
    MASK,
    MEANINGLESS,
    METRIC_MEANINGLESS,
    OPEN,
    OPTIMIZER,
    OPTIMIZER_MEANINGLESS,
    PARALLEL,
    POLICY,
    ROLLOUT,
    SAME,
    SECTIONS,
    TRAINING,
    WORKED_OUT,
)
from groundling.errors import ConfigError
from groundling.lm.settings import check_generation
from groundling.registry import unknown
from groundling.runtime.devices import launched

_DEFAULT_TOP_K = 50
"""What Transformers sampled among in the original's day, where a file names no top_k."""
_LONGEST = 512
"""Tokens of a text or prompt that a supervised model reads, where tokenizer.max_length is silent: T5's own."""
_WHOLE_SPLIT = 1_000_000
"""More samples than any split has: the original measures all of them."""
_MENDED = ("cider", "causal_perplexity", "intent_accuracy", "meteor", "rouge", "rouge_l_max")
"""Metrics and rewards that the original computes wrongly."""
_STEPS_PER_UPDATE = 100
"""Optimizer steps of a supervised update at most: what a killed run loses."""


def is_original(override: str) -> bool:
    """Whether an override is about an entry of the original's."""
    return override.lstrip("+~").partition("=")[0].partition(".")[0] in SECTIONS


def spread(path: Path, originals: Sequence[str]) -> list[list[str]]:
    """The runs of a file with sweeps (``{expand: true, values: […]}``): its overrides, one value of each set in them.

    Raises:
        ConfigError: see `read`.
    """
    reader = _Reader(path, _load(path))
    given = {entries.parse(text).key_or_group for text in originals}
    swept = {key: values for key, values in reader.swept.items() if key not in given}
    check_runs(math.prod(map(len, swept.values())), str(path))
    return [
        [*originals, *(f"{key}={written(value)}" for key, value in zip(swept, chosen, strict=True))]
        for chosen in itertools.product(*swept.values())
    ]


def read(
    path: Path, originals: Sequence[str] = (), overrides: Sequence[str] = ()
) -> tuple[Config, list[str]]:
    """Read a file of RL4LMs'.

    Args:
        path: The YAML file.
        originals: Overrides of its entries, such as ``alg.policy.args.model_name=starter-causal``; of a sweep in the
            file one value each, as `spread` gives them.
        overrides: Overrides of the resulting config, as in `compose`; they come last.

    Returns:
        The config, and what to tell about entries that mean nothing, or something else, here.

    Raises:
        ConfigError: the file cannot be read, lacks an entry, has one that is unknown, or asks for what there is not.
    """
    reader = _Reader(path, _load(path))
    for text in originals:
        reader.override(text)
    reader.settle()
    given = {text.lstrip("~").partition("=")[0] for text in overrides}
    values = reader.values(given)
    reader.tell()
    return from_values(entries.nested(values), overrides, str(path)), reader.notes


def _load(path: Path) -> DictConfig:
    loaded = entries.load(path, "--rl4lms-config")
    if "alg" not in loaded or "datapool" not in loaded:
        raise ConfigError(f"{path} lacks alg or datapool, so it is no config of RL4LMs")
    return loaded


class _Reader:
    """The entries of a file, and what is to be told about them."""

    def __init__(self, path: Path, file: DictConfig) -> None:
        self.path = path
        self.notes: list[str] = []
        self.entries: dict[str, Any] = {}
        self.swept: dict[str, list[Any]] = {}
        self._chosen: dict[str, Any] = {}  # of sweeps
        self._given: set[str] = set()
        try:
            plain: Any = OmegaConf.to_container(file, resolve=True)
        except OmegaConfBaseException as error:
            raise ConfigError(f"cannot read {path}: {error}") from error
        self._add("", plain)
        self._check_shapes()

    def _check_shapes(self) -> None:
        sections = {*entries.sections_of(KNOWN), *(prefix.rstrip(".") for prefix in OPEN)}
        single = {*SAME, *MASK, *WORKED_OUT} - {f"{EVALUATION}.metrics"}
        entries.check_shapes(self.path, self.entries, sections, single)
        if not isinstance(self.entries.get(f"{EVALUATION}.metrics") or [], list):
            raise ConfigError(f"{self.path}: {EVALUATION}.metrics must be a list of {{id: …, args: …}}")

    def _add(self, prefix: str, node: Mapping[Any, Any]) -> None:
        for name, value in node.items():
            key = f"{prefix}{name}"
            if isinstance(value, Mapping) and set(value) == {"expand", "values"} and value["expand"]:
                _check(key, section=True)
                if not isinstance(value["values"], list) or not value["values"]:
                    raise ConfigError(f"{key}.values must be a list of at least one, got {value['values']!r}")
                self.swept[key] = value["values"]
            elif isinstance(value, Mapping):
                self._add(f"{key}.", value)
            elif value is not None or key in KNOWN:
                if key in entries.sections_of(KNOWN):
                    entries.section(self.path, key, value)
                _check(key)
                self.entries[key] = boolean(value)

    def override(self, text: str) -> None:
        """Set an entry, or a section of them, from the command line."""
        parsed = entries.parse(text)
        key = parsed.key_or_group
        _check(key, section=True)
        if not parsed.is_delete():
            self._given.add(key)
        if key in self.swept:
            self._chosen[key] = parsed.value()
        for old in [old for old in (*self.entries, *self.swept) if f"{old}.".startswith(f"{key}.")]:
            self.entries.pop(old, None)
            self.swept.pop(old, None)
        if not parsed.is_delete():
            section, _, name = key.rpartition(".")
            self._add(f"{section}." if section else "", {name: parsed.value()})
            self._check_shapes()

    def settle(self) -> None:
        """Raise if a sweep is left open."""
        if self.swept:
            raise ConfigError(f"{self.path} sweeps over {', '.join(self.swept)}: give one value of each")

    def values(self, given: set[str]) -> dict[str, Any]:
        """By key of ours, what the entries come to; ``given`` are the keys that are overridden in the end."""
        kind = self._need("alg.id")
        if kind not in DEFAULTS:
            own = "one of Stable-Baselines3 must become a subclass of groundling.algorithms.Algorithm; "
            raise ConfigError(unknown("algorithm of RL4LMs, alg.id", str(kind), DEFAULTS, own))
        if "causal" in str(self._get("alg.model_type") or self._get("alg.policy.id")):
            # To whose min_length the original adds the prompt's: the text's own tokens count.
            self.entries = {
                re.sub(r"kwargs\.min_length$", "kwargs.min_new_tokens", key): value
                for key, value in self.entries.items()
            }
        values: dict[str, Any] = {"world.id": "writing", "policy.id": "token", **DEFAULTS[kind]}
        values |= {
            ours: number(self.entries[key]) for key, ours in SAME.items() if self.entries.get(key) is not None
        }
        for prefix, ours in OPEN.items():
            for key, value in self._within(prefix).items() if ours else ():
                values[ours + key.removeprefix(prefix)] = value
        values |= (
            self._names() | self._model(given) | self._parallel(given) | self._reward() | self._measured()
        )
        values |= self._supervised(values) if kind == "supervised" else self._online(kind)
        values.pop("evaluation.generation.post_processing_fn", None)
        return values

    def tell(self) -> None:
        """Note the entries that mean nothing here, those of one reason together."""
        reasons: dict[str, list[str]] = defaultdict(list)
        for key in self.entries:
            if key in MEANINGLESS:
                reasons[MEANINGLESS[key]].append(key)
        self.notes += [f"{', '.join(keys)}: no effect here ({reason})" for reason, keys in reasons.items()]

    def _within(self, prefix: str) -> dict[str, Any]:
        return {
            key: value for key, value in self.entries.items() if key.startswith(prefix) and value is not None
        }

    def _get(self, key: str, default: Any = None) -> Any:
        value = self.entries.get(key)
        return default if value is None else number(value)

    def _need(self, key: str) -> Any:
        value = self._get(key)
        if value is None:
            raise ConfigError(f"{self.path} has no {key}: give {key}=…")
        return value

    def _count(self, key: str, default: int | None = None) -> int:
        value = self._need(key) if default is None else self._get(key, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ConfigError(f"{key} must be a whole number, at least 1, got {value!r}")
        return value

    def _names(self) -> dict[str, Any]:
        path = self.path.resolve()
        sweep = (f"{key.rpartition('.')[2]}={value}" for key, value in self._chosen.items())
        name = "-".join([path.parent.name, path.stem, *sweep])
        return {"name": re.sub(r"[^\w.=+-]+", "_", name)}

    def _model(self, given: set[str]) -> dict[str, Any]:
        """The tokenizer, where it is another's than the model's: the original saved models without one."""
        key = "alg.model_name" if "alg.model_name" in self.entries else f"{POLICY}.model_name"
        tokenizer, model = self._get("tokenizer.model_name"), self._need(key)
        replaced = ({key, key.rpartition(".")[0]} & self._given) or "model.path" in given
        named = {"tokenizer", "tokenizer.model_name"} & self._given
        if tokenizer is None or tokenizer == model or (replaced and not named):
            return {}
        return {"model.tokenizer": tokenizer}

    def _parallel(self, given: set[str]) -> dict[str, Any]:
        """Spread the model over the GPUs where one process has several; the original's default."""
        import torch

        if self._get(PARALLEL, True) is False or {"device", "model.device_map"} & given:
            return {}
        gpus, processes = torch.cuda.device_count(), launched("LOCAL_WORLD_SIZE", 1)
        if gpus > 1 and processes == 1 and not str(self._get("alg.args.device", "auto")).startswith("cpu"):
            self.notes.append(f"{PARALLEL}=true: model.device_map=auto spreads the model over {gpus} GPUs")
            return {"model.device_map": "auto"}
        self._forget(
            PARALLEL, "model.device_map=auto spreads a model over the GPUs of a process that has several"
        )
        return {}

    def _optimizer(self, kind: str) -> dict[str, Any]:
        """Arguments of AdamW in ``optimizer_kwargs``."""
        values: dict[str, Any] = {}
        for key, value in self._within(f"{OPTIMIZER}.").items():
            name = key.rpartition(".")[2]
            if kind in ("a2c", "trpo"):
                self._forget(key, "A2C's RMSprop and TRPO's Adam take other arguments or none")
            elif name in OPTIMIZER_MEANINGLESS:
                self._forget(key, OPTIMIZER_MEANINGLESS[name])
            elif name == "eps":
                values["algorithm.args.adam_epsilon"] = real(key, value)
            elif name == "betas" and isinstance(value, list) and len(value) == 2:
                first, second = (real(key, beta) for beta in value)
                values |= {"algorithm.args.adam_beta1": first, "algorithm.args.adam_beta2": second}
            elif name in ("amsgrad", "maximize") and value is False:
                continue
            else:
                raise ConfigError(
                    f"{key}={value!r}: of AdamW's arguments eps and betas (two numbers) can be set here"
                )
        return values

    def _reward(self) -> dict[str, Any]:
        """What a text is worth: one part, named by its id."""
        args = self._within("reward_fn.args.")
        if not args and self._get("reward_fn.id") is None:
            return {}
        part = f"reward.{self._need('reward_fn.id')}"
        named = {f"{part}.args.{key.removeprefix('reward_fn.args.')}": value for key, value in args.items()}
        return {part: {}, **named}

    def _measured(self) -> dict[str, Any]:
        """What is measured, and how texts are written for it."""
        metrics: list[dict[str, Any]] = []
        left_out: dict[str, str] = {}
        for metric in self._get(f"{EVALUATION}.metrics", []):
            if (
                not isinstance(metric, Mapping)
                or not set(metric) <= {"id", "args"}
                or not isinstance(metric.get("id"), str)
            ):
                raise ConfigError(f"{EVALUATION}.metrics: expected {{id: …, args: …}}, got {metric!r}")
            given = entries.section(self.path, f"{EVALUATION}.metrics.[].args", metric.get("args"))
            args = {name: boolean(value) for name, value in given.items()}
            left_out |= {name: METRIC_MEANINGLESS[name] for name in args if name in METRIC_MEANINGLESS}
            kept = {name: value for name, value in args.items() if name not in METRIC_MEANINGLESS}
            made = {"id": metric["id"], "args": kept}
            if made not in metrics:  # one file names BLEU twice
                metrics.append(made)
        self.notes += [
            f"{EVALUATION}.metrics.[].args.{name}: no effect here ({reason})"
            for name, reason in left_out.items()
        ]
        mended = sorted({*_MENDED} & {self._get("reward_fn.id"), *(metric["id"] for metric in metrics)})
        if mended:
            self.notes.append(
                f"computed differently from the original code: {', '.join(mended)}; 'Metrics and rewards "
                "of text' in the docs says how, and compat: rl4lms in the args of a metric or reward gives the "
                "original's figures"
            )
        values: dict[str, Any] = {
            "evaluation.metrics": metrics,
            "evaluation.episodes": _WHOLE_SPLIT,
            "evaluation.baselines": ["zero-shot"],
        }
        for section in (f"{EVALUATION}.generation_kwargs.", "alg.generation_kwargs."):
            settings = {key.removeprefix(section): value for key, value in self._within(section).items()}
            check_generation(section[:-1], settings, ("post_processing_fn",))
            if settings.get("do_sample") and "top_k" not in settings:
                values["evaluation.generation.top_k"] = _DEFAULT_TOP_K
        return values

    def _online(self, kind: str) -> dict[str, Any]:
        """What the files of PPO, NLPO, A2C and TRPO mean."""
        tokens = self._count("env.n_envs", 1) * self._count("alg.args.n_steps")
        iterations = self._count(f"{EVALUATION}.n_iters")
        longest = self._count("env.args.max_episode_length")
        longest = min(longest, self._count(f"{ROLLOUT}.max_new_tokens", longest))
        texts = math.ceil(tokens / longest)
        values: dict[str, Any] = {
            "world.num_texts": texts,
            "world.num_tokens": longest,
            "training.steps": iterations * tokens,
            "algorithm.args.value_coefficient": 2
            * real("alg.args.vf_coef", self._get("alg.args.vf_coef", 0.5)),
            "algorithm.args.kl_coefficient": real("alg.kl_div.coeff", self._get("alg.kl_div.coeff", 0.0)),
        }
        if kind == "trpo":
            del values["algorithm.args.value_coefficient"]  # the value function is fitted by itself
            self._forget("alg.args.vf_coef", "TRPO fits the value function by itself")
        if values["algorithm.args.kl_coefficient"] and self._get("alg.kl_div.target_kl") is not None:
            values["algorithm.args.kl_target"] = self._get("alg.kl_div.target_kl")
        if self._get("alg.args.target_kl") is not None:
            most = real("alg.args.target_kl", self._get("alg.args.target_kl", 0.0))
            # Stable-Baselines3's PPO stops at half as much again.
            values["algorithm.args.target_kl"] = most if kind == "trpo" else 1.5 * most
        self.notes += [
            f"env.n_envs × alg.args.n_steps = {tokens} tokens an iteration: world.num_texts={texts} texts of up to "
            f"{longest} an update, training.steps={iterations * tokens} tokens in all; texts that end early make more "
            f"updates than {EVALUATION}.n_iters, of fewer tokens",
            "computed differently from the original code: log-probabilities are of the distribution that a token "
            "was drawn from (policy.args.filtered_log_probs=false: of the unfiltered one), texts are learnt from "
            "as a whole, and advantages normalised over all of an update",
        ]
        self._tell_of_prompts()
        return values | self._optimizer(kind) | self._rollouts() | self._mask(kind)

    def _rollouts(self) -> dict[str, Any]:
        """How rollouts are sampled."""
        from groundling.lm.write.sampling import Sampling

        prefix = f"{ROLLOUT}."
        settings = {key.removeprefix(prefix): value for key, value in self._within(prefix).items()}
        if number(settings.pop("num_beams", 1)) != 1:
            raise ConfigError(
                f"{ROLLOUT}.num_beams={self.entries[prefix + 'num_beams']}: what beams find is not sampled, and has no "
                "probability to learn from; give 1"
            )
        known = [field.name for field in fields(Sampling)]
        for name in settings:
            if name not in known:
                raise ConfigError(unknown(f"entry of {ROLLOUT}", name, [*known, "num_beams"]))
        if settings.get("do_sample", True) and "top_k" not in settings:
            settings["top_k"] = _DEFAULT_TOP_K
            self.notes.append(
                f"{ROLLOUT}.top_k={_DEFAULT_TOP_K}: Transformers' default when RL4LMs was released (0: all tokens)"
            )
        settings["terminate_on_eos"] = self._get("env.args.terminate_on_eos", False)
        settings.pop("max_new_tokens", None)  # world.num_tokens says it
        return {"policy.args.generation": settings}

    def _mask(self, kind: str) -> dict[str, Any]:
        """NLPO's mask, and what a decoder reads first."""
        policy = str(self._need("alg.policy.id"))
        kinds = [
            f"{mask}{model}_lm_actor_critic_policy"
            for mask in ("", "maskable_")
            for model in ("causal", "seq2seq")
        ]
        if policy not in kinds:
            raise ConfigError(unknown("policy of RL4LMs, alg.policy.id", policy, kinds))
        values: dict[str, Any] = {}
        if policy.startswith("maskable_"):
            values = {
                "policy.args.mask_type": "learned_top_k",
                "algorithm.args.target_update_iterations": 1000,
            }
            values |= {ours: self._get(key) for key, ours in MASK.items() if self._get(key) is not None}
            if values["policy.args.mask_type"] != "learned_top_p":  # of which alone it is
                values.pop("policy.args.min_tokens_to_keep", None)
        elif kind == "nlpo":
            raise ConfigError(f"alg.policy.id={policy} has no mask: NLPO needs maskable_{policy}")
        if kind == "nlpo":
            self.notes.append(
                "computed differently from the original code: the mask model is refreshed every "
                f"{POLICY}.target_update_iterations, as NLPO's paper says (1000000: never, as released)"
            )
        else:
            values.pop("algorithm.args.target_update_iterations", None)
        start = self._get("env.args.context_start_token")
        if start is not None and "seq2seq" in policy:
            values["policy.args.context_start_token"] = start
        elif start is not None:
            self.notes.append(
                f"env.args.context_start_token={start}: left out, as a causal model has no decoder to start (the "
                "original put this token before each text)"
            )
        return values

    def _tell_of_prompts(self) -> None:
        """Where prompts are cut is the env's to say."""
        if self._get("env.args.max_prompt_length") is None:
            self.notes.append(
                "env.args.max_prompt_length is not given: prompts are cut at Groundling's default (the original's "
                "default is the tokenizer's own limit)"
            )
        side = self._get("env.args.prompt_truncation_side", "left")
        of_policy = self._get(f"{POLICY}.prompt_truncation_side", side)
        if of_policy != side:
            self.notes.append(
                f"{POLICY}.prompt_truncation_side={of_policy}: no effect here "
                f"(env.args.prompt_truncation_side={side} holds for both)"
            )
        self._forget(
            "tokenizer.truncation_side", "env.args.prompt_truncation_side says where prompts are cut"
        )

    def _supervised(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """What the files of supervised training mean: ``logging_steps`` is also how often they evaluate."""
        batch = values["algorithm.args.minibatch_size"]
        logged = self._count(f"{TRAINING}.logging_steps", 500)
        steps = math.gcd(logged, _STEPS_PER_UPDATE)
        longest = self._count("tokenizer.max_length", _LONGEST)
        schedule = str(self._get(f"{TRAINING}.lr_scheduler_type", "linear"))
        self.notes += [
            f"{TRAINING}.logging_steps={logged} optimizer steps between evaluations: "
            f"evaluation.every={logged // steps} updates of world.num_texts={batch * steps} texts, each of {steps} "
            "such steps",
            "computed differently from the original code: the loss is of the reference's own tokens and the end "
            "token, not of the prompt's too",
        ]
        made = {
            "world.num_texts": batch * steps,
            "world.max_prompt_length": longest,
            "world.prompt_truncation_side": self._get("tokenizer.truncation_side", "left"),
            "policy.args.value": "shared",  # there is none to learn
            "policy.args.filtered_log_probs": False,  # references may hold what rollouts leave out
            "world.num_tokens": longest,
            "algorithm.args.learning_rate_schedule": schedule.removesuffix("_with_warmup"),
            "evaluation.every": logged // steps,
        }
        if (function := self._get("alg.generation_kwargs.post_processing_fn")) is not None:
            made["evaluation.post_process"] = function
        return made

    def _forget(self, key: str, reason: str) -> None:
        if key in self.entries:
            self.notes.append(f"{key}: no effect here ({reason})")


def _check(key: str, section: bool = False) -> None:
    """Raise on an entry that RL4LMs has not (or ``section``); what is free within one is checked by its component."""
    if section and any(known.startswith(f"{key}.") for known in KNOWN):
        return
    if key not in KNOWN and not key.startswith(tuple(OPEN)):
        raise ConfigError(unknown("entry of RL4LMs' files", key, KNOWN))
