"""DRRN's learning: temporal differences of Q on a replay memory of texts."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F

from groundling.algorithms.algorithm import Algorithm, algorithms, is_other
from groundling.algorithms.optimisation import check_options
from groundling.algorithms.replay import ReplayFile, Transition, followed
from groundling.algorithms.rollout import Rollout
from groundling.envs.spec import WorldSpec
from groundling.errors import ConfigError, RunError
from groundling.policies.drrn import DRRNPolicy
from groundling.policies.policy import Policy


@algorithms.register("drrn")
@dataclass
class DRRN(Algorithm):
    """Q-learning on replayed transitions (He et al. 2016, arXiv 1511.04636), with GLAM's settings.

    L = Huber(Q(s, a) - (r + γ max_a' Q(s', a')))

    a' are the actions that are admissible in s'.
    """

    learning_rate: float = 1e-4
    gamma: float = 0.9
    """Discount factor."""
    batch_size: int = 64
    """Transitions of a gradient step."""
    replay_size: int = 5_000_000
    """Transitions that are remembered; the oldest are forgotten first. The run's ``replay.jsonl`` keeps all that there
    ever were, about a kilobyte each; a checkpoint says how far it had come."""
    steps_per_gradient: int = 128
    """Env steps for each gradient step; 128 in GLAM, fewer learn faster by the step and slower by the hour."""
    max_grad_norm: float = 5.0

    optimizer: torch.optim.Adam = field(init=False, repr=False)
    tells_entropy = False
    needs_values = False

    def __post_init__(self) -> None:
        """Raise `ConfigError` on options that cannot be run."""
        check_options(self)
        self._replay: list[Transition] = []
        self._oldest = 0  # where the next transition goes once the memory is full
        self._steps = 0  # env steps since the last gradient step
        self._file: ReplayFile | None = None  # where a run keeps the replay
        self._unsaved: list[Transition] = []  # what is not there yet

    def accepts(self, policy: Callable[..., Policy], args: Mapping[str, Any], world: WorldSpec) -> str | None:
        if is_other(policy, DRRNPolicy):
            return "it learns DRRN's Q values"
        return super().accepts(policy, args, world)

    def setup(self, policy: Policy) -> None:
        """Make Adam for the policy's parameters.

        Raises:
            ConfigError: the policy is not DRRN's.
        """
        if not isinstance(policy, DRRNPolicy):
            raise ConfigError(f"algorithm drrn trains policy.id=drrn, and not a {type(policy).__name__}")
        self.optimizer = torch.optim.Adam(policy.parameters(), lr=self.learning_rate)

    def update(
        self, policy: Policy, rollout: Rollout, *, generator: torch.Generator, remaining: float = 1.0
    ) -> dict[str, float]:
        """Remember the rollout, and take one gradient step for every ``steps_per_gradient`` steps.

        Returns:
            Means over the gradient steps of ``loss``, ``q_mean`` and ``grad_norm``; none if there was no step.

        Raises:
            RunError: the loss became NaN or infinite.
        """
        assert isinstance(policy, DRRNPolicy)
        self._remember(policy, rollout)
        self._steps += len(rollout)
        figures: list[dict[str, float]] = []
        for _ in range(self._steps // self.steps_per_gradient):
            chosen = torch.randint(len(self._replay), (self.batch_size,), generator=generator)
            figures.append(self._step(policy, [self._replay[i] for i in chosen.tolist()]))
        self._steps %= self.steps_per_gradient
        means = {
            name: sum(f[name] for f in figures) / len(figures) for name in (figures[0] if figures else ())
        }
        return {**means, "replay": len(self._replay)}

    def keep_in(self, folder: Path) -> None:
        self._file = ReplayFile(folder / "replay.jsonl")

    def state_dict(self) -> dict[str, Any]:
        """Where it stands; what it remembers goes to the run's ``replay.jsonl``.

        Raises:
            OSError: that cannot be written.
        """
        if self._file is None:
            rows = [astuple(transition) for transition in self._replay]
            return {"rows": rows, "oldest": self._oldest, "steps": self._steps}
        self._file.append(self._unsaved)
        self._unsaved.clear()
        return {"file": self._file.state, "steps": self._steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._steps = state["steps"]
        self._replay, self._oldest = [], 0
        if self._file is not None and "file" in state:
            for transition in self._file.read(state["file"]):
                self._add(transition)
            return
        for prompt, actions, action, reward, *after in state["rows"]:
            self._remember_one(followed(Transition(prompt, tuple(actions), action, reward), after))
        self._oldest = state.get("oldest", 0)  # 0 of those before it was kept, which began with the oldest

    def _remember(self, policy: DRRNPolicy, rollout: Rollout) -> None:
        num_envs = rollout.actions.shape[1]
        seen = [*rollout.observations, *rollout.last_observations]
        prompts = policy.prompts(seen)
        actions, rewards = rollout.actions.flatten().tolist(), rollout.rewards.flatten().tolist()
        dones = rollout.dones.flatten().tolist()
        for i, observation in enumerate(rollout.observations):
            after = () if dones[i] else (prompts[i + num_envs], seen[i + num_envs].actions)
            self._remember_one(Transition(prompts[i], observation.actions, actions[i], rewards[i], *after))

    def _remember_one(self, transition: Transition) -> None:
        """Remember one more, which the file does not have yet."""
        self._add(transition)
        if self._file is not None and self.processes.is_main:  # who alone writes
            self._unsaved.append(transition)

    def _add(self, transition: Transition) -> None:
        """Remember one more, in the place of the oldest if the memory is full."""
        if len(self._replay) < self.replay_size:
            self._replay.append(transition)
        else:
            self._replay[self._oldest] = transition
            self._oldest = (self._oldest + 1) % self.replay_size

    def _step(self, policy: DRRNPolicy, batch: Sequence[Transition]) -> dict[str, float]:
        going_on = [i for i, t in enumerate(batch) if t.next_prompt is not None]
        targets = torch.tensor([t.reward for t in batch], device=policy.device)  # (batch_size,)
        if going_on:
            with torch.no_grad():
                following = [t for t in batch if t.next_prompt is not None]
                best = policy.q_values(
                    [t.next_prompt or "" for t in following], [t.next_actions for t in following]
                ).amax(-1)
            targets[going_on] += self.gamma * best
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
