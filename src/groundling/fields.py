"""Config sections, and properties of settings ("facts"), which section fields and component arguments declare.

    class NetHackConfig(WorldConfig):
        num_workers: Annotated[int, Ge(0), NoEffectOnResults] = 0

    @judges.register("openai")
    class OpenAIJudge(Judge):
        def __init__(self, model: str, base_url: Annotated[str, CommandLineOnly, Private] = URL) -> None: ...

Resuming, trust checks, publishing and evaluation rely on these facts instead of lists of setting names.
"""

import inspect
import types
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, is_dataclass, replace
from typing import Annotated, Any, Literal, Self, Union, get_args, get_origin, get_type_hints

from annotated_types import Ge as Ge
from annotated_types import Gt as Gt
from annotated_types import Le as Le
from annotated_types import Lt as Lt
from pydantic import BaseModel, ConfigDict, ValidationError

from groundling.errors import ConfigError, unknown


@dataclass(frozen=True)
class Fact:
    """A property of a setting, declared in the metadata of `typing.Annotated`."""

    name: str
    entries: tuple[str, ...] | None = None  # Entries of a mapping to which the fact applies; None means all
    condition: Callable[[Any], bool] | None = None  # True for values to which it applies; None means all values

    def of(self, *entries: str) -> "Fact":
        """Restrict the fact to some entries of a mapping, such as another library's arguments."""
        return replace(self, entries=entries)

    def when(self, condition: Callable[[Any], bool]) -> "Fact":
        """Restrict the fact to some values: ``attention: Annotated[str, CommandLineOnly.when(is_kernel_of_hub)]``."""
        return replace(self, condition=condition)


MayChangeOnResume = Fact("MayChangeOnResume")
"""A run may be resumed with a different value."""
NoEffectOnResults = Fact("NoEffectOnResults")
"""Runs and evaluations that differ only in this setting agree up to rounding and sampling. It may change on resume."""
OfEvaluation = Fact("OfEvaluation")
"""Affects what an evaluation measures. It is saved with the results, which are comparable only if its values match."""
FixedByTraining = Fact("FixedByTraining")
"""Affects the weights of a checkpoint, so evaluations of the checkpoint cannot change it."""
TrainingOnly = Fact("TrainingOnly")
"""Used only in training. When an agent is loaded for inference, the setting is ignored if a file contains it."""
CommandLineOnly = Fact("CommandLineOnly")
"""May be set on the command line or in a call, but not in a file: it runs code, selects a server or key, or writes
files. A file may disable it with None, False or 0."""
Private = Fact("Private")
"""Removed from everything that is shared: reports, published policies, study results."""
ReadByModel = Fact("ReadByModel")
"""Text that a model reads or writes. It is shared unchanged, since different wording would change the agent."""


def are_texts(value: Any) -> bool:
    """Return True for a string, or a list or mapping of strings; used as in ``ReadByModel.when(are_texts)``."""
    values = [*value, *value.values()] if isinstance(value, Mapping) else [value] if isinstance(value, str) else value
    return isinstance(values, list | tuple) and all(isinstance(one, str) for one in values)


@dataclass(frozen=True)
class OnlyWith:
    """Marks an argument that is rejected unless the argument ``name`` is set (to one of ``values``, if given)."""

    name: str
    values: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Provided:
    """An argument that the run provides to a component: ``lm: Annotated[LanguageModel, Provided("lm")]``.

    A policy's arguments may have the roles ``lm`` (the model of ``model.path``), ``reference`` (the model at the start
    of training, if the algorithm penalises divergence from it), ``value_base`` (the same model, for a value adapter),
    ``num_actions``, ``language`` and ``critic``. Rewards and metrics may have only ``lm`` (the model being trained).
    """

    role: str
    settable: type | None = None  # Type of a value that a config may set instead; if None, a config cannot set it
    decided_by: str = ""  # Config key that determines the value; shown in error messages


@dataclass(frozen=True)
class ArgumentsOf:
    """Specifies the registry of the component selected by a `ComponentConfig`, or by an id next to its arguments."""

    registry: Any
    id: str = "id"  # Key of the id next to the mapping


_names: dict[str, set[str]] = {}


def record(declarations: Mapping[str, Iterable[Any]]) -> None:
    """Record which fields or arguments declare which facts, given the metadata of their annotations."""
    for name, metadata in declarations.items():
        for fact in metadata:
            if isinstance(fact, Fact) and fact.condition is None:
                _names.setdefault(fact.name, set()).update(fact.entries or [name])


def names_with(fact: Fact) -> Collection[str]:
    """Return the names of all settings that declare a fact, to recognise settings of unregistered components."""
    return _names.get(fact.name, ())


_TYPE_NAMES: dict[Any, str] = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
    **dict.fromkeys((list, tuple, Sequence), "a list, [value, value]"),
    **dict.fromkeys((dict, Mapping), "a mapping, {name: value}"),
}
_BOUNDS = {  # Maps pydantic's error types to the wording and the bound's key in the error's context
    "greater_than_equal": ("at least", "ge"),
    "greater_than": ("greater than", "gt"),
    "less_than_equal": ("at most", "le"),
    "less_than": ("less than", "lt"),
}

Refuse = Callable[[str, Collection[str]], str]  # Returns the message for an unknown key, given its section's keys


class Section(BaseModel):
    """A config section. Its fields declare types, bounds and facts; the string below a field documents the field."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, protected_namespaces=())

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        record({name: field.metadata for name, field in cls.model_fields.items()})

    @classmethod
    def of(cls, values: Any, refuse: Refuse | None = None) -> Self:
        """Create a section from plain nested values; raise `ConfigError` with the message from `one_line`."""
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            raise ConfigError(one_line(error, cls, refuse=refuse)) from error

    @classmethod
    def defaults(cls) -> dict[str, Any]:
        """Return the nested defaults of all keys; required keys are ``???``, as in OmegaConf."""
        values: dict[str, Any] = {}
        for name, field in cls.model_fields.items():
            if isinstance(field.annotation, type) and issubclass(field.annotation, Section):
                values[name] = field.annotation.defaults()
            else:
                values[name] = "???" if field.is_required() else field.get_default(call_default_factory=True)
        return values

    def declared(self, fact: Fact) -> dict[str, Any]:
        """Return the values of the fields that declare a fact, by name, as plain data."""
        return self.model_dump(include={name for name, one in type(self).model_fields.items() if fact in one.metadata})


def leaves(key: str, node: Any) -> Iterator[tuple[str, Any]]:
    """Yield the leaves of nested values with keys such as ``a.b[0]``; empty mappings and lists have no leaves."""
    if isinstance(node, Mapping):
        for name, value in node.items():
            yield from leaves(f"{key}.{name}" if key else str(name), value)
    elif isinstance(node, list | tuple):
        for place, value in enumerate(node):
            yield from leaves(f"{key}[{place}]", value)
    else:
        yield key, node


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten nested values to dotted keys; lists and empty mappings are kept as values."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            found |= flat(value, f"{prefix}{name}.")
        else:
            found[f"{prefix}{name}"] = value
    return found


def alternatives(hint: Any) -> tuple[Any, ...]:
    """Return the members of a union, or the type itself, without `Annotated`."""
    if get_origin(hint) is Annotated:
        return alternatives(get_args(hint)[0])
    if get_origin(hint) in (Union, types.UnionType):
        return tuple(one for member in get_args(hint) for one in alternatives(member))
    return (hint,)


def children(hint: Any, name: str) -> Iterator[Any]:
    """Yield the possible types of the field, key or item ``name`` in values of type ``hint``, with its facts."""
    for one in alternatives(hint):
        if is_section(one):
            if (field := one.model_fields.get(name)) is not None:
                yield Annotated[field.annotation, None, *field.metadata]
        elif isinstance(one, type) and is_dataclass(one):
            if name in (hints := get_type_hints(one, include_extras=True)):
                yield hints[name]
        elif get_origin(one) in (dict, Mapping) or (get_origin(one) in (list, Sequence) and name.isdecimal()):
            yield get_args(one)[-1]


def annotation(owner: type, name: str, usual: Any = None) -> Any:
    """Return the type (other than Any) that a class or its nearest base declares for an attribute, or ``usual``."""
    hints = (inspect.get_annotations(one, eval_str=True).get(name, Any) for one in owner.__mro__)
    return next((hint for hint in hints if hint is not Any), usual)


def is_section(hint: Any) -> bool:
    """Return True for a pydantic model class."""
    return isinstance(hint, type) and issubclass(hint, BaseModel)


def one_line(error: ValidationError, model: type[BaseModel], prefix: str = "", refuse: Refuse | None = None) -> str:
    """Describe one error (an unknown key, if any) by its prefixed key, the allowed values and the actual value."""
    errors = error.errors(include_url=False)
    first = next((one for one in errors if one["type"] == "extra_forbidden"), errors[0])
    kind, value, context = first["type"], first["input"], first.get("ctx", {})
    key, hint, known = _place(first["loc"], model, prefix)
    if kind == "extra_forbidden":
        return refuse(key, known) if refuse else unknown("config key", key, known)
    if kind == "missing":
        return f"{key} is not set: give {key} a value"
    if kind == "finite_number":
        expected = "a finite number"
    elif kind in _BOUNDS:
        words, name = _BOUNDS[kind]
        expected = f"{words} {context[name]:.10g}"
    elif kind == "too_short":
        expected = f"a list or mapping with at least {context['min_length']} entries"
    elif kind == "value_error":
        expected = str(context["error"])
    else:
        expected = _expected(hint)
    return f"{key} must be {expected}, got {'null' if value is None else repr(value):.100}"


def _place(loc: tuple[int | str, ...], model: type[BaseModel], prefix: str) -> tuple[str, Any, list[str]]:
    """Return the dotted key of an error's location, the key's type, and the known keys of its section."""
    key, known = prefix, list[str]()
    hint: Any = model
    for name in loc:
        if name == "[key]":  # an invalid key of a mapping
            break
        sections = [one for one in alternatives(hint) if is_section(one)]
        here = [f"{key}{field}" for one in sections for field in one.model_fields]
        child = next(children(hint, str(name)), None)
        if child is None and not sections:
            continue  # pydantic's locations also include members of unions
        key = f"{key[:-1]}[{name}]." if isinstance(name, int) else f"{key}{name}."
        hint, known = child, here or known
    return key[:-1], hint, known


def _expected(hint: Any) -> str:
    """Describe the allowed values of a type."""
    wanted = []
    for one in alternatives(hint):
        origin = get_origin(one) or one
        if origin is Literal:
            wanted.append(f"one of {', '.join(map(str, get_args(one)))}")
        elif is_section(origin):
            wanted.append("a mapping, {name: value}")
        elif origin is not type(None):
            wanted.append(_TYPE_NAMES.get(origin) or str(getattr(origin, "__name__", origin)))
    return " or ".join(dict.fromkeys(wanted))
