"""Deep reinforcement relevance network: Q-learning on texts from a replay memory."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
from torch.nn import functional as F

from groundling.algorithms.algorithm import Algorithm, algorithms
from groundling.algorithms.replay import ReplayMemory, Transition
from groundling.algorithms.rollout import Rollout
from groundling.envs.spec import WorldSpec
from groundling.errors import ConfigError, RunError
from groundling.fields import Ge, Gt, Le
from groundling.policies.drrn import DRRNPolicy
from groundling.policies.policy import Policy


@algorithms.register("drrn")
@dataclass
class DRRN(Algorithm):
    """Q-learning on replayed transitions (He et al. 2016, arXiv 1511.04636), with GLAM's settings.
    L = Huber(Q(s, a) - (r + γ max_a' Q(s', a'))), a' among the actions that are admissible in s'
    """

    learning_rate: Annotated[float, Gt(0)] = 1e-4
    gamma: Annotated[float, Ge(0), Le(1)] = 0.9
    """Discount factor."""
    batch_size: Annotated[int, Ge(1)] = 64
    """Transitions per gradient step."""
    replay_size: Annotated[int, Ge(1)] = 5_000_000
    """Transitions in the replay memory; the oldest are dropped. ``replay.jsonl`` keeps all, about a kilobyte each."""
    steps_per_gradient: Annotated[int, Ge(1)] = 128
    """Env steps per gradient step; 128 in GLAM. Fewer learn faster per step and slower per hour."""
    max_grad_norm: Annotated[float, Gt(0)] = 5.0

    reports_entropy = False
    needs_values = False

    def __post_init__(self) -> None:
        self.replay = ReplayMemory(self.replay_size)
        self._steps = 0  # env steps since the last gradient step

    def accepts(self, policy: Callable[..., Policy], args: Mapping[str, Any], world: WorldSpec) -> str | None:
        if isinstance(policy, type) and not issubclass(policy, DRRNPolicy):
            return "it learns DRRN's Q values"
        return super().accepts(policy, args, world)

    def setup(self, policy: Policy) -> None:
        if not isinstance(policy, DRRNPolicy):
            raise ConfigError(f"algorithm drrn trains policy.id=drrn, and not a {type(policy).__name__}")
        self.optimizer = torch.optim.Adam(policy.parameters(), lr=self.learning_rate)

    def update(
        self, policy: Policy, rollout: Rollout, *, generator: torch.Generator, remaining: float = 1.0
    ) -> dict[str, float]:
        """Add the rollout to the replay memory, and take a gradient step for every ``steps_per_gradient`` steps.
        Returns means over the gradient steps, and ``replay``, the memory's size.
        """
        assert isinstance(policy, DRRNPolicy)
        self._remember(policy, rollout)
        self._steps += len(rollout)
        figures: list[dict[str, float]] = []
        for _ in range(self._steps // self.steps_per_gradient):
            chosen = torch.randint(len(self.replay), (self.batch_size,), generator=generator)
            figures.append(self._step(policy, [self.replay[i] for i in chosen.tolist()]))
        self._steps %= self.steps_per_gradient
        names = figures[0] if figures else ()
        means = {name: sum(f[name] for f in figures) / len(figures) for name in names}
        return {**means, "replay": len(self.replay)}

    def use_folder(self, folder: Path) -> None:
        self.replay.keep_file(folder / "replay.jsonl", writes=self.processes.is_main)

    def state_dict(self) -> dict[str, Any]:
        """Position in ``replay.jsonl``, which is written up to here."""
        return {"file": self.replay.save(), "steps": self._steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._steps = state["steps"]
        self.replay.load(state["file"])

    def _remember(self, policy: DRRNPolicy, rollout: Rollout) -> None:
        num_envs = rollout.actions.shape[1]
        observations = [*rollout.observations, *rollout.last_observations]
        prompts = policy.prompts(observations)
        actions, rewards = rollout.actions.flatten().tolist(), rollout.rewards.flatten().tolist()
        dones = rollout.dones.flatten().tolist()
        for i, observation in enumerate(rollout.observations):
            after = () if dones[i] else (prompts[i + num_envs], observations[i + num_envs].actions)
            self.replay.add(Transition(prompts[i], observation.actions, actions[i], rewards[i], *after))

    def _step(self, policy: DRRNPolicy, batch: Sequence[Transition]) -> dict[str, float]:
        targets = torch.tensor([t.reward for t in batch], device=policy.device)  # (batch_size,)
        continuing = [i for i, t in enumerate(batch) if t.next_prompt is not None]
        if continuing:
            prompts = [batch[i].next_prompt or "" for i in continuing]
            with torch.no_grad():
                next_q = policy.q_values(prompts, [batch[i].next_actions for i in continuing])
            targets[continuing] += self.gamma * next_q.amax(-1)
        q = policy.q_values([t.prompt for t in batch], [t.actions for t in batch])  # (batch_size, actions)
        chosen = q.gather(1, torch.tensor([[t.action] for t in batch], device=q.device))[:, 0]
        loss = F.smooth_l1_loss(chosen, targets)
        if not loss.isfinite():
            raise RunError(f"DRRN's loss became {loss.item()}: check the rewards, or lower the learning rate")
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(policy.parameters(), self.max_grad_norm)
        self.optimizer.step()
        return {"loss": loss.item(), "q_mean": chosen.mean().item(), "grad_norm": norm.item()}
