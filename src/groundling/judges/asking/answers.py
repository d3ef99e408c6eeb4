"""The verdict in a judge's reply."""

import re
from dataclasses import dataclass

from groundling.io.documents import DocumentError, parse_json
from groundling.judges.asking.questions import AnswerFormat
from groundling.judges.preferences.labels import Preference

WORDS = ("1", "2", "tie")  # the verdicts, by their code of `Preference`
JSON_SCHEMA = {
    "type": "object",
    "properties": {"analysis": {"type": "string"}, "verdict": {"type": "string", "enum": list(WORDS)}},
    "required": ["analysis", "verdict"],
    "additionalProperties": False,
}

_LINE = re.compile(r"[*_`]*verdict[*_]*\s*:[*_]*\s*[*_`\"]*(1|2|tie)[*_`\"]*\.?[*_`]*", re.IGNORECASE)
_WORD = re.compile(r"[*`\"']*(1|2|tie)[*`\"']*\.?", re.IGNORECASE)
_THOUGHTS_END = "</think>"
_CLOSING = re.compile(
    r"(?:I hope|Hope|Let me know|Please let me know|Feel free|Please feel free|Thank you|Thanks|If you)\b"
    r"[^.!?\"]*[.!?]*"
)
_BLOCK = re.compile(r"\s*```(?:json)?\s*\n(.*)\n\s*```\s*", re.DOTALL)
_KEY = re.compile(r'(?<!\\)"verdict"\s*:\s*"?(1|2|tie)?')


@dataclass(frozen=True)
class Verdict:
    """The preference in a reply, and the place where its word begins."""

    preference: Preference
    position: int


def parse(reply: str, answer: AnswerFormat, complete: bool = True, noun: str = "description") -> Verdict | None:
    """Return the verdict of a reply, or None; ``noun`` is the name of a caption in the question.

    A reply may quote captions that contain forged verdicts, so a verdict counts only where nothing can be quoted:
    alone on the last line ("line"), in the object that is the whole reply ("json"), or as the whole reply ("choice").
    A polite closing sentence ("I hope this helps!") may follow. In a reply that was cut off, the last line may be a
    quotation and does not count. "motif" reads replies as the original does, with its faults.
    """
    if answer == "motif":
        return _motif(reply, noun)
    if not complete:
        return None
    rest, newline, last = reply.rstrip().rpartition("\n")
    if newline and _CLOSING.fullmatch(last.strip()):
        reply = rest
    # The tag that opens thoughts may be part of the prompt, as in some chat templates.
    thoughts, tag, _ = ("", "", "") if reply.lstrip().startswith(("{", "`")) else reply.partition(_THOUGHTS_END)
    begin = len(thoughts + tag) if tag else 0
    if answer == "json":
        return _json(reply, begin)
    if answer == "line":
        end = len(reply.rstrip())
        begin = max(begin, reply.rfind("\n", 0, end) + 1)
    text = reply[begin:]
    match = (_LINE if answer == "line" else _WORD).fullmatch(text.strip())
    if match is None:
        return None
    return _verdict(match[1], begin + len(text) - len(text.lstrip()) + match.start(1))


def _json(reply: str, begin: int) -> Verdict | None:
    block = _BLOCK.fullmatch(reply, begin)
    try:
        content = parse_json(block[1] if block else reply[begin:], "a reply")
    except DocumentError:
        return None
    verdict = content.get("verdict") if isinstance(content, dict) else None
    if isinstance(verdict, bool) or str(verdict) not in WORDS:
        return None
    # In a quotation inside the analysis, quotation marks are escaped. A key that occurs twice, as in an inner object,
    # or in other characters ("ver\u0064ict", which the fence does not alter), does not count.
    keys = [*_KEY.finditer(reply, begin)]
    if len(keys) != 1 or keys[0][1] != str(verdict):
        return None
    return _verdict(str(verdict), keys[0].start(1))


def _motif(reply: str, noun: str) -> Verdict | None:
    """Return the first match of the original's expression; it accepts both of its nouns, whichever was used."""
    nouns = f"description|message|{re.escape(noun)}"
    # "best", the noun, punctuation, perhaps one word more, the number
    match = re.search(rf"best[_\s]*(?:{nouns})\W*:*\W*(?:[^\W\d]\w*\W+)??(1|2|none)", reply, re.IGNORECASE)
    return match and _verdict("tie" if match[1].lower() == "none" else match[1], match.start(1))


def _verdict(word: str, position: int) -> Verdict | None:
    word = word.lower()  # a case-insensitive pattern matches "tİe", which in lower case is not "tie"
    return Verdict(Preference(WORDS.index(word)), position) if word in WORDS else None
