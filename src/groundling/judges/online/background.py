"""Background threads for online judging: one queries a judge, and another trains a copy of a reward model."""

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import torch

from groundling.errors import ForeignError, GroundlingError, RunError, warn_caller
from groundling.fields import Gt
from groundling.judges.reward_models.distill import TrainingPairs, agreement, normalize, train_epoch
from groundling.judges.reward_models.reward_model import RewardModel


@dataclass(frozen=True)
class OnlineLearning:
    """Settings for training a reward model on a judge's answers while the agent trains."""

    train_every: Annotated[int, Gt(0)] = 1000
    """Number of new answers after which a gradient-trained model is trained again on all answers."""
    epochs: Annotated[int, Gt(0)] = 3
    learning_rate: Annotated[float, Gt(0)] = 1e-4
    batch_size: Annotated[int, Gt(0)] = 256
    comparisons: Annotated[int, Gt(0)] = 2
    """Number of earlier captions with the same goal that each new caption is compared with (for ranking models)."""
    judge_batch_size: Annotated[int, Gt(0)] = 100  # Questions per call to the judge
    seed: int = 0  # Seed for choosing the captions to compare and for the training order


def train_copy(
    model: RewardModel, pairs: TrainingPairs, trained_on: int, learning: OnlineLearning, stop: threading.Event
) -> tuple[RewardModel, int, int]:
    """Train ``model`` on ``pairs``; return the model, how many new pairs it agreed with before training, and how many
    new pairs there are. Pairs after the first ``trained_on`` are new; ties are not counted. Raises `RunError` once
    ``stop`` is set.
    """

    def check(_: int = 0) -> None:
        if stop.is_set():
            raise RunError("training was cancelled")

    order = torch.Generator().manual_seed(learning.seed)
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=learning.learning_rate)
    agreed = tested = 0
    if trained_on:
        agreed, tested = agreement(model, pairs[torch.arange(trained_on, len(pairs))])
    for _ in range(learning.epochs):
        train_epoch(model, optimizer, pairs, learning.batch_size, order, check)
    check()
    normalize(model, pairs)
    return model, agreed, tested


_MAX_PAUSE = 60.0  # maximum number of seconds between calls to a failing judge
_CLOSE_TIMEOUT = 10.0
_MISTAKES = (TypeError, AttributeError, LookupError, NameError, NotImplementedError)  # errors in a judge's code


class BackgroundJudge:
    """Queries a judge in batches, newest questions first, as ONI does (arXiv 2410.23022).

    If the judge raises an error, its questions move to the end of the queue, and the judge is retried at growing
    intervals. A judge that has never answered and raises a `GroundlingError` or one of `_MISTAKES` is considered
    misconfigured: it is not queried again, and `answers` raises its error. Answers of None are counted and dropped.

    Args:
        judge: Answers a batch of questions, in order; called in the background thread.
        pause: Seconds to wait after the first failure, doubled after each further failure, up to a minute.
        warn: Called at the first of several consecutive failures.
    """

    def __init__(
        self,
        judge: Callable[[list[Any]], Sequence[float | None]],
        batch_size: int = 100,
        pause: float = 1.0,
        warn: Callable[[str], None] = warn_caller,
    ) -> None:
        self._judge, self._batch_size, self._pause, self._warn = judge, batch_size, pause, warn
        self._waiting: deque[Any] = deque()  # newest on the right
        self._answers: list[tuple[Any, float]] = []
        self.asked = self.invalid = self.failures = 0
        self._closed = False
        self._error: Exception | None = None
        self.failing: Exception | None = None  # error of the last call; None if it succeeded
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._work, name="judge", daemon=True)
        self._thread.start()

    def offer(self, questions: Iterable[Any]) -> None:
        """Queue questions and return immediately. The last question will be asked first."""
        with self._changed:
            self._waiting.extend(questions)
            self._changed.notify()

    def answers(self) -> list[tuple[Any, float]]:
        """Return new answers with their questions; raise the error of a misconfigured judge."""
        with self._changed:
            if self._error is not None:
                raise self._error
            answers, self._answers = self._answers, []
        return answers

    @property
    def has_answered(self) -> bool:
        """True if any answer was not None."""
        return self.asked > self.invalid

    def close(self) -> None:
        """Stop the thread, waiting at most 10 seconds; a thread still running at shutdown could abort the process."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join(_CLOSE_TIMEOUT)

    def _work(self) -> None:
        pause = self._pause
        while batch := self._next_batch():
            try:
                answers = list(zip(batch, self._judge(batch), strict=True))
            except Exception as error:  # training continues, unless the judge has never answered
                cause = error.__cause__ if isinstance(error, ForeignError) else None
                raised = cause if isinstance(cause, Exception) else error
                if not self.has_answered and isinstance(raised, (GroundlingError, *_MISTAKES)):
                    self._error = error
                    return
                if pause == self._pause:
                    self._warn(
                        f"the judge failed ({type(raised).__name__}: {raised}); training continues, and the "
                        "judge will be queried again later"
                    )
                with self._changed:
                    self.failures += 1
                    self.failing = raised
                    self._waiting.extendleft(batch)
                    self._changed.wait_for(lambda: self._closed, timeout=pause)
                pause = min(2 * pause, _MAX_PAUSE)
                continue
            pause, self.failing = self._pause, None
            with self._changed:
                self.asked += len(batch)
                valid = [(question, answer) for question, answer in answers if answer is not None]
                self.invalid += len(batch) - len(valid)
                self._answers += valid

    def _next_batch(self) -> list[Any]:
        """Return the newest questions as soon as there are any, or an empty list when closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closed)
            if self._closed:
                return []
            return [self._waiting.pop() for _ in range(min(self._batch_size, len(self._waiting)))]
