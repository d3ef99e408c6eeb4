"""What readers of other systems' YAML files have in common: a file to dotted entries, and their values."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf

from groundling.config.grammar import check_written
from groundling.config.trust import check_plain, quoted
from groundling.errors import ConfigError
from groundling.io.documents import DocumentError, check_expansion, read_yaml

_MOST_BITS = 1000
"""Of a whole number: a float holds no more than 1024."""


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
        loaded = read_yaml(path)
    except FileNotFoundError:
        raise ConfigError(f"there is no {path}: {option} takes a YAML file of the original project") from None
    except (OSError, DocumentError) as error:
        raise ConfigError(f"cannot read {path} as a YAML file of the original project: {error}") from error
    raw: Any = OmegaConf.to_container(loaded, resolve=False)
    read = {key: value for key, value in raw.items() if key != unread}
    check_plain(read, str(path))
    check_expansion(read, str(path))
    return OmegaConf.create(read)


def parse(text: str) -> Override:
    """One entry set, or taken out, on the command line.

    Raises:
        ConfigError: it is not written as ``key=value``, or has several values or a resolver.
    """
    check_plain(text, "an override")
    try:
        parsed = OverridesParser.create().parse_override(text)
    except (HydraException, RecursionError, ValueError) as error:
        raise ConfigError(f"cannot read the override {text!r:.200}: expected key=value") from error
    check_written(text, parsed)
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


def real(key: str, value: Any) -> float:
    """A number, or a text that is one.

    Raises:
        ConfigError: it is none, or one that no float holds.
    """
    parsed = number(value)
    is_number = isinstance(parsed, int | float) and not isinstance(parsed, bool)
    if not is_number or (isinstance(parsed, int) and parsed.bit_length() > _MOST_BITS):
        raise ConfigError(f"{key} must be a number, got {value!r:.80}")
    return float(parsed)


def flat(prefix: str, node: Mapping[Any, Any]) -> dict[str, Any]:
    """Nested entries with dotted keys."""
    entries: dict[str, Any] = {}
    for key, value in node.items():
        entries |= flat(f"{prefix}{key}.", value) if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return entries


def section(where: Path | str, key: str, value: Any) -> dict[Any, Any]:
    """A section of a file; none where it is null.

    Raises:
        ConfigError: it holds no entries by name.
    """
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ConfigError(
            f"{where}: {key} must hold entries, as in {key}: {{name: value}}, got {value!r:.80}"
        )
    return dict(value)


def check_shapes(
    where: Path | str, values: Mapping[str, Any], sections: Collection[str], single: Collection[str]
) -> None:
    """Check entries by dotted key before they are read.

    Args:
        where: Their file.
        values: By key.
        sections: Keys that hold entries, not values.
        single: Keys that hold one value each.

    Raises:
        ConfigError: a section is no mapping, or an entry that is one value holds several.
    """
    for key, value in values.items():
        if key in sections:
            section(where, key, value)
        if key in single and isinstance(value, list | tuple | Mapping):
            raise ConfigError(f"{where}: {key} must be one value, got {value!r:.80}")


def sections_of(keys: Collection[str]) -> set[str]:
    """The beginnings of dotted keys."""
    parts = (key.split(".") for key in keys)
    return {".".join(names[:depth]) for names in parts for depth in range(1, len(names))} - set(keys)


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
        return quoted(value)
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{written(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(written, value)) + "]"
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
