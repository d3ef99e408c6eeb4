"""A store of answers, so that no question is asked twice and a killed process loses no answers.

Any number of datasets, processes and nodes may share the folder::

    STORE/questions/<hash>.json      one complete question: its text, the judge, the sampling
    STORE/answers/<hash>/*.jsonl     its answers, one per line; each process appends to its own file
    STORE/claims/<hash>-I-of-N       lock of the process that is working on chunk I of N
    STORE/claims/writing-<hash>      lock while a process writes labels
"""

import hashlib
import json
import uuid
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, Annotated, Any, Literal

from pydantic import BeforeValidator, TypeAdapter

from groundling.io.documents import lines_of, parse_json
from groundling.io.files import locked, sync, write_atomically
from groundling.io.redaction import shareable
from groundling.judges.preferences.pairs import Preference

Captions = tuple[str, str]  # an unordered pair, sorted
Label = Literal["first", "second", "tie", "invalid"]
LABELS: tuple[Label, ...] = ("first", "second", "tie", "invalid")  # by `Preference` code
_MAX_TOKENS = 10**10  # higher counts for one answer are ignored as server errors


def token_count(value: Any, most: int = _MAX_TOKENS) -> int:
    """Return a token count reported by a server or file, or 0 if it is not plausible."""
    return value if type(value) is int and 0 <= value <= most else 0


TokenCount = Annotated[int, BeforeValidator(token_count)]


@dataclass(frozen=True)
class StoredAnswer:
    """A judge's answer about an unordered pair, shown in one of its two orders."""

    key: str  # see `answer_key`
    label: Label  # for the order shown
    probabilities: tuple[float, float, float] | None = None  # of first, second and tie, for the order shown
    swapped: bool = False  # True if the second of the sorted captions was shown first
    captions: Captions = ("", "")
    context: str = ""  # the text that both captions share
    replies: tuple[str, ...] = ()  # two if the judge was asked twice
    prompt_tokens: TokenCount = 0  # total over all requests
    completion_tokens: TokenCount = 0
    seconds: float = 0.0  # from the request to the last reply

    @property
    def preference(self) -> Preference:
        """The label's code, for the order shown; `Preference.UNKNOWN` if invalid."""
        return Preference(LABELS.index(self.label))


_STORED = TypeAdapter(StoredAnswer)
_UNREAD = {"captions", "context", "replies"}  # fields that are long and not needed again


def content_hash(content: Any) -> str:
    """Return the SHA-256 of a JSON value, in hexadecimal, independent of key order."""
    text = json.dumps(content, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def answer_key(question: str, captions: Captions, swapped: bool, context: str = "") -> str:
    """Return an answer's key: a hash of the question's hash, the unordered pair, the order shown and any context."""
    return content_hash([question, *captions, swapped, *([context] if context else [])])


class Store:
    """The answers to one question in a shared folder; ``question`` is JSON with everything that answers depend on."""

    def __init__(self, folder: Path, question: dict[str, Any]) -> None:
        self.folder, self.question, self.hash = folder, question, content_hash(question)
        self._answers = folder / "answers" / self.hash
        self._file: IO[bytes] | None = None

    @property
    def shared_question(self) -> dict[str, Any]:
        """The question without the judge's private settings, for storage in a dataset."""
        return {key: shareable(value) if key == "judge" else value for key, value in self.question.items()}

    def read(self) -> dict[str, StoredAnswer]:
        """Return all answers by key, without captions and replies; skip incomplete lines from killed processes."""
        merged: dict[str, StoredAnswer] = {}
        for path in sorted(self._answers.glob("*.jsonl")):
            for answer in filter(None, map(_parse, lines_of(path))):
                known = merged.get(answer.key)
                if known is not None:  # keep the valid answer, and add up the tokens and seconds
                    answer = replace(
                        answer if known.label == "invalid" else known,
                        prompt_tokens=known.prompt_tokens + answer.prompt_tokens,
                        completion_tokens=known.completion_tokens + answer.completion_tokens,
                        seconds=known.seconds + answer.seconds,
                    )
                merged[answer.key] = answer
        return merged

    def append(self, answer: StoredAnswer) -> None:
        """Write an answer to this process's file; written answers survive if the process is killed."""
        if self._file is None:
            self._answers.mkdir(parents=True, exist_ok=True)
            path = self.folder / "questions" / f"{self.hash}.json"
            if not path.exists():
                path.parent.mkdir(exist_ok=True)
                write_atomically(path, json.dumps(self.shared_question, indent=1, ensure_ascii=False) + "\n")
            # The name does not contain the host name, because the dataset may be shared.
            self._file = (self._answers / f"{uuid.uuid4().hex}.jsonl").open("xb")
            sync(self._answers)
        self._file.write((json.dumps(asdict(answer)) + "\n").encode())
        self._file.flush()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def claim(self, chunk: int, chunks: int) -> AbstractContextManager[None]:
        """Lock this chunk of the question for this process; the lock is released if the process is killed."""
        return locked(
            self.folder / "claims" / f"{self.hash}-{chunk}-of-{chunks}",
            f"is annotating chunk {chunk} of {chunks} with the same question in {self.folder}",
            "give each process a different chunk (--chunks N --chunk I)",
        )

    def exclusive(self) -> AbstractContextManager[None]:
        """Return a context manager that only one process can enter at a time for this question."""
        path = self.folder / "claims" / f"writing-{self.hash}"
        return locked(path, "is writing labels", "choose a different store (--store)", wait=True)


def _parse(line: bytes) -> StoredAnswer | None:
    if not line.endswith(b"\n"):
        return None
    try:
        content = parse_json(line, "an answer")
        return _STORED.validate_python({key: value for key, value in content.items() if key not in _UNREAD})
    except (ValueError, AttributeError):
        return None
