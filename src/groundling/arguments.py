"""Arguments of components: pydantic models derived from their constructors."""

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import fields
from functools import cache
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from groundling.errors import ConfigError, unknown
from groundling.fields import Provided, one_line

_NAMED = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


@cache
def named_parameters(factory: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """Return the parameters that can be given by name."""
    parameters = inspect.signature(factory).parameters
    return {name: parameter for name, parameter in parameters.items() if parameter.kind in _NAMED}


def declarations(factory: Callable[..., Any]) -> dict[str, tuple[Any, ...]]:
    """Return the metadata of each argument's annotation: bounds and facts."""
    return {name: getattr(one.annotation, "__metadata__", ()) for name, one in named_parameters(factory).items()}


def provided(factory: Callable[..., Any]) -> dict[str, Provided]:
    """Return the arguments that a run provides to a component, by name."""
    declared = declarations(factory).items()
    return {name: fact for name, metadata in declared for fact in metadata if isinstance(fact, Provided)}


def missing_arguments(factory: Callable[..., Any], given: Collection[str]) -> list[str]:
    """Return the names of required arguments that are not given, in order."""
    needed = [name for name, one in named_parameters(factory).items() if one.default is one.empty]
    return [name for name in needed if name not in given]


@cache
def arguments_model(factory: Callable[..., Any]) -> type[BaseModel]:
    """Derive a model of the arguments that a config may set, which checks types and bounds strictly."""
    takes_any = any(p.kind is p.VAR_KEYWORD for p in inspect.signature(factory).parameters.values())
    types = {name: _type(one) for name, one in named_parameters(factory).items()}
    types |= {name: one.settable for name, one in provided(factory).items()}
    config = ConfigDict(
        extra="allow" if takes_any else "forbid",
        strict=True,
        allow_inf_nan=False,
        arbitrary_types_allowed=True,
        protected_namespaces=(),
    )
    fields: dict[str, Any] = {name: (one, None) for name, one in types.items() if one is not None}
    return create_model("Arguments", __config__=config, **fields)


def _type(parameter: inspect.Parameter) -> Any:
    """Return a parameter's type; Any for forward references."""
    hint = parameter.annotation
    return Any if hint is parameter.empty or isinstance(hint, str) or "ForwardRef" in repr(hint) else _of_yaml(hint)


def _of_yaml(hint: Any) -> Any:
    """Accept a list for a tuple, which YAML lacks; entries stay strict."""
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return Annotated[_of_yaml(args[0]), *args[1:]]
    if not args or origin not in (tuple, list, Sequence, dict, Mapping, Union, UnionType):
        return hint
    inside = tuple(_of_yaml(one) for one in args)
    if origin in (Union, UnionType):
        return Union[inside]  # noqa: UP007 (of a tuple)
    return Annotated[tuple.__class_getitem__(inside), Field(strict=False)] if origin is tuple else origin[inside]


def check_arguments(factory: Callable[..., Any], args: Mapping[str, Any], component: str, prefix: str = "") -> None:
    """Raise `ConfigError` if an argument, as read from YAML, is unknown, of the wrong type or out of bounds.

    For messages, ``component`` is a name such as ``policy 'token'``, and ``prefix`` such as ``policy.args.``.
    """
    model = arguments_model(factory)

    def refuse(key: str, known: Collection[str]) -> str:
        name = key.removeprefix(prefix)
        if (given := provided(factory).get(name)) is not None:
            return f"{key} cannot be set: the run gives it to the {component}, by {given.decided_by or given.role}"
        takes_out = f"; ~{prefix[:-1]} takes the experiment's out" if prefix.endswith("args.") else ""
        return unknown(f"argument of {component}", name, model.model_fields) + takes_out

    try:
        model.model_validate(dict(args))
    except ValidationError as error:
        raise ConfigError(one_line(error, model, prefix, refuse)) from error


def check_bounds(section: Any, prefix: str) -> None:
    """Check the fields of a dataclass instance as `check_arguments` does; ``prefix`` precedes their names."""
    made: Callable[..., Any] = type(section)
    known = {*arguments_model(made).model_fields} - {*provided(made)}
    values = {f.name: getattr(section, f.name) for f in fields(section) if f.name in known}
    check_arguments(made, values, type(section).__name__, prefix)


def taken(function: Callable[..., Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the ``given`` keyword arguments that a function takes."""
    parameters = inspect.signature(function).parameters
    takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    return {name: value for name, value in given.items() if takes_all or name in parameters}
