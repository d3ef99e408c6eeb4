"""What a policy prefers before it has learnt anything, and whether it would ever take the longer actions."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from groundling.envs.observation import TextObservation
from groundling.policies.prompt_policy import PromptPolicy

_NEARLY_ALL = 0.9
"""Of the probability; the rest is taken once in ten steps, in all."""
_FEW = 0.5
"""Of the actions at most."""
_RARE = 0.02
"""Of an even share of the probability: an action below it is tried once where chance would try it fifty times."""
_COMMON = 0.5
"""Of the lists: an action that stands in fewer is not told of."""
_LONGEST_LIST = 20
"""Actions: in longer lists many are unlikely, and nobody expects otherwise."""


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
    rare: dict[str, float]
    """Actions of most of the lists that it would hardly ever try, each with its mean probability, the rarest first."""


def preferences(policy: PromptPolicy, observations: Sequence[TextObservation]) -> Preferences:
    """Ask a policy about some observations, at least one; a list of one action is no choice and says nothing."""
    log_probs = policy.distributions(observations).log_probs.cpu()  # (num_observations, most actions)
    rows = [row[: len(o.actions)].exp() for row, o in zip(log_probs, observations, strict=True)]
    entropies = [-torch.special.xlogy(row, row).sum().item() for row in rows]
    uniform = [torch.tensor(float(len(row))).log().item() for row in rows]
    lists = [o.actions for o in observations]
    return Preferences(
        rows, _mean(entropies), _mean(uniform), _short_actions(rows, lists), _rare_actions(rows, lists)
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


def _rare_actions(rows: Sequence[Tensor], lists: Sequence[Sequence[str]]) -> dict[str, float]:
    seen: dict[str, list[tuple[float, int]]] = {}  # its probability, and of how many actions
    for row, actions in zip(rows, lists, strict=True):
        if len(actions) <= _LONGEST_LIST:
            for action, probability in zip(actions, row.tolist(), strict=True):
                seen.setdefault(action, []).append((probability, len(actions)))
    rare = {
        action: _mean([probability for probability, _ in places])
        for action, places in seen.items()
        if len(places) >= _COMMON * len(lists) and _mean([p * count for p, count in places]) < _RARE
    }
    return dict(sorted(rare.items(), key=lambda one: one[1]))


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
