"""Read another system's YAML file as entries with dotted keys, overrides and typed access."""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import yaml
from hydra.core.override_parser.types import Override
from omegaconf import OmegaConf

from groundling.config.facts import check_plain
from groundling.config.overrides import read
from groundling.errors import ConfigError, unknown
from groundling.io.documents import DocumentError, read_yaml, resolve

_TEXTS = ("model.path", "run_dir", "world.env", "world.pool", "world.language", "device")
"""Keys whose values remain strings even if they look like numbers."""


@dataclass(frozen=True)
class Format:
    """Keys of a file format, grouped by how they are converted."""

    system: str  # The system's name in messages
    same: Mapping[str, str]  # Entries mapped to Groundling's keys with the same meaning
    derived: Collection[str]  # Entries from which other keys are computed
    ignored: Mapping[str, str]  # Entries that have no effect in Groundling, with the reason or a replacement
    free: Sequence[str] = ()  # Sections with arbitrary entries, checked by the components that they configure
    lists: Collection[str] = ()  # Entries that may be lists
    strict: bool = True  # Reject unknown entries of a file; if False, they are noted and ignored

    @property
    def known(self) -> set[str]:
        """All keys, and the names of free sections."""
        return {*self.same, *self.derived, *self.ignored, *self.free}

    @property
    def sections(self) -> set[str]:
        """Keys that contain other entries."""
        parts = (key.split(".") for key in self.known)
        outer = {".".join(names[:depth]) for names in parts for depth in range(1, len(names))}
        return (outer - self.known) | {*self.free}


def load(path: Path) -> dict[str, Any]:
    """Load another system's YAML file and resolve interpolations; reject resolvers, and ignore Hydra's section."""
    try:
        raw: Any = OmegaConf.to_container(read_yaml(path), resolve=False)
        plain = {str(key): value for key, value in raw.items() if key != "hydra"}
        check_plain(plain, str(path))
        return resolve(plain, str(path))
    except FileNotFoundError:
        raise ConfigError(f"{path} does not exist: pass a YAML file of GLAM, Lamorel or RL4LMs") from None
    except (OSError, DocumentError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"cannot read {path} as a YAML file of GLAM, Lamorel or RL4LMs: {reason}") from error


def read_table(name: str) -> tuple[Format, dict[str, Any]]:
    """Read a system's bundled table; return its format, and the other values that its reader needs."""
    text = (resources.files("groundling.convert") / f"{name}.yaml").read_text(encoding="utf-8")
    table = yaml.safe_load(text)
    return Format(**table.pop("format")), table


class Entries:
    """Entries of a file with overrides (``rl_script_args.seed=1``, ``~KEY``), and notes about differences."""

    def __init__(self, path: Path, format: Format, tree: Mapping[str, Any], words: Sequence[str]) -> None:
        self.path, self.format = path, format
        self.values: dict[str, Any] = {}
        self.notes: list[str] = []
        self.overridden: set[str] = set()
        for key, value in tree.items():
            self._add(key, value, strict=format.strict)
        for word in words:
            if (override := read(word)).is_sweep_override():
                raise ConfigError(f"{word}: expected one value; `groundling train` accepts several, as in seed=1,2,3")
            self._override(override)
        single = {*format.same, *format.derived} - {*format.lists}
        for key, value in self.values.items():
            if isinstance(value, list) and key in single:
                raise ConfigError(f"{path}: {key} must be a single value, got {value!r:.80}")

    def _add(self, key: str, value: Any, strict: bool) -> None:
        if isinstance(value, Mapping):
            for name, item in value.items():
                self._add(f"{key}.{name}", item, strict)
        elif key in self.format.sections:
            check_section(self.path, key, value)
        elif not self._is_known(key):
            message = unknown(f"entry of {self.format.system}'s files", key, self.format.known)
            if strict:
                raise ConfigError(message)
            self.notes.append(f"{message.partition(':')[0]}; it is ignored")
        else:
            self.values[key] = _boolean(value)

    def _override(self, override: Override) -> None:
        key = override.key_or_group
        if not self._is_known(key) and key not in self.format.sections:
            raise ConfigError(unknown(f"entry of {self.format.system}'s files", key, self.format.known))
        self.remove([old for old in self.values if f"{old}.".startswith(f"{key}.")])
        if not override.is_delete():
            self.overridden.add(key)
            self._add(key, override.value(), strict=True)

    def _is_known(self, key: str) -> bool:
        free = tuple(f"{section}." for section in self.format.free)
        return key in self.format.known or key.startswith(free)

    def get(self, key: str, default: Any = None) -> Any:
        """Return an entry, converted to a number if possible; ``default`` if it is missing or null."""
        value = self.values.get(key)
        return default if value is None else number(value)

    def need(self, key: str) -> Any:
        """Return an entry; raise `ConfigError` if it is missing."""
        if (value := self.get(key)) is None:
            raise ConfigError(f"{self.path} has no {key}: add {key}=…")
        return value

    def count(self, key: str, default: int | None = None, least: int = 1) -> int:
        """Return a whole number of at least ``least``; without a default, the entry is required."""
        value = self.need(key) if default is None else self.get(key, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise ConfigError(f"{key} must be a whole number of at least {least}, got {value!r:.80}")
        return value

    def real(self, key: str, default: float) -> float:
        """Return an entry as a float; raise `ConfigError` if it is not a number."""
        return real(key, self.get(key, default))

    def within(self, section: str) -> dict[str, Any]:
        """Return a section's entries that are not null, by their names within the section."""
        prefix = f"{section}."
        return {
            key.removeprefix(prefix): value
            for key, value in self.values.items()
            if key.startswith(prefix) and value is not None
        }

    def remove(self, keys: Collection[str]) -> list[str]:
        """Remove entries; return those that were present."""
        present = [key for key in self.values if key in keys]
        for key in present:
            del self.values[key]
        return present

    def same(self) -> dict[str, Any]:
        """Return the values of entries that have an equivalent key in Groundling, by that key."""
        return {
            ours: value if ours in _TEXTS else number(value)
            for key, ours in self.format.same.items()
            if (value := self.values.get(key)) is not None
        }

    def note_unused(self, key: str, reason: str) -> None:
        """If the file has the entry, note that it has no effect."""
        if key in self.values:
            self.notes.append(f"{key}: no effect here ({reason})")

    def note_ignored(self) -> None:
        """Note the entries in `Format.ignored`, grouped by reason."""
        reasons: dict[str, list[str]] = defaultdict(list)
        for key, value in self.values.items():
            if key in self.format.ignored:
                is_off = value is None or value is False or value in ("", [])
                reasons["switched off" if is_off else self.format.ignored[key]].append(key)
        self.notes += [f"{', '.join(keys)}: no effect here ({reason})" for reason, keys in reasons.items()]


def number(value: Any) -> Any:
    """Convert a numeric string to a number, an integer if possible; return anything else unchanged."""
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            return value
    return int(value) if isinstance(value, float) and value.is_integer() else value


def real(key: str, value: Any) -> float:
    """Return a number as a float; raise `ConfigError` if it is not a number or too large."""
    try:
        if isinstance(value, bool):
            raise TypeError
        return float(value)
    except (TypeError, ValueError, OverflowError):
        raise ConfigError(f"{key} must be a number, got {value!r:.80}") from None


def _boolean(value: Any) -> Any:
    """Convert a boolean written as a string, as in ``apply_best: True,``; return anything else unchanged."""
    if isinstance(value, str) and value.rstrip(", ").lower() in ("true", "false"):
        return value.rstrip(", ").lower() == "true"
    return value


def check_section(where: Path | str, key: str, value: Any) -> dict[Any, Any]:
    """Return a section's entries, empty for null; raise `ConfigError` if it is not a mapping."""
    if value is not None and not isinstance(value, Mapping):
        raise ConfigError(f"{where}: {key} must be a mapping, as in {key}: {{name: value}}, got {value!r:.80}")
    return {name: _boolean(item) for name, item in (value or {}).items()}
