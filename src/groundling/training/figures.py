"""The figures of an update: counters, numbers from components, which may be users', and returns with a KL penalty."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from groundling.algorithms.rollout import Rollout
from groundling.errors import RunError
from groundling.policies.policy import Policy
from groundling.worlds.episode import Episode

_LOW_ENTROPY_UPDATES = 5  # Consecutive updates below the floor before the run is stopped
_GOOD_SUCCESS_RATE = 0.95  # A policy that succeeds this often may have a low entropy


@dataclass
class Counters:
    update: int = 0
    step: int = 0
    episodes: int = 0
    seconds: float = 0.0
    low_entropy_updates: int = 0  # Consecutive ones below ``world.entropy_floor`` in which episodes failed

    def add(self, steps: int, episodes: int, seconds: float) -> None:
        self.update += 1
        self.step += steps
        self.episodes += episodes
        self.seconds += seconds

    def count_entropy(self, entropy: float, floor: float, episodes: Sequence[Episode]) -> None:
        """Count an update of low entropy, in nats; updates without episodes that can fail are ignored."""
        if episodes and all(e.success is not None for e in episodes):
            fails = sum(bool(e.success) for e in episodes) / len(episodes) < _GOOD_SUCCESS_RATE
            self.low_entropy_updates = self.low_entropy_updates + 1 if entropy < floor and fails else 0

    def check_entropy(self, entropy: float, floor: float, policy: Policy) -> None:
        """Raise `RunError` with advice if the entropy has been too low for too long."""
        # A run resumed with a lower floor has the counter of the higher one, so the entropy is compared again.
        if entropy >= floor or self.low_entropy_updates < _LOW_ENTROPY_UPDATES:
            return
        advice = "start again with a higher algorithm.args.entropy_coefficient or a lower learning_rate"
        since = f"for {_LOW_ENTROPY_UPDATES} updates while episodes still fail: it no longer explores"
        if self.low_entropy_updates >= self.update:  # from the beginning, which a lower learning rate does not change
            advice = policy.exploration_advice() or advice
            since = "from the first update on, while episodes fail: it never explored"
        raise RunError(
            f"the policy's entropy was below world.entropy_floor={floor} {since}. To fix it, {advice}; or set "
            "world.entropy_floor=0 to continue nevertheless"
        )


def checked_figures(given: Any, giver: str) -> dict[str, float]:
    """Convert figures of a component, also scalars of torch and NumPy, to numbers; `RunError` on others."""
    if not isinstance(given, Mapping):
        raise RunError(
            f"the {giver} gives {given!r:.80} as the figures of an update, expected a mapping of names to numbers: "
            "return one such as {'loss': 0.5}, or {} if there is nothing to report"
        )
    figures = dict[str, float]()
    for name, value in given.items():
        if not isinstance(name, str):
            raise RunError(f"the {giver} gives a figure called {name!r:.80}, expected a text: give it a name")
        try:
            if isinstance(value, str | bytes | bytearray):  # which float would parse
                raise TypeError
            figures[name] = value if isinstance(value, int | float) else float(value)
        except (TypeError, ValueError, RuntimeError, OverflowError) as error:
            shown = " ".join(repr(value).split())
            raise RunError(
                f"the {giver} gives the figure {name} as {shown:.80}, expected a number: return one such as 0.5 (of "
                "several, their mean), or leave it out"
            ) from error
    return figures


def merge_figures(
    row: dict[str, Any], shaped: Mapping[str, Any], given: Mapping[str, Mapping[str, float]]
) -> dict[str, Any]:
    """Add figures of the policy, of shaped returns, and of the algorithm to a row; `RunError` on equal names."""
    present = row.keys() | shaped.keys()
    for giver, figures in given.items():
        if doubled := sorted(present & figures.keys()):
            raise RunError(
                f"the {giver} gives a figure called {doubled[0]}, which the run has already: give it another name"
            )
        present |= figures.keys()
    of_policy, of_algorithm = given.values()
    return {**row, **of_policy, **shaped, **of_algorithm}


class ShapedReturns:
    """Sum each env's shaped rewards, and the shaping alone, over the episodes, which may span rollouts."""

    def __init__(self, num_envs: int) -> None:
        self.sums = np.zeros((2, num_envs))  # of the current episodes: shaped rewards, and the shaping alone

    def add(self, rollout: Rollout, shaped: Tensor) -> dict[str, float | None]:
        """Add a rollout and its rewards with the penalty, ``(num_steps, num_envs)``.
        Returns mean, deviation, minimum and maximum over the episodes that ended in it, or were cut at its end:
        ``shaped_return_*``, and ``shaping_*`` of the penalty alone; None where no episode ended.
        """
        rewards, unshaped = shaped.double().numpy(), rollout.rewards.double().numpy()
        if rollout.groups is not None:  # each rollout starts with new episodes
            self.sums[:] = 0
        ended = []
        for t, done in enumerate(rollout.dones.numpy()):
            self.sums += np.stack([rewards[t], rewards[t] - unshaped[t]])
            ended.append(self.sums[:, done])
            self.sums[:, done] = 0
        if rollout.groups is not None:  # unfinished episodes count as far as they went
            ended.append(self.sums[:, ~rollout.dones.any(0).numpy()])
        sums = np.concatenate(ended, axis=1)  # (2, number of episodes)
        return {
            f"{name}_{statistic}": float(getattr(values, statistic)()) if len(values) else None
            for name, values in zip(("shaped_return", "shaping"), sums, strict=True)
            for statistic in ("mean", "std", "min", "max")
        }
