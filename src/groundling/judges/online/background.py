"""Asking a judge while something else runs: a thread of its own, which nobody waits for."""

import threading
import warnings
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Generic, TypeVar

from groundling.errors import ConfigError, ForeignError, GroundlingError

Asked = TypeVar("Asked", bound=Hashable)
_LONGEST_PAUSE = 60.0
"""Seconds between two attempts to reach a judge that fails."""
_LONGEST_END = 10.0
"""Seconds that `BackgroundJudge.close` waits for what is being asked."""
_MISTAKES = (TypeError, AttributeError, LookupError, NameError, NotImplementedError)
"""What a judge raises that was written wrongly, and not one that is out of reach."""


class BackgroundJudge(Generic[Asked]):
    """Puts questions to a judge in batches, the newest first, as ONI does (arXiv 2410.23022).

    Each question is put once, however often it is offered. When the judge raises, its questions wait, as the oldest,
    for another attempt; attempts are made ever more rarely while it fails. But one that has never answered, and says
    that it cannot go on (`GroundlingError`) or raises what a mistake in its code does (`TypeError`, `AttributeError`,
    `LookupError`, `NameError`, `NotImplementedError`), was set up wrongly: nothing more is asked, and `answers` raises
    its error. An answer None is no answer: it is counted.

    Args:
        judge: Answers a batch of questions, in their order; called in the thread.
        batch_size: The most questions of a call.
        pause: Seconds after a first failure; doubled with each further one, up to a minute.
        warn: Told of the first of several failures in a row.
    """

    def __init__(
        self,
        judge: Callable[[list[Asked]], Sequence[float | None]],
        batch_size: int = 100,
        pause: float = 1.0,
        warn: Callable[[str], None] = warnings.warn,
    ) -> None:
        if batch_size < 1:
            raise ConfigError(f"a judge's batch_size must be at least 1, got {batch_size}")
        self._judge, self._batch_size, self._pause, self._warn = judge, batch_size, pause, warn
        self._waiting: deque[Asked] = deque()  # the newest at the right
        self._known: set[Asked] = set()
        self._answers: list[tuple[Asked, float]] = []
        self.asked = self.invalid = self.failures = 0
        self._closed = False
        self._error: Exception | None = None
        self.failing: Exception | None = None
        """What the judge raised when it was asked last; None after an answer."""
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._work, name="judge", daemon=True)
        self._thread.start()

    def offer(self, questions: Iterable[Asked]) -> None:
        """Have these questions put, the last of them first; returns at once."""
        with self._changed:
            for question in questions:
                if question not in self._known:
                    self._known.add(question)
                    self._waiting.append(question)
            self._changed.notify()

    def answers(self) -> list[tuple[Asked, float]]:
        """The questions that were answered since the last call, with their answers; returns at once.

        Raises:
            Exception: the judge's, if it has never answered.
        """
        with self._changed:
            if self._error is not None:
                raise self._error
            answers, self._answers = self._answers, []
        return answers

    @property
    def has_answered(self) -> bool:
        """Whether any question was answered, and not by None."""
        return self.asked > self.invalid

    def close(self) -> None:
        """Let the thread end; what it asks just now is waited for, for at most 10 seconds.

        A thread that computes while Python shuts down could abort the process.
        """
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join(_LONGEST_END)

    def _work(self) -> None:
        pause = self._pause
        while batch := self._next_batch():
            try:
                answers = list(self._judge(batch))
                if len(answers) != len(batch):
                    raise ValueError(f"{len(answers)} answers to {len(batch)} questions")
            except Exception as error:  # whatever it is, the training goes on, unless it never got an answer
                told = error
                if isinstance(error, ForeignError) and isinstance(error.__cause__, Exception):
                    error = error.__cause__
                if not self.has_answered and isinstance(error, (GroundlingError, *_MISTAKES)):
                    self._error = told
                    return
                self._put_back(batch, error, first=pause == self._pause)
                with self._changed:
                    self._changed.wait_for(lambda: self._closed, timeout=pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
                continue
            pause, self.failing = self._pause, None
            with self._changed:
                self.asked += len(batch)
                self.invalid += answers.count(None)
                self._answers += [(q, a) for q, a in zip(batch, answers, strict=True) if a is not None]

    def _next_batch(self) -> list[Asked]:
        """The newest questions, as soon as there are any; none when closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closed)
            if self._closed:
                return []
            return [self._waiting.pop() for _ in range(min(self._batch_size, len(self._waiting)))]

    def _put_back(self, batch: list[Asked], error: Exception, first: bool) -> None:
        with self._changed:
            self.failures += 1
            self.failing = error
            self._waiting.extendleft(batch)
        if first:
            self._warn(
                f"the judge failed ({type(error).__name__}: {error}); training goes on, and the judge will be "
                "asked again"
            )
