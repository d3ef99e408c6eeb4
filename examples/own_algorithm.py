"""A custom algorithm for whole texts: imitate the better half of each rollout (expert iteration).

groundling train rl4lms/increasing_numbers_ppo --import examples.own_algorithm algorithm.id=best_half ~algorithm.args
"""

from dataclasses import dataclass, field

import torch

from groundling.algorithms import Algorithm, Rollout, register
from groundling.policies import Policy


@register("best_half")
@dataclass
class BestHalf(Algorithm):
    """Maximise the likelihood of texts with at least the median reward. Works with all policies that generate text."""

    learning_rate: float = 1e-3
    gamma: float = 1.0
    optimizer: torch.optim.Optimizer = field(init=False, repr=False)

    def setup(self, policy: Policy) -> None:
        learning = [weight for weight in policy.parameters() if weight.requires_grad]
        self.optimizer = torch.optim.AdamW(learning, self.learning_rate)

    def update(
        self, policy: Policy, rollout: Rollout, *, generator: torch.Generator, remaining: float = 1.0
    ) -> dict[str, float]:
        worth = rollout.rewards.sum(0)  # (num_texts,)
        best = (worth >= worth.median()).nonzero()[:, 0]
        mask = rollout.mask.T[best].to(policy.device)  # type: ignore[union-attr]  # (len(best), num_tokens)
        actions = rollout.actions.T[best].to(policy.device)
        now = policy.evaluate([rollout.observations[i] for i in best.tolist()], actions)
        loss = -(now.log_probs * mask).sum() / mask.sum()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return {"loss": loss.item(), "kept": float(len(best))}
