import math

import torch

from groundling.policies.policy import sample_categorical


def test_frequencies_follow_the_probabilities() -> None:
    probabilities = torch.tensor([0.5, 0.3, 0.0, 0.2])
    log_probs = probabilities.log().expand(20_000, 4)
    drawn = sample_categorical(log_probs, torch.Generator().manual_seed(0))
    counts = torch.bincount(drawn, minlength=4) / 20_000
    assert counts[2] == 0
    assert torch.allclose(counts, probabilities, atol=0.02)


def test_a_row_does_not_depend_on_other_rows() -> None:
    torch.manual_seed(0)
    log_probs = torch.randn(8, 5).log_softmax(-1)
    all_rows = sample_categorical(log_probs, torch.Generator().manual_seed(3))
    changed = log_probs.clone()
    changed[4:] = -math.log(5)
    assert torch.equal(all_rows[:4], sample_categorical(changed, torch.Generator().manual_seed(3))[:4])


def test_inadmissible_actions_at_either_end_are_never_drawn() -> None:
    log_probs = torch.tensor([[-math.inf, 0.0, -math.inf]]).expand(5000, 3)
    assert (sample_categorical(log_probs, torch.Generator().manual_seed(0)) == 1).all()
