"""Whether the values that a user gives a component are of the types that it expects."""

import collections.abc
import inspect
import operator
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass, make_dataclass
from functools import cache
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from groundling.errors import ConfigError
from groundling.fields import Ge, Gt, Le, Lt

_BOUNDS: dict[type, tuple[str, str, Callable[[Any, Any], bool]]] = {
    Ge: ("ge", "at least", operator.ge),
    Gt: ("gt", "greater than", operator.gt),
    Le: ("le", "at most", operator.le),
    Lt: ("lt", "less than", operator.lt),
}
"""By type of a bound, its attribute, how a message reads it, and the comparison."""


def check_bounds(section: Any, prefix: str) -> None:
    """Check the fields of a dataclass against the bounds of their annotations; None passes.

    Args:
        section: The dataclass's instance.
        prefix: Stands before a field's name in a message: ``world.``, say.

    Raises:
        ConfigError: a value is out of bounds.
    """
    for f in fields(section):
        _check_bound(f"{prefix}{f.name}", getattr(section, f.name, None), f.type)


def _check_bound(key: str, value: Any, hint: Any) -> None:
    for bound in getattr(hint, "__metadata__", ()):
        if type(bound) not in _BOUNDS or not isinstance(value, int | float):
            continue
        name, words, holds = _BOUNDS[type(bound)]
        if not holds(value, getattr(bound, name)):
            raise ConfigError(f"{key} must be {words} {getattr(bound, name)}, got {value}")


def check_types(factory: Any, prefix: str, args: Mapping[str, Any]) -> None:
    """Check values against the type hints of what is made from them.

    Args:
        factory: A class, or a function with the signature of what it makes.
        prefix: Stands before an argument's name in a message: ``policy.args.``, say.
        args: As YAML gives them.

    Raises:
        ConfigError: a value of the wrong type, or out of the bounds of its annotation.
    """
    hints = _hints(factory)
    for name, value in args.items():
        hint = hints.get(name, Any)
        _check_type(f"{prefix}{name}", value, get_args(hint)[0] if get_origin(hint) is Annotated else hint)
        _check_bound(f"{prefix}{name}", value, hint)


def _hints(factory: Any) -> dict[str, Any]:
    """Of each argument; of annotations that only a type checker can resolve none: what is made checks those itself."""
    if not inspect.isclass(factory):
        parameters = inspect.signature(factory).parameters.values()
        known = (p for p in parameters if p.annotation is not p.empty and not isinstance(p.annotation, str))
        return {p.name: p.annotation for p in known}
    try:
        return get_type_hints(factory if is_dataclass(factory) else factory.__init__, include_extras=True)
    except NameError:
        return {}


def _check_type(key: str, value: Any, hint: Any) -> None:
    if get_origin(hint) is Literal:
        if value not in get_args(hint):
            raise ConfigError(f"{key} must be one of {', '.join(map(repr, get_args(hint)))}, got {value!r}")
        return
    if get_origin(hint) in (Union, UnionType):
        hint = _part_for(hint, value)
    if get_origin(hint) is collections.abc.Sequence:  # OmegaConf knows it as a list
        hint = list[get_args(hint)[0]]  # type: ignore[misc]
    schema = _schema_of(hint)
    if schema is None:
        return  # not a type that YAML can hold: the component checks it itself
    try:
        read = OmegaConf.merge(schema, {"value": value}).value
        if isinstance(value, str) and isinstance(read, bool | int | float):
            raise OmegaConfBaseException  # OmegaConf reads "no" as false, but the component would be given the text
        if isinstance(read, str) and not isinstance(value, str):  # the other way round: 123 as text
            raise ConfigError(f"{key} must be text, got {value!r}: quote it, on a command line as '\"{value}\"'")
    except OmegaConfBaseException:
        name = getattr(hint, "__name__", str(hint)) if get_origin(hint) is None else str(hint)
        raise ConfigError(f"{key} must be of type {name}, got {value!r}") from None


def _part_for(union: Any, value: Any) -> Any:
    """What of a union a value is checked against: OmegaConf knows none that has a sequence in it."""
    sequences = [one for one in get_args(union) if get_origin(one) is collections.abc.Sequence]
    if not sequences:
        return union
    if isinstance(value, list | tuple):
        return sequences[0]
    return Union[tuple(one for one in get_args(union) if one not in sequences)]  # noqa: UP007 (of a tuple)


@cache
def _schema_of(hint: Any) -> DictConfig | None:
    """Of a value of that type, to be merged with it; None of a type that YAML cannot hold."""
    try:
        schema: DictConfig = OmegaConf.structured(make_dataclass("Argument", [("value", hint)]))
    except (OmegaConfBaseException, NameError):  # NameError: a forward reference
        return None
    return schema


def taken(function: Callable[..., Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the ``given`` keyword arguments that a function takes."""
    parameters = inspect.signature(function).parameters
    takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    return {name: value for name, value in given.items() if takes_all or name in parameters}
