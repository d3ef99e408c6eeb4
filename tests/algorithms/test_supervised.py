"""Supervised learning of whole texts; tests/training/test_cloning.py tests single choices."""

import pytest
import torch
from torch.nn import functional as F

from groundling.algorithms import Rollout, create
from tests.conftest import SequencePolicy


def _references() -> Rollout:
    """Return the text p+1, p+1, 0 for each prompt p, and also a text of full length for prompt 0."""
    texts = torch.tensor([[1, 1, 0, 0, 0], [2, 2, 0, 0, 0], [3, 3, 0, 0, 0], [1, 1, 1, 1, 1]]).T  # (5, 4)
    mask = torch.tensor([[1, 1, 1, 0, 0]] * 3 + [[1] * 5]).bool().T
    zero = torch.zeros(5, 4)
    return Rollout([0, 1, 2, 0], texts, zero, zero, zero, zero.bool(), zero[0], [], sequences=True, mask=mask)


def test_the_loss_is_the_cross_entropy_of_the_texts_tokens() -> None:
    torch.manual_seed(0)
    policy, rollout = SequencePolicy(), _references()
    scores = policy._look_up(policy.actor, rollout.observations, policy._before(rollout.actions.T))
    assert rollout.mask is not None
    labels = rollout.actions.T.masked_fill(~rollout.mask.T, -100)
    expected = F.cross_entropy(scores.flatten(0, 1), labels.flatten()).item()
    for micro in (None, 1, 3):
        algorithm = create("supervised", learning_rate=1e-9, micro_batch_size=micro)
        algorithm.setup(policy)
        figures = algorithm.update(policy, rollout, generator=torch.Generator())
        assert figures["loss"] == pytest.approx(expected, rel=1e-5)
