"""What is given away, without what it would tell of the writer's machine."""

import re
from collections.abc import Mapping, Sequence
from pathlib import PureWindowsPath
from typing import Any

SERVERS = ("base_url", "api_key_env")
"""Arguments of a judge that asks a server: where it is, and which variable of the environment has the key."""
_ABSOLUTE = re.compile(r"(file:/)?/.|~[^/]*/.|[A-Za-z]:[\\/].|\\\\.")
_ABSOLUTE_INSIDE = re.compile(
    r"""(?<![^\s,:='"{\[(])(?:file:/+|/|~[^/\s]*/|[A-Za-z]:[\\/]|\\\\)[^\s,'"{}\[\]()]+"""
)
_OF_A_SERVER = re.compile(rf"://|\b({'|'.join(SERVERS)})\b")


def shareable(node: Any) -> Any:
    """Nested settings, or one text, as they may be given away.

    Absolute paths, which tell of the writer's machine, become the name that they end in; the addresses of servers and
    the names of API keys' variables are left out.
    """
    if isinstance(node, Mapping):
        return {name: shareable(value) for name, value in node.items() if name not in SERVERS}
    if isinstance(node, list | tuple):
        return [shareable(value) for value in node]
    if isinstance(node, str) and _ABSOLUTE.match(node) and "\n" not in node:
        return PureWindowsPath(node).name  # which knows both kinds of slash
    return node


def shareable_words(words: Sequence[str]) -> list[str]:
    """A command line as it may be given away: as of settings, and overrides that name a server are left out whole."""
    kept = []
    for word in words:
        key, equals, value = word.rpartition("=") if "{" not in word else word.partition("=")
        if not _OF_A_SERVER.search(word):
            plain = _ABSOLUTE_INSIDE.sub(lambda path: PureWindowsPath(path[0]).name, str(shareable(value)))
            kept.append(f"{key}{equals}{plain}")
    return kept
