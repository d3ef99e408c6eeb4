"""Fences around captions, whose text is untrusted and must not be mistaken for the user's instructions.

Each caption is placed between two delimiters with a code, and each of its lines starts with ``| ``, so that it cannot
be mistaken for the rest of the question. The code is a hash of everything shown, so no caption can contain it. Text
that resembles a delimiter, a verdict or a control token is altered.
"""

import hashlib
import json
import re
import unicodedata
from collections.abc import Sequence

PREFIX = "| "
_FENCED = re.compile(
    r"^--- begin (\w+ [12]) · ([0-9a-f]{16}) ---\n(.*?)\n--- end \1 · \2 ---$", re.DOTALL | re.MULTILINE
)

# Chat models read <|im_end|>, </s>, <start_of_turn>, <<SYS>>, [INST], [/INST], [TOOL_CALLS] as control tokens.
_ANGLES = str.maketrans({"<": "‹", ">": "›"})
# Lookalike characters that no Unicode normalisation maps to the originals.
_LOOK_ALIKE = str.maketrans(
    "\u0435\u0415\u0395\u1d07\u0441\u0421\u1d04\u0456\u0406\u0399\u03b9\u0131\u026a\u0442\u0422\u03a4\u1d1b\u0501"
    "\u1d05\u0475\u0474\u03bd\u1d20\u0433\u0280\u2236\ua789\u02f8\u02d0\u0589\u05c3\ufe30\ua4ff"
    "\u2329\u3008\u27e8\u276e\u02c2\u1438\u232a\u3009\u27e9\u276f\u02c3\u1433",
    "eEEecCciIIiiitTTtddvVvvrr:::::::=<<<<<<>>>>>>",
)
_ANGLE = re.compile("[<>]")
_BRACKETS = re.compile(r"\[(/?[A-Z][A-Z_]{2,})\]")
_MARK = re.compile("[-\u2010-\u2015\u2212\u2500\u2501]{3,}")  # hyphens, dashes, box-drawing lines
_VERDICT = re.compile(r"verdict[\W_]+", re.IGNORECASE)
_VERDICT_SIGN = re.compile(r"verdict[\W_]*[:=]", re.IGNORECASE)
_NO_COLON = str.maketrans(":=", "  ")
_INVISIBLE = {"Cc", "Cf", "Cs", "Zl", "Zp"}


def code(captions: Sequence[str]) -> str:
    """Return 16 hexadecimal digits that depend on every character of all captions and on their order."""
    return hashlib.sha256(json.dumps(list(captions)).encode()).hexdigest()[:16]


def fence(
    caption: str, label: str, code: str, control_tokens: Sequence[str] = (), nothing: str = "(no message was shown)"
) -> str:
    """Return a caption between its delimiters.

    Args:
        label: Name in the delimiters, such as "description 1".
        control_tokens: Strings that the judge's tokenizer treats as special tokens.
        nothing: Replaces an empty caption. It has no line prefix, so no caption can contain it.
    """
    lines = [PREFIX + neutralise(line, control_tokens) for line in caption.split("\n")]
    body = "\n".join(lines) if caption else nothing
    return f"--- begin {label} · {code} ---\n{body}\n--- end {label} · {code} ---"


def read_all(text: str) -> tuple[str, ...]:
    """Extract the captions from a conversation's text, as the judge reads them."""
    shown = (match[3].split("\n") for match in _FENCED.finditer(text))
    return tuple(
        "\n".join(line.removeprefix(PREFIX) for line in lines) if lines[0].startswith(PREFIX) else ""  # no caption
        for lines in shown
    )


def neutralise(line: str, control_tokens: Sequence[str] = ()) -> str:
    """Alter everything in a line of a caption that a model, its tokenizer or the verdict parser could misinterpret.

    Runs of three or more hyphens are shortened to two, so ``--More--`` is kept. Angle brackets become ‹ and ›, and
    square brackets around control words become round ones. The colon after "verdict" is removed, and invisible
    characters are escaped. Lookalikes (full-width, mathematical, Greek or Cyrillic) are treated like the originals.
    """
    line = "".join(f"\\u{ord(c):04x}" if c != "\t" and unicodedata.category(c) in _INVISIBLE else c for c in line)
    line = _alter(line)
    if not line.isascii():
        plain = unicodedata.normalize("NFKC", line).translate(_LOOK_ALIKE)
        if any(pattern.search(plain) for pattern in (_ANGLE, _BRACKETS, _MARK, _VERDICT_SIGN)):
            line = _alter(plain)
    for token in control_tokens:
        apart = " ".join(token)
        while len(token) > 1 and token in line:  # repeatedly, because two tokens may overlap, as in ⁂end⁂end⁂
            line = line.replace(token, apart)
            if token in apart:  # the token itself contains spaces
                break
    return line


def _alter(line: str) -> str:
    line = _BRACKETS.sub(r"(\1)", _MARK.sub("--", line.translate(_ANGLES)))
    return _VERDICT.sub(lambda match: match[0].translate(_NO_COLON), line)
