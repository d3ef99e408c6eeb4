"""Convert RL4LMs' YAML files (tokenizer, reward_fn, datapool, env, alg, train_evaluation) to `Config` values.

The original collects ``n_envs x n_steps`` tokens per iteration, even if texts are unfinished. Here, an update consists
of ⌈n_envs n_steps / tokens per text⌉ whole texts, which contain the same number of tokens if none ends early. If texts
end early, updates are smaller and more numerous. Both train on ``n_iters x n_envs x n_steps`` tokens. Since their
minibatches have the same number of tokens, they also take the same number of optimizer steps.
"""

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from groundling.convert.entries import Entries, check_section, read_table, real
from groundling.errors import ConfigError, unknown
from groundling.lm.write.sampling import Sampling, check_generation

Values = dict[str, Any]
FORMAT, TABLE = read_table("rl4lms")
POLICY, TRAINING, EVALUATION = "alg.policy.args", "alg.training_args", "train_evaluation"
ROLLOUT, OPTIMIZER = f"{POLICY}.generation_kwargs", f"{POLICY}.optimizer_kwargs"
_DEFAULT_TOP_K = 50  # Transformers' default when RL4LMs was released
_LONGEST = 512  # Default of tokenizer.max_length: T5's limit
_WHOLE_SPLIT = 1_000_000  # Exceeds the size of every split, since the original evaluates on all samples
_STEPS_PER_UPDATE = 100  # Maximum number of optimizer steps per supervised update; a killed run loses its last update


def read(path: Path, tree: Mapping[str, Any], words: Sequence[str]) -> tuple[Values, list[str]]:
    """Return a file's values by config key, and notes on entries with no effect or a different meaning here."""
    reader = _RL4LMsReader(Entries(path, FORMAT, tree, words))
    values = reader.values()
    reader.entries.note_ignored()
    return values, reader.entries.notes


class _RL4LMsReader:
    """Converts the entries of one file."""

    def __init__(self, entries: Entries) -> None:
        self.entries, self.notes = entries, entries.notes
        self.kind = str(entries.need("alg.id"))
        if self.kind not in TABLE["defaults"]:
            own = "one from Stable-Baselines3 must be ported to a subclass of groundling.algorithms.Algorithm; "
            raise ConfigError(unknown("algorithm of RL4LMs, alg.id", self.kind, TABLE["defaults"], own))
        if "causal" in str(entries.get("alg.model_type") or entries.get("alg.policy.id")):
            # The original adds the prompt's length to a causal model's min_length, so it limits only the new tokens.
            entries.values = {
                re.sub(r"kwargs\.min_length$", "kwargs.min_new_tokens", key): value
                for key, value in entries.values.items()
            }

    def values(self) -> Values:
        values: Values = {"world.id": "writing", "policy.id": "token", **TABLE["defaults"][self.kind]}
        values |= self.entries.same()
        for section, ours in TABLE["sections"].items():
            values |= {f"{ours}.{name}": value for name, value in self.entries.within(section).items()}
        values |= self._name() | self._tokenizer() | self._reward() | self._evaluation()
        if self.kind == "supervised":
            values |= self._supervised(values["algorithm.args.minibatch_size"])
        else:
            values |= self._budget() | self._losses() | self._optimizer() | self._rollouts() | self._mask()
            self._note_prompts()
        values.pop("evaluation.generation.post_processing_fn", None)
        return values

    def _name(self) -> Values:
        path = self.entries.path.resolve()
        return {"name": re.sub(r"[^\w.=+-]+", "_", f"{path.parent.name}-{path.stem}")}

    def _tokenizer(self) -> Values:
        """Return the tokenizer if it belongs to a different model; the original saved models without tokenizers."""
        key = "alg.model_name" if "alg.model_name" in self.entries.values else f"{POLICY}.model_name"
        tokenizer, model = self.entries.get("tokenizer.model_name"), self.entries.need(key)
        given = self.entries.overridden
        is_replaced = {key, key.rpartition(".")[0]} & given and not {"tokenizer", "tokenizer.model_name"} & given
        return {} if tokenizer in (None, model) or is_replaced else {"model.tokenizer": tokenizer}

    def _reward(self) -> Values:
        args = self.entries.within("reward_fn.args")
        if not args and self.entries.get("reward_fn.id") is None:
            return {}
        part = f"reward.{self.entries.need('reward_fn.id')}"
        return {part: {}} | {f"{part}.args.{name}": value for name, value in args.items()}

    def _evaluation(self) -> Values:
        """Return the metrics and their generation settings."""
        metrics: list[dict[str, Any]] = []
        unused: set[str] = set()
        reasons = TABLE["metric_ignored"]
        for metric in self.entries.get(f"{EVALUATION}.metrics", []):
            if (
                not isinstance(metric, Mapping)
                or not set(metric) <= {"id", "args"}
                or not isinstance(metric.get("id"), str)
            ):
                raise ConfigError(f"{EVALUATION}.metrics: expected {{id: …, args: …}}, got {metric!r:.80}")
            given = check_section(self.entries.path, f"{EVALUATION}.metrics.[].args", metric.get("args"))
            unused |= given.keys() & reasons
            args = {name: value for name, value in given.items() if name not in reasons}
            if (one := {"id": metric["id"], "args": args}) not in metrics:  # one file lists BLEU twice
                metrics.append(one)
        self.notes += [
            f"{EVALUATION}.metrics.[].args.{name}: no effect here ({reasons[name]})" for name in sorted(unused)
        ]
        names = {self.entries.get("reward_fn.id"), *(metric["id"] for metric in metrics)}
        if corrected := sorted({*TABLE["corrected"]} & names):
            self.notes.append(
                f"computed differently from the original code: {', '.join(corrected)}; 'Metrics and rewards for "
                "text' in the docs explains how, and compat: rl4lms in the args of a metric or reward restores "
                "the original's values"
            )
        values: Values = {
            "evaluation.metrics": metrics,
            "evaluation.episodes": _WHOLE_SPLIT,
            "evaluation.baselines": ["zero-shot"],
        }
        for section in (f"{EVALUATION}.generation_kwargs", "alg.generation_kwargs"):
            settings = self.entries.within(section)
            check_generation(section, settings, ("post_processing_fn",))
            if settings.get("do_sample") and "top_k" not in settings:
                values["evaluation.generation.top_k"] = _DEFAULT_TOP_K
        return values

    def _budget(self) -> Values:
        """Return the number and length of texts, and the training steps."""
        tokens = self.entries.count("env.n_envs", 1) * self.entries.count("alg.args.n_steps")
        steps = self.entries.count(f"{EVALUATION}.n_iters") * tokens
        longest = self.entries.count("env.args.max_episode_length")
        longest = min(longest, self.entries.count(f"{ROLLOUT}.max_new_tokens", longest))
        texts = math.ceil(tokens / longest)
        self.notes += [
            f"env.n_envs × alg.args.n_steps = {tokens} tokens per iteration: world.num_texts={texts} texts of up to "
            f"{longest} tokens per update, training.steps={steps} tokens in total; if texts end early, there are more "
            f"updates than {EVALUATION}.n_iters, with fewer tokens each",
            "computed differently from the original code: log-probabilities are those of the distribution that a "
            "token was sampled from (policy.args.filtered_log_probs=false uses the unfiltered one), updates consist of "
            "whole texts, and advantages are normalised over the whole update",
        ]
        return {"world.num_texts": texts, "world.num_tokens": longest, "training.steps": steps}

    def _losses(self) -> Values:
        """Return the coefficients of the value loss and the KL penalty."""
        # The original's coefficient applies to the whole squared error, Groundling's to half of it.
        values: Values = {"algorithm.args.value_coefficient": 2 * self.entries.real("alg.args.vf_coef", 0.5)}
        if self.kind == "trpo":
            values = {}
            self.entries.note_unused("alg.args.vf_coef", "TRPO fits the value function separately")
        values["algorithm.args.kl_coefficient"] = kl = self.entries.real("alg.kl_div.coeff", 0.0)
        if kl and (target := self.entries.get("alg.kl_div.target_kl")) is not None:
            values["algorithm.args.kl_target"] = target
        if self.entries.get("alg.args.target_kl") is not None:
            most = self.entries.real("alg.args.target_kl", 0.0)
            # Stable-Baselines3's PPO stops at 1.5 times this value.
            values["algorithm.args.target_kl"] = most if self.kind == "trpo" else 1.5 * most
        return values

    def _optimizer(self) -> Values:
        values: Values = {}
        for name, value in self.entries.within(OPTIMIZER).items():
            key = f"{OPTIMIZER}.{name}"
            if self.kind in ("a2c", "trpo"):
                self.entries.note_unused(key, "A2C's RMSprop and TRPO's Adam do not accept it")
            elif name in TABLE["optimizer_ignored"]:
                self.entries.note_unused(key, TABLE["optimizer_ignored"][name])
            elif name == "eps":
                values["algorithm.args.adam_epsilon"] = real(key, value)
            elif name == "betas" and isinstance(value, list) and len(value) == 2:
                first, second = (real(key, beta) for beta in value)
                values |= {"algorithm.args.adam_beta1": first, "algorithm.args.adam_beta2": second}
            elif name not in ("amsgrad", "maximize") or value is not False:
                raise ConfigError(f"{key}={value!r:.80}: only AdamW's eps and betas (two numbers) can be set here")
        return values

    def _rollouts(self) -> Values:
        settings = self.entries.within(ROLLOUT)
        if (beams := settings.pop("num_beams", 1)) not in (1, "1"):
            raise ConfigError(
                f"{ROLLOUT}.num_beams={beams}: beam search does not sample, so its texts have no sampling "
                "probabilities to learn from; use 1"
            )
        known = [*Sampling.model_fields]
        for name in settings:
            if name not in known:
                raise ConfigError(unknown(f"entry of {ROLLOUT}", name, [*known, "num_beams"]))
        if settings.get("do_sample", True) and "top_k" not in settings:
            settings["top_k"] = _DEFAULT_TOP_K
            self.notes.append(
                f"{ROLLOUT}.top_k={_DEFAULT_TOP_K}: Transformers' default when RL4LMs was released (0: all tokens)"
            )
        settings["terminate_on_eos"] = self.entries.get("env.args.terminate_on_eos", False)
        settings.pop("max_new_tokens", None)  # this is world.num_tokens
        return {"policy.args.generation": settings}

    def _mask(self) -> Values:
        """Return the settings of NLPO's mask and of the decoder's start token."""
        policy = str(self.entries.need("alg.policy.id"))
        kinds = [
            f"{mask}{model}_lm_actor_critic_policy" for mask in ("", "maskable_") for model in ("causal", "seq2seq")
        ]
        if policy not in kinds:
            raise ConfigError(unknown("policy of RL4LMs, alg.policy.id", policy, kinds))
        values: Values = {}
        if policy.startswith("maskable_"):
            values = {"policy.args.mask_type": "learned_top_k", "algorithm.args.target_update_iterations": 1000}
            found = {ours: self.entries.get(key) for key, ours in TABLE["mask"].items()}
            values |= {ours: value for ours, value in found.items() if value is not None}
            if values["policy.args.mask_type"] != "learned_top_p":
                values.pop("policy.args.min_tokens_to_keep", None)
        elif self.kind == "nlpo":
            raise ConfigError(f"alg.policy.id={policy} has no mask: NLPO needs maskable_{policy}")
        if self.kind == "nlpo":
            self.notes.append(
                "computed differently from the original code: the mask model is refreshed every "
                f"{POLICY}.target_update_iterations, as in NLPO's paper (1000000 means never, as in the released code)"
            )
        else:
            values.pop("algorithm.args.target_update_iterations", None)
        start = self.entries.get("env.args.context_start_token")
        if start is not None and "seq2seq" in policy:
            values["policy.args.context_start_token"] = start
        elif start is not None:
            self.notes.append(
                f"env.args.context_start_token={start}: ignored, as a causal model has no decoder to start (the "
                "original put this token before each text)"
            )
        return values

    def _note_prompts(self) -> None:
        """Add notes on the truncation of prompts, which depends only on the env's settings."""
        if self.entries.get("env.args.max_prompt_length") is None:
            self.notes.append(
                "env.args.max_prompt_length is not set: prompts are truncated at Groundling's default (the original's "
                "default is the tokenizer's own limit)"
            )
        side = self.entries.get("env.args.prompt_truncation_side", "left")
        of_policy = self.entries.get(f"{POLICY}.prompt_truncation_side", side)
        if of_policy != side:
            self.notes.append(
                f"{POLICY}.prompt_truncation_side={of_policy}: no effect here "
                f"(env.args.prompt_truncation_side={side} applies to both)"
            )
        self.entries.note_unused(
            "tokenizer.truncation_side", "env.args.prompt_truncation_side determines where prompts are truncated"
        )

    def _supervised(self, batch: int) -> Values:
        """Return the values for supervised training, which evaluates every ``logging_steps`` optimizer steps."""
        logged = self.entries.count(f"{TRAINING}.logging_steps", 500)
        steps = math.gcd(logged, _STEPS_PER_UPDATE)
        longest = self.entries.count("tokenizer.max_length", _LONGEST)
        schedule = str(self.entries.get(f"{TRAINING}.lr_scheduler_type", "linear"))
        self.notes += [
            f"{TRAINING}.logging_steps={logged} optimizer steps between evaluations: "
            f"evaluation.every={logged // steps} updates of world.num_texts={batch * steps} texts, with {steps} "
            "optimizer steps each",
            "computed differently from the original code: the loss covers the reference's own tokens and the end "
            "token, but not the prompt",
        ]
        values = {
            "world.num_texts": batch * steps,
            "world.max_prompt_length": longest,
            "world.prompt_truncation_side": self.entries.get("tokenizer.truncation_side", "left"),
            "policy.args.value": "shared",  # no value function is learned
            "policy.args.filtered_log_probs": False,  # references may contain tokens that sampling would exclude
            "world.num_tokens": longest,
            "algorithm.args.learning_rate_schedule": schedule.removesuffix("_with_warmup"),
            "evaluation.every": logged // steps,
        }
        if (function := self.entries.get("alg.generation_kwargs.post_processing_fn")) is not None:
            values["evaluation.post_process"] = function
        return values
