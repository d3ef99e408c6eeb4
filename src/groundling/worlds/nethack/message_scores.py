"""What a run's reward model thinks of messages."""

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
class Verdict:
    """Of one message."""

    raw: float
    """The reward model's number."""
    normalised: float
    """In deviations from its mean; of a model that gives labels, the label."""
    first: float
    """What the agent is paid for it when it comes up first in an episode, without the coefficient."""


class Taste:
    """A reward model's verdicts by message, each asked for once, and what a part of the reward makes of them."""

    def __init__(self, model: RewardModel, part: RewardModelPart) -> None:
        part.check_normalization(model.normalization)
        self._model, self._part = model, part
        self._known: dict[bytes, Verdict] = {}

    def of(self, messages: Sequence[bytes]) -> list[Verdict]:
        """What it thinks of each message, 256 bytes."""
        new = [message for message in dict.fromkeys(messages) if message not in self._known]
        if new:
            rows = np.frombuffer(b"".join(new), np.uint8).reshape(len(new), -1)
            raw = self._model.rewards(list(map(decode, rows)))  # (len(new),)
            spread = self._model.normalization
            normalised = raw if spread is None else (raw - spread.mean) / spread.variance**0.5
            first = self._part.worth(raw, torch.ones_like(raw), spread)
            figures = zip(raw.tolist(), normalised.tolist(), first.tolist(), strict=True)
            self._known |= {message: Verdict(*values) for message, values in zip(new, figures, strict=True)}
        return [self._known[message] for message in messages]

    def paid(self, message: bytes, count: int) -> float:
        """The intrinsic reward of a message's ``count``-th occurrence in an episode, without the coefficient."""
        return self.of([message])[0].first / count**self._part.count_exponent

    def intrinsic_return(self, counts: Mapping[bytes, int]) -> float:
        """The sum of an episode's intrinsic rewards, from how often each message came up in it."""
        exponent = self._part.count_exponent
        return sum(
            verdict.first * float((np.arange(1.0, count + 1) ** -exponent).sum())
            for verdict, count in zip(self.of(list(counts)), counts.values(), strict=True)
        )


def make_taste(
    reward: Mapping[str, RewardPartConfig | None], device: str, checkpoint: Path | None = None
) -> Taste | None:
    """That of a run's reward model, whether the agent is paid by it or not; None where it has none. Of several it is
    the first one's.

    Args:
        reward: The parts of the run's.
        device: Where the model computes.
        checkpoint: Of a run whose reward model learns online, it holds what that had learnt by then, which is taken
            instead of the model that the config names.

    Raises:
        ConfigError: there is no such reward model, or the options of its part do not fit it.
    """
    named = [
        (name, part)
        for name, part in reward.items()
        if part is not None and (part.id or name) == "reward_model"
    ]
    if not named:
        return None
    name, settings = named[0]
    part = RewardModelPart(**settings.args)
    learnt = None if checkpoint is None else checkpoint / FOLDER / name / MODEL
    folder = learnt if learnt is not None and learnt.exists() else part.path
    return None if folder is None else Taste(load_reward_model(folder, find_device(device)), part)
