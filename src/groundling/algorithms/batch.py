"""A rollout with its targets, cut into what a policy evaluates at once."""

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from groundling.algorithms.rollout import Rollout
from groundling.policies.policy import Policy, Work

_TENSORS = ("actions", "log_probs", "values", "advantages", "returns")


@dataclass
class Targets:
    """Advantages, returns and weights of a rollout's steps, computed before the update.
    Tensors ``(num_steps, num_envs)``, or ``(num_steps, num_envs, num_tokens)`` where each token of a turn has its own.
    """

    advantages: Tensor
    returns: Tensor
    weights: Tensor | None = None  # How much each step counts in means; None: the rollout's mask
    chosen: Tensor | None = None  # bool: steps to learn from; None: all
    more: dict[str, Tensor] = field(default_factory=dict)  # Further tensors that a loss needs, by name


@dataclass
class Batch:
    """Elements that a policy evaluates at once: single steps, segments of a recurrent policy, or whole sequences.
    Tensors ``(num_elements,)``, or ``(num_elements, length)`` for segments, sequences and turns (in tokens); on the
    policy's device, float32 unless stated otherwise.
    """

    observations: Sequence[Any]  # ``num_elements`` observations, or `Segment`s
    actions: Tensor  # int64; of turns their tokens
    log_probs: Tensor  # When the actions were taken
    values: Tensor
    advantages: Tensor
    returns: Tensor
    weights: Tensor | None  # How much each step, or token, counts in means; None: all equally
    work: Sequence[Work] | None  # Cost of evaluating each element; None if all cost the same
    num_steps: int  # Steps that count in the whole rollout; sizes of minibatches are in steps
    chosen: Tensor | None = None  # bool: elements to learn from; None: all
    more: dict[str, Tensor] = field(default_factory=dict)  # Further tensors that a loss needs, by name
    index: Tensor = field(init=False)  # int64 ``(num_elements,)``, on the CPU: places in the whole rollout's batch

    def __post_init__(self) -> None:
        self.index = torch.arange(len(self.observations))

    @classmethod
    def of(cls, policy: Policy, rollout: Rollout, targets: Targets) -> "Batch":
        observations, transitions = rollout.elements(policy.recurrence)
        tokens = rollout.tokens

        def cut(tensor: Tensor) -> Tensor:
            if tokens is not None and tensor.ndim == 2:  # of a turn: the same for all its tokens
                tensor = tensor[..., None].expand_as(tokens.ids)
            return tensor.flatten(0, 1)[transitions].to(policy.device)

        # Single steps that do not count are not among the elements.
        mask = rollout.mask if transitions.ndim > 1 else None
        mask = mask if tokens is None else tokens.mask
        weights = mask if targets.weights is None else targets.weights
        chosen = None if targets.chosen is None else cut(targets.chosen)
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
            max(counted, len(observations)),
            chosen if chosen is None or chosen.ndim == 1 else chosen.any(1),
            {name: cut(tensor) for name, tensor in targets.more.items()},
        )

    def __len__(self) -> int:
        return len(self.observations)

    def __getitem__(self, indices: Tensor) -> "Batch":
        rows = indices.tolist()
        part = replace(
            self,
            observations=[self.observations[i] for i in rows],
            weights=None if self.weights is None else self.weights[indices],
            work=None if self.work is None else [self.work[i] for i in rows],
            chosen=None,
            more={name: tensor[indices] for name, tensor in self.more.items()},
            **{name: getattr(self, name)[indices] for name in _TENSORS},
        )
        part.index = self.index[indices]
        return part

    def elements(self, steps: int) -> int:
        """Number of elements that hold ``steps`` steps on average; at least one."""
        return max(1, steps * len(self) // self.num_steps)

    def minibatches(
        self, steps: int, epochs: int, generator: torch.Generator, chosen: Tensor | None = None
    ) -> Iterator[Tensor]:
        """Indices of all (or the ``chosen``, bool) elements, shuffled in each epoch and cut every ``steps`` steps.
        Conversations are shuffled instead of their steps, so that few are cut.
        """
        indices = torch.arange(len(self)) if chosen is None else chosen.nonzero().flatten().cpu()
        size, conversations = self.elements(steps), self._conversations(indices.tolist())
        for _ in range(epochs):
            if conversations is None:
                shuffled = indices[torch.randperm(len(indices), generator=generator)]
            else:
                order = torch.randperm(len(conversations), generator=generator)
                shuffled = torch.cat([conversations[i] for i in order.tolist()])
            yield from shuffled.split(size)

    def _conversations(self, indices: Sequence[int]) -> list[Tensor] | None:
        """Group ``indices`` by conversation, int64; None without conversations."""
        if self.work is None or all(work.text is None for work in self.work):
            return None
        texts: dict[Hashable, list[int]] = {}
        for index in indices:
            text = self.work[index].text
            texts.setdefault((index,) if text is None else text, []).append(index)
        return [torch.tensor(indices) for indices in texts.values()]

    def largest_advantages(self, share: float, among: Tensor | None = None) -> Tensor:
        """Select the ``share`` of elements with the largest mean |advantage|, at least one: ``(num_elements,)``."""
        sizes = self.advantages.abs().view(len(self), -1)
        if self.weights is not None:
            weights = self.weights.view(sizes.shape)
            sizes = sizes * weights / weights.sum(1, keepdim=True).clamp(min=1)
        means, count = sizes.sum(1), len(self)
        if among is not None:
            means, count = means.masked_fill(~among, -1.0), int(among.sum())
        order = means.argsort(descending=True, stable=True)
        chosen = torch.zeros(len(self), dtype=torch.bool, device=order.device)
        chosen[order[: max(1, round(share * count))]] = True
        return chosen

    def share(self, part: Tensor, whole: Tensor) -> float:
        """Share of the weights of the elements ``whole`` that the elements ``part`` have."""
        if self.weights is None:
            return len(part) / len(whole)
        return float(self.weights[part].sum() / self.weights[whole].sum().clamp(min=1))
