"""Reads the Hydra files of GLAM and Lamorel (``lamorel_args``, ``rl_script_args``) as a `Config`.

Every entry has a meaning here, or a note that says what stands in its place; none is passed over in silence.
"""

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from groundling.config.compose import from_values
from groundling.config.schema import Config
from groundling.convert import entries
from groundling.convert.entries import number, real
from groundling.convert.glam_entries import (
    KNOWN,
    LLM,
    MEANINGLESS,
    MEMORY,
    NOT_DRRNS,
    NOT_WRITERS,
    NUMBERS,
    OF_WRITERS,
    OPEN,
    PROCESSES,
    RL,
    SAME,
    SAYCAN,
    SECTIONS,
    SHIPPED_ON,
    STRINGS,
    TESTS,
    TOKENS,
    WORKED_OUT,
)
from groundling.convert.lamorel_tokens import writer
from groundling.envs.babyai_text import ACTIONS, translate_actions
from groundling.errors import ConfigError
from groundling.registry import unknown
from groundling.worlds.text.config import TextConfig
from groundling.worlds.writing.config import WritingConfig

_REWARD_SCALE = 20
"""The original's factor on the env's reward, which stands in its code."""


def is_original(override: str) -> bool:
    """Whether an override is about an entry of the original's."""
    return override.lstrip("+~").startswith(SECTIONS)


def spread(path: Path, originals: Sequence[str]) -> list[list[str]]:
    """One run: these files know no sweeps."""
    return [list(originals)]


def read(
    path: Path, originals: Sequence[str] = (), overrides: Sequence[str] = ()
) -> tuple[Config, list[str]]:
    """Read a file of GLAM's or Lamorel's.

    Args:
        path: The YAML file.
        originals: Overrides of its entries, such as ``rl_script_args.seed=1``.
        overrides: Overrides of the resulting config, as in `compose`; they come last.

    Returns:
        The config, and what to tell about entries that mean nothing, or something else, here.

    Raises:
        ConfigError: the file cannot be read, leaves a needed entry open, or asks for what there is not.
        TranslationError: a French file names actions in English that have no French names.
    """
    reader = _Reader(path, _load(path))
    for override in originals:
        reader.override(override)
    given = {text.lstrip("~").partition("=")[0] for text in overrides}
    reader.refuse()
    reader.leave_out_what_is_not_drrns()
    reader.leave_out_what_is_not_writers()
    reader.check_open(given)
    values = reader.values(given)
    if values["world.id"] == "text" and "world.env" not in values and "world.env" not in given:
        raise ConfigError(reader.why_no_env())
    reader.tell()
    return from_values(entries.nested(values), overrides, str(path)), reader.notes


def _load(path: Path) -> DictConfig:
    loaded = entries.load(path, "--glam-config", unread="hydra")
    if not any(f"{key!s}." in SECTIONS for key in loaded):
        raise ConfigError(
            f"{path} has neither lamorel_args nor rl_script_args, so it is no config of GLAM or Lamorel"
        )
    return loaded


@dataclass
class _Reader:
    """The entries of a file, and what is to be told about them."""

    path: Path
    file: DictConfig
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.entries: dict[str, Any] = {}
        self._overridden: set[str] = set()
        try:
            for section, node in ((str(key), node) for key, node in self.file.items()):
                if f"{section}." in SECTIONS:
                    is_node = OmegaConf.is_config(node)
                    plain = OmegaConf.to_container(node, resolve=True) if is_node else node
                    self.entries |= entries.flat(f"{section}.", entries.section(self.path, section, plain))
                elif section == "defaults":
                    named = [str(d) for d in node] if OmegaConf.is_list(node) else [str(node)]
                    others = [
                        d for d in named if d != "_self_" and not d.lstrip("{'").startswith("override hydra")
                    ]
                    if others:
                        self.notes.append(f"defaults: other files are not read ({', '.join(others)})")
                else:
                    self.notes.append(f"{section}: left out, as the original's files have no such section")
        except OmegaConfBaseException as error:
            raise ConfigError(f"cannot read {self.path}: {error}") from error
        self._check_shapes()
        for key in [key for key in self.entries if key not in KNOWN]:
            self.notes.append(f"{unknown('entry', key, KNOWN).partition(' there is')[0]} it is left out")
            del self.entries[key]

    def _check_shapes(self) -> None:
        single = {*SAME, *WORKED_OUT} - {f"{RL}.action_space", STRINGS}
        entries.check_shapes(self.path, self.entries, entries.sections_of(KNOWN), single)

    def override(self, text: str) -> None:
        """Set an entry from the command line."""
        parsed = entries.parse(text)
        if parsed.key_or_group not in KNOWN:
            raise ConfigError(unknown("entry of the original's files", parsed.key_or_group, KNOWN))
        self._overridden.add(parsed.key_or_group)
        self.entries.pop(parsed.key_or_group, None)
        if not parsed.is_delete():
            self.entries[parsed.key_or_group] = parsed.value()
            self._check_shapes()

    def refuse(self) -> None:
        """Raise on what would be another experiment without it."""
        if self._get("loading_path"):
            raise ConfigError(
                f"{RL}.loading_path is a pickled checkpoint, which is never read here: save the model with "
                f"save_pretrained and set {LLM}.model_path to that folder, and {RL}.loading_path=null"
            )
        script = Path(str(self._get("path", ""))).stem
        tests = bool({"test", "tests"} & set(re.split("[-_]", script)))
        on = [name for name in TESTS if self._get(name) is True]
        if tests:
            asked = on or ["zero_shot"]
        elif "train" in script:
            asked = []  # the original's training reads none of them
        else:
            asked = [name for name in on if name not in SHIPPED_ON or f"{RL}.{name}" in self._overridden]
        if not asked:
            return
        why = f"path={self._get('path')}" if tests else f"{asked[0]}=true"
        env, actions = self._get("name_environment", OPEN), self._get("new_action_space")
        instead = TESTS[asked[0]].format(
            env="BabyAI-MixedTestLocal-v0" if env == OPEN else env,
            actions=", ".join(str(a).replace("_", " ") for a in actions)
            if isinstance(actions, list)
            else "…",
            run=self._trained_run(),
            episodes=f" --episodes {episodes}"
            if (episodes := self._get("number_episodes", OPEN)) != OPEN
            else "",
        )
        raise ConfigError(
            f"{RL}.{why} is for the original's tests, and this command trains: run {instead}; to train, give "
            f"{RL}.path=train_language_agent.py"
        )

    def _trained_run(self) -> str:
        """The folder into which the file's own training writes; RUN where entries that name it are open."""
        named = self._names()
        logs, seed = self._get("saving_path_logs", OPEN), self._get("seed", OPEN)
        entries = ("name_experiment", "name_model", "number_envs", "action_space")
        if OPEN in (logs, seed, *map(self._get, entries)) or "run_dir" not in named:
            return "RUN"
        return str(named["run_dir"]).replace("${name}", named["name"]).replace("${seed}", str(seed))

    def leave_out_what_is_not_drrns(self) -> None:
        """Where the file trains DRRN, take the entries out that only a language model, or PPO, has."""
        if not self._trains_drrn():
            return
        if self._is_lamorels():
            raise ConfigError(f"{PROCESSES}=0 leaves Lamorel's example without its language model: give 1")
        if number(self._get("reward_shaping_beta", 0)):
            raise ConfigError(
                f"{RL}.reward_shaping_beta shapes rewards by a language model's probabilities, and {PROCESSES}=0 "
                "trains DRRN, which has none: give 0"
            )
        keys = [key for key in self.entries if key in NOT_DRRNS]
        for key in keys:
            del self.entries[key]
        self.notes.append(
            f"{PROCESSES}=0 trains the original's DRRN agent, which has settings of its own and reads nothing of "
            f"{', '.join(keys)}"
        )

    def leave_out_what_is_not_writers(self) -> None:
        """Where the file trains a writer, take the entries out that only an agent in an env has."""
        keys = [key for key in self.entries if self._writes() and key in NOT_WRITERS]
        for key in keys:
            del self.entries[key]
        if keys:
            self.notes.append(
                f"{', '.join(keys)}: no effect here ({STRINGS} asks for PPO on tokens, which has no env)"
            )

    def check_open(self, given: set[str]) -> None:
        """Raise if an entry that is needed here was left open (``???``) and not set by a key of ours either."""
        open_ = [key for key, value in self.entries.items() if value == OPEN]
        counterparts = SAME | WORKED_OUT
        needed = [key for key in open_ if key in counterparts and counterparts[key] not in given]
        if needed:
            wanted = " ".join(f"{key}=…" for key in needed)
            raise ConfigError(f"{self.path} leaves entries open: give {wanted}")
        for key in open_:
            del self.entries[key]

    def values(self, given: set[str]) -> dict[str, Any]:
        """By key of ours, what the entries come to; those ``given`` come last."""
        values: dict[str, Any] = {
            "world.id": "text",
            "policy.id": "action_scoring",
            "algorithm.id": "ppo",
        }
        if not self._writes():
            values["reward.env.args.scale"] = _REWARD_SCALE
        for key, ours in SAME.items():
            if self.entries.get(key) is not None:
                values[ours] = number(self.entries[key]) if ours.startswith(NUMBERS) else self.entries[key]
        if "algorithm.args.clip_range" in values:
            values["algorithm.args.value_clip_range"] = values["algorithm.args.clip_range"]
        values |= self._names()
        values |= self._model()
        if self._get("action_space") is not None:
            values["world.actions"] = self._actions("world.actions" in given)
        if self._get("language") == "french" and values.pop("world.probes", None) is not None:
            self.notes.append(
                f"{RL}.template_test: left out, since the fixed situations are written in English only"
            )
        if (weight := self._get("value_loss_coef")) is not None:  # of the whole squared error
            values["algorithm.args.value_coefficient"] = 2 * real(f"{RL}.value_loss_coef", weight)
        if self._trains_drrn():
            values |= self._drrn()
        elif self._writes():
            values |= self._writer()
        elif self._is_lamorels():
            values |= self._lamorel()
        else:
            values |= self._glam(len(values.get("world.actions", "......")))
        if not self._is_lamorels():
            self._tell_what_differs_from_glam()
        micro, most = (
            values.get(f"algorithm.args.{name}") for name in ("micro_batch_size", "minibatch_size")
        )
        if isinstance(micro, int) and isinstance(most, int):  # the algorithm refuses what is none
            values["algorithm.args.micro_batch_size"] = min(micro, most)
        return values

    def why_no_env(self) -> str:
        """What to say of a file that trains nothing in a world."""
        reasons = {MEANINGLESS.get(key) for key in self.entries} & {SAYCAN, TOKENS}
        because = f" ({reasons.pop()})" if reasons else ""
        return (
            f"{self.path} names no env{because}: give rl_script_args.name_environment=BabyAI-MixedTrainLocal-v0, "
            "or another of `groundling list envs`"
        )

    def tell(self) -> None:
        """Note the entries that mean nothing here, those of one reason together."""
        reasons: dict[str, list[str]] = defaultdict(list)
        for key, value in self.entries.items():
            if key in MEANINGLESS:
                off = value is None or value is False or value in ("", [])
                reasons["switched off" if off else MEANINGLESS[key]].append(key)
        self.notes += [f"{', '.join(keys)}: no effect here ({reason})" for reason, keys in reasons.items()]

    def _get(self, name: str, default: Any = None) -> Any:
        value = self.entries.get(name if name.startswith(SECTIONS) else f"{RL}.{name}")
        return default if value is None else value

    def _count(self, name: str, default: int) -> int:
        value = number(self._get(name, default))
        if not isinstance(value, int) or value < 0:
            raise ConfigError(f"{name} must be a whole number, got {value!r}")
        return value

    def _trains_drrn(self) -> bool:
        """Whether there is no language model, so that the original's script trains DRRN."""
        return bool(number(self._get(PROCESSES, 1)) == 0)

    def _is_lamorels(self) -> bool:
        """Whether ``epochs`` counts updates, as in Lamorel's examples, and not passes over a rollout."""
        return any(self._get(name) is not None for name in ("ppo_epochs", "steps_per_epoch", "strings"))

    def _writes(self) -> bool:
        """Whether the file is of Lamorel's PPO on tokens."""
        return self._get("strings") is not None

    def _actions(self, overridden: bool) -> list[str]:
        """The actions' names; where a French file names them in English, their French ones."""
        actions = self._get("action_space")
        if not isinstance(actions, Sequence) or isinstance(actions, str):
            raise ConfigError(f"{RL}.action_space must be a list, such as [turn_left,go_forward]")
        names = [str(action).replace("_", " ") for action in actions]
        in_english = bool(set(names) & set(ACTIONS["english"])) and not overridden
        return (
            translate_actions(names, "french") if self._get("language") == "french" and in_english else names
        )

    def _names(self) -> dict[str, Any]:
        parts = [str(self._get(key)) for key in ("name_experiment", "name_model") if self._get(key)]
        if parts:
            parts += self._identity()
        values = {"name": "-".join(parts) or self.path.stem}
        if (logs := self._get("saving_path_logs")) is not None:
            values["run_dir"] = f"{logs}/${{name}}-seed${{seed}}"
        return values

    def _identity(self) -> list[str]:
        """Parts of the original's folder names other than names and seed.

        As there, embeddings, heads and the number of observations are named only where they are unusual.
        """
        parts = []
        if (num_envs := self._get("number_envs")) is not None:
            parts.append(f"nbr_env_{num_envs}")
        pretrained = self._get(f"{LLM}.pretrained", True)
        parts.append("n_llm_processes_0" if self._trains_drrn() else f"pretrained_{pretrained}")
        if not pretrained:
            parts.append(f"load_embedding_{self._get('load_embedding', False)}")
        if self._get("use_action_heads"):
            parts.append("use_action_heads_True")
        if (history := number(self._get("nbr_obs", 3))) != 3:
            parts.append(f"nbr_obs_{history}")
        if isinstance(actions := self._get("action_space"), list):
            parts.append("_".join([f"nbr_actions_{len(actions)}", *map(str, actions)]))
        return [*parts, f"shape_reward_beta_{number(self._get('reward_shaping_beta', 0))}"]

    def _model(self) -> dict[str, Any]:
        values: dict[str, Any] = {}
        if self._get(f"{LLM}.pretrained", True) is False:
            values["model.init"] = "embeddings" if self._get("load_embedding") else "random"
        elif self._get("load_embedding"):
            self.notes.append(
                f"{RL}.load_embedding: no effect here (nor in the original: pretrained=true loads all weights)"
            )
        if self._get("use_action_heads"):
            values["policy.id"] = "action_head"
        if self._get("use_lora"):
            names = {"lora_r": "r", "lora_alpha": "lora_alpha"}
            values["model.lora"] = {
                to: self._count(name, 0) for name, to in names.items() if self._get(name) is not None
            } or {"r": 8}
        elif any(self._get(name) is not None for name in ("lora_r", "lora_alpha")):
            self.notes.append(f"{RL}.lora_r, {RL}.lora_alpha: no effect, since use_lora is off")
        if self._get(f"{LLM}.load_in_4bit"):
            values["model.load_in_4bit"] = True
        on_cpu = self._get(f"{LLM}.parallelism.use_gpu", True) is False
        if on_cpu:
            values["device"] = "cpu"
        if self._is_spread():
            values["model.device_map"] = "auto"
        elif self._count(f"{LLM}.parallelism.model_parallelism_size", 1) > 1:
            why = (
                "no effect, since use_gpu is off"
                if on_cpu
                else f"left out, as the new weights of {LLM}.pretrained=false are made whole, on one device"
            )
            self.notes.append(f"{LLM}.parallelism.model_parallelism_size: {why}")
        return values

    def _is_spread(self) -> bool:
        """Whether the model's layers are dealt out to several devices."""
        several = self._count(f"{LLM}.parallelism.model_parallelism_size", 1) > 1
        on_gpus = self._get(f"{LLM}.parallelism.use_gpu", True) is not False
        return several and on_gpus and self._get(f"{LLM}.pretrained", True) is not False

    def _drrn(self) -> dict[str, Any]:
        """What trains where there is no language model: a gradient step for every four steps of each env."""
        return {
            "policy.id": "drrn",
            "algorithm.id": "drrn",
            "algorithm.args.steps_per_gradient": 4 * self._count("number_envs", TextConfig.num_envs),
            "world.num_steps": 4,
            "training.checkpoint_every": 200,  # its updates are short
        }

    def _glam(self, num_actions: int) -> dict[str, Any]:
        """What GLAM's own files mean."""
        values: dict[str, Any] = {}
        self._tell_of_processes()
        if self._get("epochs") is not None:
            values["algorithm.args.epochs"] = self._count("epochs", 4)
        if self._get("batch_size") is not None:  # which the original deals to its model processes
            values["algorithm.args.minibatch_size"] = self._count("batch_size", 64)
        if self._get(f"{LLM}.minibatch_size") is not None:
            rows = self._count(f"{LLM}.minibatch_size", 1)
            values["algorithm.args.micro_batch_size"] = max(1, rows // num_actions)
            self.notes.append(
                f"{LLM}.minibatch_size={rows} counts pairs of a prompt and one of its {num_actions} actions: "
                f"algorithm.args.micro_batch_size={values['algorithm.args.micro_batch_size']} counts prompts (memory "
                "and speed only)"
            )
        self.notes.append(
            "computed differently from the original code: actions are scored by their log-probabilities, as the "
            "paper says (policy.args.compat=glam: by the sum of raw logits), and each value learns from its own "
            "return, not from the batch's mean"
        )
        if beta := number(self._get("reward_shaping_beta", 0)):
            self.notes.append(
                f"{RL}.reward_shaping_beta={beta}: rewards are shaped by -{beta} (log π(a) - log π₀(a)), where π₀ is "
                "the policy as training begins"
            )
        return values

    def _tell_of_processes(self) -> None:
        count = self._count(PROCESSES, 1)
        if count < 2:
            return
        if self._is_spread():
            self.notes.append(
                f"{PROCESSES}={count}: torchrun --nproc-per-node {count} -m groundling train --glam-config {self.path} "
                "… spreads each process's model over its share of the machine's GPUs; one process computes the same"
            )
        else:
            self.notes.append(
                f"{PROCESSES}={count}: for as many processes, torchrun --nproc-per-node {count} -m groundling train "
                f"--glam-config {self.path} …; one process computes the same"
            )

    def _tell_what_differs_from_glam(self) -> None:
        if self._get("template_test") is not None and self._get("language") != "french":
            self.notes.append(
                f"{RL}.template_test: the actions' probabilities are logged in Groundling's fixed situations, "
                "not in the original's"
            )
        if not self._trains_drrn():
            self.notes.append(
                "prompts have the tokenizer's special tokens (T5's </s>), as in GLAM's first Lamorel; as in Lamorel "
                "since November 2023: model.add_special_tokens=false"
            )
        if str(self._get("name_environment", "")).startswith("BabyAI-Mixed"):
            self.notes.append(
                "computed differently from the original code: a task is drawn at each reset, not once for each env "
                "(world.args.draw_task=construction does that, and such a run cannot be resumed)"
            )

    def _lamorel(self) -> dict[str, Any]:
        """What the files of Lamorel's PPO examples mean: an epoch is an update there."""
        num_envs = self._count("number_envs", 1)
        steps = self._count("steps_per_epoch", 256)
        per_env = max(1, steps // max(1, num_envs))
        self.notes.append(
            "computed differently from Lamorel's example: advantages are normalised over all envs, values learn "
            "λ-returns, and the prompt is GLAM's with one observation"
        )
        return self._of_lamorels() | {
            "world.num_envs": num_envs,
            "world.history": 1,
            "world.num_steps": per_env,
            "training.steps": self._count("epochs", 100) * per_env * num_envs,
        }

    def _writer(self) -> dict[str, Any]:
        """What the file of Lamorel's PPO on tokens means, whose step is a token."""
        taken = {key: self.entries.get(key) for key in OF_WRITERS}
        longest = self._count("max_ep_len", WritingConfig.num_tokens)
        tokens, updates = self._count("steps_per_epoch", 256), self._count("epochs", 100)
        values = writer(taken[STRINGS], longest, tokens, updates) | self._of_lamorels()
        if penalty := real(f"{RL}.kl_coef", taken[f"{RL}.kl_coef"] or 0):
            values["algorithm.args.kl_coefficient"] = penalty
            self.notes.append(
                f"{RL}.kl_coef={penalty}: the penalty is part of the rewards here, not of the loss"
            )
        if taken[f"{RL}.skip_ratio_spikes"]:
            self.notes.append(
                f"{RL}.skip_ratio_spikes: no effect here (algorithm.args.target_kl=0.1, say, stops learning from a "
                "rollout once the policy has moved far from it)"
            )
        self.notes.append(
            "computed differently from Lamorel's example: advantages are normalised over all texts, values learn "
            "λ-returns, blanks at a text's ends do not count, a text that has said its string goes on to its end "
            "token or to world.num_tokens (which changes no reward), and an update has whole texts"
        )
        for key in OF_WRITERS:
            self.entries.pop(key, None)
        return values

    def _of_lamorels(self) -> dict[str, Any]:
        """What all of Lamorel's PPO files have in common beside the entries of `SAME`."""
        self._tell_of_processes()
        if self._get(f"{LLM}.minibatch_size") is not None:
            self.notes.append(f"{LLM}.minibatch_size: no effect here ({MEMORY})")
        values: dict[str, Any] = {
            "algorithm.args.normalize_advantages": True,
            "algorithm.args.adam_epsilon": 1e-8,
            "model.add_special_tokens": False,
        }
        self.notes.append(
            "prompts have no special tokens (T5's </s>, Llama's <s>), as in Lamorel since November 2023; as in older "
            "ones: model.add_special_tokens=true"
        )
        if self._get("minibatch_size") is not None:  # of each of its model processes
            whole = self._count("minibatch_size", 64) * self._count(PROCESSES, 1)
            values["algorithm.args.minibatch_size"] = whole
        return values
