"""Look up facts about config keys, such as `CommandLineOnly`, as declared by sections and components."""

import json
import re
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, get_args, get_origin

from hydra.core.override_parser.types import Quote, QuotedString

from groundling.config.schema import Config, config_of
from groundling.errors import ConfigError
from groundling.fields import (
    ArgumentsOf,
    CommandLineOnly,
    Fact,
    ReadByModel,
    Section,
    TrainingOnly,
    alternatives,
    children,
    is_section,
    leaves,
    names_with,
)
from groundling.io import redaction
from groundling.registry import Registry, named_parameters
from groundling.worlds import worlds


def facts_of(key: str, values: Mapping[str, Any] | None = None) -> set[Fact]:
    """Return the facts about a dotted key and the settings that contain it; ids in ``values`` select components."""
    world: Any = (values or {}).get("world")
    id = world.get("id") if isinstance(world, Mapping) else None
    names = [name.rstrip("]") for name in re.split(r"[.\[]", key)]
    models = [config_of(str(one)) for one in ([id] if id in worlds else worlds)]
    return {fact for model in models for fact in _below(model, names, values, None, "")}


def has_fact(fact: Fact, key: str, values: Mapping[str, Any] | None = None) -> bool:
    """Return True if a fact applies to a key for all values; arguments are as in `facts_of`."""
    return any(one.name == fact.name and one.condition is None for one in facts_of(key, values))


def types_of(model: type[Config], key: str) -> list[Any]:
    """Return the possible types of a key's value; empty for an unknown key."""
    hints: list[Any] = [model]
    for name in key.split("."):
        hints = [child for hint in hints for child in children(hint, name)]
    return hints


def is_free(model: type[Config], key: str) -> bool:
    """Return True if a key is, or is inside, a mapping with arbitrary keys, such as a component's arguments."""
    above = [key[: end.start()] for end in re.finditer(r"\.|$", key)]
    options = [one for key in above for hint in types_of(model, key) for one in alternatives(hint)]
    return any(get_origin(one) is dict and get_args(one)[1] is Any for one in options)


def components(key: str, hint: Any, value: Any, owner: Any = None) -> Iterator[tuple[str, Registry[Any], str, Any]]:
    """Yield, for each component of a config, the key that contains its ``args``, its registry, its id and its arguments.

    ``value``, of type ``hint``, is the config or its part at ``key``; ``owner`` is the section that contains it.
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
            for component in ([id] if id in one.registry else one.registry.in_order()) if rest else ():
                if (parameter := named_parameters(one.registry.get(component)).get(rest[0])) is not None:
                    yield from _below(parameter.annotation, rest[1:], _entry(args, rest[0]), args, rest[0])
    for child in children(hint, names[0]) if names else ():
        yield from _below(child, names[1:], _entry(value, names[0]), value, names[0])


def _metadata(hint: Any) -> list[Any]:
    """Return the metadata of a type and, if it is a union, of its members."""
    if get_origin(hint) is Annotated:
        return [*hint.__metadata__, *_metadata(get_args(hint)[0])]
    members = get_args(hint) if len(alternatives(hint)) > 1 else ()
    return [one for member in members for one in _metadata(member)]


def _entry(value: Any, name: str) -> Any:
    if isinstance(value, list | tuple) and name.isdecimal():
        return value[int(name)] if int(name) < len(value) else None
    return value.get(name) if isinstance(value, Mapping) else None


def shareable(node: Any, key: str = "") -> Any:
    """Redact settings, or the one at ``key``, with `redaction.shareable`, except for text that a model reads."""
    return redaction.shareable(node, key, _is_read)


def shareable_words(words: Sequence[str]) -> list[str]:
    """Redact a command line, except for text that a model reads; drop overrides that specify a server or API key."""
    return redaction.shareable_words(words, _is_read)


def _is_read(key: str, value: Any) -> bool:
    """Return True if a setting contains text that a model reads."""
    names = key.lstrip("+").split(".")
    # Settings may be recorded under a different key, such as that of a study's arm.
    places = [place for place, name in enumerate(names) if name in Config.model_fields]
    for key in (".".join(names[place:]) for place in places):
        read = {fact for fact in facts_of(key) if fact.name == ReadByModel.name}
        if any(fact.condition(value) for fact in read if fact.condition):
            return True
        if ReadByModel in read and isinstance(value, str) and ReadByModel not in facts_of(key.rpartition(".")[0]):
            return True
    return False


Purpose = Literal["training", "playing", "acting", "showing"]
"""Purpose of a config: training, playing in its world (evaluate, collect, watch), acting in the caller's env, or
showing recorded results. Unused `CommandLineOnly` settings in a file are ignored: training settings when playing or
acting, and all of them when showing results."""

_URL = re.compile(r"\s*[A-Za-z][\w+.-]*://")
_PLAIN = re.compile(r"\$\{\.*[A-Za-z_]\w*(\.\w+|\[\w+\])*\}")
_BARE = re.compile(r"(?!(true|false|null|nan|inf)$)[a-z]\w*( \w+)*", re.IGNORECASE)  # Strings that need no quotes
_SHOWN = 120  # Maximum number of characters of a value in a message


def command_line_only(key: str, value: Any, values: Mapping[str, Any] | None = None) -> bool:
    """Return True if only the command line may set a value: a URL, or any key declared as `CommandLineOnly`."""
    if value is None or value == 0:  # 0 == False: the setting is off
        return False
    names = set(re.split(r"[.\[]", key))
    is_url = isinstance(value, str) and _URL.match(value)
    return not names.isdisjoint(names_with(CommandLineOnly)) or bool(is_url) or _by_value(key, value, values)


def _by_value(key: str, value: Any, values: Mapping[str, Any] | None) -> bool:
    """Return True if a value, such as a judge's id, may only be chosen on the command line."""
    conditional = (fact for fact in facts_of(key, values) if fact.name == CommandLineOnly.name and fact.condition)
    return isinstance(value, str) and any(fact.condition(value) for fact in conditional)  # type: ignore[misc]


def admit(
    values: Mapping[str, Any], said: Mapping[str, Any], where: str, purpose: Purpose = "training"
) -> dict[str, Any]:
    """Return the settings that a file may set; raise `ConfigError` if others are not on the command line (``said``) too."""
    unsaid = {
        key: value
        for key, value in leaves("", values)
        if (key not in said or said[key] != value) and command_line_only(key, value, values)
    }
    unused = names_with(TrainingOnly) if purpose in ("playing", "acting") else ()
    refused = {
        key: value
        for key, value in unsaid.items()
        if purpose != "showing" and set(re.split(r"[.\[]", key)).isdisjoint(unused)
    }
    if refused:
        raise ConfigError(
            f"{where} sets {', '.join(refused)}, but no file may run code, choose a server, name an API key or let an "
            f"env write files. If you trust it, add to the command: {' '.join(map(word, refused, refused.values()))}"
        )
    # Keep choices such as the judge's id, which document a run's reward.
    left_out = {key for key, value in unsaid.items() if not _by_value(key, value, values)}
    return {name: _without(value, name, left_out) for name, value in values.items()}


def _without(node: Any, key: str, keys: Collection[str]) -> Any:
    """Return ``node`` without the leaves at ``keys``."""
    if not keys:
        return node
    if isinstance(node, Mapping):
        return {
            name: _without(value, f"{key}.{name}", keys) for name, value in node.items() if f"{key}.{name}" not in keys
        }
    if isinstance(node, list | tuple):
        inside = [(f"{key}[{place}]", value) for place, value in enumerate(node)]
        return [_without(value, place, keys) for place, value in inside if place not in keys]
    return node


def word(key: str, value: Any) -> str:
    """Return the override to type, quoted for a shell, since the value, and perhaps the key, may come from a file."""
    name, bracket, _ = key.partition("[")
    if bracket or len(key) > _SHOWN or not key.isprintable():
        return shlex.quote(f"{name[:_SHOWN]}=[…]" if name.isprintable() else "KEY=[…]")
    text = str(value).lower() if isinstance(value, bool) else str(value)
    if isinstance(value, list):
        text = f"[{', '.join(_item(one) for one in value)}]"
    if len(text) > _SHOWN or not text.isprintable():
        return shlex.quote(f"{key}=…")
    if not isinstance(value, list) and not re.fullmatch(r"[\w.:/@-]+", text):
        text = quoted(text)
    return shlex.quote(f"{key}={text}")


def _item(value: Any) -> str:
    if not isinstance(value, str):
        return json.dumps(value)
    return value if _BARE.fullmatch(value) else quoted(value)


def quoted(text: str) -> str:
    """Quote a string as the value of an override; Hydra's grammar unescapes backslashes only before quotes."""
    return QuotedString(text, Quote.single).with_quotes()


def check_plain(node: Any, where: str) -> None:
    """Raise `ConfigError` for interpolations other than ``${key}``, such as ``${oc.env:NAME}``, before they run."""
    for key, text in leaves("", node):
        if not isinstance(text, str):
            continue
        if any(_PLAIN.match(text, match.start()) is None for match in re.finditer(r"\$\{", text)):
            excerpt = f"{key[:_SHOWN]}={text[:_SHOWN]!r}" if key else repr(text[:_SHOWN])
            raise ConfigError(
                f"{where}: {excerpt} is not allowed, since resolvers can read environment variables: write the "
                "value itself; ${…} may only refer to another key, as in ${name}"
            )
