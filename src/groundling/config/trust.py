"""Refuse, in files, settings that only the command line may give (`CommandLineOnly`) and OmegaConf's resolvers.

Runs, experiments, studies and datasets are shared as files, so settings in a file must not run code, choose servers,
name the variable of an API key, make envs write files, or read the environment.
"""

import re
import shlex
from collections.abc import Collection, Mapping
from typing import Any, Literal

from hydra.core.override_parser.types import Quote, QuotedString

from groundling.config.facts import facts_of
from groundling.errors import ConfigError
from groundling.fields import CommandLineOnly, TrainingOnly, leaves, names_with

Purpose = Literal["training", "playing", "acting", "showing"]
"""Use of a config: training; playing in its world (evaluate, collect, watch); acting in the caller's env; showing
recorded results. `CommandLineOnly` settings of a file are ignored where unused: those of training in playing and
acting, all of them in showing."""

_URL = re.compile(r"\s*[A-Za-z][\w+.-]*://")
_PLAIN = re.compile(r"\$\{\.*[A-Za-z_]\w*(\.\w+|\[\w+\])*\}")
_SHOWN = 120  # Characters of a value in a message


def command_line_only(key: str, value: Any, values: Mapping[str, Any] | None = None) -> bool:
    """Check whether only the command line may give a single value: names declared so, in any section, and all URLs."""
    if value is None or value == 0:  # or False: it is off
        return False
    names = set(re.split(r"[.\[]", key))
    if not names.isdisjoint(names_with(CommandLineOnly)) or (isinstance(value, str) and _URL.match(value)):
        return True
    return _by_value(key, value, values)


def _by_value(key: str, value: Any, values: Mapping[str, Any] | None) -> bool:
    """Check whether a value, such as a judge's id, may be chosen only on the command line."""
    conditional = (fact for fact in facts_of(key, values) if fact.name == CommandLineOnly.name and fact.condition)
    return isinstance(value, str) and any(fact.condition(value) for fact in conditional)  # type: ignore[misc]


def admit(
    values: Mapping[str, Any], said: Mapping[str, Any], where: str, purpose: Purpose = "training"
) -> dict[str, Any]:
    """Return a config's settings that may be used; ``said`` has the `leaves` that the command line gives.

    Raises `ConfigError`, with the words to add, if the file ``where`` sets what only the command line may give.
    """
    unsaid = {
        key: value
        for key, value in leaves("", values)
        if (key not in said or said[key] != value) and command_line_only(key, value, values)
    }
    refused = {key: value for key, value in unsaid.items() if not _is_useless(key, purpose)}
    if refused:
        raise ConfigError(
            f"{where} sets {', '.join(refused)}, and no file may run code, choose a server, name an API key or have an "
            f"env write files: if you trust it, add to the command: {' '.join(map(_word, refused, refused.values()))}"
        )
    # A choice such as the judge's stays: it says what a run's reward was.
    left_out = {key for key, value in unsaid.items() if not _by_value(key, value, values)}
    return {name: _without(value, name, left_out) for name, value in values.items()}


def _is_useless(key: str, purpose: Purpose) -> bool:
    is_of_training = not set(re.split(r"[.\[]", key)).isdisjoint(names_with(TrainingOnly))
    return purpose == "showing" or (purpose != "training" and is_of_training)


def _without(node: Any, key: str, keys: Collection[str]) -> Any:
    """Return ``node`` but for the leaves at ``keys``."""
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


def _word(key: str, value: Any) -> str:
    """Return the override to type, safe to copy into a shell: the value, and perhaps the key, come from a file."""
    name, bracket, _ = key.partition("[")
    if bracket or len(key) > _SHOWN or not key.isprintable():
        return shlex.quote(f"{name[:_SHOWN]}=[…]" if name.isprintable() else "KEY=[…]")
    text = str(value).lower() if isinstance(value, bool) else str(value)
    if len(text) > _SHOWN or not text.isprintable():
        return shlex.quote(f"{key}=…")
    if not re.fullmatch(r"[\w.:/@-]+", text):
        text = quoted(text)
    return shlex.quote(f"{key}={text}")


def quoted(text: str) -> str:
    """Quote a text as the value of an override; Hydra's grammar unescapes backslashes only before quotes."""
    return QuotedString(text, Quote.single).with_quotes()


def check_plain(node: Any, where: str) -> None:
    """Raise `ConfigError` for any interpolation but ``${key}``, as ``${oc.env:NAME}``, before OmegaConf reads it."""
    for key, text in leaves("", node):
        if not isinstance(text, str):
            continue
        if any(_PLAIN.match(text, match.start()) is None for match in re.finditer(r"\$\{", text)):
            excerpt = f"{key[:_SHOWN]}={text[:_SHOWN]!r}" if key else repr(text[:_SHOWN])
            raise ConfigError(
                f"{where}: {excerpt} is not read: resolvers, which could read the environment, are off, and ${{ only "
                "begins the name of another key, as in ${name}; write the value itself"
            )
