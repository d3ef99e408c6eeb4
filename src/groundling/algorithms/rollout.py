"""Rollouts, and the batches and minibatches that algorithms learn from."""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from groundling.errors import ConfigError
from groundling.policies.policy import Policy, Segment, TurnTokens, Work
from groundling.runtime.processes import Processes

_PER_STEP = (
    "actions", "log_probs", "raw_log_probs", "values", "rewards", "truncation_values", "dones", "memories", "starts",
    "mask", "kl", "states",
)  # fmt: skip


@dataclass
class Rollout:
    """Transitions as tensors ``(num_steps, num_envs)``, on the CPU; float32 unless stated otherwise."""

    observations: Sequence[Any]
    """``num_steps * num_envs`` observations, at index ``step * num_envs + env``; for `sequences`, one per column. A
    list, or any class with array indexing and a ``concatenate`` method."""
    actions: Tensor  # int64
    log_probs: Tensor
    """Log-probability of each action when it was taken."""
    values: Tensor
    rewards: Tensor
    dones: Tensor
    """bool: True if the episode ended with this transition."""
    last_values: Tensor
    """``(num_envs,)``: values of the observations after the last step."""
    last_observations: Sequence[Any]
    """``num_envs`` observations after the last step; if an episode ended there, the next episode's first."""
    memories: Tensor | None = None
    """``(num_steps, num_envs, memory_size)``: a recurrent policy's memory before each step, or before every n-th
    step if `recurrence` is a multiple of n."""
    starts: Tensor | None = None
    """bool: True for an episode's first observation; only for recurrent policies."""
    sequences: bool = False
    """True if each column is one sequence that a policy evaluates as a whole, such as a generated text."""
    mask: Tensor | None = None
    """bool: True if the step is included; False after a sequence or single episode ends. If None, all are included."""
    groups: Tensor | None = None
    """``(num_envs,)`` int64: group index; a group's columns share a start, such as a prompt. If None, all share one."""
    kl: Tensor | None = None
    """log π(a) - log π_ref(a) of each action, both before any filter, for a KL penalty."""
    truncation_values: Tensor | None = None
    """γ V of a truncated episode's last observation, else 0. If None, truncation is treated as termination."""
    raw_log_probs: Tensor | None = None
    """``log_probs`` before any filter or mask; None if there is neither."""
    states: Tensor | None = None
    """int64: equal for equal states of episodes with the same start; None unless needed by GiGPO."""
    tokens: TurnTokens | None = None
    """Tokens ``(num_steps, num_envs, num_tokens)`` if the policy generates turns; `observations` are then `Turn`s."""
    truncated: Tensor | None = None
    """``(num_envs,)`` bool: True if the text has no end token; only for texts."""
    parts: Mapping[str, Tensor] = field(default_factory=dict)
    """Each reward part by name, before multiplication by its coefficient; for the log."""

    @classmethod
    def concatenate(cls, rollouts: Sequence["Rollout"]) -> "Rollout":
        """Join rollouts of different envs with the same number of steps."""
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
            truncated=joined("truncated", 0),
            tokens=first.tokens and TurnTokens.joined([r.tokens for r in rollouts if r.tokens is not None], dim=1),
            parts={name: torch.cat([r.parts[name] for r in rollouts], dim=1) for name in first.parts},
            **{name: joined(name, 1) for name in _PER_STEP},
        )

    def __len__(self) -> int:
        return self.actions.numel()

    @property
    def num_transitions(self) -> int:
        """Number of unmasked steps."""
        return len(self) if self.mask is None else int(self.mask.sum())

    def turn_means(self) -> dict[str, float]:
        """Return the mean tokens per turn and the share of turns without an admissible action; {} without turns."""
        if self.tokens is None:
            return {}
        counted = torch.ones_like(self.dones) if self.mask is None else self.mask
        means = {"tokens_per_turn": self.tokens.mask[counted].double().sum(-1).mean().item()}
        if self.observations[0].action is None:  # where actions are free text, none is invalid
            means["invalid_actions"] = self.tokens.invalid[counted].double().mean().item()
        return means

    def part_means(self) -> dict[str, float]:
        """Return ``reward/NAME``: each reward part's mean over steps or sequences; {} if "env" is the only part."""
        if self.parts.keys() <= {"env"}:
            return {}
        count = self.actions.shape[1] if self.sequences else self.num_transitions
        return {f"reward/{name}": float(rewards.double().sum()) / count for name, rewards in self.parts.items()}

    def elements(self, length: int) -> tuple[Sequence[Any], Tensor]:
        """Split into elements that a policy evaluates: single steps, segments of ``length`` steps, or whole sequences.
        Return observations, or `Segment`s, and the indices of their transitions in the flattened tensors:
        ``(num_elements,)``, or ``(num_elements, length)`` for segments and sequences.
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
            raise ConfigError(f"world.num_steps={len(indices)} must be a multiple of the policy's recurrence {length}")
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


_TENSORS = ("actions", "log_probs", "values", "advantages", "returns", "index")


@dataclass
class Targets:
    """Advantages, returns and weights of a rollout's steps, computed before the update.
    Tensors are ``(num_steps, num_envs)``, or ``(num_steps, num_envs, num_tokens)`` if each token has its own value.
    """

    advantages: Tensor
    returns: Tensor
    weights: Tensor | None = None  # Weight of each step in means. If None, the rollout's mask is used
    more: dict[str, Tensor] = field(default_factory=dict)  # Additional tensors that a loss needs, by name


@dataclass
class Batch:
    """Elements that a policy evaluates: single steps, segments of a recurrent policy, or whole sequences.
    Tensors are ``(num_elements,)``, or ``(num_elements, length)`` for segments, sequences and turns (in tokens), on
    the policy's device, and float32 unless stated otherwise.
    """

    observations: Sequence[Any]  # ``num_elements`` observations, or `Segment`s
    actions: Tensor  # int64; for turns, their tokens
    log_probs: Tensor  # Log-probabilities when the actions were taken
    values: Tensor
    advantages: Tensor
    returns: Tensor
    weights: Tensor | None  # Weight of each step or token in means; None if all are equal
    work: Sequence[Work] | None  # Cost of evaluating each element; None if all cost the same
    index: Tensor  # int64 ``(num_elements,)``, on the CPU: positions in the whole rollout's batch
    num_steps: int  # Unmasked steps in the whole rollout; minibatch sizes are in steps
    more: dict[str, Tensor] = field(default_factory=dict)  # Additional tensors that a loss needs, by name

    @classmethod
    def of(cls, policy: Policy, rollout: Rollout, targets: Targets) -> "Batch":
        observations, transitions = rollout.elements(policy.recurrence)
        tokens = rollout.tokens

        def cut(tensor: Tensor) -> Tensor:
            if tokens is not None and tensor.ndim == 2:  # one value per turn, shared by its tokens
                tensor = tensor[..., None].expand_as(tokens.ids)
            return tensor.flatten(0, 1)[transitions].to(policy.device)

        # Masked single steps are already excluded from the elements.
        mask = rollout.mask if transitions.ndim > 1 else None
        mask = mask if tokens is None else tokens.mask
        weights = mask if targets.weights is None else targets.weights
        counted = len(rollout) if rollout.mask is None else int(rollout.mask.sum())
        return cls(
            observations,
            cut(rollout.actions if tokens is None else tokens.ids),
            cut((tokens or rollout).log_probs),
            cut((tokens or rollout).values),
            cut(targets.advantages),
            cut(targets.returns),
            None if weights is None else cut(weights).to(rollout.rewards.dtype),
            policy.work(observations),
            torch.arange(len(observations)),
            max(counted, len(observations)),
            {name: cut(tensor) for name, tensor in targets.more.items()},
        )

    def __len__(self) -> int:
        return len(self.observations)

    def __getitem__(self, indices: Tensor) -> "Batch":
        rows = indices.tolist()
        return replace(
            self,
            observations=[self.observations[i] for i in rows],
            weights=None if self.weights is None else self.weights[indices],
            work=None if self.work is None else [self.work[i] for i in rows],
            more={name: tensor[indices] for name, tensor in self.more.items()},
            **{name: getattr(self, name)[indices] for name in _TENSORS},
        )

    def elements(self, steps: int) -> int:
        """Return the number of elements that contain ``steps`` steps on average, at least one."""
        return max(1, steps * len(self) // self.num_steps)

    def minibatches(
        self, steps: int, epochs: int, generator: torch.Generator, chosen: Tensor | None = None
    ) -> Iterator[Tensor]:
        """Yield minibatches of ``steps`` steps as indices of elements, reshuffled in each epoch; ``chosen`` is a bool
        mask of the elements to use. Conversations are shuffled as units, so that few are split.
        """
        indices = torch.arange(len(self)) if chosen is None else chosen.nonzero().flatten().cpu()
        size = self.elements(steps)
        conversations: list[Tensor] | None = None
        if self.work is not None and any(work.text is not None for work in self.work):
            texts: dict[Hashable, list[int]] = {}
            for index in indices.tolist():
                text = self.work[index].text
                texts.setdefault((index,) if text is None else text, []).append(index)
            conversations = [torch.tensor(one) for one in texts.values()]
        for _ in range(epochs):
            if conversations is None:
                shuffled = indices[torch.randperm(len(indices), generator=generator)]
            else:
                order = torch.randperm(len(conversations), generator=generator)
                shuffled = torch.cat([conversations[i] for i in order.tolist()])
            yield from shuffled.split(size)

    def largest_advantages(self, share: float) -> Tensor:
        """Select the ``share`` of elements with the largest mean |advantage|, at least one: ``(num_elements,)``."""
        sizes = self.advantages.abs().view(len(self), -1)
        if self.weights is not None:
            weights = self.weights.view(sizes.shape)
            sizes = sizes * weights / weights.sum(1, keepdim=True).clamp(min=1)
        order = sizes.sum(1).argsort(descending=True, stable=True)
        chosen = torch.zeros(len(self), dtype=torch.bool, device=order.device)
        chosen[order[: max(1, round(share * len(self)))]] = True
        return chosen

    def share(self, part: Tensor, whole: Tensor) -> float:
        """Return the total weight of the elements ``part``, divided by that of the elements ``whole``."""
        if self.weights is None:
            return len(part) / len(whole)
        return float(self.weights[part].sum() / self.weights[whole].sum().clamp(min=1))


def micro_batches(indices: Tensor, size: int, work: Sequence[Work] | None, processes: Processes) -> Iterator[Tensor]:
    """Split this process's share of a minibatch's ``indices`` into pieces of at most ``size``.
    Each element is in one piece of one process. With ``work``, elements of similar length are grouped to save padding.
    Elements with equal keys go to one process, unless another would get none. Steps of a conversation stay together.
    """
    if work is None:
        share = indices[processes.rank :: processes.size]
        yield from share.split(size) if len(share) else ()  # split would yield one piece for an empty tensor
        return
    together: dict[Hashable, list[int]] = {}
    for index in sorted(indices.tolist(), key=lambda i: work[i].tokens):
        together.setdefault(work[index].key, []).append(index)
    even = max(1, len(indices) // processes.size)
    groups = [alike[first : first + even] for alike in together.values() for first in range(0, len(alike), even)]
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
