"""From an experiment's name and overrides to a checked `Config`.

Whatever comes in, by whichever function, leaves by `_checked`, and so through `groundling.configs.trust`.
"""

import copy
import functools
import inspect
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, get_type_hints

import hydra
from hydra._internal.core_plugins.file_config_source import FileConfigSource
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.plugins import Plugins
from hydra.errors import HydraException
from hydra.plugins.config_source import ConfigResult
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import InterpolationValidationError, MissingMandatoryValue, OmegaConfBaseException

from groundling import documents
from groundling.algorithms.algorithm import algorithms
from groundling.arguments import check_minima
from groundling.configs import trust
from groundling.configs.overrides import apply, given, parse, put
from groundling.configs.renamed import check_renamed
from groundling.configs.schema import Config
from groundling.configs.types import check_values
from groundling.configs.used import SECTIONS, check_section_key, check_used, section_class
from groundling.documents import DocumentError
from groundling.errors import ConfigError, UnusedKey
from groundling.policies.policy import policies
from groundling.registry import ComponentConfig, check_component, unknown
from groundling.rewards import parts
from groundling.rewards.part import RewardPartConfig, check_name
from groundling.worlds import World, kind, worlds


@dataclass
class _Unsettled(Config):
    """A `Config` as Hydra composes it: until its kind of world is known, that world's sections hold anything."""

    world: Any = field(default_factory=dict)
    evaluation: Any = field(default_factory=dict)


ConfigStore.instance().store(name="schema", node=_Unsettled)


class _UsersFiles(FileConfigSource):
    """A folder of ``--config-dir``: Hydra's own source of files, but for what no file may hold."""

    @staticmethod
    def scheme() -> str:
        return "users"

    def load_config(self, config_path: str) -> ConfigResult:
        where = f"{Path(self.path) / self._normalize_file_name(config_path)}"
        if Path(where).is_file():  # otherwise Hydra says what is missing
            documents.read_yaml(Path(where))  # within limits; Hydra reads it itself
        loaded = super().load_config(config_path)
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
    """Compose an experiment with overrides such as ``world.num_envs=16``.

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
        folder = config_dir / "experiment"
        known |= {p.relative_to(folder).with_suffix("").as_posix() for p in folder.rglob("*.yaml")}
    if experiment not in known:
        raise ConfigError(unknown("experiment", experiment, known))
    changes = parse(overrides)
    try:
        if config_dir is None:
            composed = copy.deepcopy(_bundled(experiment))  # it is changed in place
        else:
            Plugins.instance().register(_UsersFiles)
            # A file could have Hydra copy variables of the environment into its own part of a config.
            search = [f"hydra.searchpath=[users://{config_dir.resolve()}]", "hydra.job.env_copy=[]"]
            composed = _composed(experiment, *search)
        where = f"the experiment {experiment}"
        settled = _settled(_plain(composed), where)
        apply(settled, changes)
        return _checked(settled, where, given(changes))
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
    values, changes = _load(path), parse(overrides)
    try:
        apply(values, changes)
        return _checked(values, str(path), given(changes), unused)
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


def _load(path: Path) -> DictConfig:
    """A run's file over the schema's defaults, not yet resolved."""
    try:
        plain = _plain(documents.read_yaml(path))
        trust.check_plain(plain, str(path))
        check_renamed(plain, str(path))
        return _settled(plain, str(path))
    except FileNotFoundError:
        raise ConfigError(
            f"there is no {path}: expected a run's folder, made by `groundling train`"
        ) from None
    except (OSError, DocumentError, OmegaConfBaseException) as error:
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
    changes = parse(overrides)
    try:
        plain = _plain(values)
        trust.check_plain(plain, where)
        check_renamed(plain, where)
        settled = _settled(plain, where)
        apply(settled, changes)
        return _checked(settled, where, given(changes))
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
                apply(changing, parse([override]))
                continue
            trust.check_plain(override, "an override")
            for key, value in override.items():
                check_renamed(value, "an override", key)
                put(changing, key, value)
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
    trust.admit(given(parse(written)), given(parse(said)), where)


def _plain(config: Any) -> Any:
    """As nested dicts and lists, not resolved."""
    return OmegaConf.to_container(config, resolve=False)


def _settled(plain: Any, where: str) -> DictConfig:
    """Nested settings over the schema of their kind of world.

    Raises:
        ConfigError: it names no kind of world, or has a key that is none.
    """
    documents.check_expansion(plain, where)
    id = plain.get("world", {}).get("id") if isinstance(plain.get("world", {}), dict) else None
    if not isinstance(id, str) or id == "???":
        known = ", ".join(worlds)
        raise ConfigError(f"{where} does not say which kind of world it is of: give world.id, one of {known}")
    try:
        world = kind(id)
        for section in SECTIONS:
            for name in plain.get(section) or ():
                check_section_key(section, str(name), id)
    except UnusedKey:
        raise
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from error
    _check_types(plain, world, where)
    schema = OmegaConf.structured(Config)
    for section in SECTIONS:
        schema[section] = OmegaConf.structured(section_class(section, world))
    settled = OmegaConf.merge(schema, plain)
    assert isinstance(settled, DictConfig)
    return settled


def _check_types(plain: Mapping[str, Any], world: type[World[Any, Any]], where: str) -> None:
    """Raise `ConfigError` on a key that there is not, or a value of the wrong type."""
    hints = {**get_type_hints(Config), **{section: section_class(section, world) for section in SECTIONS}}
    for name, value in plain.items():
        if name not in hints:
            raise ConfigError(f"{where}: {unknown('config key', str(name), hints)}")
        if not _is_missing(value):  # which overrides may yet set
            check_values(name, _without_missing(value), hints[name])


def _without_missing(node: Any) -> Any:
    """Nested settings but for keys that are set nowhere, as OmegaConf writes them."""
    if isinstance(node, Mapping):
        return {name: _without_missing(one) for name, one in node.items() if not _is_missing(one)}
    return node


def _is_missing(value: Any) -> bool:
    return isinstance(value, str) and value == "???"


def _checked(composed: DictConfig, where: str, said: Mapping[str, Any], unused: Sequence[str] = ()) -> Config:
    """What is composed, as far as `trust.admit` lets it, once it can be run."""
    plain: Any = OmegaConf.to_container(composed, resolve=True)
    trust.check_plain(plain, where)  # interpolations may have put a resolver together
    for key, value in trust.leaves("", plain):
        if isinstance(value, int) and abs(value) >= 2**63:
            raise ConfigError(f"{key} must be less than 2**63, got {value:.3e}")
    config = OmegaConf.to_object(_settled(trust.admit(plain, said, where, unused), where))
    assert isinstance(config, Config)
    for prefix, section in {
        "": config,
        "world.": config.world,
        "model.": config.model,
        "training.": config.training,
        "evaluation.": config.evaluation,
    }.items():
        check_minima(section, prefix)
    if config.seed >= 2**31:
        raise ConfigError(f"seed must be less than 2**31, got {config.seed}")
    if not config.name.strip() or not config.name.isprintable():
        raise ConfigError(f"name must be a line of printable characters, got {config.name!r}")
    if not config.run_dir.strip() or not config.run_dir.isprintable():  # it gets into job files, line by line
        raise ConfigError(f"run_dir must be one line of printable characters, got {config.run_dir!r}")
    try:
        check_policy(config.policy, "policy")
        check_component(algorithms, config.algorithm, "algorithm")
        _check_reward(config.reward)
        config.world.check()
        config.evaluation.check()
        _check_baselines(config.evaluation.baselines, config.world.id)
        check_used(config)
    except UnusedKey:
        raise
    except ConfigError as error:
        raise ConfigError(f"{error}{_to_import(config.imports, where)}") from error
    return config


def check_policy(policy: ComponentConfig, key: str) -> None:
    """Check a policy's id, and its arguments' names and types, before anything is built.

    Raises:
        ConfigError: as `check_component`, or one that its run makes from the config's model.
    """
    for name in _LANGUAGE_MODELS:
        if name in policy.args:
            raise ConfigError(
                f"{key}.args.{name} cannot be set: the language model is the one that model.path names"
            )
    check_component(policies, policy, key, filled_in=("lm", "num_actions"))


_LANGUAGE_MODELS = ("lm", "reference", "value_base")
"""Arguments of a policy that its run makes from the config's model."""


def _check_baselines(baselines: Sequence[str], id: str) -> None:
    known = ("zero-shot", *kind(id).baselines)
    for name in baselines:
        if name not in known:
            raise ConfigError(unknown(f"baseline of a {id} world (evaluation.baselines)", name, known))


def _to_import(imports: Sequence[str], where: str) -> str:
    """What to add to the command where modules are missing that the config was made with."""
    missing = [module for module in imports if module not in sys.modules]
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
        check_component(parts, component, f"reward.{name}", filled_in=("lm",))
        factory = parts.get(component.id)
        if inspect.isclass(factory):
            try:
                factory(**component.args)
            except ConfigError as error:
                raise ConfigError(f"reward.{name}.args: {error}") from error


def _one_line(error: BaseException) -> str:
    """The first sentence of OmegaConf's or Hydra's explanation, with the key that it is about."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if isinstance(error, MissingMandatoryValue) and error.full_key:
        return f"{error.full_key} is not set: give {error.full_key} a value"
    if isinstance(error, InterpolationValidationError):
        return f"{error.full_key}: what ${{…}} names there is of another type than {error.full_key} must be"
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
