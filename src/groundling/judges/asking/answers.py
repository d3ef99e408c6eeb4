"""From a judge's reply to its verdict.

A reply may quote the captions, and those may hold forged verdicts; so a verdict counts only where nothing quoted
stands: ``line``, alone on the last line of a reply that is complete; ``json``, in the object that is the whole reply;
``choice``, as the whole reply. After each may stand one sentence with which chat models take leave ("I hope this
helps!"), and none that could take the verdict back. ``motif`` reads replies as the original does, with its faults.
"""

import functools
import json
import re
from dataclasses import dataclass

from groundling.judges.asking.questions import AnswerFormat
from groundling.judges.preferences.labels import Preference

WORDS = ("1", "2", "tie")
"""The verdicts, by their code of `Preference`."""
JSON_SCHEMA = {
    "type": "object",
    "properties": {"analysis": {"type": "string"}, "verdict": {"type": "string", "enum": list(WORDS)}},
    "required": ["analysis", "verdict"],
    "additionalProperties": False,
}

_LINE = re.compile(r"[*_`]*verdict[*_]*\s*:[*_]*\s*[*_`\"]*(1|2|tie)[*_`\"]*\.?[*_`]*", re.IGNORECASE)
_WORD = re.compile(r"[*`\"']*(1|2|tie)[*`\"']*\.?", re.IGNORECASE)
_THOUGHTS_END = "</think>"
_LEAVE = re.compile(
    r"(?:I hope|Hope|Let me know|Please let me know|Feel free|Please feel free|Thank you|Thanks|If you)\b"
    r"[^.!?\"]*[.!?]*"
)
_BLOCK = re.compile(r"\s*```(?:json)?\s*\n(.*)\n\s*```\s*", re.DOTALL)
_KEY = re.compile(r'(?<!\\)"verdict"\s*:\s*"?(1|2|tie)?')


@dataclass(frozen=True)
class Verdict:
    """What a reply says: its preference, and where in the reply the word for it begins."""

    preference: Preference
    position: int


def parse(reply: str, answer: AnswerFormat, complete: bool = True, noun: str = "description") -> Verdict | None:
    """The verdict of a reply; None if it has none that counts.

    Args:
        reply: The judge's words.
        answer: The form that was asked for.
        complete: False if the reply was cut off: its last line may then be anything, also a quotation.
        noun: What a caption is called in the question: ``motif`` asks for the best one by this word.
    """
    if answer == "motif":
        return _motif(reply, noun)
    if not complete:
        return None
    reply = _without_leave(reply)
    begin = _end_of_thoughts(reply)
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


def _end_of_thoughts(reply: str) -> int:
    """Where the answer begins: models that think aloud do so first."""
    text = reply.lstrip()
    # The mark that opens them may stand in the prompt, as chat templates have it.
    if not text.startswith(("{", "`")):
        _, mark, answer = reply.partition(_THOUGHTS_END)
        return len(reply) - len(answer) if mark else 0
    return 0


def _without_leave(reply: str) -> str:
    """A reply without its last line, if that only takes leave."""
    rest, newline, last = reply.rstrip().rpartition("\n")
    return rest if newline and _LEAVE.fullmatch(last.strip()) else reply


def _json(reply: str, begin: int) -> Verdict | None:
    text = reply[begin:]
    block = _BLOCK.fullmatch(text)
    try:
        content = json.loads(block[1] if block else text, object_pairs_hook=_unambiguous)
    except (ValueError, RecursionError):
        return None
    verdict = content.get("verdict") if isinstance(content, dict) else None
    if isinstance(verdict, bool) or str(verdict) not in WORDS:
        return None
    # A quotation inside the analysis has its quotation marks escaped. A key that stands there twice, once in an object
    # inside, or in other characters ("ver\u0064ict", which no fence bends) does not count.
    keys = [*_KEY.finditer(reply, begin)]
    if len(keys) != 1 or keys[0][1] != str(verdict):
        return None
    return _verdict(str(verdict), keys[0].start(1))


def _unambiguous(items: list[tuple[str, object]]) -> dict[str, object]:
    if len({key for key, _ in items}) < len(items):
        raise ValueError("a key is given twice")
    return dict(items)


@functools.cache
def _best(noun: str) -> re.Pattern[str]:
    """The original's expression, whose first match counts; it takes either of its two nouns, whichever was asked for.

    "best", what is judged, punctuation, perhaps one word more, the number.
    """
    nouns = f"description|message|{re.escape(noun)}"
    return re.compile(rf"best[_\s]*(?:{nouns})\W*:*\W*(?:[^\W\d]\w*\W+)??(1|2|none)", re.IGNORECASE)


def _motif(reply: str, noun: str) -> Verdict | None:
    match = _best(noun).search(reply)
    return match and _verdict("tie" if match[1].lower() == "none" else match[1], match.start(1))


def _verdict(word: str, position: int) -> Verdict | None:
    word = word.lower()  # a pattern without case takes "tİe" for "tie", which in small letters it is not
    return Verdict(Preference(WORDS.index(word)), position) if word in WORDS else None
