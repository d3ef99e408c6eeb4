"""The store of answers: nothing is asked twice, and a killed job loses nothing it was told.

A store is a folder that any number of datasets, processes and nodes may share::

    STORE/questions/<hash>.json      one question in full: its words, the judge, its sampling
    STORE/answers/<hash>/*.jsonl     its answers, one a line; each process appends to a file of its own
    STORE/claims/<hash>-I-of-N       locked by the process that works on chunk I of N
    STORE/claims/claiming-<hash>     locked while a process finds out whether it may
    STORE/claims/writing-<hash>      locked while a process writes labels

An answer is on the disk before another question is asked. An answer's key is a hash
of the question, the unordered pair of captions and the order in which they were shown.
"""

import hashlib
import json
import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import IO, Any

from groundling.errors import RunError
from groundling.io.documents import lines_of, parse_json
from groundling.io.files import replace_file
from groundling.io.locks import is_locked, locked
from groundling.io.redaction import shareable
from groundling.judges.preferences.labels import Preference

Captions = tuple[str, str]
"""An unordered pair: sorted."""
LABELS = ("first", "second", "tie", "invalid")
"""What an answer may be, by its code of `Preference`."""
_MOST_TOKENS = 10**10
"""No answer, of a few replies, takes more: a greater number is one that a server made up."""


@dataclass(frozen=True)
class Answer:
    """A judge's answer about one unordered pair, in one order.

    Attributes:
        key: See `answer_key`.
        label: "first", "second" or "tie", as shown; or "invalid".
        probabilities: Of first, second and tie as shown, where there are any.
        swapped: Whether the second of the sorted captions was shown first.
        captions: The unordered pair.
        context: What both have in common.
        replies: The judge's words; two if it was asked again.
        prompt_tokens: All that it read for this answer.
        completion_tokens: All that it wrote.
        seconds: From the request to the last reply.
    """

    key: str
    label: str
    probabilities: tuple[float, float, float] | None = None
    swapped: bool = False
    captions: Captions = ("", "")
    context: str = ""
    replies: tuple[str, ...] = ()
    prompt_tokens: int = 0
    completion_tokens: int = 0
    seconds: float = 0.0

    @property
    def preference(self) -> Preference:
        """Its label's code, as shown; of an invalid one `Preference.UNKNOWN`."""
        return Preference(LABELS.index(self.label))


def content_hash(content: Any) -> str:
    """The SHA-256 of what JSON holds, in hexadecimal; the order of keys does not matter."""
    text = json.dumps(content, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def answer_key(question: str, captions: Captions, swapped: bool, context: str = "") -> str:
    """The key of an answer: ``question`` is the question's hash, ``context`` what both captions have in common."""
    return content_hash([question, *captions, swapped, *([context] if context else [])])


@dataclass
class Store:
    """The answers to one question in a shared folder.

    Args:
        folder: Of the store.
        question: All that decides the answers, as JSON holds it.
        notice: Told what was left out when reading, and if the folder knows no locks.
    """

    folder: Path
    question: dict[str, Any]
    notice: Callable[[str], None] = lambda text: None
    hash: str = field(init=False)
    """Of the question."""

    def __post_init__(self) -> None:
        self.hash = content_hash(self.question)
        self._answers = self.folder / "answers" / self.hash
        self._file: IO[bytes] | None = None
        self._unflushed = False
        self._noticed: set[Path] = set()

    @property
    def shared_question(self) -> dict[str, Any]:
        """The question with its judge as `shareable`, to be written into a dataset."""
        return {key: shareable(value) if key == "judge" else value for key, value in self.question.items()}

    def read(self) -> dict[str, Answer]:
        """By key, all answers of all processes so far, without their captions and words.

        A valid answer takes the place of an invalid one; its tokens and seconds are those of all that were given under
        its key. A line that is not whole, as a killed process leaves it, is left out with a notice.
        """
        merged: dict[str, Answer] = {}
        for path in sorted(self._answers.glob("*.jsonl")):
            broken = 0
            for line in lines_of(path):
                answer = _parse(line)
                if answer is None:
                    broken += 1
                else:
                    known = merged.get(answer.key)
                    merged[answer.key] = answer if known is None else _together(known, answer)
            if broken and path not in self._noticed:
                self._noticed.add(path)
                self.notice(f"{path}: {broken} incomplete line(s) left out (its process was killed, or is writing)")
        return merged

    def append(self, answer: Answer) -> None:
        """Add an answer; it is on the disk once `flush` returns."""
        if self._file is None:
            self._file = self._open()
        self._file.write((json.dumps(asdict(answer)) + "\n").encode())
        self._unflushed = True

    def flush(self) -> None:
        """Put what was added on the disk."""
        if self._file is not None and self._unflushed:
            self._unflushed = False  # before: another thread may add an answer meanwhile
            self._file.flush()
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Flush, and close this process's file."""
        self.flush()
        if self._file is not None:
            self._file.close()
            self._file = None

    def _open(self) -> IO[bytes]:
        self._answers.mkdir(parents=True, exist_ok=True)
        path = self.folder / "questions" / f"{self.hash}.json"
        if not path.exists():
            path.parent.mkdir(exist_ok=True)
            text = json.dumps(self.shared_question, indent=1, ensure_ascii=False) + "\n"
            replace_file(path, lambda partial: partial.write_text(text, encoding="utf-8"))
        name = f"{uuid.uuid4().hex}.jsonl"  # no host's name: the dataset may be shared
        file = (self._answers / name).open("xb", buffering=2**20)  # lines leave in one piece, at the flush
        folder = os.open(self._answers, os.O_RDONLY)
        os.fsync(folder)  # the file's name reaches the disk, too
        os.close(folder)
        return file

    @contextmanager
    def claim(self, chunk: int, chunks: int) -> Iterator[None]:
        """Exclude other processes from this chunk of the question; a kill releases the claim.

        Raises:
            RunError: another process works on the chunk, or on chunks of another number of them.
        """
        claims = self.folder / "claims"
        with ExitStack() as stack:
            with self._one_at_a_time("claiming"):
                for other in claims.glob(f"{self.hash}-*"):
                    if not other.name.endswith(f"-of-{chunks}") and is_locked(other):
                        raise RunError(
                            "another process annotates with the same question as "
                            f"{other.name.partition('-')[2]} in {self.folder}: use one number of chunks at a time"
                        )
                stack.enter_context(
                    locked(
                        claims / f"{self.hash}-{chunk}-of-{chunks}",
                        f"annotates chunk {chunk} of {chunks} with the same question in {self.folder}",
                        "give each process a chunk of its own (--chunks N --chunk I)",
                    )
                )
            yield

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Wait until no other process of this question is in such a block."""
        with self._one_at_a_time("writing"):
            yield

    @contextmanager
    def _one_at_a_time(self, what: str) -> Iterator[None]:
        path = self.folder / "claims" / f"{what}-{self.hash}"
        with locked(path, "holds it", "name another store (--store)", wait=True):
            yield


def _together(first: Answer, second: Answer) -> Answer:
    """The one that counts of two with one key, with what both have cost."""
    return replace(
        second if first.label == "invalid" else first,
        prompt_tokens=first.prompt_tokens + second.prompt_tokens,
        completion_tokens=first.completion_tokens + second.completion_tokens,
        seconds=first.seconds + second.seconds,
    )


def _parse(line: bytes) -> Answer | None:
    if not line.endswith(b"\n"):
        return None
    try:
        content = parse_json(line, "an answer")
        if content["label"] not in LABELS:
            return None
        soft, seconds = content["probabilities"], content["seconds"]
        figures = [seconds, *(soft or ())]
        if not isinstance(content["key"], str) or not all(type(one) in (int, float) for one in figures):
            return None
        return Answer(
            key=content["key"],
            label=content["label"],
            probabilities=None if soft is None else (soft[0], soft[1], soft[2]),
            swapped=content["swapped"],
            prompt_tokens=token_count(content["prompt_tokens"], _MOST_TOKENS),
            completion_tokens=token_count(content["completion_tokens"], _MOST_TOKENS),
            seconds=seconds,
        )
    except (ValueError, KeyError, TypeError, IndexError):
        return None


def token_count(value: Any, most: int) -> int:
    """A number of tokens as a server or a file tells it; 0 if it is none, or more than there can be."""
    return value if type(value) is int and 0 <= value <= most else 0
