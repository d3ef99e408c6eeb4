"""What is given away, without what it would tell of the writer's machine."""

import re
from collections.abc import Mapping, Sequence
from pathlib import PureWindowsPath
from typing import Any

SERVERS = ("base_url", "api_key_env")
"""Arguments of a judge that asks a server: where it is, and which variable of the environment has the key."""
_READ = re.compile(
    r"(?:.*\.)?(?:"
    r"(?P<one>policy\.args\.(?:system|invalid_action|thought_begins|thought_ends|replacements\..+)|world\.system|"
    r"world\.args\.(?:prompt_prefix|prompt_suffix|prefix|concept_separator_token|concept_end_token))|"
    r"(?P<several>world\.actions)|(?P<replaced>policy\.args\.replacements))",
    re.DOTALL,
)
"""Keys of settings whose texts a model reads, or writes: with other words it would be another agent."""
_ABSOLUTE = re.compile(r"(file:/)?/.|~[^/]*/.|[A-Za-z]:[\\/].|\\\\.")
_BEFORE = r"""(?<![^\s,:='"{\[(])"""
"""What a path inside a text stands after: nothing, or one of these."""
_IN_A_NAME = r"""[^\s/,'"{}\[\]()]"""
_ABSOLUTE_INSIDE = re.compile(
    # Of a single name, such as the /no_think of a prompt, there is nothing to cut off.
    rf"{_BEFORE}(?:file:/+|/(?=/*{_IN_A_NAME}+/)|~[^/\s~]*/|[A-Za-z]:[\\/]|\\\\)(?:{_IN_A_NAME}|/)+"
)
_URL = re.compile(rf"(?<!{_BEFORE}file)://")
"""Of any scheme but file, which is a path's."""
_OF_A_SERVER = re.compile(rf"://|\b({'|'.join(SERVERS)})\b")


def shareable(node: Any, key: str = "") -> Any:
    """Nested settings, or one text, as they may be given away.

    Absolute paths, which tell of the writer's machine, become the name that they end in; texts with an address of a
    server, keys among them, and the names of API keys' variables are left out. A single text that has one becomes
    empty. Texts that a model reads (`_READ`) stay as they are.

    Args:
        node: The settings.
        key: Under which they stand, if it is not all of them.
    """
    if _is_read(key, node):
        return node
    if isinstance(node, Mapping):
        return {
            name: shareable(value, under)
            for name, value in node.items()
            if _is_read(under := f"{key}.{name}", value)
            or (name not in SERVERS and not _has_address(name) and not _has_address(value))
        }
    if isinstance(node, list | tuple):
        return [shareable(value) for value in node if not _has_address(value)]
    if not isinstance(node, str):
        return node
    if _has_address(node):
        return ""
    if _ABSOLUTE.match(node) and "\n" not in node:
        return PureWindowsPath(node).name  # which knows both kinds of slash
    return _ABSOLUTE_INSIDE.sub(lambda path: PureWindowsPath(path[0]).name, node)


def _is_read(key: str, value: Any) -> bool:
    """Whether a model reads this, and it is a text, or texts, as it should be."""
    matched = _READ.fullmatch(key)
    kind = None if matched is None else matched.lastgroup
    if kind == "replaced":
        return isinstance(value, Mapping) and _are_texts([*value, *value.values()])
    if kind == "several":
        return isinstance(value, list | tuple) and _are_texts(value)
    return kind == "one" and _are_texts([value])


def _are_texts(values: Sequence[Any]) -> bool:
    return all(isinstance(value, str) for value in values)


def _has_address(value: Any) -> bool:
    return isinstance(value, str) and _URL.search(value) is not None


def shareable_words(words: Sequence[str]) -> list[str]:
    """A command line as it may be given away: as of settings, and overrides that name a server are left out whole.

    Those of texts that a model reads stay as they are.
    """
    kept = []
    for word in words:
        if _READ.fullmatch(word.partition("=")[0].lstrip("+")):
            kept.append(word)
            continue
        key, equals, value = word.rpartition("=") if "{" not in word else word.partition("=")
        if not _OF_A_SERVER.search(word):
            kept.append(f"{key}{equals}{shareable(value)}")
    return kept
