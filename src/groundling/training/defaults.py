"""Settings for runs without an experiment, based on facts known before training; docs/defaults.md lists them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import floor, log10
from pathlib import Path
from typing import Any, Literal, NamedTuple

from groundling.algorithms.a2c import A2C
from groundling.algorithms.algorithm import algorithms
from groundling.algorithms.on_policy import ClippedOnPolicy
from groundling.config.compose import compose, recorded
from groundling.config.overrides import Change, Overrides
from groundling.config.schema import Config
from groundling.fields import OnlyWith, flat
from groundling.lm.load.model_files import Source
from groundling.lm.load.size import ModelSize, size_of
from groundling.policies.action_scoring import ActionTextPolicy
from groundling.policies.policy import has_model, policies
from groundling.registry import declarations, named_parameters
from groundling.training.build import world_of
from groundling.training.checkpoint import SETTINGS_FILE
from groundling.training.tracking import read_metrics
from groundling.worlds import kind

_UPDATES = 15  # Number of updates in short training runs
_TEXT_UPDATES, _FEWEST_TEXTS = 30, 16  # Number of updates in short text-generation runs; minimum texts per update
_A2C_UPDATES, _A2C_STEPS = 100, 5  # Number of updates in short training runs, and of steps between updates
_LONGEST = 128  # Maximum number of steps of a rollout of whole episodes
_LARGE = 20e6  # Models with at least this many parameters are protected from the value function's first gradients


@dataclass(frozen=True)
class Facts:
    """Facts about a run that are known before training."""

    size: ModelSize
    algorithm: str
    policy: str
    action: Literal["choice", "free_text", "token"]
    lora: bool = False
    rollout: int = 1280  # Steps or tokens between two updates
    rows: int = 32  # Envs or texts in a rollout
    steps: int = 76_800  # Steps or tokens in the whole run
    texts_per_prompt: int = 8  # In algorithms that compare texts
    episode_limit: int | None = None  # Steps after which an env ends an episode, if known

    @property
    def model(self) -> str:
        """A description of the trained weights."""
        millions = self.size.parameters / 1e6
        count = f"{millions:.3g} M" if millions < 1000 else f"{millions / 1000:.3g} B"
        if self.lora:
            return f"LoRA on {count} parameters"
        return f"all {count} parameters of {'a pretrained' if self.size.is_trained else 'an untrained'} model"


class Setting(NamedTuple):
    """A recommended value for a config key."""

    key: str
    value: Any
    reason: str


def recommended(facts: Facts) -> list[Setting]:
    """Return the settings for these facts, including those for algorithms and policies other than the chosen ones."""
    rules = (_optimisation, _policy, _values, _rollouts)
    return [setting for rule in rules for setting in rule(facts)]


def learning_rate(facts: Facts) -> float:
    """Return AdamW's learning rate, rounded to one digit; it decreases with the number of parameters."""
    millions = facts.size.parameters / 1e6
    if facts.lora:
        rate = min(max(2e-4 * (135 / millions) ** 0.25, 5e-5), 5e-4)
    elif facts.size.is_trained:
        rate = min(max(4e-4 / millions**0.8, 1e-6), 4e-4)
    else:  # updates make actions with many tokens deterministic more slowly
        rate = min(max((1e-3 if facts.action == "free_text" else 3e-4) / millions, 1e-6), 1e-3)
    digits = -floor(log10(rate))
    return round(rate, digits)


def _optimisation(facts: Facts) -> list[Setting]:
    algorithm = algorithms.get(facts.algorithm)
    if not _is(algorithm, ClippedOnPolicy, A2C):  # elsewhere, the learning rate may have a different meaning
        return []
    settings: dict[str, tuple[Any, str]] = {
        "learning_rate": (learning_rate(facts), facts.model),
        "learning_rate_schedule": ("linear", "the last updates should change little"),
        "normalize_advantages": (True, "the scale of the rewards is unknown"),
        "target_kl": (0.2, "one update must not replace the policy"),
        "epochs": (1, "each step uses new experience"),
        "entropy_coefficient": (0.01, "all actions have to be tried"),
        "minibatch_size": (64, "several optimizer steps per rollout"),
        "gae_lambda": (0.95, "the value function is new"),
    }
    if not facts.size.is_trained:
        settings["epochs"] = 4, "a new model has more to learn"
        settings["target_kl"] = 0.05, "the first updates must not make a new model deterministic"
        if facts.action == "choice":
            settings["entropy_coefficient"] = 0.1, "a new model first learns which action is best on average"
    if facts.action == "token":
        settings["entropy_coefficient"] = 0.001, "texts have many tokens"
        settings["minibatch_size"] = (
            max(256, _texts(facts) * facts.rollout // facts.rows // 4),
            "tokens of a text are correlated",
        )
        settings["gae_lambda"] = settings["gamma"] = 1.0, "a text has one reward"
    if algorithm is A2C:
        settings["warmup"] = 0.1, "RMSprop's first steps are ten times as long"
    return [Setting(f"algorithm.args.{name}", *value) for name, value in settings.items()]


def _policy(facts: Facts) -> list[Setting]:
    settings, is_text = list[Setting](), facts.action == "token"
    if facts.size.is_trained and facts.action == "choice" and _is(policies.get(facts.policy), ActionTextPolicy):
        settings.append(Setting("policy.args.temperature", 2.0, "a pretrained model prefers some actions"))
    if getattr(algorithms.get(facts.algorithm), "needs_values", True):
        if not is_text:
            settings.append(Setting("policy.args.value_hidden_sizes", [128], "a small head learns from few episodes"))
        elif facts.lora:
            settings.append(Setting("policy.args.value", "lora", "the value function shares the frozen weights"))
    return settings


def _values(facts: Facts) -> list[Setting]:
    """Fit the value head separately if its first gradients would damage a trained model."""
    if not facts.size.is_trained or (facts.size.parameters < _LARGE and facts.action != "free_text"):
        return []
    fit = {"detach_values": True, "value_epochs": 8, "value_rollouts": 3, "value_warmup": 1}
    reason = "the first value gradients would damage the model"
    return [Setting(f"algorithm.args.{name}", value, reason) for name, value in fit.items()]


def _rollouts(facts: Facts) -> list[Setting]:
    """Group episodes by their start for algorithms that compare them, and let A2C update often."""
    is_text, algorithm = facts.action == "token", algorithms.get(facts.algorithm)
    if algorithm is A2C:
        reason = "a2c takes one optimizer step per rollout"
        if is_text:
            return [Setting("world.num_texts", _FEWEST_TEXTS, reason)]
        rows = min(facts.rows, max(4, facts.steps // (_A2C_UPDATES * _A2C_STEPS)))
        more = f"at least about {_A2C_UPDATES} updates"
        return [Setting("world.num_steps", _A2C_STEPS, reason), Setting("world.num_envs", rows, more)]
    if getattr(algorithm, "offline", False):
        return []
    if not getattr(algorithm, "compares_episodes", False):
        length = min(max(facts.steps // (_UPDATES * facts.rows), 8), 40)
        return [
            _num_texts(facts) if is_text else Setting("world.num_steps", length, f"at least about {_UPDATES} updates")
        ]
    reason = f"{facts.algorithm} compares {'texts for the same prompt' if is_text else 'episodes with the same start'}"
    if is_text:
        return [_num_texts(facts), Setting("world.texts_per_prompt", 8, reason)]
    length = min(facts.episode_limit or _LONGEST, _LONGEST)
    whole = "no episode has more steps" if length == facts.episode_limit else "longer episodes are cut off"
    size = next((n for n in range(8, 1, -1) if facts.rows % n == 0), 8)
    return [Setting("world.group_size", size, reason), Setting("world.num_steps", length, whole)]


def _texts(facts: Facts) -> int:
    """Return the number of texts per rollout, which is a multiple of the number of texts per prompt."""
    group, wanted = facts.texts_per_prompt, facts.steps * facts.rows // (_TEXT_UPDATES * facts.rollout)
    return min(facts.rows, max(-(-_FEWEST_TEXTS // group), wanted // group) * group)


def _num_texts(facts: Facts) -> Setting:
    return Setting("world.num_texts", _texts(facts), f"at least about {_TEXT_UPDATES} updates")


def _is(component: Any, *types: type) -> bool:
    """Return True if a component is a subclass of one of the types; it may be a function, whose type is unknown."""
    return isinstance(component, type) and issubclass(component, types)


def facts_of(config: Config) -> Facts:
    """Read the facts from a config; raise `GroundlingError` if its model is missing."""
    model = config.model
    size = size_of(Source(model.path, model.revision, model.trust_remote_code))
    if model.init != "pretrained":
        size = ModelSize(size.parameters, is_trained=False)
    settings, learner, world = config.world, algorithms.get(config.algorithm.id), world_of(config)
    return Facts(
        size,
        config.algorithm.id,
        config.policy.id,
        world.spec.action,
        bool(model.lora) or size.has_adapter,
        settings.num_rows * settings.steps_per_row,
        settings.num_rows,
        config.training.steps,
        group if (group := getattr(settings, "texts_per_prompt", 1)) > 1 else Facts.texts_per_prompt,
        world.longest_episode if getattr(learner, "compares_episodes", False) else None,
    )


def compose_fitted(
    experiment: str,
    overrides: Overrides,
    config_dir: Path | None = None,
    changes: Sequence[Change] = (),
    *,
    checked: bool = True,
) -> Config:
    """Compose an experiment that leaves its settings open (`is_open`), with a policy for the world's actions, and add
    the recommended settings.

    Args:
        experiment, config_dir, checked: See `groundling.config.compose.compose`.
        overrides: The user's overrides, which take precedence.
        changes: Changes to the experiment, such as its world and model, that affect the recommended settings.
    """
    world = compose(experiment, [*changes, *overrides], config_dir, checked=False).world
    if policy := kind(world.id).policy_for(getattr(world, world.PLACE), getattr(world, "args", {})):
        changes = [Change("policy.id", policy), *changes]
    config = compose(experiment, [*changes, *overrides], config_dir, checked=checked)
    if not has_model(config.policy.id):
        return config
    settings = applicable(recommended(facts_of(config)), config)
    if policy:
        settings.insert(0, Setting("policy.id", policy, "the env lists no actions, so actions are free text"))
    settings = _kept(settings, config)
    fitted = [Change(one.key, one.value) for one in settings]
    config = compose(experiment, [*changes, *fitted, *overrides], config_dir, checked=checked)
    config.chosen = [f"{one.key}={one.value}: {one.reason}" for one in settings]
    config.chosen = in_force(config)
    return config


def _kept(settings: list[Setting], config: Config) -> list[Setting]:
    """Return the settings with which the folder's run started (it may now be longer), or ``settings`` without a run."""
    path = Path(config.run_dir) / SETTINGS_FILE
    if not path.exists() or not read_metrics(path.parent):
        return settings
    there = recorded(path)
    values, keys = flat(there), {line.partition("=")[0] for line in there["chosen"]}
    # The folder may be untrusted, so its record selects only among the keys that are chosen here.
    return [Setting(one.key, values[one.key], one.reason) for one in settings if one.key in keys & values.keys()]


def in_force(config: Config) -> list[str]:
    """Return the lines of ``chosen`` whose values no override has changed."""
    values, keys = flat(config.model_dump()), [line.partition("=")[0] for line in config.chosen]
    return [one for key, one in zip(keys, config.chosen, strict=True) if one.startswith(f"{key}={values.get(key)}: ")]


def applicable(settings: Sequence[Setting], config: Config) -> list[Setting]:
    """Drop arguments that ``config`` already sets, or that its policy or algorithm does not have or would not use."""
    left = {one.key: one for one in settings}
    for section, registry in (("policy", policies), ("algorithm", algorithms)):
        component, prefix = getattr(config, section), f"{section}.args."
        factory = registry.get(component.id)
        known, facts = named_parameters(factory), declarations(factory)
        args = {key.removeprefix(prefix): one.value for key, one in left.items() if key.startswith(prefix)}
        args |= component.args
        for name in [key.removeprefix(prefix) for key in left if key.startswith(prefix)]:
            if name in component.args or name not in known or not _is_used(name, facts[name], args, known):
                del left[prefix + name]
    return list(left.values())


def _is_used(name: str, facts: Sequence[Any], args: Mapping[str, Any], known: Mapping[str, Any]) -> bool:
    """Return True unless an argument needs another one (`OnlyWith`) that has a different value."""
    for fact in facts:
        if isinstance(fact, OnlyWith):
            other = args.get(fact.name, known[fact.name].default)
            if not (other in fact.values if fact.values else other):
                return False
    return True
