"""Mutations of texts, bytes and nested values from a seed."""

import json
import math
from collections.abc import Sequence
from random import Random
from typing import Any

CHARACTERS = " \t\n\r\0\x1b\x85\u2028\u200b\ufeff\ud800é\"'\\`{}[]()<>|:=,.;~*&!%@#$^?/-_+019aZ\U0001f600"
"""Characters that grammars, terminals and encodings treat specially."""
VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 7, 2.5, 1e-300, 1e300, math.nan, math.inf, 2**31, 2**63, 10**400),
    *("", " ", "a", "1", "-1", "1e5", "nan", "???", "true", "a.b", "a[0]", "${a}", "${name}", "${seed}"),
    *("${x.y}", "é", "\0", "a\nb", "'", '"', "\\", "/", "../a", "http://a.b/", "abc", "x" * 300),
    *([], [1], ["a"], [None], [[]], [{}], {}, {"a": 1}, {"id": "a"}, {"id": []}, {"id": {}, "args": []}),
    *({"a": {"b": [1, "x"]}}, {1: 2}),
)
"""Replacements for values."""
WORDS = (
    *("9" * 400, "9" * 4300, "1e999", "-1e999", "nan", "NaN", "Infinity", "null", "true", "~", "0x", "1_0"),
    *("-0", "[" * 40, "]" * 40, "{" * 40, "}" * 40, "${", "${a}", "${oc.env:HOME}", "${.a}", "\\ud800"),
    *("\\u0000", "''", '""', "\r\n", "\n\n", ": ", ", ", "- "),
)


def text(random: Random, seeds: Sequence[str], words: Sequence[str] = WORDS) -> str:
    """Return one of ``seeds`` with up to eight changes: cuts, repeats, crossovers, added words and characters."""
    made = random.choice(seeds)
    for _ in range(random.choice((0, 1, 1, 1, 2, 2, 3, 4, 8))):
        start = random.randint(0, len(made))
        end = min(len(made), start + int(random.expovariate(0.2)))
        match random.randrange(7):
            case 0:
                new = ""
            case 1:
                new = made[start:end] * random.choice((2, 2, 3, 40))
            case 2:
                other = random.choice(seeds)
                begin = random.randint(0, len(other))
                new = other[begin : begin + random.randint(0, 40)]
            case 3:
                new = random.choice(CHARACTERS)
            case 4:
                new = chr(random.randrange(random.choice((128, 0x300, 0x3000, 0x110000))))
            case _:
                new = random.choice(words)
        made = made[:start] + new + made[end:]
    return made[: random.randint(0, len(made))] if random.random() < 0.03 else made


def encoded(random: Random, content: str) -> bytes:
    """Encode a text, usually as UTF-8, and sometimes with a byte order mark, invalid bytes or another encoding."""
    match random.randrange(20):
        case 0:
            return b"\xef\xbb\xbf" + content.encode("utf-8", "surrogatepass")
        case 1:
            return content.encode(random.choice(("utf-16", "latin-1")), "replace")
        case 2:
            return bent(random, content.encode("utf-8", "surrogatepass"))
        case _:
            return content.encode("utf-8", "replace")


def bent(random: Random, content: bytes) -> bytes:
    """Change up to four bytes, and sometimes truncate or repeat the bytes."""
    made = bytearray(content)
    for _ in range(random.randint(0, 4)):
        if made:
            made[random.randrange(len(made))] = random.choice((0, 0xFF, 0x7F, 0x80, random.randrange(256)))
    match random.randrange(8):
        case 0:
            return bytes(made[: random.randint(0, len(made))])
        case 1:
            return bytes(made * 2)
    return bytes(made)


def value(random: Random, seed: Any, values: Sequence[Any] = VALUES) -> Any:
    """Copy nested values with up to four of them replaced, removed, repeated or renamed."""
    made = seed
    for _ in range(random.choice((0, 1, 1, 1, 2, 4))):
        made = _changed(random, made, values)
    return made


def _changed(random: Random, node: Any, values: Sequence[Any]) -> Any:
    inside = isinstance(node, dict | list) and len(node) > 0 and random.random() < 0.9
    if not inside:
        return random.choice(values)
    if isinstance(node, dict):
        key = random.choice([*node])
        match random.randrange(8):
            case 0:
                return {name: one for name, one in node.items() if name != key}
            case 1:
                name = random.choice(("", "a", "id", "args", "a.b", "a[0]", "é", f"{key}x", "world", "???"))
                return {**node, name: random.choice((node[key], random.choice(values)))}
        return {name: _changed(random, one, values) if name == key else one for name, one in node.items()}
    place = random.randrange(len(node))
    match random.randrange(6):
        case 0:
            return node[:place] + node[place + 1 :]
        case 1:
            return [*node, node[place]]
    return [*node[:place], _changed(random, node[place], values), *node[place + 1 :]]


def json_text(content: Any) -> str:
    """Encode nested values as JSON."""
    return json.dumps(content, default=str)
