"""Captions come from a world, where players name things and graves speak: they must not speak for the user.

What a caption says stands between two marks that carry a code, on lines of its own that each begin with ``| ``. The
code is computed from all that is shown, so that no caption can hold its own; the lines' beginning keeps a caption from
opening a line with anything else; and what looks like a mark, a verdict or a control token is bent before.
"""

import hashlib
import json
import re
import unicodedata
from collections.abc import Sequence

PREFIX = "| "

# What chat models read as control tokens: <|im_end|>, </s>, <start_of_turn>, <<SYS>>, [INST], [/INST], [TOOL_CALLS].
_ANGLES = str.maketrans({"<": "‹", ">": "›"})
# Letters and signs that are read as what they look like, and that no Unicode normalisation makes the same.
_LOOK_ALIKE = str.maketrans(
    "\u0435\u0415\u0395\u1d07\u0441\u0421\u1d04\u0456\u0406\u0399\u03b9\u0131\u026a\u0442\u0422\u03a4\u1d1b\u0501"
    "\u1d05\u0475\u0474\u03bd\u1d20\u0433\u0280\u2236\ua789\u02f8\u02d0\u0589\u05c3\ufe30\ua4ff"
    "\u2329\u3008\u27e8\u276e\u02c2\u1438\u232a\u3009\u27e9\u276f\u02c3\u1433",
    "eEEecCciIIiiitTTtddvVvvrr:::::::=<<<<<<>>>>>>",
)
_ANGLE = re.compile("[<>]")
_BRACKETS = re.compile(r"\[(/?[A-Z][A-Z_]{2,})\]")
_MARK = re.compile("[-\u2010-\u2015\u2212\u2500\u2501]{3,}")  # hyphens, dashes, lines of boxes
_VERDICT = re.compile(r"verdict[\W_]+", re.IGNORECASE)
_VERDICT_SIGN = re.compile(r"verdict[\W_]*[:=]", re.IGNORECASE)
_NO_COLON = str.maketrans(":=", "  ")
_INVISIBLE = {"Cc", "Cf", "Cs", "Zl", "Zp"}


def code(captions: Sequence[str]) -> str:
    """16 hexadecimal digits that depend on every character of all captions, and on their order."""
    return hashlib.sha256(json.dumps(list(captions)).encode()).hexdigest()[:16]


def fence(
    caption: str, label: str, code: str, control_tokens: Sequence[str] = (), nothing: str = "(no message was shown)"
) -> str:
    """A caption between its marks.

    Args:
        caption: The text, its lines separated by newlines.
        label: What the marks call it, "description 1" for instance.
        code: Of the pair.
        control_tokens: Texts that the judge's tokenizer reads as something else than text.
        nothing: Stands for an empty caption; without the prefix of lines, so that no caption can say it.
    """
    lines = [PREFIX + neutralise(line, control_tokens) for line in caption.split("\n")]
    body = "\n".join(lines) if caption else nothing
    return f"{_opening(label, code)}\n{body}\n{_closing(label, code)}"


def read(text: str, number: int) -> str:
    """The caption number 1 or 2 out of a conversation's text, as the judge reads it (neutralised).

    Raises:
        ValueError: there is none.
    """
    opening = re.search(rf"^--- begin (\w+ {number}) · ([0-9a-f]{{16}}) ---$", text, re.MULTILINE)
    if opening is None:
        raise ValueError(f"no caption {number} in {text[:200]!r}")
    body = text[opening.end() + 1 : text.index(f"\n{_closing(opening[1], opening[2])}", opening.end())]
    if not body.startswith(PREFIX):
        return ""
    return "\n".join(line.removeprefix(PREFIX) for line in body.split("\n"))


def read_both(text: str) -> tuple[str, str]:
    """Both captions out of a conversation's text: see `read`."""
    return read(text, 1), read(text, 2)


def neutralise(line: str, control_tokens: Sequence[str] = ()) -> str:
    """One line of a caption with nothing in it that a model, its tokenizer or our parser could take for more than text.

    Runs of three or more hyphens become two, so ``--More--`` stays; angle brackets become ‹ and ›; control words in
    square brackets get round ones; the colon after "verdict" goes; characters that are not seen are written out. So it
    goes for what looks alike: full-width forms, mathematical letters, Greek and Cyrillic ones.
    """
    line = "".join(f"\\u{ord(c):04x}" if c != "\t" and unicodedata.category(c) in _INVISIBLE else c for c in line)
    line = _bend(line)
    if not line.isascii() and _needs_bending(plain := _plain(line)):  # what is left only looks like it
        line = _bend(plain)
    for token in control_tokens:
        apart = " ".join(token)
        while len(token) > 1 and token in line:  # again where two overlap, as in ⁂end⁂end⁂
            line = line.replace(token, apart)
            if token in apart:  # one with spaces of its own
                break
    return line


def _plain(line: str) -> str:
    """A line with the characters that its own look like."""
    return unicodedata.normalize("NFKC", line).translate(_LOOK_ALIKE)


def _bend(line: str) -> str:
    line = _BRACKETS.sub(r"(\1)", _MARK.sub("--", line.translate(_ANGLES)))
    return _VERDICT.sub(lambda match: match[0].translate(_NO_COLON), line)


def _needs_bending(line: str) -> bool:
    return any(pattern.search(line) for pattern in (_ANGLE, _BRACKETS, _MARK, _VERDICT_SIGN))


def _opening(label: str, code: str) -> str:
    return f"--- begin {label} · {code} ---"


def _closing(label: str, code: str) -> str:
    return f"--- end {label} · {code} ---"
