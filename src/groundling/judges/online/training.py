"""Training a copy of a reward model in a thread."""

import copy
import threading
from dataclasses import dataclass
from typing import Annotated

import torch

from groundling.arguments import check_bounds
from groundling.errors import RunError
from groundling.fields import Gt
from groundling.judges.reward_models.distill import agreement, normalize, train_epoch
from groundling.judges.reward_models.reward_model import RewardModel
from groundling.judges.reward_models.training_pairs import TrainingPairs


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
