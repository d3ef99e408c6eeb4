"""Look up the facts of config keys at the declarations of sections and components."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, get_args, get_origin

from groundling.arguments import named_parameters
from groundling.config.schema import Config, config_of
from groundling.fields import ArgumentsOf, Fact, Section, alternatives, children, is_section
from groundling.registry import Registry
from groundling.worlds import kind, worlds


def facts_of(key: str, values: Mapping[str, Any] | None = None) -> set[Fact]:
    """Return the facts of a dotted key, with list entries as ``[i]``, and of the settings that contain it.

    Ids in ``values`` select the components of arguments; without them, or for unregistered ids, all components count.
    """
    world: Any = (values or {}).get("world")
    id = world.get("id") if isinstance(world, Mapping) else None
    names = [name.rstrip("]") for name in re.split(r"[.\[]", key)]
    models = [config_of(kind(str(one))) for one in ([id] if id in worlds else worlds)]
    return {fact for model in models for fact in _below(model, names, values, None, "")}


def has_fact(fact: Fact, key: str, values: Mapping[str, Any] | None = None) -> bool:
    """Return True if a key has a fact, for all values; arguments as in `facts_of`."""
    return any(one.name == fact.name and one.condition is None for one in facts_of(key, values))


def types_of(model: type[Config], key: str) -> list[Any]:
    """Return the possible types of a key's value; empty for an unknown key."""
    hints: list[Any] = [model]
    for name in key.split("."):
        hints = [child for hint in hints for child in children(hint, name)]
    return hints


def is_free(model: type[Config], key: str) -> bool:
    """Return True if a key is, or lies in, a mapping with free keys, such as a component's arguments."""
    above = [key[: end.start()] for end in re.finditer(r"\.|$", key)]
    options = [one for key in above for hint in types_of(model, key) for one in alternatives(hint)]
    return any(get_origin(one) is dict and get_args(one)[1] is Any for one in options)


def components(key: str, hint: Any, value: Any, owner: Any = None) -> Iterator[tuple[str, Registry[Any], str, Any]]:
    """Yield each component of a config: the key above its ``args``, its registry, id and arguments.

    ``value``, of type ``hint``, is the config or the part at ``key``; ``owner`` is the section with it as a field.
    """
    marker = next((one for one in _metadata(hint) if isinstance(one, ArgumentsOf)), None)
    above, _, name = key.rpartition(".")
    if marker is not None and value is not None:
        if isinstance(value, Section):
            id: Any = getattr(value, marker.id)
            yield key, marker.registry, name if id is None else id, getattr(value, "args", {})
        else:
            yield above, marker.registry, getattr(owner, marker.id), value
    elif isinstance(value, Section | Mapping):
        for one, inside in dict(value).items():
            for child in children(hint, one):
                yield from components(f"{key}.{one}" if key else one, child, inside, value)
    elif isinstance(value, list):
        for place, inside in enumerate(value):
            for child in children(hint, str(place)):
                yield from components(f"{key}[{place}]", child, inside)


def _below(hint: Any, names: Sequence[str], value: Any, owner: Any, name: str) -> Iterator[Fact]:
    """Yield the facts of a type and of the entries ``names`` below it; ``value``, if known, is ``owner[name]``."""
    for one in _metadata(hint):
        if isinstance(one, Fact) and (one.entries is None or (names and names[0] in one.entries)):
            yield one
        elif isinstance(one, ArgumentsOf):
            id, rest, args = _entry(owner, one.id), names, value
            if any(map(is_section, alternatives(hint))):
                id, args = _entry(value, one.id) or name, _entry(value, "args")
                rest = names[1:] if names[:1] == ["args"] else []
            for type_ in _arguments(one.registry, id, rest[0]) if rest else ():
                yield from _below(type_, rest[1:], _entry(args, rest[0]), args, rest[0])
    for child in children(hint, names[0]) if names else ():
        yield from _below(child, names[1:], _entry(value, names[0]), value, names[0])


def _arguments(registry: Registry[Any], id: Any, name: str) -> Iterator[Any]:
    """Yield the type of an argument for each possible component."""
    for one in [id] if id in registry else registry.in_order():
        if (parameter := named_parameters(registry.get(one)).get(name)) is not None:
            yield parameter.annotation


def _metadata(hint: Any) -> list[Any]:
    """Return the metadata of a type and, of a union, of its members."""
    if get_origin(hint) is Annotated:
        return [*hint.__metadata__, *_metadata(get_args(hint)[0])]
    members = get_args(hint) if len(alternatives(hint)) > 1 else ()
    return [one for member in members for one in _metadata(member)]


def _entry(value: Any, name: str) -> Any:
    if isinstance(value, list | tuple) and name.isdecimal():
        return value[int(name)] if int(name) < len(value) else None
    return value.get(name) if isinstance(value, Mapping) else None
