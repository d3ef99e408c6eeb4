"""Whether values are of the types that the schema wants, in words that a user can mend them by."""

import types
from collections.abc import Mapping
from dataclasses import is_dataclass
from enum import Enum
from typing import Any, Union, get_args, get_origin, get_type_hints

from groundling.errors import ConfigError
from groundling.registry import unknown

_TRUTHS = ("true", "false", "yes", "no", "on", "off", "y", "n", "1", "0")
_NAMED = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}


def check_values(key: str, value: Any, hint: Any) -> None:
    """Check nested settings against a type of the schema's.

    Args:
        key: Dotted, of ``value``.
        value: As YAML or an override gives it, not resolved: an interpolation passes.
        hint: The type: a dataclass, a mapping, a list, a scalar, an enum, or a union of them.

    Raises:
        ConfigError: a value of another type, or a key that there is not.
    """
    if value == "???":
        raise ConfigError(f"{key} is not set: give {key} a value")
    if hint is Any or (isinstance(value, str) and "${" in value):
        return
    if get_origin(hint) in (Union, types.UnionType):
        choices = get_args(hint)
        if value is None and type(None) in choices:
            return
        others = [one for one in choices if one is not type(None)]
        if len(others) == 1:
            check_values(key, value, others[0])
        elif type(value) not in others:  # which OmegaConf does not convert
            raise _wrong(key, value, " or ".join(_NAMED[one] for one in others))
    elif is_dataclass(hint):
        _check_section(key, value, hint)
    elif get_origin(hint) is dict:
        if not isinstance(value, Mapping):
            raise _wrong(key, value, "a mapping, {name: value}")
        for name, inner in value.items():
            check_values(f"{key}.{name}", inner, get_args(hint)[1])
    elif get_origin(hint) is list:
        if not isinstance(value, list | tuple):
            raise _wrong(key, value, "a list, [value, value]")
        for place, inner in enumerate(value):
            check_values(f"{key}[{place}]", inner, get_args(hint)[0])
    elif isinstance(hint, type) and issubclass(hint, Enum):
        if value not in [one.name for one in hint]:
            raise _wrong(key, value, f"one of {', '.join(one.name for one in hint)}")
    elif hint in _NAMED and not _is_scalar(value, hint):
        raise _wrong(key, value, _NAMED[hint])


def _check_section(key: str, value: Any, section: Any) -> None:
    if not isinstance(value, Mapping):
        number = "coefficient" in section.__dataclass_fields__ and _is_scalar(value, float)
        hint = f"; to weigh it set {key}.coefficient={value}" if number else ""
        raise _wrong(key, value, "a mapping of its keys, {name: value}", hint)
    hints = get_type_hints(section)
    for name, inner in value.items():
        if name not in section.__dataclass_fields__:
            known = [f"{key}.{one}" for one in section.__dataclass_fields__]
            raise ConfigError(unknown("config key", f"{key}.{name}", known))
        check_values(f"{key}.{name}", inner, hints[name])


def _is_scalar(value: Any, hint: Any) -> bool:
    """Whether OmegaConf takes it for one of a type of `_NAMED`."""
    if hint is bool:
        return isinstance(value, bool) or value in (0, 1) or str(value).lower() in _TRUTHS
    if hint is str:
        return isinstance(value, str | int | float)
    if isinstance(value, bool) or not isinstance(value, int | str if hint is int else int | float | str):
        return False
    try:
        hint(value)
    except (ValueError, OverflowError):
        return False
    return True


def _wrong(key: str, value: Any, expected: str, hint: str = "") -> ConfigError:
    return ConfigError(f"{key} must be {expected}, got {'null' if value is None else repr(value)}{hint}")
