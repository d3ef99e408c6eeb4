"""What readers of other systems' YAML files have in common: a file to dotted entries, and their values."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from groundling.configs.trust import check_plain
from groundling.errors import ConfigError


def load(path: Path, option: str, unread: str | None = None) -> DictConfig:
    """A YAML file that holds a mapping.

    Args:
        path: The file.
        option: What asked for it on the command line.
        unread: A section that is left out, so that nothing can refer to it.

    Raises:
        ConfigError: there is no such file, or it cannot be read, or it has resolvers (`check_plain`).
    """
    try:
        loaded = OmegaConf.load(path)
    except FileNotFoundError:
        raise ConfigError(f"there is no {path}: {option} takes one of the original's YAML files") from None
    except (OSError, ValueError, YAMLError, OmegaConfBaseException) as error:
        raise ConfigError(f"cannot read {path}: {error}") from error
    if not isinstance(loaded, DictConfig):
        raise ConfigError(f"{path} holds no entries: it is no file of the original's")
    raw: Any = OmegaConf.to_container(loaded, resolve=False)
    read = {key: value for key, value in raw.items() if key != unread}
    check_plain(read, str(path))
    return OmegaConf.create(read)


def parse(text: str) -> Override:
    """One entry set, or taken out, on the command line.

    Raises:
        ConfigError: it is not written as ``key=value``, or has several values or a resolver.
    """
    check_plain(text, "an override")
    try:
        parsed = OverridesParser.create().parse_override(text)
    except HydraException as error:
        raise ConfigError(f"cannot read the override {text!r}: expected key=value") from error
    if parsed.is_sweep_override():
        raise ConfigError(f"{text}: one value at a time; several runs are asked for as in seed=1,2,3")
    return parsed


def number(value: Any) -> Any:
    """A number that may stand there as a string, whole if it is whole; anything else as it is."""
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            return value
    return int(value) if isinstance(value, float) and value.is_integer() else value


def flat(prefix: str, node: Mapping[Any, Any]) -> dict[str, Any]:
    """Nested entries with dotted keys."""
    entries: dict[str, Any] = {}
    for key, value in node.items():
        entries |= flat(f"{prefix}{key}.", value) if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return entries


def nested(values: Mapping[str, Any]) -> DictConfig:
    """Values under dotted keys, as a config."""
    made = OmegaConf.create({})
    for key, value in values.items():
        OmegaConf.update(made, key, value)
    return made


def boolean(value: Any) -> Any:
    """A boolean that stands there as a string, as in ``apply_best: True,``; anything else as it is."""
    if isinstance(value, str) and value.rstrip(", ").lower() in ("true", "false"):
        return value.rstrip(", ").lower() == "true"
    return value


def written(value: Any) -> str:
    """A value as an override holds it."""
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace("'", "\\'")
        return f"'{escaped}'"
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{written(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(written, value)) + "]"
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
