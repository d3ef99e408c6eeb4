"""Contrastive loss between forms of a prompt, for policies that read."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from groundling.algorithms.batch import Batch
from groundling.algorithms.losses import masked_mean
from groundling.algorithms.regularizers import Regularizer
from groundling.envs.spec import WorldSpec
from groundling.errors import ConfigError
from groundling.policies.action_text import ActionTextPolicy
from groundling.policies.policy import Evaluation, Policy
from groundling.policies.turns import Turn
from groundling.prompts import BLANK, PromptReader, check_prompts


class ContrastiveLoss(Regularizer):
    """Triplet loss that brings together the states of one observation in several prompts.
    After Aissi et al. 2024 (arXiv 2410.19920), who found that agents trained with one form of their prompt fail with
    others::

        C = E[max(0, |z_i(o) - z_j(o)| - |z_i(o) - z_i(o')| + 1)]

    z_i(o) is the state of observation o in prompt i, from which the value is computed. Prompts i and j, and another
    observation o' of the rollout, are drawn once for each o. Where the texts of o and o' are equal, the loss is 0. It
    costs three more forward passes over the prompts (ids of at least two, all texts or all conversations).
    """

    name = "contrast"

    def __init__(self, coefficient: float, prompts: Sequence[str]) -> None:
        check_prompts(prompts, "algorithm.args.contrast_prompts", 2)
        self.coefficient, self.prompts = coefficient, prompts

    def accepts(self, policy: Callable[..., Policy], args: Mapping[str, Any], world: WorldSpec) -> str | None:
        if isinstance(policy, type) and not issubclass(policy, ActionTextPolicy):
            return (
                f"contrast_coefficient={self.coefficient} is for policies whose model reads a prompt and "
                "actions' texts"
            )
        if args.get("system") is not None:  # refused by prompts that are texts
            PromptReader(self.prompts, world.language, system=args["system"]).forms(BLANK)
        return None

    def prepare(self, policy: Policy, batch: Batch, generator: torch.Generator) -> None:
        """Draw two prompts and another observation for each element."""
        if not isinstance(policy, ActionTextPolicy):
            raise ConfigError(
                f"algorithm.args.contrast_coefficient={self.coefficient} is not for a {type(policy).__name__}: leave "
                "it out, or set policy.id=action_scoring"
            )
        count, num_prompts = len(batch), len(self.prompts)
        self._observations = batch.observations
        self._first = torch.randint(num_prompts, (count,), generator=generator)
        offset = torch.randint(1, num_prompts, (count,), generator=generator)
        self._second = (self._first + offset) % num_prompts
        offset = torch.randint(1, max(count, 2), (count,), generator=generator)
        self._other = (torch.arange(count) + offset) % count

    def value(self, policy: Policy, evaluation: Evaluation, batch: Batch) -> Tensor:
        assert isinstance(policy, ActionTextPolicy)
        index, other = batch.index, self._other[batch.index]
        anchor = policy.read(self._observed(index), self._named(self._first[index]))
        positive = policy.read(self._observed(index), self._named(self._second[index]))
        negative = policy.read(self._observed(other), self._named(self._first[index]))
        differ = torch.tensor([a != n for a, n in zip(anchor, negative, strict=True)], device=policy.device)
        z_anchor, z_positive, z_negative = policy.states([*anchor, *positive, *negative]).chunk(3)
        losses = F.triplet_margin_loss(z_anchor, z_positive, z_negative, margin=1.0, reduction="none")  # (n,)
        weights = batch.weights
        if weights is not None and weights.ndim > 1:
            weights = weights.sum(-1)
        return masked_mean(losses * differ, weights)

    def _observed(self, indices: Tensor) -> list[Any]:
        elements = [self._observations[i] for i in indices.tolist()]
        return [one.observation if isinstance(one, Turn) else one for one in elements]

    def _named(self, numbers: Tensor) -> list[str]:
        return [self.prompts[number] for number in numbers.tolist()]
