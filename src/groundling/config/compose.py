"""Compose a checked `Config` from its world's defaults, an experiment or a file, and overrides."""

import functools
import os
from collections.abc import Collection, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import hydra
from hydra._internal.core_plugins.file_config_source import FileConfigSource
from hydra.core.global_hydra import GlobalHydra
from hydra.core.plugins import Plugins
from hydra.errors import HydraException
from hydra.plugins.config_source import ConfigResult
from omegaconf import OmegaConf

from groundling.config.checks import check
from groundling.config.facts import Purpose, admit, check_plain, types_of
from groundling.config.overrides import Change, Overrides, apply, given, merged, parse
from groundling.config.schema import Config, config_of
from groundling.errors import ConfigError, UnusedKey, unknown
from groundling.fields import TrainingOnly, leaves
from groundling.io.documents import DocumentError, check_numbers, read_yaml, resolve
from groundling.registry import naming_modules
from groundling.worlds import kind, worlds


def compose(
    experiment: str,
    overrides: Overrides = (),
    config_dir: Path | None = None,
    purpose: Purpose = "training",
    *,
    checked: bool = True,
) -> Config:
    """Compose an experiment, bundled or in ``config_dir/experiment/``, with overrides such as ``world.num_envs=16``.

    Overrides are strings in Hydra's syntax (https://hydra.cc/docs/advanced/override_grammar/basic/) or mappings from
    dotted keys to values. A dict is merged into the existing one; ``~key`` removes an argument or empties a dict.
    If ``checked`` is False, the caller must check that the components are compatible (`checks.check`).

    Raises:
        ConfigError: An experiment, key or id is unknown, or a value has the wrong type or is not allowed in a file.
    """
    changes = parse(overrides)  # parsed first, so that its errors are reported before others
    known = experiments(config_dir)
    if experiment not in known:
        if os.path.isfile(f"{experiment}/config.yaml"):  # noqa: PTH113 (pathlib raises if a name is too long)
            raise ConfigError(f"{experiment} is a run's folder: pass {experiment}/config.yaml instead")
        raise ConfigError(unknown("experiment", experiment, known))
    if config_dir is None:
        values = _bundled(experiment)
    else:
        Plugins.instance().register(_UsersFiles)
        # Otherwise, a file could make Hydra copy environment variables into the hydra section of the config.
        search = f"hydra.searchpath=[users://{config_dir.resolve()}]"
        values = _composed(experiment, search, "hydra.job.env_copy=[]")
    return from_values(values, changes, f"the experiment {experiment}", purpose, checked=checked)


def is_open(experiment: str) -> bool:
    """Return True if an experiment leaves settings to be chosen automatically (`World.open_experiment`)."""
    return experiment in {kind(id).open_experiment for id in worlds}


def from_file(path: Path, overrides: Overrides = (), purpose: Purpose = "training", *, checked: bool = True) -> Config:
    """Read a run's ``config.yaml``, which may be untrusted; overrides and errors are as in `compose`."""
    return from_values(read_file(path), overrides, str(path), purpose, checked=checked)


def changed(config: Config, overrides: Overrides, purpose: Purpose = "training") -> Config:
    """Apply overrides, which may come from a file and may repeat those that ``config`` was composed with."""
    return from_values(config.model_dump(), overrides, "an override", purpose, again=True)


def from_values(
    values: Mapping[str, Any],
    overrides: Overrides = (),
    where: str = "the config",
    purpose: Purpose = "training",
    *,
    checked: bool = True,
    again: bool = False,
) -> Config:
    """Merge nested values into the defaults and check them as `compose` does; ``again`` is set only by `changed`."""
    check_plain(values, where)
    changes = parse(overrides)
    said = dict(leaves("", values)) if again else given(changes)
    model = _model(values, changes, where)
    settled = merged(model.defaults(), values)
    world: Any = worlds.get(values["world"]["id"])
    apply(changes, settled, model, "env" in world.offers.evidence, again)
    admitted = admit(resolve_names(settled, where), said, where, purpose)
    config = _typed(admitted, model, where, said)
    if "training.steps" in said and not again and config.training.epochs is not None:
        reason = f"training.epochs={config.training.epochs} already sets the length of training"
        raise UnusedKey("training.steps", f"training.steps={said['training.steps']} does nothing: {reason}; remove it")
    if purpose == "playing":
        usual, unneeded = type(config.world).defaults(), config.world.declared(TrainingOnly)
        config.world = config.world.model_copy(update={name: usual[name] for name in unneeded})
    if checked:
        with naming_modules(config.imports, where, config.objects):
            check(config, {} if again else said, purpose)
    return config


def _model(values: Mapping[str, Any], changes: list[Change], where: str) -> type[Config]:
    """Return the config class for the values' kind of world, which overrides cannot change."""
    section = values.get("world")
    id = section.get("id") if isinstance(section, Mapping) else None
    if not isinstance(id, str) or id == "???":
        raise ConfigError(f"{where} does not specify a kind of world: set world.id ({', '.join(worlds)})")
    try:
        model = config_of(id)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from error
    for one in changes:
        section = one.value if one.key == "world" and isinstance(one.value, Mapping) else {}
        value = one.value if one.key == "world.id" and not one.takes_out else section.get("id", id)
        if value != id:
            change = f"start from an experiment with a {value} world (`groundling list experiments`)"
            raise ConfigError(f"world.id={value}: overrides cannot change the kind of world from {id}; {change}")
    return model


def resolve_names(values: dict[str, Any], where: str) -> dict[str, Any]:
    """Resolve each ``${name}``; raise `ConfigError` for unknown names, missing values or exceeded limits."""
    for key, value in leaves("", values):
        if value == "???":
            raise ConfigError(f"{key} is not set: give {key} a value")
    try:
        resolved = resolve(values, where)
        check_numbers(resolved)
    except DocumentError as error:  # the values may come from several files and the command line
        raise ConfigError(str(error)) from error
    check_plain(resolved, where)  # substituted values may form a resolver
    return resolved


def _typed(values: dict[str, Any], model: type[Config], where: str, said: Collection[str] = ()) -> Config:
    def refuse(key: str, known: Collection[str]) -> str:
        owners = [id for id in worlds if types_of(config_of(id), key)]
        if not owners:
            is_said = any(f"{one}.".startswith(f"{key}.") for one in said)
            return ("" if is_said else f"{where}: ") + unknown("config key", key, known)
        named = f"{' and '.join(owners)} world{'s' if len(owners) > 1 else ''}"
        here = f"{kind(values['world']['id']).offers.name} has the keys {', '.join(known)}"
        raise UnusedKey(key, f"{key} does nothing, because it is a key of {named}: remove it ({here})")

    return model.of(values, refuse)


def recorded(path: Path) -> dict[str, Any]:
    """Read a run's ``config.yaml`` as plain values, to compare or show them; raise the same errors as `from_file`."""
    values, where = read_file(path), str(path)
    model = _model(values, [], where)
    return _typed(resolve_names(merged(model.defaults(), values), where), model, where).model_dump()


def to_yaml(config: Config) -> str:
    """Return the complete configuration as YAML, which `from_file` can read."""
    return OmegaConf.to_yaml(OmegaConf.create(config.model_dump()))


def check_words(written: Overrides, said: Overrides, where: str) -> None:
    """Raise `ConfigError` if a file has overrides that only the command line may set, unless ``said`` repeats them."""
    admit(given(parse(written)), given(parse(said)), where)


class _UsersFiles(FileConfigSource):
    """Files in ``--config-dir``, read within size limits and without resolvers."""

    @staticmethod
    def scheme() -> str:
        return "users"

    def load_config(self, config_path: str) -> ConfigResult:
        path = Path(self.path) / self._normalize_file_name(config_path)
        if path.is_file():  # otherwise Hydra reports what is missing
            read_yaml(path)  # checks the limits; Hydra then reads the file itself
        loaded = super().load_config(config_path)
        plain_values(loaded.config, str(path))
        return loaded


def plain_values(loaded: Any, where: str) -> dict[str, Any]:
    """Return a loaded OmegaConf config as unresolved nested values; raise `ConfigError` if it has a resolver."""
    plain: Any = OmegaConf.to_container(loaded, resolve=False)
    check_plain(plain, where)
    return {str(name): value for name, value in plain.items()}


def read_file(path: Path) -> dict[str, Any]:
    """Read a run's possibly untrusted ``config.yaml`` without resolving names; raise `ConfigError` for resolvers."""
    try:
        return plain_values(read_yaml(path), str(path))
    except FileNotFoundError:
        raise ConfigError(f"{path} does not exist: expected a run's folder, created by `groundling train`") from None
    except (OSError, DocumentError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from error


def _composed(experiment: str, *words: str) -> dict[str, Any]:
    try:
        with hydra.initialize_config_module("groundling.config", version_base="1.3"):
            composed = hydra.compose("config", [f"experiment={experiment}", *words])
    except HydraException as error:
        raise ConfigError(" ".join(str(error).splitlines()[:1])) from error
    finally:
        GlobalHydra.instance().clear()
    values = plain_values(composed, f"the experiment {experiment}")
    if "experiment" in values:
        begin = "start the file with the line # @package _global_"
        raise ConfigError(f"the experiment {experiment} is invalid, since its keys are under 'experiment': {begin}")
    return values


# Composing takes a tenth of a second, and a study composes the same experiment for every seed.
_bundled = functools.cache(_composed)


def experiments(config_dir: Path | None = None) -> dict[str, str]:
    """Return experiments' names, with headlines of bundled ones; raise `ConfigError` if the folder is missing."""
    if config_dir is not None and not config_dir.is_dir():
        raise ConfigError(f"--config-dir {config_dir} is not a folder: pass the one that contains experiment/*.yaml")
    root = resources.files("groundling.config") / "experiment"
    with resources.as_file(root) as folder:
        paths = sorted(folder.rglob("*.yaml"))
        known = {path.relative_to(folder).with_suffix("").as_posix(): headline(path) for path in paths}
    if config_dir is not None:
        folder = config_dir / "experiment"
        known |= {p.relative_to(folder).with_suffix("").as_posix(): "" for p in folder.rglob("*.yaml")}
    return known


def headline(path: Path) -> str:
    """Return the first line of the comment at the top of an experiment's file."""
    for line in path.read_text(encoding="utf-8").splitlines():
        text = line.lstrip("# ").strip()
        if line.startswith("#") and text and not text.startswith("@package"):
            return text
    return ""
