"""Transitions of one collection phase."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from groundling.errors import ConfigError
from groundling.policies.policy import Segment
from groundling.policies.turns import TurnTokens

_PER_STEP = (
    "actions", "log_probs", "raw_log_probs", "values", "rewards", "truncation_values", "dones", "memories", "starts",
    "mask", "kl", "states",
)  # fmt: skip


@dataclass
class Rollout:
    """Transitions as tensors ``(num_steps, num_envs)``, on the CPU; float32 unless stated otherwise."""

    observations: Sequence[Any]
    """``num_steps * num_envs`` observations, at index ``step * num_envs + env``; of `sequences` one for each column. A
    list, or a class that takes an array of indices and can ``concatenate`` several."""
    actions: Tensor
    """int64."""
    log_probs: Tensor
    """Log-probability of each action when it was taken."""
    values: Tensor
    rewards: Tensor
    dones: Tensor
    """bool: the episode ended with this transition."""
    last_values: Tensor
    """``(num_envs,)``: values of the observations after the last step."""
    last_observations: Sequence[Any]
    """``num_envs`` observations after the last step; after the end of an episode, the next one's first."""
    memories: Tensor | None = None
    """``(num_steps, num_envs, memory_size)``: a recurrent policy's memory before each step, or before every n-th,
    where `recurrence` is a multiple of n."""
    starts: Tensor | None = None
    """bool: the observation was an episode's first; of a recurrent policy."""
    sequences: bool = False
    """Each column is one sequence that a policy evaluates at once, such as a text written to a prompt."""
    mask: Tensor | None = None
    """bool: the step counts; False after the end of a sequence or of a single episode. None: all count."""
    groups: Tensor | None = None
    """``(num_envs,)`` int64: columns of one group began alike, as texts to one prompt; None: one group."""
    kl: Tensor | None = None
    """log π(a) - log π_ref(a) of each action, both before any filter, for a KL penalty."""
    truncation_values: Tensor | None = None
    """γ V of the last observation where a time limit truncated an episode, else 0. None: truncation is an end like any
    other."""
    raw_log_probs: Tensor | None = None
    """``log_probs`` before any filter or mask; None without one."""
    states: Tensor | None = None
    """int64: equal for equal states of episodes that began alike; None unless GiGPO needs them."""
    tokens: TurnTokens | None = None
    """Tokens of turns ``(num_steps, num_envs, num_tokens)``, of a policy that writes; `observations` are `Turn`s."""
    parts: Mapping[str, Tensor] = field(default_factory=dict)
    """Rewards of each part by name, without its coefficient; for the log."""

    @classmethod
    def concatenate(cls, rollouts: Sequence["Rollout"]) -> "Rollout":
        """Join rollouts of different envs and equally many steps."""
        first = rollouts[0]
        if len(rollouts) == 1:
            return first
        num_steps = 1 if first.sequences else len(first.actions)
        numbers = torch.arange(sum(len(r.observations) for r in rollouts))
        blocks = numbers.split([len(r.observations) for r in rollouts])
        order = torch.cat([block.view(num_steps, -1) for block in blocks], dim=1).flatten()

        def joined(name: str, dim: int) -> Any:
            columns = [getattr(r, name) for r in rollouts]
            return None if columns[0] is None else torch.cat(columns, dim)

        return cls(
            observations=_take(_join([r.observations for r in rollouts]), order),
            last_values=joined("last_values", 0),
            last_observations=_join([r.last_observations for r in rollouts]),
            sequences=first.sequences,
            groups=joined("groups", 0),
            tokens=first.tokens and TurnTokens.joined([r.tokens for r in rollouts if r.tokens is not None], dim=1),
            parts={name: torch.cat([r.parts[name] for r in rollouts], dim=1) for name in first.parts},
            **{name: joined(name, 1) for name in _PER_STEP},
        )

    def __len__(self) -> int:
        return self.actions.numel()

    @property
    def num_transitions(self) -> int:
        """Number of steps that count."""
        return len(self) if self.mask is None else int(self.mask.sum())

    def turn_means(self) -> dict[str, float]:
        """Mean number of tokens per turn, and share of turns that name no admissible action; {} without turns."""
        if self.tokens is None:
            return {}
        counted = torch.ones_like(self.dones) if self.mask is None else self.mask
        return {
            "tokens_per_turn": self.tokens.mask[counted].double().sum(-1).mean().item(),
            "invalid_actions": self.tokens.invalid[counted].double().mean().item(),
        }

    def part_means(self) -> dict[str, float]:
        """``reward/NAME``: mean of each part of the reward, over steps or whole sequences; {} for "env" alone."""
        if self.parts.keys() <= {"env"}:
            return {}
        count = self.actions.shape[1] if self.sequences else self.num_transitions
        return {f"reward/{name}": float(rewards.double().sum()) / count for name, rewards in self.parts.items()}

    def elements(self, length: int) -> tuple[Sequence[Any], Tensor]:
        """Cut into what a policy evaluates at once: single steps, segments of ``length`` steps, or whole sequences.

        Returns:
            Observations, or `Segment`s, and the indices of their transitions in the flattened tensors:
            ``(num_elements,)``, or ``(num_elements, length)`` for segments and sequences.

        Raises:
            ConfigError: the number of steps is not a multiple of ``length``.
        """
        indices = torch.arange(len(self)).view(self.actions.shape)  # (num_steps, num_envs)
        if self.sequences:
            return self.observations, indices.T
        if self.memories is None or self.starts is None:
            if self.mask is None:
                return self.observations, indices.flatten()
            counted = indices[self.mask]
            return _take(self.observations, counted), counted
        if len(indices) % length:
            raise ConfigError(f"world.num_steps={len(indices)} is not a multiple of the policy's recurrence, {length}")
        segments = indices.unfold(0, length, length).flatten(0, 1)  # (num_elements, length)
        every, starts = len(indices) // len(self.memories), self.starts.flatten()
        memories = self.memories[:: length // every].flatten(0, 1)  # (num_elements, memory_size)
        if self.mask is not None:
            counted = self.mask.flatten()[segments].any(1)  # (num_elements,)
            segments, memories = segments[counted], memories[counted]
        return [
            Segment(_take(self.observations, segment), memory, starts[segment])
            for segment, memory in zip(segments, memories, strict=True)
        ], segments


def _take(observations: Sequence[Any], indices: Tensor) -> Sequence[Any]:
    if isinstance(observations, list):
        return [observations[i] for i in indices.tolist()]
    return observations[indices.numpy()]  # type: ignore[call-overload]


def _join(parts: Sequence[Any]) -> Sequence[Any]:
    if isinstance(parts[0], list):
        return [o for part in parts for o in part]
    return type(parts[0]).concatenate(parts)
