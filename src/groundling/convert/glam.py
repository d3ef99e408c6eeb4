"""Convert GLAM's and Lamorel's Hydra files (``lamorel_args``, ``rl_script_args``) to `Config` values and notes.

These files configure GLAM's PPO, its DRRN agent, or Lamorel's PPO examples at the action or token level.
"""

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from groundling.convert.entries import Entries, read_table
from groundling.envs.babyai_text import ACTIONS, translate_actions
from groundling.errors import ConfigError
from groundling.worlds.text.config import TextConfig
from groundling.worlds.writing.config import WritingConfig

Values = dict[str, Any]
FORMAT, TABLE = read_table("glam")
OPEN = "???"  # Value of an entry that must be set on the command line
LLM, RL = "lamorel_args.llm_args", "rl_script_args"
PROCESSES = "lamorel_args.distributed_setup_args.n_llm_processes"
STRINGS = f"{RL}.strings"  # Texts to generate; files with this entry configure token-level PPO, without an env
_REWARD_SCALE = 20  # Factor by which the original code multiplies the env's reward


def read(path: Path, tree: Mapping[str, Any], words: Sequence[str]) -> tuple[Values, list[str]]:
    """Return a file's values by config key, and notes on entries with no effect or a different meaning here."""
    sections = {key: value for key, value in tree.items() if key != "defaults"}
    reader = _GLAMReader(Entries(path, FORMAT, sections, words))
    reader.note_defaults(tree.get("defaults"))
    reader.refuse_tests()
    reader.remove_entries_of_other_agents()
    reader.check_open()
    values = reader.values()
    reader.entries.note_ignored()
    return values, reader.entries.notes


class _GLAMReader:
    """Converts the entries of one file."""

    def __init__(self, entries: Entries) -> None:
        self.entries, self.notes = entries, entries.notes
        # Without a language model, the original script trains DRRN.
        self.is_drrn = self._get(PROCESSES, 1) == 0
        # Lamorel's token-level PPO.
        self.is_writer = self._get(STRINGS) is not None
        # Lamorel's epochs are updates; GLAM's are passes over a rollout.
        names = ("ppo_epochs", "steps_per_epoch", "strings")
        self.is_lamorel = any(self._get(f"{RL}.{name}") is not None for name in names)

    def _get(self, key: str, default: Any = None) -> Any:
        return self.entries.get(key, default)

    def _is_on(self, name: str) -> bool:
        return bool(self._get(f"{RL}.{name}"))

    def note_defaults(self, defaults: Any) -> None:
        """Add a note if Hydra's defaults list contains other files, which are not read."""
        named = map(str, defaults if isinstance(defaults, list) else [defaults])
        own = ("_self_", "None", "override hydra")
        others = [one for one in named if not one.lstrip("{'").startswith(own)]
        if others:
            self.notes.append(f"defaults: other files are not read ({', '.join(others)})")

    def refuse_tests(self) -> None:
        """Raise `ConfigError` for a pickled checkpoint, and for files that configure the original test script."""
        if self._get(f"{RL}.loading_path"):
            raise ConfigError(
                f"{RL}.loading_path is a pickled checkpoint, which Groundling never loads: save the model with "
                f"save_pretrained and set {LLM}.model_path to that folder, and {RL}.loading_path=null"
            )
        script = Path(str(self._get(f"{RL}.path", ""))).stem
        is_test = bool({"test", "tests"} & set(re.split("[-_]", script)))
        switches = [name for name in TABLE["tests"] if self._get(f"{RL}.{name}") is True]
        if is_test:
            switches = switches or ["zero_shot"]
        elif "train" in script:
            return  # the original training script ignores these switches
        else:
            given = self.entries.overridden
            switches = [name for name in switches if name not in TABLE["shipped_on"] or f"{RL}.{name}" in given]
        if switches:
            why = f"path={self._get(f'{RL}.path')}" if is_test else f"{switches[0]}=true"
            command = TABLE["tests"][switches[0]]
            raise ConfigError(
                f"{RL}.{why} selects the original's tests instead of training: run {command}; to train, set "
                f"{RL}.path=train_language_agent.py"
            )

    def remove_entries_of_other_agents(self) -> None:
        """Remove entries that the agent does not use; raise `ConfigError` if DRRN would need a language model."""
        if self.is_drrn:
            if self.is_lamorel:
                raise ConfigError(f"{PROCESSES}=0 leaves Lamorel's example without its language model: set it to 1")
            if self._get(f"{RL}.reward_shaping_beta"):
                raise ConfigError(
                    f"{RL}.reward_shaping_beta shapes rewards with a language model's probabilities, but "
                    f"{PROCESSES}=0 trains DRRN, which has no language model: set it to 0"
                )
            keys = self.entries.remove(TABLE["not_drrn"])
            self.notes.append(
                f"{PROCESSES}=0 trains the original's DRRN agent, which has its own settings and does not use "
                f"{', '.join(keys)}"
            )
        if self.is_writer and (keys := self.entries.remove(TABLE["not_writer"])):
            self.notes.append(f"{', '.join(keys)}: no effect here ({STRINGS} selects token-level PPO without an env)")

    def check_open(self) -> None:
        """Raise `ConfigError` if a required entry has no value (``???``)."""
        open_keys = [key for key, value in self.entries.values.items() if value == OPEN]
        needed = [f"{key}=…" for key in open_keys if key not in FORMAT.ignored]
        if needed:
            raise ConfigError(f"{self.entries.path} has required entries without a value: set {' '.join(needed)}")
        self.entries.remove(open_keys)

    def values(self) -> Values:
        values: Values = {"world.id": "text", "policy.id": "action_scoring", "algorithm.id": "ppo"}
        if not self.is_writer:
            values["reward.env.args.scale"] = _REWARD_SCALE
        values |= self.entries.same()
        if "algorithm.args.clip_range" in values:
            values["algorithm.args.value_clip_range"] = values["algorithm.args.clip_range"]
        values |= self._names() | (model := self._model())
        if self._get(f"{RL}.action_space") is not None:
            values["world.actions"] = self._actions()
        if self._get(f"{RL}.language") == "french" and values.pop("world.probes", None) is not None:
            self.notes.append(f"{RL}.template_test: ignored, since the fixed situations exist only in English")
        if self._get(f"{RL}.value_loss_coef") is not None:
            # The original's coefficient applies to the whole squared error, Groundling's to half of it.
            values["algorithm.args.value_coefficient"] = 2 * self.entries.real(f"{RL}.value_loss_coef", 0.5)
        if self.is_drrn:
            values |= self._drrn()
        elif self.is_writer:
            values |= _lamorel_writer(self.entries)
        elif self.is_lamorel:
            values |= _lamorel_ppo(self.entries)
        else:
            values |= self._glam_ppo(len(values.get("world.actions", ACTIONS["english"])))
        if not self.is_drrn:
            self._note_processes(is_spread="model.device_map" in model)
        if not self.is_lamorel:
            self._note_differences_from_glam()
        if values["world.id"] == "text" and "world.env" not in values:
            reasons = {FORMAT.ignored.get(key) for key in self.entries.values}
            because = "".join(f" ({reason})" for reason in TABLE["without_env"] if reason in reasons)
            raise ConfigError(
                f"{self.entries.path} specifies no env{because}: set {RL}.name_environment=BabyAI-MixedTrainLocal-v0, "
                "or another env from `groundling list envs`"
            )
        micro, minibatch = (values.get(f"algorithm.args.{key}_size") for key in ("micro_batch", "minibatch"))
        if isinstance(micro, int) and isinstance(minibatch, int):  # otherwise the algorithm rejects them
            values["algorithm.args.micro_batch_size"] = min(micro, minibatch)
        return values

    def _actions(self) -> list[str]:
        """Return the action names, translated into French if the language is French but they are in English."""
        actions = self._get(f"{RL}.action_space")
        if not isinstance(actions, list):
            raise ConfigError(f"{RL}.action_space must be a list, such as [turn_left,go_forward]")
        names = [str(action).replace("_", " ") for action in actions]
        if self._get(f"{RL}.language") == "french" and set(names) & set(ACTIONS["english"]):
            return translate_actions(names, "french")
        return names

    def _names(self) -> Values:
        given = [self.entries.values.get(f"{RL}.{key}") for key in ("name_experiment", "name_model")]
        parts = [str(name) for name in given if name]
        if parts:
            parts += self._identity()
        values = {"name": "-".join(parts) or self.entries.path.stem}
        if (logs := self.entries.values.get(f"{RL}.saving_path_logs")) is not None:
            values["run_dir"] = f"{logs}/${{name}}-seed${{seed}}"
        return values

    def _identity(self) -> list[str]:
        """Return the parts of the original's folder name between names and seed; some defaults are omitted."""
        parts = []
        if (num_envs := self._get(f"{RL}.number_envs")) is not None:
            parts.append(f"nbr_env_{num_envs}")
        pretrained = self._get(f"{LLM}.pretrained", True)
        parts.append("n_llm_processes_0" if self.is_drrn else f"pretrained_{pretrained}")
        if not pretrained:
            parts.append(f"load_embedding_{self._get(f'{RL}.load_embedding', False)}")
        if self._is_on("use_action_heads"):
            parts.append("use_action_heads_True")
        if (history := self._get(f"{RL}.nbr_obs", 3)) != 3:
            parts.append(f"nbr_obs_{history}")
        if isinstance(actions := self._get(f"{RL}.action_space"), list):
            parts.append("_".join([f"nbr_actions_{len(actions)}", *map(str, actions)]))
        return [*parts, f"shape_reward_beta_{self._get(f'{RL}.reward_shaping_beta', 0)}"]

    def _model(self) -> Values:
        values: Values = {}
        pretrained = self._get(f"{LLM}.pretrained", True) is not False
        if not pretrained:
            values["model.init"] = "embeddings" if self._is_on("load_embedding") else "random"
        elif self._is_on("load_embedding"):
            self.entries.note_unused(f"{RL}.load_embedding", "nor in the original: pretrained=true loads all weights")
        if self._is_on("use_action_heads"):
            values["policy.id"] = "action_head"
        lora = {
            ours: self.entries.count(f"{RL}.{name}", 0, least=0)
            for name, ours in (("lora_r", "r"), ("lora_alpha", "lora_alpha"))
            if self._get(f"{RL}.{name}") is not None
        }
        if self._is_on("use_lora"):
            values["model.lora"] = lora or {"r": 8}
        elif lora:
            self.notes.append(f"{RL}.lora_r, {RL}.lora_alpha: no effect, since use_lora is off")
        if self._get(f"{LLM}.load_in_4bit"):
            values["model.load_in_4bit"] = True
        on_cpu = self._get(f"{LLM}.parallelism.use_gpu", True) is False
        if on_cpu:
            values["device"] = "cpu"
        if self.entries.count(f"{LLM}.parallelism.model_parallelism_size", 1, least=0) > 1:
            if on_cpu:
                why = "no effect, since use_gpu is off"
            elif not pretrained:
                why = f"ignored, since {LLM}.pretrained=false creates new weights on a single device"
            else:
                values["model.device_map"] = "auto"
                return values
            self.notes.append(f"{LLM}.parallelism.model_parallelism_size: {why}")
        return values

    def _drrn(self) -> Values:
        """Return the values for the original's DRRN, which takes a gradient step every four steps of each env."""
        num_envs = self.entries.count(f"{RL}.number_envs", TextConfig.defaults()["num_envs"], least=0)
        return {
            "policy.id": "drrn",
            "algorithm.id": "drrn",
            "algorithm.args.steps_per_gradient": 4 * num_envs,
            "world.num_steps": 4,
            "training.checkpoint_every": 200,  # its updates are short
        }

    def _glam_ppo(self, num_actions: int) -> Values:
        values: Values = {}
        for name, ours in (("epochs", "epochs"), ("batch_size", "minibatch_size")):
            if self._get(f"{RL}.{name}") is not None:
                values[f"algorithm.args.{ours}"] = self.entries.count(f"{RL}.{name}", least=0)
        if self._get(f"{LLM}.minibatch_size") is not None:
            rows = self.entries.count(f"{LLM}.minibatch_size", least=0)
            values["algorithm.args.micro_batch_size"] = max(1, rows // num_actions)
            self.notes.append(
                f"{LLM}.minibatch_size={rows} counts pairs of a prompt and one of its {num_actions} actions: "
                f"algorithm.args.micro_batch_size={values['algorithm.args.micro_batch_size']} counts prompts (this "
                "affects only memory and speed)"
            )
        self.notes.append(
            "computed differently from the original code: actions are scored by their log-probabilities, as in the "
            "paper (policy.args.compat=glam sums raw logits instead), and each value is fitted to its own "
            "return, not to the batch's mean"
        )
        if beta := self._get(f"{RL}.reward_shaping_beta", 0):
            self.notes.append(
                f"{RL}.reward_shaping_beta={beta}: rewards are shaped by -{beta} (log π(a) - log π₀(a)), where π₀ is "
                "the policy before training"
            )
        return values

    def _note_processes(self, is_spread: bool) -> None:
        count = self.entries.count(PROCESSES, 1, least=0)
        if count < 2:
            return
        command = f"torchrun --nproc-per-node {count} -m groundling train EXPERIMENT"
        if is_spread:
            self.notes.append(
                f"{PROCESSES}={count}: {command} spreads each process's model over its share of the machine's GPUs; "
                "one process produces the same results"
            )
        else:
            self.notes.append(
                f"{PROCESSES}={count}: to use that many processes, run {command}; one process produces the same results"
            )

    def _note_differences_from_glam(self) -> None:
        if self._get(f"{RL}.template_test") is not None and self._get(f"{RL}.language") != "french":
            self.notes.append(
                f"{RL}.template_test: action probabilities are logged for Groundling's fixed situations, "
                "not for the original's"
            )
        if not self.is_drrn:
            self.notes.append(
                "prompts contain the tokenizer's special tokens (T5's </s>), as in the Lamorel version that GLAM "
                "first used; to match Lamorel since November 2023, set model.add_special_tokens=false"
            )
        if str(self._get(f"{RL}.name_environment", "")).startswith("BabyAI-Mixed"):
            self.notes.append(
                "computed differently from the original code: a task is sampled at each reset, not once per env "
                "(world.args.draw_task=construction samples it once, but such a run cannot be resumed)"
            )


def _lamorel_ppo(entries: Entries) -> Values:
    """Return the values for Lamorel's PPO examples, in which an epoch is an update."""
    num_envs = entries.count(f"{RL}.number_envs", 1, least=0)
    per_env = max(1, entries.count(f"{RL}.steps_per_epoch", 256, least=0) // max(1, num_envs))
    entries.notes.append(
        "computed differently from Lamorel's example: advantages are normalised over all envs, values are "
        "fitted to λ-returns, and the prompt is GLAM's with one observation"
    )
    return _lamorel_common(entries) | {
        "world.num_envs": num_envs,
        "world.history": 1,
        "world.num_steps": per_env,
        "training.steps": entries.count(f"{RL}.epochs", 100, least=0) * per_env * num_envs,
    }


def _lamorel_writer(entries: Entries) -> Values:
    """Return the values for Lamorel's token-level PPO, in which the model learns to repeat the text in its prompt."""
    texts = entries.get(STRINGS)
    if not isinstance(texts, list) or not texts or not all(isinstance(t, str) and t.strip() for t in texts):
        raise ConfigError(f"{STRINGS} must be a list of strings, as in [turn left], got {texts!r:.80}")
    longest = entries.count(f"{RL}.max_ep_len", WritingConfig.defaults()["num_tokens"], least=0)
    if longest < 1:
        raise ConfigError(f"{RL}.max_ep_len={longest} leaves no tokens to generate: use at least 1")
    tokens = entries.count(f"{RL}.steps_per_epoch", 256, least=0)
    values = {
        "world.id": "writing",
        "world.pool": "listed",
        "world.args.samples": [{"text": text} for text in texts],
        "world.args.prompt_column": "text",
        "world.args.reference_column": "text",
        "world.args.prompt_prefix": "Say ",
        "world.args.prompt_suffix": "\nYour turn:",
        "world.num_texts": math.ceil(tokens / longest),
        "world.num_tokens": longest,
        "reward.says_reference": {},
        "policy.id": "token",
        # A value head with two hidden layers on the policy's own hidden states.
        "policy.args.value": "shared",
        "policy.args.value_hidden_sizes": [1024, 1024],
        "policy.args.value_bias": True,
        "training.steps": entries.count(f"{RL}.epochs", 100, least=0) * tokens,
        "evaluation.episodes": len(texts),
        "evaluation.baselines": ["zero-shot"],
        "evaluation.metrics": [{"id": "says_reference", "args": {}}],
    } | _lamorel_common(entries)
    if penalty := entries.real(f"{RL}.kl_coef", 0):
        values["algorithm.args.kl_coefficient"] = penalty
        entries.notes.append(f"{RL}.kl_coef={penalty}: the penalty is part of the rewards here, not of the loss")
    if entries.get(f"{RL}.skip_ratio_spikes"):
        entries.notes.append(
            f"{RL}.skip_ratio_spikes: no effect here (algorithm.args.target_kl=0.1, for example, stops learning "
            "from a rollout once the policy has moved too far from it)"
        )
    entries.notes.append(
        "computed differently from Lamorel's example: advantages are normalised over all texts, values are "
        "fitted to λ-returns, leading and trailing spaces are ignored, texts that already contain their string go on "
        "until the end token or world.num_tokens (which does not change rewards), and updates consist of whole texts"
    )
    entries.remove([f"{RL}.{name}" for name in ("max_ep_len", "kl_coef", "skip_ratio_spikes")])
    return values


def _lamorel_common(entries: Entries) -> Values:
    entries.note_unused(f"{LLM}.minibatch_size", "algorithm.args.micro_batch_size limits memory here")
    values: Values = {
        "algorithm.args.normalize_advantages": True,
        "algorithm.args.adam_epsilon": 1e-8,
        "model.add_special_tokens": False,
    }
    entries.notes.append(
        "prompts contain no special tokens (T5's </s>, Llama's <s>), as in Lamorel since November 2023; to "
        "match older versions, set model.add_special_tokens=true"
    )
    if entries.get(f"{RL}.minibatch_size") is not None:  # a size per model process
        processes = entries.count(PROCESSES, 1, least=0)
        size = entries.count(f"{RL}.minibatch_size", least=0)
        values["algorithm.args.minibatch_size"] = size * processes
    return values
