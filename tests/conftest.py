"""Tiny worlds and policies, which let other tests run in milliseconds."""

import gc
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import submitit  # noqa: F401  (later, its import would close absl's log handler, and with it pytest's own capture)
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import groundling.worlds  # noqa: F401  (which tell judges what they are)
from groundling.algorithms import Rollout
from groundling.envs.text_env import TextObservation
from groundling.policies.policy import Action, Evaluated, Policy, policies, sample_categorical
from groundling.reports import plots
from tests.hostile.received import things

__all__ = ["things"]


class Corridor(gymnasium.Env[dict[str, Any], int]):
    """Walk left or right along five cells to the end given in the mission, in at most 12 steps."""

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
    """A linear policy on one-hot (goal, position), which is all that the corridor requires."""

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

    def evaluate(self, observations: Sequence[TextObservation], actions: Tensor) -> Evaluated:
        log_probs, values = self._forward(observations)
        return Evaluated.of(log_probs, actions, values)

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


class SequencePolicy(Policy):
    """Generates at most five of the tokens 0 to 4 for prompts 0 to 2, from a table; token 0 ends a text.

    The reference is the initial policy. Observations are prompts.
    """

    length = 5

    def __init__(self) -> None:
        super().__init__()
        self.actor = nn.Parameter(torch.randn(3, 6, 5) * 0.3)  # by prompt and previous token, where 5 means none
        self.critic = nn.Parameter(torch.zeros(3, 6))
        self.register_buffer("reference", self.actor.detach().clone())

    def write(self, prompts: Sequence[int], generator: torch.Generator) -> Rollout:
        """Generate one text per prompt, without gradients; the reward at its end is the share of tokens 3."""
        before = torch.full((len(prompts),), 5)
        texts = []
        for _ in range(self.length):
            with torch.no_grad():
                before = sample_categorical(self.log_distributions(prompts, before[:, None])[:, 0], generator)
            texts.append(before)
        actions = torch.stack(texts)  # (length, num_prompts)
        mask = torch.ones_like(actions, dtype=torch.bool)
        mask[1:] = (actions[:-1] != 0).cumprod(0).bool()
        dones = mask & ((actions == 0) | (torch.arange(self.length)[:, None] == self.length - 1))
        rewards = ((actions == 3) & mask).sum(0) / mask.sum(0) * dones
        with torch.no_grad():
            evaluation = self.evaluate(prompts, actions.T)
            free = self._look_up(self.actor, prompts, self._before(actions.T)).log_softmax(-1)
            referred = self._look_up(self.reference, prompts, self._before(actions.T)).log_softmax(-1)
        kl = (free - referred).gather(-1, actions.T[..., None])[..., 0]
        return Rollout(
            list(prompts),
            actions,
            evaluation.log_probs.T,
            evaluation.values.T,
            rewards,
            dones,
            torch.zeros(len(prompts)),
            [],
            sequences=True,
            mask=mask,
            groups=torch.tensor(prompts),
            kl=kl.T,
        )

    def log_distributions(self, prompts: Sequence[int], before: Tensor) -> Tensor:
        """Return ``(num_prompts, length, 5)`` for the tokens after ``before`` ``(num_prompts, length)``."""
        return self._look_up(self.actor, prompts, before).log_softmax(-1)

    def evaluate(self, observations: Sequence[int], actions: Tensor) -> Evaluated:
        before = self._before(actions)
        values = self.critic[torch.tensor(observations)[:, None], before]
        return Evaluated.of(self.log_distributions(observations, before), actions, values)

    def act(self, observations: Sequence[int], **options: Any) -> Action:
        raise NotImplementedError

    def values(self, observations: Sequence[int], memory: Tensor | None = None) -> Tensor:
        raise NotImplementedError

    def save_pretrained(self, folder: Path) -> None:
        save_file(self.state_dict(), folder / "sequence.safetensors")

    def load_weights(self, folder: Path) -> None:
        self.load_state_dict(load_file(folder / "sequence.safetensors"))

    def _look_up(self, table: Tensor, prompts: Sequence[int], before: Tensor) -> Tensor:
        return table[torch.tensor(prompts)[:, None], before]

    def _before(self, actions: Tensor) -> Tensor:
        return torch.cat([torch.full_like(actions[:, :1], 5), actions[:, :-1]], dim=1)


class MaskedSequencePolicy(SequencePolicy):
    """Samples from the three tokens that are most likely under its mask model, an older copy of the policy."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("masker", self.actor.detach().clone())
        self.refreshed = 0

    def refresh_mask(self) -> None:
        self.masker.copy_(self.actor.detach())
        self.refreshed += 1

    def log_distributions(self, prompts: Sequence[int], before: Tensor) -> Tensor:
        kept = self._look_up(self.masker, prompts, before).topk(3).indices
        scores = self._look_up(self.actor, prompts, before)
        allowed = torch.zeros_like(scores, dtype=torch.bool).scatter(-1, kept, True)
        return scores.masked_fill(~allowed, -torch.inf).log_softmax(-1)


@pytest.fixture
def corridor() -> type[Corridor]:
    return Corridor


@pytest.fixture(autouse=True, scope="session")
def _single_thread() -> None:
    """Use one thread per process, because the tests run in parallel processes."""
    torch.set_num_threads(1)
    os.environ.update(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")


_draw_all = plots.small_multiples


def _draw_few(groups: Any, keys: Sequence[str]) -> str:
    points = {key: [plots.points(rows, key)[0] for runs in groups.values() for rows in runs] for key in keys}
    return _draw_all(groups, [key for key in keys if any(map(len, points[key]))][:2])


@pytest.fixture(autouse=True, scope="session")
def _few_figures() -> None:
    """Draw only two small figures in reports, because some reports have thirty, which take seconds."""
    plots.small_multiples = _draw_few


@pytest.fixture
def all_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw all figures in the reports of this test."""
    monkeypatch.setattr(plots, "small_multiples", _draw_all)


def pytest_configure() -> None:
    gymnasium.register("test/Corridor-v0", entry_point=Corridor)


def pytest_collection_finish() -> None:
    """Collect garbage rarely, and exclude imported modules, whose scan takes half a second each time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
