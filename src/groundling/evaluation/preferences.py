"""A policy's preferences before training: its entropy, and the actions that it would rarely explore."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from groundling.envs.text_env import TextObservation
from groundling.policies.prompt_policy import PromptPolicy

_NEARLY_ALL = 0.9  # probability of short actions above which the others are taken at most once in ten steps
_FEW = 0.5  # maximum share of short actions
_RARE = 0.02  # relative to a uniform policy, which takes these actions at least fifty times as often
_COMMON = 0.5  # minimum share of the lists that must contain an action for it to be reported
_LONGEST_LIST = 20  # maximum number of actions; in longer lists, many are inevitably unlikely


@dataclass(frozen=True)
class ShortActions:
    """Actions with at most half as many words as the longest action in their list."""

    probability: float  # their total probability, averaged over the lists that contain short actions
    share: float  # fraction of a list's actions that are short, averaged over the same lists
    lists: int  # number of these lists

    @property
    def are_nearly_all(self) -> bool:
        """True if short actions are at most half of all actions but have nearly all of the probability."""
        return self.lists > 0 and self.probability >= _NEARLY_ALL and self.share <= _FEW


@dataclass(frozen=True)
class ActionPreferences:
    """A policy's action probabilities for some observations."""

    probabilities: list[Tensor]  # one per observation, float32 (num_actions,)
    entropy: float  # mean entropy, in nats
    uniform_entropy: float  # mean entropy of a uniform policy
    short: ShortActions
    rare: dict[str, float]  # mean probability of each common but rarely explored action, rarest first


def preferences(policy: PromptPolicy, observations: Sequence[TextObservation]) -> ActionPreferences:
    """Compute a policy's preferences for one or more observations."""
    log_probs = policy.distributions(observations).log_probs.cpu()  # (num_observations, max_actions)
    rows = [row[: len(o.actions)].exp() for row, o in zip(log_probs, observations, strict=True)]
    entropies = [-torch.special.xlogy(row, row).sum().item() for row in rows]
    uniform = [torch.tensor(float(len(row))).log().item() for row in rows]
    lists = [o.actions for o in observations]
    return ActionPreferences(
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
    seen: dict[str, list[tuple[float, int]]] = {}  # probability, and number of actions
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
