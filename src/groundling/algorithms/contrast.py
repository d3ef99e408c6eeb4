"""A regulariser for agents that read: one thing told in two prompts is to be nearer than two things in one prompt."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from groundling.algorithms.batch import Batch
from groundling.algorithms.losses import masked_mean
from groundling.algorithms.optimisation import Terms
from groundling.errors import ConfigError
from groundling.policies.action_text import ActionTextPolicy
from groundling.policies.policy import Policy
from groundling.policies.turns import Turn


def with_contrast(
    terms_of: Callable[[Tensor], Terms],
    coefficient: float,
    prompts: Sequence[str],
    policy: Policy,
    batch: Batch,
    generator: torch.Generator,
) -> Callable[[Tensor], Terms]:
    """The terms of a loss with c C added, where C is a triplet loss of prompts' states, after Aissi et al. 2024
    (arXiv 2410.19920), who found agents trained on one form of their prompt to fail in others::

        C = E[max(0, |z_i(o) - z_j(o)| - |z_i(o) - z_i(o')| + 1)]

    z_i(o) is the state that the policy makes of the observation o, told in prompt i, which its value is told from; o'
    is another observation of the batch. Prompts i and j, and o', are drawn for each observation, once a batch. Where o
    and o' are told alike, nothing is added. It costs three more readings of each observation, without actions.

    Args:
        terms_of: Gives a micro-batch's terms, from the indices of its elements.
        coefficient: c.
        prompts: Ids of the prompts, two at least, all texts or all conversations.
        policy: What learns.
        batch: What it learns from.
        generator: Draws.

    Returns:
        What gives the terms with ``contrast``, which is C.

    Raises:
        ConfigError: the policy is none that reads actions' texts.
    """
    if not isinstance(policy, ActionTextPolicy):
        raise ConfigError(
            f"algorithm.args.contrast_coefficient={coefficient} is not for a {type(policy).__name__}: leave it out, or "
            "set policy.id=action_scoring"
        )
    count = len(batch)
    first = torch.randint(len(prompts), (count,), generator=generator)
    second = (first + torch.randint(1, len(prompts), (count,), generator=generator)) % len(prompts)
    other = (torch.arange(count) + torch.randint(1, max(count, 2), (count,), generator=generator)) % count

    def terms(micro: Tensor) -> Terms:
        anchor = policy.read(_seen(batch, micro), _named(prompts, first[micro]))
        positive = policy.read(_seen(batch, micro), _named(prompts, second[micro]))
        negative = policy.read(_seen(batch, other[micro]), _named(prompts, first[micro]))
        differ = torch.tensor([a != n for a, n in zip(anchor, negative, strict=True)], device=policy.device)
        anchor_states, positive_states, negative_states = policy.states(
            [*anchor, *positive, *negative]
        ).chunk(3)
        losses = F.triplet_margin_loss(
            anchor_states, positive_states, negative_states, margin=1.0, reduction="none"
        )  # (micro,)
        weights = batch.weights_of(micro)
        if weights is not None and weights.ndim > 1:
            weights = weights.sum(-1)
        contrast = masked_mean(losses * differ, weights)
        plain = terms_of(micro)
        return {**plain, "loss": plain["loss"] + coefficient * contrast, "contrast": contrast}

    return terms


def _seen(batch: Batch, indices: Tensor) -> list[Any]:
    elements = [batch.observations[i] for i in indices.tolist()]
    return [one.observation if isinstance(one, Turn) else one for one in elements]


def _named(prompts: Sequence[str], numbers: Tensor) -> list[str]:
    return [prompts[number] for number in numbers.tolist()]
