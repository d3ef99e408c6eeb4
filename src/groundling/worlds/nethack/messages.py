"""The messages that agents meet, and their scores by a run's reward model."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from groundling.envs.nethack.observation import message_text
from groundling.judges.preferences.captions import decode
from groundling.judges.reward_models import load_reward_model
from groundling.judges.reward_models.reward_model import RewardModel
from groundling.rewards.part import RewardPartConfig
from groundling.rewards.reward_model_part import MODEL, RewardModelPart
from groundling.rewards.sum import FOLDER
from groundling.runtime.devices import find_device
from groundling.worlds.display import ReportTable


@dataclass(frozen=True)
class MessageScore:
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
    """Load a run's first reward model, even with coefficient 0; from ``checkpoint`` if it was trained online."""
    named = [(name, part) for name, part in reward.items() if part is not None and (part.id or name) == "reward_model"]
    if not named:
        return None
    name, settings = named[0]
    part = RewardModelPart(**settings.args)
    learnt = None if checkpoint is None else checkpoint / FOLDER / name / MODEL
    folder = learnt if learnt is not None and learnt.exists() else part.path
    return None if folder is None else MessageScores(load_reward_model(folder, find_device(device)), part)


_MOST = 15  # Most frequent messages of each agent
_MOST_IN_REPORTS = 20


def most_frequent(
    messages: Mapping[str, Sequence[Mapping[bytes, int]]], scores: MessageScores | None
) -> list[dict[str, Any]]:
    """Return all agents' most frequent messages, with rewards, as JSON; ``messages``: counts by agent and episode."""
    occurrences: dict[str, Counter[bytes]] = {}
    episodes: dict[str, Counter[bytes]] = {}
    for name, played in messages.items():
        occurrences[name], episodes[name] = Counter(), Counter()
        for counts in played:
            occurrences[name].update(counts)
            episodes[name].update(counts.keys())
    top = [m for counts in occurrences.values() for m, _ in counts.most_common(_MOST + 1) if message_text(m)]
    return [
        {
            "message": message_text(message),
            "normalised_reward": None if scores is None else scores.of([message])[0].normalised,
            "per_episode": {name: occurrences[name][message] / len(played) for name, played in messages.items()},
            "share_of_episodes": {name: episodes[name][message] / len(played) for name, played in messages.items()},
        }
        for message in dict.fromkeys(top)
    ]


def top_messages(counts: Mapping[bytes, int], scores: MessageScores | None, limit: int = 100) -> list[dict[str, Any]]:
    """Return an episode's messages, the most frequent first, with the sum of each one's rewards."""
    return [
        {
            "message": message_text(message),
            "count": count,
            "normalised_reward": None if scores is None else scores.of([message])[0].normalised,
            "paid": None if scores is None else scores.intrinsic_return({message: count}),
        }
        for message, count in Counter(counts).most_common(limit)
    ]


def signed(value: float | None) -> str:
    return "–" if value is None else f"{value:+.2f}"


def table_of(suite: str, evaluation: Mapping[str, Any]) -> ReportTable:
    ordered = sorted(evaluation["messages"], key=lambda row: -max(row["per_episode"].values()))
    rows = [
        [row["message"], signed(row["normalised_reward"]), *(f"{count:.2f}" for count in row["per_episode"].values())]
        for row in ordered[:_MOST_IN_REPORTS]
    ]
    return ReportTable(
        "Which messages the agents see",
        [[(name, 1) for name in ("message", "normalised reward", *evaluation["agents"])]],
        rows,
        "How often an episode shows a message, on average; the most frequent messages. Normalised reward: the "
        "reward model's, in standard deviations from its mean.",
        suite,
    )
