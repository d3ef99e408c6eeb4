"""The last step to a `Config`: what only the command line can say, values, components, and what is set in vain."""

import inspect
import re
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from omegaconf import DictConfig, OmegaConf

from groundling.algorithms.algorithm import algorithms
from groundling.arguments import check_bounds
from groundling.config.keys import schema_of, types_of
from groundling.config.schema import Config
from groundling.config.trust import EVERYTHING, TRAINING_ALONE, admit, check_plain
from groundling.config.types import check_values
from groundling.config.used import check_used
from groundling.errors import ConfigError, UnknownEnv, UnusedKey
from groundling.io.documents import DocumentError, check_expansion, check_numbers
from groundling.policies.policy import policies
from groundling.registry import ComponentConfig, check_component, import_words, unknown
from groundling.rewards import parts
from groundling.rewards.part import RewardPartConfig, check_name
from groundling.worlds import kind
from groundling.worlds.config import WorldConfig

_LANGUAGE_MODELS = ("lm", "reference", "value_base")
"""Arguments of a policy that its run makes from the config's model."""


def check(settled: DictConfig, where: str, said: Mapping[str, Any], unused: Sequence[str] = ()) -> Config:
    """The config, as far as `admit` lets it, once it can be run.

    Args:
        settled: Over the schema of its kind of world, not resolved; all changes are made.
        where: Who else than the command line gives settings, for messages.
        said: The `leaves` that the command line gives.
        unused: What the caller makes nothing of, as in `admit`.

    Raises:
        ConfigError: what cannot be run, with the key or the component that it is about.
        OmegaConfBaseException: a value is missing, or an interpolation names nothing or what is of another type.
    """
    values: Any = OmegaConf.to_container(settled, resolve=True)
    check_plain(values, where)  # interpolations may have put a resolver together
    check_expansion(values, where)
    try:
        check_numbers(values)
    except DocumentError as error:  # but the values are of several files and the command line
        raise ConfigError(str(error)) from error
    admitted, world = admit(values, said, where, unused), settled.world.id
    for key, hint in types_of(world).items():
        check_values(key, admitted[key], hint)  # what interpolations have put there
    # To merge takes twenty milliseconds.
    typed = settled if admitted == values else OmegaConf.merge(schema_of(world), admitted)
    config = OmegaConf.to_object(typed)
    assert isinstance(config, Config)
    if unused == TRAINING_ALONE:
        config.world = config.world.in_play()
    for section in ("", "world", "model", "cloning", "training", "evaluation"):
        check_bounds(getattr(config, section) if section else config, f"{section}." if section else "")
    _check_identity(config.name, config.seed, config.run_dir)
    for name in ("wandb", "trackio"):
        project = getattr(config.training, name)
        if project is not None and not project.strip():
            raise ConfigError(
                f"training.{name} must be a project's name, got an empty one: to do without, set training.{name}=null"
            )
    looked_at = unused == EVERYTHING
    with naming_modules(config.imports, where):
        # Recorded results are shown without the modules that the run was made with.
        if not (looked_at and _missing(config.imports)):
            _check_policy(config.policy)
            check_component(algorithms, config.algorithm, "algorithm")
        _check_reward(config.reward, played_alone=bool(unused), said=said)
        _check_world(config.world, unneeded=any(re.match(one, "world.env") for one in unused))
        config.evaluation.check()
        _check_baselines(config)
        if not (looked_at and _missing(config.imports)):
            check_used(config)
    return config


@contextmanager
def naming_modules(imports: Sequence[str], where: object) -> Iterator[None]:
    """Add to a `ConfigError` what to import, where a config was made with modules that are not imported.

    Args:
        imports: The config's.
        where: Its file or run.
    """
    try:
        yield
    except UnusedKey:
        raise
    except ConfigError as error:
        missing = _missing(imports)
        words = " ".join(import_words(missing))
        if not missing or words in str(error):
            raise
        raise (UnknownEnv if isinstance(error, UnknownEnv) else ConfigError)(
            f"{error}; {where} was made with modules of its author's: if you have them and trust them, add {words} (in "
            "Python, import them first)"
        ) from error


def _missing(imports: Sequence[str]) -> list[str]:
    """The modules that are not imported; none if one is no module's name, which no message repeats."""
    missing = [module for module in imports if module not in sys.modules]
    return missing if all(re.fullmatch(r"[\w.]+", module) for module in missing) else []


def _check_identity(name: str, seed: int, run_dir: str) -> None:
    if seed >= 2**31:
        raise ConfigError(f"seed must be less than 2**31, got {seed}")
    if not name.strip() or not name.isprintable():
        raise ConfigError(f"name must be a line of printable characters, got {name!r}")
    if not run_dir.strip() or not run_dir.isprintable():  # it gets into job files, line by line
        raise ConfigError(f"run_dir must be one line of printable characters, got {run_dir!r}")


def _check_policy(policy: ComponentConfig) -> None:
    """Check the policy's id, and its arguments' names and types, before anything is built."""
    for name in _LANGUAGE_MODELS:
        if name in policy.args:
            raise ConfigError(f"policy.args.{name} cannot be set: the language model is the one that model.path names")
    check_component(policies, policy, "policy", filled_in=("lm", "num_actions"), withheld=_LANGUAGE_MODELS)


def _check_world(world: WorldConfig, unneeded: bool) -> None:
    """Check the world's settings; a run that is only looked at, or only acts, may be of an env that is not here."""
    try:
        world.check()
    except UnknownEnv:
        if not unneeded:
            raise


def _check_reward(reward: dict[str, RewardPartConfig | None], played_alone: bool, said: Collection[str]) -> None:
    """Check the parts of what is learnt from, and make those that say by themselves whether they can be run.

    Args:
        reward: By name; of an agent that is only played, those that are not here become null, for it needs none.
        played_alone: Whether it is.
        said: The keys that the command line gives: what it names must be here.
    """
    for name, part in list(reward.items()):
        check_name(name)
        if part is None:
            continue
        component = ComponentConfig(part.id or name, part.args)
        is_said = any(key.startswith(f"reward.{name}.") for key in said)
        if played_alone and component.id not in parts and not is_said:
            reward[name] = None
            continue
        check_component(parts, component, f"reward.{name}", filled_in=("lm",))
        factory = parts.get(component.id)
        if inspect.isclass(factory):
            try:
                factory(**component.args)
            except ConfigError as error:
                raise ConfigError(f"reward.{name}.args: {error}") from error


def _check_baselines(config: Config) -> None:
    id, baselines = config.world.id, config.evaluation.baselines
    clone = () if config.cloning.episodes is None else ("clone",)
    known = (*clone, "zero-shot", *kind(id).baselines)
    for name in baselines:
        if name not in known:
            raise ConfigError(unknown(f"baseline of a {id} world (evaluation.baselines)", name, known))
    if twice := [name for name in known if baselines.count(name) > 1]:
        raise ConfigError(f"evaluation.baselines names {twice[0]} twice: name each once")
