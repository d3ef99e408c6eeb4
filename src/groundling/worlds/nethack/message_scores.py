"""Scores of messages by a run's reward model."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from groundling.judges.preferences.captions import decode
from groundling.judges.reward_models import load_reward_model
from groundling.judges.reward_models.reward_model import RewardModel
from groundling.rewards.part import RewardPartConfig
from groundling.rewards.reward_model_part import MODEL, RewardModelPart
from groundling.rewards.sum import FOLDER
from groundling.runtime.devices import find_device


@dataclass(frozen=True)
class MessageScore:
    """The score of a message."""

    raw: float  # the reward model's output
    normalised: float  # in standard deviations from its mean; of a model that gives labels, the label
    first: float  # reward of the first occurrence in an episode, without the coefficient


class MessageScores:
    """A reward model's scores of messages, each computed once, and the rewards that a part makes of them."""

    def __init__(self, model: RewardModel, part: RewardModelPart) -> None:
        part.check_normalization(model.normalization)
        self._model, self._part = model, part
        self._known: dict[bytes, MessageScore] = {}

    def of(self, messages: Sequence[bytes]) -> list[MessageScore]:
        """Score messages of 256 bytes."""
        new = [message for message in dict.fromkeys(messages) if message not in self._known]
        if new:
            rows = np.frombuffer(b"".join(new), np.uint8).reshape(len(new), -1)
            raw = self._model.rewards(list(map(decode, rows)))  # (len(new),)
            spread = self._model.normalization
            normalised = raw if spread is None else (raw - spread.mean) / spread.variance**0.5
            first = self._part.transform(raw, torch.ones_like(raw), spread)
            figures = zip(raw.tolist(), normalised.tolist(), first.tolist(), strict=True)
            self._known |= {message: MessageScore(*row) for message, row in zip(new, figures, strict=True)}
        return [self._known[message] for message in messages]

    def reward(self, message: bytes, count: int) -> float:
        """Return the intrinsic reward of the ``count``-th occurrence in an episode, without the coefficient."""
        return self.of([message])[0].first / count**self._part.count_exponent

    def intrinsic_return(self, counts: Mapping[bytes, int]) -> float:
        """Sum an episode's intrinsic rewards, given the number of occurrences of each message."""
        exponent = self._part.count_exponent
        return sum(
            score.first * float((np.arange(1.0, count + 1) ** -exponent).sum())
            for score, count in zip(self.of(list(counts)), counts.values(), strict=True)
        )


def make_message_scores(
    reward: Mapping[str, RewardPartConfig | None], device: str, checkpoint: Path | None = None
) -> MessageScores | None:
    """Load a run's first reward model, even with coefficient 0; None if there is none.

    Args:
        reward: The config's section ``reward``.
        device: Device of the model.
        checkpoint: Checkpoint of the run; its reward model replaces the config's where it was trained online.

    Raises:
        ConfigError: The reward model is missing, or its part's options do not fit it.
    """
    named = [(name, part) for name, part in reward.items() if part is not None and (part.id or name) == "reward_model"]
    if not named:
        return None
    name, settings = named[0]
    part = RewardModelPart(**settings.args)
    learnt = None if checkpoint is None else checkpoint / FOLDER / name / MODEL
    folder = learnt if learnt is not None and learnt.exists() else part.path
    return None if folder is None else MessageScores(load_reward_model(folder, find_device(device)), part)
