"""Tiny worlds and policies, so that tests of everything else take milliseconds."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from groundling.envs.observation import TextObservation
from groundling.policies.policy import Action, Evaluation, Policy, policies


class Corridor(gymnasium.Env[dict[str, Any], int]):
    """Walk left or right along five cells to the end that the mission names; 12 steps at most."""

    observation_space = gymnasium.spaces.Dict(
        {"mission": gymnasium.spaces.Text(32), "position": gymnasium.spaces.Discrete(5)}
    )
    action_space = gymnasium.spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        super().reset(seed=seed)
        self.goal = str(self.np_random.choice(["left", "right"]))
        self.position, self.steps = int(self.np_random.integers(1, 4)), 0
        return self._observe()

    def step(self, action: int) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        self.position += {0: -1, 1: 1, 2: 0}[action]
        self.steps += 1
        ended = self.position in (0, 4)
        reward = 1 - 0.5 * self.steps / 12 if ended and (self.position == 0) == (self.goal == "left") else 0.0
        observation, info = self._observe()
        return observation, reward, ended, not ended and self.steps >= 12, info

    def _observe(self) -> tuple[dict[str, Any], dict[str, Any]]:
        sentence = f"You see a wall {self.position} steps left"
        return {"mission": f"go {self.goal}", "position": self.position}, {"descriptions": [sentence]}


@policies.register("test-table")
class TablePolicy(Policy):
    """A linear policy on one-hot (goal, position): what the corridor needs and nothing more."""

    def __init__(self, num_actions: int = 3) -> None:
        super().__init__()
        self.actor, self.critic = nn.Linear(10, num_actions), nn.Linear(10, 1)

    def act(
        self,
        observations: Sequence[TextObservation],
        *,
        memory: Tensor | None = None,
        deterministic: bool = False,
        generator: torch.Generator | None = None,
    ) -> Action:
        with torch.no_grad():
            log_probs, values = self._forward(observations)
        return Action.choose(log_probs, values, deterministic=deterministic, generator=generator)

    def evaluate(self, observations: Sequence[TextObservation], actions: Tensor) -> Evaluation:
        log_probs, values = self._forward(observations)
        return Evaluation.of(log_probs, actions, values)

    def values(self, observations: Sequence[TextObservation], memory: Tensor | None = None) -> Tensor:
        with torch.no_grad():
            return self._forward(observations)[1]

    def save_pretrained(self, folder: Path) -> None:
        save_file(self.state_dict(), folder / "table.safetensors")

    def load_weights(self, folder: Path) -> None:
        self.load_state_dict(load_file(folder / "table.safetensors"))

    def _forward(self, observations: Sequence[TextObservation]) -> tuple[Tensor, Tensor]:
        index = [5 * (o.goal == "go left") + o.raw["position"] for o in observations]
        features = torch.from_numpy(np.eye(10, dtype=np.float32)[index])
        return self.actor(features).log_softmax(-1), self.critic(features)[:, 0]


@pytest.fixture
def corridor() -> type[Corridor]:
    return Corridor


@pytest.fixture(autouse=True)
def _single_thread() -> None:
    torch.set_num_threads(1)  # the suite runs in parallel processes


def pytest_configure() -> None:
    gymnasium.register("test/Corridor-v0", entry_point=Corridor)
