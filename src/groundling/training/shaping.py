"""What episodes return as they are learnt from, where a KL penalty shapes their rewards."""

import numpy as np
from torch import Tensor

from groundling.algorithms.rollout import Rollout


class ShapedReturns:
    """Adds up each env's scaled rewards and what the penalty adds to them, over the ends of rollouts.

    Args:
        num_envs: How many envs a rollout is of.
    """

    def __init__(self, num_envs: int) -> None:
        self.sums = np.zeros((2, num_envs))  # of the present episodes: shaped rewards, and the shaping alone

    def add(self, rollout: Rollout, shaped: Tensor) -> dict[str, float | None]:
        """Go through a rollout.

        Args:
            rollout: What was gathered.
            shaped: Its rewards as they are learnt from, ``(num_steps, num_envs)``.

        Returns:
            Mean, deviation, least and greatest of the episodes that ended in it, or were cut at its end:
            ``shaped_return_*``, and ``shaping_*`` of what the penalty added alone; None where no episode ended.
        """
        rewards, unshaped = shaped.double().numpy(), rollout.rewards.double().numpy()
        if rollout.groups is not None:  # each begins with the first steps of its episodes
            self.sums[:] = 0
        ended = []
        for t, done in enumerate(rollout.dones.numpy()):
            self.sums += np.stack([rewards[t], rewards[t] - unshaped[t]])
            ended.append(self.sums[:, done])
            self.sums[:, done] = 0
        if rollout.groups is not None:  # what was not over by then counts as far as it went
            ended.append(self.sums[:, ~rollout.dones.any(0).numpy()])
        sums = np.concatenate(ended, axis=1)  # (2, number of episodes)
        return {
            f"{name}_{statistic}": float(getattr(values, statistic)()) if len(values) else None
            for name, values in zip(("shaped_return", "shaping"), sums, strict=True)
            for statistic in ("mean", "std", "min", "max")
        }
