"""Remove paths, servers, accounts and keys from settings and strings before they are shared."""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import PureWindowsPath
from typing import Any

from groundling.fields import Private, names_with

_SECRETS = re.compile(  # Keys of settings whose values are credentials
    r"(?:\w*_)?(?:(?:api|secret|private|access)_?key|password|passwd|secret|credentials?|authorization)|"
    r"(?:(?:hf|auth|access|use_auth|api|bearer|bot|github|hub|session)_)?token"
)
_BEFORE = (  # Inside a string, a path comes first, or follows one of these or a non-ASCII symbol
    r"""(?<![^\s,;:='"`<>|*{\[(«»"""
    r"\u2010-\u2BFF\u3000-\u3003\u3008-\u301F\uFF01-\uFF0F\uFF1A-\uFF20\U0001F000-\U0001FAFF])"
)
_IN_A_NAME = r"""[^\s/,;'"`<>|{}\[\]()«»“”‘’、。，：；（）]"""
_HOME = r"~(?:[A-Za-z_][^/\s~]*)?/"
_ABSOLUTE = re.compile(
    # There is no space before a path's second slash, unlike in "/no_think yes or/and no".
    rf"(?:(?:file:/)?/+(?!\*)[^\s/]+(?:/|$)|{_HOME}|[A-Za-z]:[\\/]|\\\\)(?:(?![,;:.!?]\s|/\s).)*"
)
_WITHOUT_SPACES = r"\u0E00-\u0EFF\u1000-\u109F\u1780-\u17FF\u3040-\u30FF\u3400-\u9FFF\uAC00-\uD7AF"
"""Letters of scripts that do not put a space before a path: Thai, Lao, Burmese, Khmer, kana, Chinese, Hangul."""
_ABSOLUTE_INSIDE = re.compile(
    # A single component, such as /no_think in a prompt, has no folders to remove.
    rf"(?:{_BEFORE}(?:file:/+|/(?![*])(?=/*{_IN_A_NAME}+/)|{_HOME}|[A-Za-z]:[\\/]|\\\\)"
    rf"|(?<=[{_WITHOUT_SPACES}])/(?=[A-Za-z][A-Za-z0-9_.-]*/))(?:{_IN_A_NAME}|/)+"
)
_NAME_OF_A_FILE = r"[\w.-]*\.(?:py|ipynb|js|txt|md|csv|jsonl?|ya?ml|toml|sh|log|html):"
_ADDRESS = re.compile(
    # A URL with any scheme except file, which is a path; punctuation at its end is not part of it.
    rf"""(?<![\w+.-])[\w+.-]*(?<!{_BEFORE}file)://(?:[^\s'"`<>|]*[^\s'"`<>|\])}},;.:!?])?"""
    # user@host with a domain, or followed by a colon and a path, but not mAP@0.5 or "pass@5: 0.3".
    r"|(?<![\w.+-])[\w.+-]+@(?:(?:[\w-]+\.)+[A-Za-z][\w-]+|\d{1,3}(?:\.\d{1,3}){3}|[A-Za-z][\w-]*(?=:\S))(?::[\w./~-]*)?"
    # A host with a port, but not a file with a line number.
    rf"|(?<![\w.-])(?!{_NAME_OF_A_FILE})(?:localhost|[A-Za-z][\w-]*(?:\.[A-Za-z][\w-]*)+|\d{{1,3}}(?:\.\d{{1,3}}){{3}}):\d{{2,5}}\b"
    # An IPv4 address; if all parts are single digits, it is a version or section number.
    r"|(?<![\w.-])(?=[\d.]*\d\d)\d{1,3}(?:\.\d{1,3}){3}(?![\w.])"
    # An API key.
    r"|\b(?:hf_\w{30,}|sk-(?:\w{1,20}-){0,3}\w{20,}|gh[opsu]_\w{30,}|github_pat_\w{22,}|glpat-[\w-]{20,}|xox[abp]-[\w-]{10,}|"
    r"AKIA[A-Z\d]{16}|AIza[\w-]{35}|gsk_\w{20,}|nvapi-[\w-]{20,}|eyJ[\w-]{10,999}\.eyJ[\w-]{1,999}\.[\w-]+)"
)
IsRead = Callable[[str, Any], bool]  # Returns True if a model reads the value of a dotted key as text


def _never(key: str, value: Any) -> bool:
    return False


def shareable(node: Any, key: str = "", is_read: IsRead = _never) -> Any:
    """Redact settings, or the setting ``key``, for sharing. Values for which ``is_read`` is true are kept unchanged.

    An absolute path is reduced to its last component. URLs, host:port, user@host, IPv4 addresses and API keys are
    removed from a single string. Entries and items of nested settings that contain one are dropped entirely, as are
    settings that are declared `Private` or contain a credential.
    """
    if key and is_read(key, node):
        return node
    if isinstance(node, Mapping):
        kept = {}
        for name, value in node.items():
            under = f"{key}.{name}" if key else str(name)
            if is_read(under, value):
                kept[name] = value
            elif not (_is_secret(name, value) or _has_address(name) or _has_address(value)):
                kept[shareable(name)] = shareable(value, under, is_read)
        return kept
    if isinstance(node, list | tuple):
        return [shareable(value) for value in node if not _has_address(value)]
    if not isinstance(node, str):
        return node
    node = _ADDRESS.sub("", node)
    if _ABSOLUTE.fullmatch(node):
        return PureWindowsPath(node).name  # it accepts both kinds of slash
    return _ABSOLUTE_INSIDE.sub(lambda path: PureWindowsPath(path[0]).name, node)


def _is_secret(name: Any, value: Any) -> bool:
    return str(name).rpartition(".")[2] in names_with(Private) or (
        isinstance(value, str) and _SECRETS.fullmatch(str(name).lower()) is not None
    )


def _has_address(value: Any) -> bool:
    return isinstance(value, str) and _ADDRESS.search(value) is not None


def shareable_words(words: Sequence[str], is_read: IsRead = _never) -> list[str]:
    """Redact a command line for sharing; overrides that specify a server or a key are dropped entirely."""
    private = (
        re.compile(rf"\b({'|'.join(sorted(map(re.escape, names_with(Private))))})\b") if names_with(Private) else None
    )
    kept = []
    for word in words:
        name, _, text = word.partition("=")
        if is_read(name, text):
            kept.append(word)
            continue
        key, equals, value = word.rpartition("=") if "{" not in word else word.partition("=")
        is_private = _ADDRESS.search(word) or (private and private.search(word))
        if not is_private and not _is_secret(key.rpartition(".")[2], value):
            kept.append(f"{key}{equals}{shareable(value)}")
    return kept
