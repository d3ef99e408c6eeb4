"""Sets of allowed tokens, restored from compact storage for any vocabulary."""

import io
import pickle

import pytest
import torch

from groundling.lm.write.sampling import SetKeeper, allowed_tokens

CPU = torch.device("cpu")
LENGTHS = [3, 5, 1]


def kept(shares, vocabulary, every=1):
    """Return the stored and the original sets of three texts; each step allows a share of the vocabulary."""
    generator, keeper, was = torch.Generator().manual_seed(0), SetKeeper(3), {}
    rows = torch.arange(3)
    for step, share in enumerate(shares):
        left = torch.rand(3, vocabulary, generator=generator) < share
        left[:, step] = True  # never empty
        left &= torch.tensor(LENGTHS)[:, None] > step
        keeper.add(step, rows, left)
        was |= {(text, step): left[text] for text in range(3)}
        if (step + 1) % every == 0:
            keeper.pack()
    sets = keeper.sets(torch.tensor(LENGTHS))
    return sets, torch.stack([was[text, step] for text, length in enumerate(LENGTHS) for step in range(length)])


@pytest.mark.parametrize("vocabulary", [1000, 1001, 1007])
@pytest.mark.parametrize("every", [1, 2, 16])
def test_sets_of_any_size_are_restored(vocabulary, every):
    sets, was = kept([0.9, 0.002, 0.4, 0.001, 0.7, 0.5], vocabulary, every)  # the last step is after all ends
    assert torch.equal(allowed_tokens(sets, vocabulary, CPU), was)
    assert [of_text.nbytes for of_text in sets] == [length * -(-vocabulary // 8) for length in LENGTHS]


def test_pickling_a_text_copies_only_its_own_sets():
    sets, _ = kept([0.5] * 5, 8000)
    written = io.BytesIO()
    pickle.dump(sets[2], written)
    assert written.tell() < 3 * 1000  # for 9 sets in all
