"""From an experiment's name and overrides to a checked `Config`.

Whatever comes in, by whichever function, leaves by `_checked`, and so through `groundling.configs.trust`.
"""

import copy
import functools
import inspect
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, is_dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import gymnasium
import hydra
from hydra._internal.core_plugins.file_config_source import FileConfigSource
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.core.plugins import Plugins
from hydra.errors import HydraException
from hydra.plugins.config_source import ConfigResult
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from groundling.algorithms.algorithm import algorithms
from groundling.arguments import check_types
from groundling.configs import trust
from groundling.configs.kinds import check_used
from groundling.configs.parts import PART_ARGS, add_part, take_part_out
from groundling.configs.renamed import check_renamed
from groundling.configs.schema import BASELINES, ComponentConfig, Config, EnvConfig, RewardPartConfig
from groundling.errors import ConfigError, UnusedKey
from groundling.policies.policy import policies
from groundling.registry import Registry, unknown
from groundling.rewards import measures, parts
from groundling.rewards.part import check_name

ConfigStore.instance().store(name="schema", node=Config)


class _UsersFiles(FileConfigSource):
    """A folder of ``--config-dir``: Hydra's own source of files, but for what no file may hold."""

    @staticmethod
    def scheme() -> str:
        return "users"

    def load_config(self, config_path: str) -> ConfigResult:
        loaded = super().load_config(config_path)
        where = f"{Path(self.path) / self._normalize_file_name(config_path)}"
        values = OmegaConf.to_container(loaded.config, resolve=False)
        trust.check_plain(values, where)
        check_renamed(values, where)
        return loaded


def experiments() -> dict[str, str]:
    """The bundled experiments by name, each with the first line of its header."""
    root = resources.files("groundling.configs") / "experiment"
    with resources.as_file(root) as folder:
        return {
            path.relative_to(folder).with_suffix("").as_posix(): headline(path)
            for path in sorted(folder.rglob("*.yaml"))
        }


def compose(experiment: str, overrides: Sequence[str] = (), config_dir: Path | None = None) -> Config:
    """Compose an experiment with overrides such as ``env.num_envs=16``.

    Args:
        experiment: A bundled experiment, or one of ``config_dir/experiment/``.
        overrides: In Hydra's syntax (https://hydra.cc/docs/advanced/override_grammar/basic/): ``key=value`` sets,
            a dict is merged into what is there, ``~key`` takes a free argument out again or empties a dict.
        config_dir: A folder of the user's own YAML files, searched beside the bundled ones.

    Raises:
        ConfigError: no such experiment, key or id, a value of the wrong type, or one that `trust` refuses.
    """
    known = set(experiments())
    if config_dir is not None:
        own = config_dir / "experiment"
        known |= {p.relative_to(own).with_suffix("").as_posix() for p in own.rglob("*.yaml")}
    if experiment not in known:
        raise ConfigError(unknown("experiment", experiment, known))
    changes = _parse(overrides)
    try:
        if config_dir is None:
            composed = copy.deepcopy(_bundled(experiment))  # it is changed in place
        else:
            Plugins.instance().register(_UsersFiles)
            # A file could have Hydra copy variables of the environment into its own part of a config.
            search = [f"hydra.searchpath=[users://{config_dir.resolve()}]", "hydra.job.env_copy=[]"]
            composed = _composed(experiment, *search)
        return _checked(_changed(composed, changes), f"the experiment {experiment}", _said(changes))
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(_one_line(error)) from error


def _composed(experiment: str, *words: str) -> DictConfig:
    try:
        with hydra.initialize_config_module("groundling.configs", version_base="1.3"):
            return hydra.compose("config", [f"experiment={experiment}", *words])
    finally:
        GlobalHydra.instance().clear()


# Hydra takes a tenth of a second, and a study composes the same experiment for every seed.
_bundled = functools.cache(_composed)


def sweep(overrides: Sequence[str]) -> list[list[str]]:
    """Spread overrides such as ``seed=1,2,3`` or ``seed=range(1,4)`` into one list for each run.

    Raises:
        ConfigError: no such key, or an override that Hydra's grammar does not know.
    """
    runs: list[list[str]] = [[]]
    for text, override in zip(overrides, _parse(overrides), strict=True):
        values = [text]
        if override.is_sweep_override():
            values = [f"{override.get_key_element()}={v}" for v in override.sweep_string_iterator()]
        runs = [[*run, value] for run in runs for value in values]
    return runs


def from_file(path: Path, overrides: Sequence[str] = (), unused: Sequence[str] = ()) -> Config:
    """Read a run's ``config.yaml``, with overrides as in `compose`.

    Args:
        path: The file, which may be another's.
        overrides: The command line's; only they can give what `trust.only_said` names.
        unused: What the caller makes nothing of, as in `trust.admit`: there, such settings of the file's are not
            refused but left out.

    Raises:
        ConfigError: the file is missing, broken, or has keys or values that no longer exist, or some that `trust`
            refuses.
    """
    values, changes = _load(path), _parse(overrides)
    try:
        return _checked(_changed(values, changes), str(path), _said(changes), unused)
    except OmegaConfBaseException as error:
        raise ConfigError(_one_line(error)) from error


def recorded(path: Path) -> dict[str, Any]:
    """What a run's ``config.yaml`` says, all of it, to be compared or shown: nothing is to be made from it.

    Raises:
        ConfigError: as `from_file`.
    """
    try:
        values: Any = OmegaConf.to_container(_load(path), resolve=True, enum_to_str=True)
    except OmegaConfBaseException as error:
        raise ConfigError(f"cannot read {path}: {_one_line(error)}") from error
    trust.check_plain(values, str(path))
    assert isinstance(values, dict)
    return values


def _load(path: Path) -> Any:
    """A run's file over the schema's defaults, not yet resolved."""
    try:
        loaded = OmegaConf.load(path)
        plain = OmegaConf.to_container(loaded, resolve=False)
        trust.check_plain(plain, str(path))
        check_renamed(plain, str(path))
        return OmegaConf.merge(OmegaConf.structured(Config), loaded)
    except FileNotFoundError:
        raise ConfigError(
            f"there is no {path}: expected a run's folder, made by `groundling train`"
        ) from None
    except (OSError, ValueError, YAMLError, OmegaConfBaseException) as error:
        raise ConfigError(f"cannot read {path}: {_one_line(error)}") from error


def from_values(values: DictConfig, overrides: Sequence[str] = (), where: str = "the config") -> Config:
    """Check nested values of a file that stand over the schema's defaults, with overrides as in `compose`.

    Args:
        values: The file's.
        overrides: The command line's.
        where: The file, for messages.

    Raises:
        ConfigError: no such key or id, a value of the wrong type, one that is missing, or one that `trust` refuses.
    """
    changes = _parse(overrides)
    try:
        plain = OmegaConf.to_container(values, resolve=False)
        trust.check_plain(plain, where)
        check_renamed(plain, where)
        merged = OmegaConf.merge(OmegaConf.structured(Config), values)
        return _checked(_changed(merged, changes), where, _said(changes))
    except OmegaConfBaseException as error:
        raise ConfigError(_one_line(error)) from error


def changed(
    config: Config, overrides: Sequence[str | Mapping[str, Any]], unused: Sequence[str] = ()
) -> Config:
    """``config`` with overrides as in `compose`, or as values by dotted key: Hydra's dicts know no accents in a key.

    The overrides may come from a file: what `trust.only_said` names they can only give as ``config`` has it already.

    Args:
        config: What is changed.
        overrides: How.
        unused: As in `from_file`.

    Raises:
        ConfigError: no such key, or a value of the wrong type, or one that `trust` refuses.
    """
    try:
        changing = OmegaConf.structured(config)
        for override in overrides:
            if isinstance(override, str):
                changing = _changed(changing, _parse([override]))
                continue
            trust.check_plain(override, "an override")
            for key, value in override.items():
                check_renamed(value, "an override", key)
                _check_key(key)
                with open_dict(changing):
                    add_part(changing.reward, key, value)
                    OmegaConf.update(changing, key, value, merge=True)
        return _checked(changing, "an override", dict(trust.leaves("", asdict(config))), unused)
    except OmegaConfBaseException as error:
        raise ConfigError(_one_line(error)) from error


def to_yaml(config: Config) -> str:
    """The complete configuration as YAML; `from_file` reads it again."""
    return OmegaConf.to_yaml(OmegaConf.create(asdict(config)))


def check_words(written: Sequence[str], said: Sequence[str], where: str) -> None:
    """Check overrides that stand in a file for what only the command line can say.

    Args:
        written: The file's overrides.
        said: The command line's for the same run.
        where: The file, for the message.

    Raises:
        ConfigError: one is refused by `trust`, or cannot be read.
    """
    trust.admit(_said(_parse(written)), _said(_parse(said)), where)


def check_component(registry: Registry[Any], kind: str, component: ComponentConfig) -> None:
    """Check a component's id, and its arguments' names and types, before anything is built.

    Raises:
        ConfigError: an unknown id, an unknown argument, one that is missing, or a value of the wrong type.
    """
    factory = registry.get(component.id)
    for name in _LANGUAGE_MODELS:
        if registry is policies and name in component.args:
            raise ConfigError(
                f"{kind}.args.{name} cannot be set: the language model is the one that model.path names"
            )
    if not isinstance(component.args.get("lm", ""), str):
        raise ConfigError(
            f"{kind}.args.lm must be the folder or hub id of a language model, got {component.args['lm']!r}"
        )
    try:
        registry.check_arguments(component.id, component.args)
    except ConfigError as error:
        raise ConfigError(f"{error}; ~{kind}.args takes an experiment's own arguments out") from error
    missing = registry.missing_arguments(component.id, {*component.args, *_FILLED_IN})
    if missing:
        raise ConfigError(
            f"{registry.kind} {component.id!r} needs {kind}.args.{f', {kind}.args.'.join(missing)}"
        )
    check_types(factory, f"{kind}.args.", component.args)


_LANGUAGE_MODELS = ("lm", "reference", "value_base")
"""Arguments of a policy that its run makes from the config's model."""
_FILLED_IN = ("lm", "num_actions")
"""Arguments that a component gets from its run."""


def _parse(overrides: Sequence[str]) -> list[Override]:
    """Read overrides, and check that the schema has their keys."""
    parsed = []
    for text in overrides:
        trust.check_plain(text, "an override")
        try:
            override = OverridesParser.create().parse_override(text)
        except HydraException as error:
            raise ConfigError(
                f"cannot read the override {text!r}: expected key=value, such as seed=2; quote a value that has "
                "special characters, as in 'name=\"né\"'"
            ) from error
        check_renamed(
            None if override.is_delete() else override.value(), "an override", override.key_or_group
        )
        _check_key(override.key_or_group)
        parsed.append(override)
    return parsed


def _said(changes: Sequence[Override]) -> dict[str, Any]:
    """The values that overrides give, by dotted key."""
    given = (change for change in changes if not change.is_delete())
    return {key: v for change in given for key, v in trust.leaves(change.key_or_group, change.value())}


def _changed(config: Any, changes: Sequence[Override]) -> DictConfig:
    """``config`` with the changes made in it, in their order."""
    with open_dict(config):
        for change in changes:
            key = change.key_or_group
            if not change.is_delete():
                add_part(config.reward, key, change.value())
                OmegaConf.update(config, key, change.value(), merge=True)
            elif key in _FREE or re.fullmatch(PART_ARGS, key):
                OmegaConf.update(config, key, {}, merge=False)
            elif key == "reward" or (key.startswith("reward.") and key.count(".") == 1):
                take_part_out(config, key.partition(".")[2])
            else:
                parent, _, name = key.rpartition(".")
                free = parent.startswith(_FREE) or re.match(PART_ARGS, parent)
                if not free or name not in (OmegaConf.select(config, parent) or {}):
                    raise ConfigError(
                        f"cannot take {key} out: it is no part of the reward and no argument of "
                        f"{' or '.join(_FREE)} that is set"
                    )
                del OmegaConf.select(config, parent)[name]
    return config


def _check_key(key: str) -> None:
    """Name the nearest keys for one that the schema does not have."""
    node: Any = Config
    parts = key.split(".")
    for depth, part in enumerate(parts):
        if node is _PARTS:
            node = RewardPartConfig
            continue
        names = {f.name: f for f in fields(node)}
        if part not in names:
            prefix = "".join(p + "." for p in parts[:depth])
            raise ConfigError(unknown("config key", key, [prefix + name for name in names]))
        node = _PARTS if parts[: depth + 1] == ["reward"] else names[part].type
        if node is not _PARTS and not is_dataclass(node):
            break  # a value, or free keyword arguments that their component checks


_PARTS = object()
"""Stands for the mapping of a reward's parts, whose keys are free."""
_FREE = (
    "env.args",
    "model.lora",
    "pool.args",
    "policy.args",
    "algorithm.args",
    "evaluation.generation",
)
"""Keyword arguments that the components themselves check."""


def _checked(composed: Any, where: str, said: Mapping[str, Any], unused: Sequence[str] = ()) -> Config:
    """What is composed, as far as `trust.admit` lets it, once it can be run."""
    plain: Any = OmegaConf.to_container(composed, resolve=True)
    trust.check_plain(plain, where)  # interpolations may have put a resolver together
    composed = OmegaConf.merge(OmegaConf.structured(Config), trust.admit(plain, said, where, unused))
    config = OmegaConf.to_object(composed)
    assert isinstance(config, Config)
    try:
        _check_components(config)
    except UnusedKey:
        raise
    except ConfigError as error:
        raise ConfigError(f"{error}{_to_import(config, where)}") from error
    for key, minimum in _MINIMA.items():
        value = OmegaConf.select(composed, key)
        if value is not None and not value >= minimum:
            raise ConfigError(f"{key} must be at least {minimum}, got {value}")
    if config.seed >= 2**31:
        raise ConfigError(f"seed must be less than 2**31, got {config.seed}")
    if not config.run_dir.isprintable():  # it gets into job files, line by line
        raise ConfigError(f"run_dir must be one line of printable characters, got {config.run_dir!r}")
    for name in config.evaluation.baselines:
        if name not in BASELINES:
            raise ConfigError(unknown("value of evaluation.baselines", name, BASELINES))
    if config.env.actions == []:
        raise ConfigError(
            "env.actions is empty: name at least one action, such as [turn left, turn right, go forward]"
        )
    actions = config.env.actions or []
    if len(set(actions)) < len(actions):
        raise ConfigError(f"env.actions names an action twice: {', '.join(actions)}")
    return config


def _check_components(config: Config) -> None:
    """Check that there are the components and the env that the config names, and that they take their arguments.

    Raises:
        ConfigError: one is not known, or does not.
    """
    check_component(algorithms, "algorithm", config.algorithm)
    check_component(policies, "policy", config.policy)
    _check_reward(config.reward)
    _check_writing(config)
    check_used(config)
    workers = config.env.num_workers
    if config.env.timeout <= 0:
        raise ConfigError(f"env.timeout must be greater than 0, got {config.env.timeout}")
    if not workers and config.env.timeout != EnvConfig().timeout:
        raise ConfigError(
            f"env.timeout={config.env.timeout} is for envs in workers: set env.num_workers, or leave it out"
        )
    if config.imports and config.env.id not in gymnasium.registry:
        raise ConfigError(unknown("env", config.env.id, gymnasium.registry))


def _to_import(config: Config, where: str) -> str:
    """What to add to the command where modules are missing that the config was made with."""
    missing = [module for module in config.imports if module not in sys.modules]
    if not missing or not all(re.fullmatch(r"[\w.]+", module) for module in missing):
        return ""
    words = " ".join(f"--import {module}" for module in missing)
    return f"; {where} was made with code of its writer's: if you have it and trust it, add {words}"


def _check_reward(reward: Mapping[str, RewardPartConfig | None]) -> None:
    """Check the parts of what is learnt from, and make those that say by themselves whether they can be run."""
    for name, part in reward.items():
        check_name(name)
        if part is None:
            continue
        component = ComponentConfig(part.id or name, part.args)
        check_component(parts, f"reward.{name}", component)
        factory = parts.get(component.id)
        if inspect.isclass(factory):
            try:
                factory(**component.args)
            except ConfigError as error:
                raise ConfigError(f"reward.{name}.args: {error}") from error


def _check_writing(config: Config) -> None:
    """Check what is written, and how it is measured."""
    if config.pool.id is None:
        return
    from groundling.envs.text_generation import pools

    check_component(pools, "pool", ComponentConfig(config.pool.id, config.pool.args))
    for number, metric in enumerate(config.evaluation.metrics):
        check_component(measures, f"evaluation.metrics[{number}]", metric)
    if config.evaluation.post_process is not None:
        from groundling.metrics.post_processing import post_processors

        post_processors.get(config.evaluation.post_process)


_MINIMA = {
    "pool.texts_per_prompt": 1,
    "evaluation.every": 1,
    "evaluation.batch_size": 1,
    "env.num_envs": 1,
    "env.history": 1,
    "env.num_workers": 0,
    "nethack.num_workers": 0,
    "training.steps": 1,
    "training.entropy_floor": 0,
    "training.epochs": 1,
    "training.steps_per_update": 1,
    "training.checkpoint_every": 1,
    "training.keep_checkpoints": 1,
    "evaluation.episodes": 1,
    "evaluation.num_envs": 1,
    "model.max_prompt_tokens": 1,
    "seed": 0,
}


def _one_line(error: BaseException) -> str:
    """The first sentence of OmegaConf's or Hydra's explanation, with the key that it is about."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    key = next((line.partition(":")[2].strip() for line in lines if line.startswith("full_key:")), "")
    said = f"{key}: {lines[0]}" if key and lines else " ".join(lines[:1]) or type(error).__name__
    return (
        f"{said} ({_one_line(error.__cause__)})"
        if isinstance(error.__cause__, OmegaConfBaseException)
        else said
    )


def headline(path: Path) -> str:
    """The first sentence of the comment at the head of an experiment's file."""
    for line in path.read_text(encoding="utf-8").splitlines():
        text = line.lstrip("# ").strip()
        if line.startswith("#") and text and not text.startswith("@package"):
            return text
    return ""
