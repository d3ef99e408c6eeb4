"""A rollout with its advantages, cut into what a policy evaluates at once."""

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from groundling.algorithms.rollout import Rollout
from groundling.policies.policy import Evaluation, Policy, Work


@dataclass
class Batch:
    """Elements that a policy evaluates at once: single steps, segments of a recurrent policy, or whole sequences.

    Tensors ``(num_elements,)``, or ``(num_elements, length)`` of segments, of sequences, and of turns that were
    written, whose length is in tokens; on the policy's device, float32 unless said otherwise.
    """

    observations: Sequence[Any]
    """``num_elements`` of them, or `Segment`s."""
    actions: Tensor
    """int64; the tokens of turns."""
    log_probs: Tensor
    """When the actions were taken."""
    values: Tensor
    advantages: Tensor
    returns: Tensor
    weights: Tensor | None
    """How much each step, or token, counts in means: 0 or 1; None where all count alike."""
    work: Sequence[Work] | None
    """What it takes to evaluate each element; None where all take the same."""
    num_steps: int
    """How many steps count, of all elements together: sizes of minibatches are told in steps."""
    more: dict[str, Tensor] = field(default_factory=dict)
    """What else an algorithm needs to know of the steps, by its name."""

    @classmethod
    def of(
        cls, policy: Policy, rollout: Rollout, advantages: Tensor, returns: Tensor, **more: Tensor
    ) -> "Batch":
        """``rollout`` with ``advantages``, ``returns`` and ``more`` of its steps, all ``(num_steps, num_envs)``, or of
        its turns' tokens, ``(num_steps, num_envs, num_tokens)``.
        """
        observations, transitions = rollout.elements(policy.recurrence)
        tokens = rollout.tokens

        def cut(tensor: Tensor) -> Tensor:
            if tokens is not None and tensor.ndim == 2:  # of a step: the same for all of its tokens
                tensor = tensor[..., None].expand_as(tokens.ids)
            return tensor.flatten(0, 1)[transitions].to(policy.device)

        # Single steps that do not count are no elements.
        mask = rollout.mask if transitions.ndim > 1 else None
        mask = mask if tokens is None else tokens.mask
        weights = None if mask is None else cut(mask).to(rollout.rewards.dtype)
        counted = len(rollout) if rollout.mask is None else int(rollout.mask.sum())
        return cls(
            observations,
            cut(rollout.actions if tokens is None else tokens.ids),
            cut((tokens or rollout).log_probs),
            cut((tokens or rollout).values),
            cut(advantages),
            cut(returns),
            weights,
            policy.work(observations),
            max(counted, len(observations)),
            {name: cut(tensor) for name, tensor in more.items()},
        )

    def __len__(self) -> int:
        return len(self.observations)

    def elements(self, steps: int) -> int:
        """How many elements hold so many steps, on average; at least one."""
        return max(1, steps * len(self) // self.num_steps)

    def minibatches(
        self, steps: int, epochs: int, generator: torch.Generator, chosen: Tensor | None = None
    ) -> Iterator[Tensor]:
        """Indices of all elements in each epoch, shuffled and cut into minibatches of about so many ``steps``.

        Where elements are steps of conversations, these are shuffled in their place, and few are cut.

        Args:
            steps: Size of a minibatch.
            epochs: Number of epochs.
            generator: Shuffles.
            chosen: Bool ``(num_elements,)``: the elements to go through; None: all.
        """
        indices = torch.arange(len(self)) if chosen is None else chosen.nonzero().flatten().cpu()
        size, texts = self.elements(steps), self._texts(indices.tolist())
        for _ in range(epochs):
            order = torch.randperm(len(indices) if texts is None else len(texts), generator=generator)
            shuffled = indices[order] if texts is None else torch.cat([texts[i] for i in order.tolist()])
            yield from shuffled.split(size)

    def _texts(self, indices: Sequence[int]) -> list[Tensor] | None:
        """Group ``indices`` by conversation, int64; None without conversations."""
        if self.work is None or all(work.text is None for work in self.work):
            return None
        texts: dict[Hashable, list[int]] = {}
        for index in indices:
            text = self.work[index].text
            texts.setdefault((index,) if text is None else text, []).append(index)
        return [torch.tensor(indices) for indices in texts.values()]

    def largest_advantages(self, share: float, among: Tensor | None = None) -> Tensor:
        """Select the share of the elements whose mean |advantage| is largest, at least one.

        Args:
            share: In (0, 1].
            among: Bool ``(num_elements,)``: the elements to select from; None: all.

        Returns:
            Bool ``(num_elements,)``.
        """
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

    def share(self, micro: Tensor, indices: Tensor) -> float:
        """How much of what counts in the elements ``indices`` is in those of ``micro``."""
        if self.weights is None:
            return len(micro) / len(indices)
        return float(self.weights[micro].sum() / self.weights[indices].sum().clamp(min=1))

    def evaluate(self, policy: Policy, micro: Tensor) -> Evaluation:
        """The elements ``micro`` as the present policy sees them, with gradients."""
        return policy.evaluate([self.observations[i] for i in micro.tolist()], self.actions[micro])

    def weights_of(self, micro: Tensor) -> Tensor | None:
        """How much the steps of the elements ``micro`` count."""
        return None if self.weights is None else self.weights[micro]
