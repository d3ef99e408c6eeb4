"""The store of answers: no question is asked twice, and a killed process loses no answer.

Any number of datasets, processes and nodes may share the folder::

    STORE/questions/<hash>.json      one question in full: its text, the judge, its sampling
    STORE/answers/<hash>/*.jsonl     its answers, one a line; each process appends to a file of its own
    STORE/claims/<hash>-I-of-N       lock of the process that works on chunk I of N
    STORE/claims/claiming-<hash>     lock while a process takes such a lock
    STORE/claims/writing-<hash>      lock while a process writes labels

An answer is on the disk before another question is asked. Its key is a hash of the question, the unordered pair of
captions and the order in which they were shown.
"""

import hashlib
import json
import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import IO, Any

from groundling.errors import RunError
from groundling.io.documents import lines_of, parse_json
from groundling.io.files import sync, write_atomically
from groundling.io.locks import is_locked, locked
from groundling.io.redaction import shareable
from groundling.judges.preferences.labels import Preference

Captions = tuple[str, str]
"""An unordered pair: sorted."""
LABELS = ("first", "second", "tie", "invalid")
"""Labels of answers, by their code of `Preference`."""
_MAX_TOKENS = 10**10
"""More tokens than any answer takes; a server made a greater number up."""


@dataclass(frozen=True)
class Answer:
    """A judge's answer about an unordered pair in one order."""

    key: str  # see `answer_key`
    label: str  # one of `LABELS`, as shown
    probabilities: tuple[float, float, float] | None = None  # of first, second and tie as shown
    swapped: bool = False  # the second of the sorted captions was shown first
    captions: Captions = ("", "")
    context: str = ""  # the text that both captions share
    replies: tuple[str, ...] = ()  # two if the judge was asked again
    prompt_tokens: int = 0  # of all requests
    completion_tokens: int = 0
    seconds: float = 0.0  # from the request to the last reply

    @property
    def preference(self) -> Preference:
        """The label's code, as shown; `Preference.UNKNOWN` if invalid."""
        return Preference(LABELS.index(self.label))


def content_hash(content: Any) -> str:
    """Return the SHA-256 of a JSON value, in hexadecimal, independent of the order of keys."""
    text = json.dumps(content, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def answer_key(question: str, captions: Captions, swapped: bool, context: str = "") -> str:
    """Return the key of an answer to the question with this hash."""
    return content_hash([question, *captions, swapped, *([context] if context else [])])


@dataclass
class Store:
    """The answers to one question in a shared folder.

    Args:
        folder: The store's.
        question: Everything that the answers depend on, as JSON.
        notice: Called with a notice of lines that were left out.
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
        """The question without the judge's private settings, to be written into a dataset."""
        return {key: shareable(value) if key == "judge" else value for key, value in self.question.items()}

    def read(self) -> dict[str, Answer]:
        """Return the answers of all processes by key, without captions and replies.

        A valid answer replaces an invalid one; tokens and seconds are summed over all answers with its key. Incomplete
        lines, as a killed process leaves them, are left out with a notice.
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
                    merged[answer.key] = answer if known is None else _merge(known, answer)
            if broken and path not in self._noticed:
                self._noticed.add(path)
                self.notice(f"{path}: {broken} incomplete line(s) left out (its process was killed, or is writing)")
        return merged

    def append(self, answer: Answer) -> None:
        """Add an answer; it is on the disk after the next `flush`."""
        if self._file is None:
            self._file = self._open()
        self._file.write((json.dumps(asdict(answer)) + "\n").encode())
        self._unflushed = True

    def flush(self) -> None:
        """Put the added answers on the disk."""
        if self._file is not None and self._unflushed:
            self._unflushed = False  # before: another thread may add an answer meanwhile
            self._file.flush()
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Flush and close this process's file."""
        self.flush()
        if self._file is not None:
            self._file.close()
            self._file = None

    def _open(self) -> IO[bytes]:
        self._answers.mkdir(parents=True, exist_ok=True)
        path = self.folder / "questions" / f"{self.hash}.json"
        if not path.exists():
            path.parent.mkdir(exist_ok=True)
            write_atomically(path, json.dumps(self.shared_question, indent=1, ensure_ascii=False) + "\n")
        name = f"{uuid.uuid4().hex}.jsonl"  # without the host's name: the dataset may be shared
        file = (self._answers / name).open("xb", buffering=2**20)  # lines are written together, at the flush
        sync(self._answers)  # the file's name
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

    def alone(self) -> AbstractContextManager[None]:
        """Return a context in which only one process of this question is at a time."""
        return self._one_at_a_time("writing")

    def _one_at_a_time(self, what: str) -> AbstractContextManager[None]:
        path = self.folder / "claims" / f"{what}-{self.hash}"
        return locked(path, "holds it", "name another store (--store)", wait=True)


def _merge(first: Answer, second: Answer) -> Answer:
    """Merge two answers with one key."""
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
            prompt_tokens=token_count(content["prompt_tokens"], _MAX_TOKENS),
            completion_tokens=token_count(content["completion_tokens"], _MAX_TOKENS),
            seconds=seconds,
        )
    except (ValueError, KeyError, TypeError, IndexError):
        return None


def token_count(value: Any, most: int) -> int:
    """Return a number of tokens reported by a server or file; 0 if it is impossible."""
    return value if type(value) is int and 0 <= value <= most else 0
