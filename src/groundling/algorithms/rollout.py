"""What one collection phase gathered, and how it is cut into minibatches."""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from groundling.errors import ConfigError
from groundling.policies.policy import Segment, Work
from groundling.policies.turns import TurnTokens
from groundling.runtime.processes import Processes

_PER_STEP = (
    "actions",
    "log_probs",
    "raw_log_probs",
    "values",
    "rewards",
    "truncation_values",
    "dones",
    "memories",
    "starts",
    "mask",
    "kl",
    "states",
)


@dataclass
class Rollout:
    """Transitions as tensors ``(num_steps, num_envs)``, on the CPU; float32 unless said otherwise."""

    observations: Sequence[Any]
    """``num_steps * num_envs`` observations, step by step: index ``step * num_envs + env``. Of `sequences` ``num_envs``
    of them: what each column's steps were taken on. A list, or such as arrays of indices can index and whose class can
    ``concatenate`` several."""
    actions: Tensor
    """int64."""
    log_probs: Tensor
    """Log-probability of each action when it was taken."""
    values: Tensor
    rewards: Tensor
    dones: Tensor
    """bool: the episode ended with this transition."""
    last_values: Tensor
    """``(num_envs,)``: the value of the observations after the last step."""
    last_observations: Sequence[Any]
    """``num_envs`` of them, after the last step; where that step ended an episode, the next one's first."""
    memories: Tensor | None = None
    """``(num_steps, num_envs, memory_size)``: a recurrent policy's memory before each step, or before every n-th, where
    the policy's `recurrence` is a multiple of n."""
    starts: Tensor | None = None
    """bool: the observation was an episode's first; of a recurrent policy."""
    sequences: bool = False
    """Each column is one sequence that a policy evaluates at once, such as a text that was written to a prompt."""
    mask: Tensor | None = None
    """bool: the step counts; False after the end of a sequence, or of an only episode. None: all count."""
    groups: Tensor | None = None
    """``(num_envs,)`` int64: columns of one number began alike, as texts to one prompt; None: all are of one group."""
    kl: Tensor | None = None
    """log π(a) - log π_ref(a) of each action, both before any filter, which a KL penalty is taken on."""
    truncation_values: Tensor | None = None
    """Where a time limit truncated an episode, γ V of its last observation; else 0. None: such an end is learnt from as
    any other."""
    raw_log_probs: Tensor | None = None
    """``log_probs`` before any filter or mask; None where there is neither."""
    states: Tensor | None = None
    """int64: equal where an agent stands before the same, of episodes that began alike; None: nobody asks."""
    tokens: TurnTokens | None = None
    """Of a policy that writes its turns, what it wrote at each step, ``(num_steps, num_envs, num_tokens)``; the
    observations are then `Turn`s."""
    parts: Mapping[str, Tensor] = field(default_factory=dict)
    """By name, what each part of the reward gave, without its coefficient; for the log."""

    @classmethod
    def beside(cls, rollouts: Sequence["Rollout"]) -> "Rollout":
        """One rollout of the envs of several, which took equally many steps."""
        first = rollouts[0]
        if len(rollouts) == 1:
            return first
        num_steps = 1 if first.sequences else len(first.actions)
        numbers = torch.arange(sum(len(r.observations) for r in rollouts))
        blocks = numbers.split([len(r.observations) for r in rollouts])
        order = torch.cat([block.view(num_steps, -1) for block in blocks], dim=1).flatten()
        tensors = {
            name: None
            if getattr(first, name) is None
            else torch.cat([getattr(r, name) for r in rollouts], dim=1)
            for name in _PER_STEP
        }
        return cls(
            observations=_pick(_join([r.observations for r in rollouts]), order),
            last_values=torch.cat([r.last_values for r in rollouts]),
            last_observations=_join([r.last_observations for r in rollouts]),
            sequences=first.sequences,
            groups=None
            if first.groups is None
            else torch.cat([r.groups for r in rollouts if r.groups is not None]),
            tokens=None
            if first.tokens is None
            else TurnTokens.joined([r.tokens for r in rollouts if r.tokens is not None], dim=1),
            parts={name: torch.cat([r.parts[name] for r in rollouts], dim=1) for name in first.parts},
            **tensors,  # type: ignore[arg-type]
        )

    def __len__(self) -> int:
        return self.actions.numel()

    @property
    def num_transitions(self) -> int:
        """How many steps count."""
        return len(self) if self.mask is None else int(self.mask.sum())

    def turn_means(self) -> dict[str, float]:
        """How many tokens a turn had that count, and which share of the turns named no admissible action."""
        if self.tokens is None:
            return {}
        counted = torch.ones_like(self.dones) if self.mask is None else self.mask
        return {
            "tokens_per_turn": self.tokens.mask[counted].double().sum(-1).mean().item(),
            "invalid_actions": self.tokens.invalid[counted].double().mean().item(),
        }

    def part_means(self) -> dict[str, float]:
        """``reward/NAME``: what each part of the reward gave for a step, or for a whole sequence.

        Nothing where the world's own reward is all, which is the return.
        """
        if self.parts.keys() <= {"env"}:
            return {}
        count = self.actions.shape[1] if self.sequences else self.num_transitions
        return {
            f"reward/{name}": float(rewards.double().sum()) / count for name, rewards in self.parts.items()
        }

    def elements(self, length: int) -> tuple[Sequence[Any], Tensor]:
        """What a policy evaluates at once: single steps, segments of ``length`` steps of one env, or whole sequences.

        Returns:
            The observations, or `Segment`s; and which transitions they are, as indices into the flattened tensors, of
            shape ``(num_elements,)``, or ``(num_elements, length)`` for segments and sequences.

        Raises:
            ConfigError: the rollout's steps cannot be cut into such segments.
        """
        indices = torch.arange(len(self)).view(self.actions.shape)  # (num_steps, num_envs)
        if self.sequences:
            return self.observations, indices.T
        if self.memories is None or self.starts is None:
            if self.mask is None:
                return self.observations, indices.flatten()
            counted = indices[self.mask]
            return _pick(self.observations, counted), counted
        if len(indices) % length:
            raise ConfigError(
                f"world.num_steps={len(indices)} is no multiple of the policy's recurrence, which is {length}"
            )
        segments = indices.unfold(0, length, length).flatten(0, 1)  # (num_elements, length)
        every, starts = len(indices) // len(self.memories), self.starts.flatten()
        memories = self.memories[:: length // every].flatten(0, 1)  # (num_elements, memory_size)
        if self.mask is not None:
            counted = self.mask.flatten()[segments].any(1)  # (num_elements,)
            segments, memories = segments[counted], memories[counted]
        return [
            Segment(_pick(self.observations, segment), memory, starts[segment])
            for segment, memory in zip(segments, memories, strict=True)
        ], segments


def _pick(observations: Sequence[Any], indices: Tensor) -> Sequence[Any]:
    """Those at ``indices``."""
    if isinstance(observations, list):
        return [observations[i] for i in indices.tolist()]
    return observations[indices.numpy()]  # type: ignore[call-overload]


def _join(parts: Sequence[Any]) -> Sequence[Any]:
    """Several rollouts' observations, one after the other."""
    if isinstance(parts[0], list):
        return [o for part in parts for o in part]
    return type(parts[0]).concatenate(parts)


def micro_batches(
    indices: Tensor, size: int, work: Sequence[Work] | None, processes: Processes
) -> Iterator[Tensor]:
    """Cut this process's share of a minibatch's ``indices`` into pieces of at most ``size``.

    Where the ``work`` of each element is given, those of like length come together, so that little of a batch is
    padding, and those of one key go to the same process, as long as that does not leave others without any; steps of
    one conversation into one piece, too. Every element is in exactly one piece of one process.
    """
    if work is None:
        share = indices[processes.rank :: processes.size]
        yield from share.split(size) if len(share) else ()  # of nothing, split gives one piece
        return
    together: dict[Hashable, list[int]] = {}
    for index in sorted(indices.tolist(), key=lambda i: work[i].tokens):
        together.setdefault(work[index].key, []).append(index)
    even = max(1, len(indices) // processes.size)
    groups = [
        alike[first : first + even] for alike in together.values() for first in range(0, len(alike), even)
    ]
    piece: list[int] = []
    for group in groups[processes.rank :: processes.size]:
        if piece and work[group[0]].text is not None and len(piece) + len(group) > size:
            yield torch.tensor(piece)
            piece = []
        for index in group:
            if len(piece) == size:
                yield torch.tensor(piece)
                piece = []
            piece.append(index)
    if piece:
        yield torch.tensor(piece)


def most_micro_batches(indices: Tensor, size: int, work: Sequence[Work] | None, processes: Processes) -> int:
    """How many `micro_batches` the process has that has most of them."""
    everyone = [Processes(rank, processes.size) for rank in range(processes.size)]
    return max(len(list(micro_batches(indices, size, work, process))) for process in everyone)
