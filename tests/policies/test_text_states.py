"""Several texts for one prompt, read side by side after it, compared with each line alone."""

import pytest
import torch

from groundling.algorithms.rollout import micro_batches
from groundling.policies import text_states
from groundling.policies.policy import Work
from groundling.policies.text_states import Sequences, read_states
from groundling.runtime.processes import Processes
from tests.lm.truth import _ids, lm_of, variants
from tests.thorough import thorough

PROMPT, OTHER = _ids(1, 30), _ids(2, 21)
SHORT = _ids(3, 15)


def made(lm):
    """Return prompts with several texts (two share a prefix), with a single text, and too short to be shared."""
    first = _ids(4, 6)
    prompts = [PROMPT, OTHER, SHORT, PROMPT, _ids(5, 25), PROMPT, OTHER, SHORT]
    written = [first, _ids(6, 3), _ids(7, 2), [*first[:3], *_ids(8, 4)], _ids(9, 5), [], _ids(10, 8), _ids(11, 2)]
    return Sequences(prompts, written, [7, 2, 3, 5, 1, 1, 9, 2])


def alone(lm, lines):
    """Compute each line with the model's own forward."""
    states = []
    for prompt, written, count in zip(lines.prompts, lines.written, lines.counts, strict=True):
        tokens = torch.tensor([[*prompt, *written]])
        states.append(lm.backbone.body(input_ids=tokens, use_cache=False).last_hidden_state[0, -count:])
    return torch.cat(states)


@pytest.mark.parametrize(
    ("family", "variant"),
    [
        ("gpt2", "plain"),
        ("gemma3_text", "window 24"),
        ("mamba", "plain"),
        *thorough(("qwen3_5_text", "plain"), ("bloom", "plain")),
    ],
)
@pytest.mark.filterwarnings("ignore:.*cannot read several candidates")
def test_texts_read_together_have_the_states_of_texts_read_alone(tokenizers, family, variant):
    lm = lm_of(family, dict(variants(family))[variant], tokenizers)
    lines = made(lm)
    weights = [weight for weight in lm.parameters() if weight.requires_grad]
    results = []
    for read in (read_states, alone):
        states = read(lm, lines)
        gradients = torch.autograd.grad(states.sin().sum(), weights, allow_unused=True)
        results.append((states, [g for g in gradients if g is not None]))
    (states, computed), (expected_states, expected) = results
    torch.testing.assert_close(states, expected_states, atol=1e-4, rtol=1e-4)
    floor = 1e-3 * max(float(gradient.norm()) for gradient in expected)
    assert len(computed) == len(expected)
    for one, other in zip(computed, expected, strict=True):
        assert (one - other).norm() <= 1e-3 * max(float(other.norm()), floor)


def test_a_prompt_of_several_texts_is_read_once(make_lm, monkeypatch):
    lm, tokens = make_lm("gpt2"), []
    body = lm.backbone.body.forward

    def counted(*args, **kwargs):
        tokens.append(kwargs["input_ids"].numel())
        return body(*args, **kwargs)

    read_states(lm, Sequences([PROMPT] * 2, [[3], [4]], [1, 1]))  # checks which method is exact
    monkeypatch.setattr(lm.backbone.body, "forward", counted)
    texts = [_ids(seed, 8) for seed in range(4, 8)]
    read_states(lm, Sequences([PROMPT] * 4, texts, [9] * 4))
    assert sum(tokens) == len(PROMPT) + 4 * 8
    tokens.clear()
    # Only one of these fits into a row.
    monkeypatch.setattr(text_states, "MAX_ROWS", 20)
    texts = [_ids(seed, 17) for seed in range(4, 8)]
    read_states(lm, Sequences([PROMPT] * 4, texts, [1] * 4))
    assert sum(tokens) == 4 * (len(PROMPT) + 17)


def test_texts_to_one_prompt_share_a_piece_of_a_minibatch():
    work = [Work(40 + index, ("one", "two")[index % 2]) for index in range(8)]
    pieces = list(micro_batches(torch.arange(8), 4, work, Processes(0, 1)))
    assert [set((piece % 2).tolist()) for piece in pieces] == [{0}, {1}]


@pytest.mark.parametrize("size", [2, 3])
def test_no_process_waits_while_another_has_all_texts_of_a_prompt(size):
    work = [Work(40, "one")] * 6
    shares = [
        [i for piece in micro_batches(torch.arange(6), 4, work, Processes(rank, size)) for i in piece.tolist()]
        for rank in range(size)
    ]
    assert [len(share) for share in shares] == [6 // size] * size
    assert sorted(i for share in shares for i in share) == list(range(6))
