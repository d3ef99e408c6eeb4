"""What a policy prefers before it has learnt anything, and whether it would ever take the longer actions."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from groundling.envs.observation import TextObservation
from groundling.policies.reading import ReadingPolicy

_NEARLY_ALL = 0.9
"""Of the probability; the rest is taken once in ten steps, in all."""
_FEW = 0.5
"""Of the actions at most."""


@dataclass(frozen=True)
class ShortActions:
    """Those with at most half as many words as the longest action of their list, of the lists that have such."""

    probability: float
    """Theirs together, the mean over lists."""
    share: float
    """Of the actions of a list, likewise."""
    lists: int
    """How many such lists there were."""

    @property
    def are_nearly_all(self) -> bool:
        """Whether few short actions take nearly all of the probability."""
        return self.lists > 0 and self.probability >= _NEARLY_ALL and self.share <= _FEW


@dataclass(frozen=True)
class Preferences:
    """A policy's probabilities of the actions of some observations."""

    probabilities: list[Tensor]
    """Of each observation float32 ``(num_actions,)``."""
    entropy: float
    """Mean, in nats."""
    uniform_entropy: float
    """The same, were all actions equally likely."""
    short: ShortActions


def preferences(policy: ReadingPolicy, observations: Sequence[TextObservation]) -> Preferences:
    """Ask a policy about some observations, at least one; a list of one action is no choice and says nothing."""
    log_probs = policy.distributions(observations).log_probs.cpu()  # (num_observations, most actions)
    rows = [row[: len(o.actions)].exp() for row, o in zip(log_probs, observations, strict=True)]
    entropies = [-torch.special.xlogy(row, row).sum().item() for row in rows]
    uniform = [torch.tensor(float(len(row))).log().item() for row in rows]
    return Preferences(
        rows, _mean(entropies), _mean(uniform), _short_actions(rows, [o.actions for o in observations])
    )


def _short_actions(rows: Sequence[Tensor], lists: Sequence[Sequence[str]]) -> ShortActions:
    probabilities, shares = [], []
    for row, actions in zip(rows, lists, strict=True):
        words = torch.tensor([len(action.split()) for action in actions])
        short = 2 * words <= words.max()
        if short.any():
            probabilities.append(row[short].sum().item())
            shares.append(short.float().mean().item())
    return ShortActions(_mean(probabilities), _mean(shares), len(shares))


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
