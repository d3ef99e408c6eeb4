"""Episode returns with the KL penalty that shapes the rewards."""

import numpy as np
from torch import Tensor

from groundling.algorithms.rollout import Rollout


class ShapedReturns:
    """Sum each env's shaped rewards, and the shaping alone, over the episodes, which may span rollouts."""

    def __init__(self, num_envs: int) -> None:
        self.sums = np.zeros((2, num_envs))  # of the current episodes: shaped rewards, and the shaping alone

    def add(self, rollout: Rollout, shaped: Tensor) -> dict[str, float | None]:
        """Add a rollout and its rewards with the penalty, ``(num_steps, num_envs)``.

        Returns:
            Mean, deviation, minimum and maximum over the episodes that ended in it, or were cut at its end:
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
