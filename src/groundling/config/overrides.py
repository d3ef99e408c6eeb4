"""Overrides as changes to a config: what they set and take out, and which values they give."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from groundling.config import grammar
from groundling.config.renamed import check_renamed
from groundling.config.trust import check_plain, leaves
from groundling.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Change:
    """One key, set or taken out."""

    key: str
    """Dotted."""
    value: Any = None
    """What it is set to; a mapping is merged into what is there."""
    takes_out: bool = False


@dataclass(slots=True)
class Overrides:
    """What is to be changed."""

    changes: list[Change] = field(default_factory=list)
    """In their order."""
    given: dict[str, Any] = field(default_factory=dict)
    """The values that they set: `leaves`."""


def parse(overrides: Sequence[str | Mapping[str, Any]]) -> Overrides:
    """Read overrides: words, or values by dotted key, for Hydra's dicts know no accents in a key.

    Raises:
        ConfigError: a word that Hydra's grammar does not know, an old key, a resolver, or several values of one key.
    """
    parsed = Overrides()
    for override in overrides:
        parsed.changes += [_of_word(override)] if isinstance(override, str) else _of_values(override)
    setting = [change for change in parsed.changes if not change.takes_out]
    parsed.given = {key: value for one in setting for key, value in leaves(one.key, one.value)}
    return parsed


def _of_word(word: str) -> Change:
    override = grammar.read(word)
    key = override.key_or_group
    if override.is_sweep_override():
        raise ConfigError(f"{key} takes one value, got several: {word}")
    return Change(key, takes_out=True) if override.is_delete() else Change(key, override.value())


def _of_values(values: Mapping[str, Any]) -> list[Change]:
    check_plain(values, "an override")
    for key, value in values.items():
        check_renamed(value, "an override", key)
    return [Change(key, value) for key, value in values.items()]
