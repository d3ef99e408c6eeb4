"""Asking a judge in a thread, for which nothing waits."""

import copy
import threading
import warnings
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Generic, TypeVar

import torch

from groundling.errors import ForeignError, GroundlingError, RunError
from groundling.fields import Gt
from groundling.judges.reward_models.distill import agreement, normalize, train_epoch
from groundling.judges.reward_models.reward_model import RewardModel
from groundling.judges.reward_models.training_pairs import TrainingPairs
from groundling.registry import check_bounds


@dataclass(frozen=True)
class OnlineLearning:
    """Settings with which a reward model learns from a judge's answers while the agent trains."""

    train_every: Annotated[int, Gt(0)] = 1000
    """Number of new answers after which a model with gradients is trained again, on all answers."""
    epochs: Annotated[int, Gt(0)] = 3
    learning_rate: Annotated[float, Gt(0)] = 1e-4
    batch_size: Annotated[int, Gt(0)] = 256
    comparisons: Annotated[int, Gt(0)] = 2
    """Number of earlier captions of the same goal that a new one is compared with, for a model that ranks."""
    judge_batch_size: Annotated[int, Gt(0)] = 100  # Questions of one call to the judge
    seed: int = 0  # Of the compared captions and of the order of training

    def __post_init__(self) -> None:
        check_bounds(self, "")


class BackgroundTraining:
    """Trains a copy of ``model`` on ``pairs``, of which the first ``trained_on`` were trained on before.

    The copy is complete once the thread has ended.
    """

    def __init__(self, model: RewardModel, pairs: TrainingPairs, trained_on: int, learning: OnlineLearning) -> None:
        self.model, self._pairs, self._learning = copy.deepcopy(model), pairs, learning
        self.answers, self._trained_on = len(pairs), trained_on
        self.tested = self.agreed = 0  # new pairs, without ties; those that the model agreed with before training
        self.error: Exception | None = None  # the exception that ended the training early
        self._stop = threading.Event()
        self.thread = threading.Thread(target=self._work, name="reward model", daemon=True)
        self.thread.start()

    def end(self) -> None:
        """Stop it, and wait for the batch in progress."""
        self._stop.set()
        self.thread.join()

    def _check(self, _: int = 0) -> None:
        if self._stop.is_set():
            raise RunError("its training was given up")

    def _work(self) -> None:
        learning = self._learning
        order = torch.Generator().manual_seed(learning.seed)
        trainable = [p for p in self.model.parameters() if p.requires_grad]
        optimizer = torch.optim.Adam(trainable, lr=learning.learning_rate)
        try:
            if self._trained_on:
                new = torch.arange(self._trained_on, self.answers)
                self.agreed, self.tested = agreement(self.model, self._pairs[new])
            for _ in range(learning.epochs):
                train_epoch(self.model, optimizer, self._pairs, learning.batch_size, order, self._check)
            self._check()
            normalize(self.model, self._pairs)
        except Exception as error:  # reported by `OnlineReward.update`
            self.error = error


Asked = TypeVar("Asked", bound=Hashable)
_MAX_PAUSE = 60.0  # seconds between two attempts to reach a failing judge
_CLOSE_TIMEOUT = 10.0
_MISTAKES = (TypeError, AttributeError, LookupError, NameError, NotImplementedError)  # errors in a judge's code


class BackgroundJudge(Generic[Asked]):
    """Asks a judge in batches, the newest questions first, as ONI does (arXiv 2410.23022); each question once.

    If the judge raises, its questions become the oldest and are asked again, at growing intervals. But a judge that
    has never answered and raises a `GroundlingError` or one of `_MISTAKES` is considered misconfigured: it is not
    asked again, and `answers` raises its error. The answer None is counted and dropped.

    Args:
        judge: Answers a batch of questions in their order; called in the thread.
        pause: Seconds after the first failure, doubled with each further one, up to a minute.
        warn: Called on the first of several failures in a row.
    """

    def __init__(
        self,
        judge: Callable[[list[Asked]], Sequence[float | None]],
        batch_size: int = 100,
        pause: float = 1.0,
        warn: Callable[[str], None] = warnings.warn,
    ) -> None:
        self._judge, self._batch_size, self._pause, self._warn = judge, batch_size, pause, warn
        self._waiting: deque[Asked] = deque()  # the newest at the right
        self._known: set[Asked] = set()
        self._answers: list[tuple[Asked, float]] = []
        self.asked = self.invalid = self.failures = 0
        self._closed = False
        self._error: Exception | None = None
        self.failing: Exception | None = None  # error of the last call; None after an answer
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._work, name="judge", daemon=True)
        self._thread.start()

    def offer(self, questions: Iterable[Asked]) -> None:
        """Queue questions, the last one to be asked first; returns at once."""
        with self._changed:
            for question in questions:
                if question not in self._known:
                    self._known.add(question)
                    self._waiting.append(question)
            self._changed.notify()

    def answers(self) -> list[tuple[Asked, float]]:
        """Return the answers since the last call with their questions; raise the error of a misconfigured judge."""
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
        """End the thread, waiting at most 10 seconds: computing while Python shuts down could abort the process."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join(_CLOSE_TIMEOUT)

    def _work(self) -> None:
        pause = self._pause
        while batch := self._next_batch():
            try:
                answers = list(self._judge(batch))
                if len(answers) != len(batch):
                    raise ValueError(f"{len(answers)} answers to {len(batch)} questions")
            except Exception as error:  # training continues, unless the judge has never answered
                cause = error.__cause__ if isinstance(error, ForeignError) else None
                raised = cause if isinstance(cause, Exception) else error
                if not self.has_answered and isinstance(raised, (GroundlingError, *_MISTAKES)):
                    self._error = error
                    return
                self._put_back(batch, raised, first=pause == self._pause)
                with self._changed:
                    self._changed.wait_for(lambda: self._closed, timeout=pause)
                pause = min(2 * pause, _MAX_PAUSE)
                continue
            pause, self.failing = self._pause, None
            with self._changed:
                self.asked += len(batch)
                self.invalid += answers.count(None)
                self._answers += [(q, a) for q, a in zip(batch, answers, strict=True) if a is not None]

    def _next_batch(self) -> list[Asked]:
        """Return the newest questions as soon as there are any; none when closed."""
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
                f"the judge failed ({type(error).__name__}: {error}); training continues, and the judge will be "
                "asked again"
            )
