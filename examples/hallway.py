"""A custom env and a custom algorithm, trained from the command line:

groundling train hallway --config-dir examples --import examples.hallway
"""

from dataclasses import dataclass, field
from typing import Any

import gymnasium
import torch

from groundling.algorithms import Algorithm, Rollout, generalized_advantage, register
from groundling.policies import Policy

COLOURS = ("red", "green", "blue", "yellow", "grey")


class Hallway(gymnasium.Env[dict[str, str], Any]):
    """A row of five doors, one of which the mission tells the agent to open."""

    observation_space = gymnasium.spaces.Dict({"mission": gymnasium.spaces.Text(40)})
    action_space = gymnasium.spaces.Discrete(3)  # go left, go right, open the door

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.place, self.wanted = self.np_random.integers(5, size=2).tolist()
        self.steps = 0
        return self._observation(), self._info()

    def step(self, action: int) -> Any:
        self.place = min(max(self.place + (-1, 1, 0)[action], 0), 4)
        self.steps += 1
        found = action == 2 and self.place == self.wanted
        return self._observation(), float(found), found, self.steps >= 10, self._info()

    def _observation(self) -> dict[str, str]:
        return {"mission": f"open the {COLOURS[self.wanted]} door"}

    def _info(self) -> dict[str, list[str]]:
        return {"descriptions": [f"You see a {COLOURS[self.place]} door 1 step forward"]}


gymnasium.register("Hallway-v0", entry_point=Hallway)  # type: ignore[arg-type]


@register("reinforce")
@dataclass
class Reinforce(Algorithm):
    """REINFORCE with a value function as the baseline (Williams 1992), with one optimizer step per rollout."""

    learning_rate: float = 1e-3
    gamma: float = 0.99
    optimizer: torch.optim.Optimizer = field(init=False, repr=False)

    def setup(self, policy: Policy) -> None:
        self.optimizer = torch.optim.Adam(policy.parameters(), self.learning_rate)

    def update(
        self, policy: Policy, rollout: Rollout, *, generator: torch.Generator, remaining: float = 1.0
    ) -> dict[str, float]:
        advantages, returns = generalized_advantage(
            rollout.rewards, rollout.values, rollout.dones, rollout.last_values, self.gamma, lam=1.0
        )
        now = policy.evaluate(rollout.observations, rollout.actions.flatten().to(policy.device))
        policy_loss = -(now.log_probs * advantages.flatten().to(policy.device)).mean()
        value_loss = (now.values - returns.flatten().to(policy.device)).square().mean()
        self.optimizer.zero_grad()
        (policy_loss + 0.5 * value_loss - 0.01 * now.entropies.mean()).backward()
        self.optimizer.step()
        return {"policy_loss": policy_loss.item(), "value_loss": value_loss.item()}
