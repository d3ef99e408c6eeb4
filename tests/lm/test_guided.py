"""Probabilities of guided decoding, compared with those computed token by token."""

import copy
import math

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from groundling.errors import GroundlingError
from groundling.lm import LanguageModel
from groundling.lm.read.guided import Trie, written_log_probs
from tests.lm.families import ACTIONS, CORPUS
from tests.thorough import one_in, thorough

pytestmark = pytest.mark.filterwarnings("ignore:.*cannot read several candidates")

# One encoder-decoder, two causal models, and two that read one candidate per row.
SOME = ["t5", "gpt2", "llama", "bart", "bloom"]
END = 1
# Some are prefixes of others, some share tokens, some are equal, and one is empty.
TEXTS = ["turn left", "turn", "", "turn left now", "go", "go", "drop the red ball", "drop the blue ball", "☃"]
PROMPTS = ["You see a wall 2 steps forward", "", CORPUS[0]]

token_lists = st.lists(st.lists(st.integers(0, 3), max_size=5), min_size=1, max_size=8)
property_test = settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
candidate_texts = st.sampled_from([*TEXTS, *ACTIONS, "turn le", "drop the red"]) | st.text("abc ☃", max_size=6)


def by_trie(texts, logits, temperature=1.0):
    """Return float32 (num_texts,) from the trie; logits are given by the preceding tokens and the token."""
    trie = Trie.of(texts, [END])
    asked = [logits[tuple(tokens[:i]), token] for tokens in trie.chosen for i, token in enumerate(tokens)]
    return written_log_probs([trie], torch.tensor(asked), temperature)


def token_by_token(texts, text, logits, temperature=1.0):
    """Return the log-probability of one text; each of its tokens must continue one of the texts."""
    total = 0.0
    for position in range(len(text) + 1):
        before = text[:position]
        left = [other for other in texts if other[:position] == before]
        ends = [other for other in left if len(other) == position]
        options = {other[position] for other in left if len(other) > position}
        weights = {token: math.exp(logits[tuple(before), token] / temperature) for token in options}
        if ends:
            weights["end"] = math.exp(logits[tuple(before), END] / temperature)
        chosen = "end" if position == len(text) else text[position]
        total += math.log(weights[chosen] / sum(weights.values()))
    return total - math.log(texts.count(text))


@settings(deadline=None)
@given(token_lists, st.integers(0, 2**32 - 1), st.sampled_from([0.5, 1.0, 3.0]))
def test_a_trie_gives_the_probability_of_decoding_each_text_token_by_token(texts, seed, temperature):
    generator = torch.Generator().manual_seed(seed)
    beginnings = {tuple(text[:i]) for text in texts for i in range(len(text) + 1)}
    logits = {
        (before, token): 4 * torch.randn((), generator=generator).item()
        for before in sorted(beginnings)
        for token in range(4)
    }
    log_probs = by_trie(texts, logits, temperature)
    expected = [token_by_token(texts, text, logits, temperature) for text in texts]
    torch.testing.assert_close(log_probs, torch.tensor(expected), atol=1e-4, rtol=1e-4)
    assert log_probs.isfinite().all()
    assert log_probs.exp().sum().item() == pytest.approx(1, abs=1e-5)


# With models


def plain_guided(lm: LanguageModel, prompt: str, candidates: list[str], temperature: float = 1.0, of=None):
    """Return float32 (num_candidates,) from the model's own forward for each token, over a masked vocabulary.

    The result covers all candidates, or those with the indices in ``of``.
    """
    prompt_ids = lm.tokenizer(prompt)["input_ids"] or [lm.tokenizer.bos_token_id]
    texts = [lm.tokenizer(c, add_special_tokens=False)["input_ids"] for c in candidates]
    log_probs = []
    for text in texts if of is None else [texts[index] for index in of]:
        total = torch.zeros(())
        for position, token in enumerate([*text, lm.end_tokens.of_text]):
            before = text[:position]
            allowed = torch.zeros(320, dtype=torch.bool)
            for other in texts:
                if other[:position] == before:
                    allowed[[*other, lm.end_tokens.of_text][position]] = True
            if lm.is_encoder_decoder:
                start = lm.model.config.decoder_start_token_id
                output = lm.model(
                    input_ids=torch.tensor([prompt_ids]),
                    decoder_input_ids=torch.tensor([[start, *before]]),
                    use_cache=False,
                )
            else:
                output = lm.model(input_ids=torch.tensor([prompt_ids + before]), use_cache=False)
            logits = output.logits[0, -1].float() / temperature
            total = total + logits.masked_fill(~allowed, -torch.inf).log_softmax(-1)[token]
        log_probs.append(total - math.log(texts.count(text)))
    return torch.stack(log_probs)


@pytest.mark.parametrize("family", one_in(2, SOME))
@pytest.mark.parametrize("temperature", [2.5, *thorough(1.0)])
def test_log_probs_are_those_of_masking_token_by_token(lms, family, temperature):
    lm = lms(family)
    with torch.no_grad():
        guided = lm.score_guided(PROMPTS, TEXTS, temperature)
        assert guided.log_probs.dtype == guided.state.dtype == torch.float32
        torch.testing.assert_close(guided.log_probs.exp().sum(-1), torch.ones(3), atol=1e-5, rtol=0)
        for prompt, log_probs in zip(PROMPTS, guided.log_probs, strict=True):
            expected = plain_guided(lm, prompt, TEXTS, temperature)
            torch.testing.assert_close(log_probs, expected, atol=1e-4, rtol=0)
        torch.testing.assert_close(guided.state, lm.encode(PROMPTS), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("family", ["gpt2", *thorough("bloom", "t5")])
@property_test
@given(data=st.data())
def test_any_lists_in_any_batch(lms, family, data):
    """Lists differ between prompts; the batch and the order of a list have no effect."""
    lm = lms(family)
    lists = data.draw(st.lists(st.lists(candidate_texts, min_size=1, max_size=7), min_size=1, max_size=3))
    prompts = data.draw(st.lists(st.sampled_from(PROMPTS), min_size=len(lists), max_size=len(lists)))
    order = data.draw(st.permutations(range(len(lists[0]))))
    with torch.no_grad():
        guided = lm.score_guided(prompts, lists)
        shuffled = lm.score_guided(prompts[:1], [[lists[0][index] for index in order]]).log_probs[0]
        assert guided.mask.sum(-1).tolist() == [len(candidates) for candidates in lists]
        for prompt, candidates, row, mask in zip(prompts, lists, guided.log_probs, guided.mask, strict=True):
            assert row[mask].isfinite().all()  # each action is possible
            assert (row[~mask] == -torch.inf).all()
            torch.testing.assert_close(row[mask], plain_guided(lm, prompt, candidates), atol=1e-4, rtol=0)
    torch.testing.assert_close(guided.log_probs[0][: len(order)][list(order)], shuffled, atol=1e-5, rtol=1e-6)


@pytest.mark.parametrize("family", ["t5", "gpt2", *thorough("bart")])
def test_gradients_are_those_of_masking_token_by_token(make_lm, family):
    lm = make_lm(family)
    weights = torch.linspace(-1, 1, len(TEXTS))

    def gradients(log_probs: torch.Tensor) -> dict[str, torch.Tensor]:
        lm.zero_grad()
        (log_probs * weights).sum().backward()
        return {name: p.grad.clone() for name, p in lm.named_parameters() if p.grad is not None}

    actual = gradients(lm.score_guided(PROMPTS[:1], TEXTS).log_probs[0])
    expected = gradients(plain_guided(lm, PROMPTS[0], TEXTS))
    largest = max(gradient.norm() for gradient in expected.values())
    for name, gradient in expected.items():
        torch.testing.assert_close(actual[name], gradient, atol=1e-5 * largest.item(), rtol=1e-3, msg=name)


def test_certain_tokens_are_not_read(make_lm, monkeypatch):
    lm = make_lm("gpt2")
    candidates = ["take the red ball from the table", "put the red ball on the table"]
    lm.score(PROMPTS, candidates)  # runs the exactness checks
    read = []
    forward = lm._scorer.backbone.body.forward

    def counted(*arguments, **options):
        read.append(options["input_ids"].numel())
        return forward(*arguments, **options)

    monkeypatch.setattr(lm._scorer.backbone.body, "forward", counted)
    lm.score_guided(PROMPTS[:1], candidates)
    assert read == lm.token_lengths(PROMPTS[:1])  # the first token determines the action
    certain = lm.score_guided(PROMPTS[:1], candidates[:1]).log_probs
    assert certain.tolist() == [[0.0]]
    certain.sum().backward()  # a minibatch may contain only such actions
    assert not any(p.grad.any() for p in lm.parameters() if p.grad is not None)


def test_no_prompts_and_bad_candidates(lms, make_lm):
    lm = lms("gpt2")
    assert lm.score_guided([], ACTIONS).log_probs.shape == (0, 0)
    assert lm.score_guided([], ACTIONS).state.shape == (0, lm.hidden_size)
    with pytest.raises(GroundlingError, match="prompt 1 has no candidates"):
        lm.score_guided(["a", "b"], [["go"], []])
    endless = make_lm("gpt2")
    endless.tokenizer = copy.deepcopy(endless.tokenizer)
    endless.tokenizer.eos_token = endless.model.generation_config.eos_token_id = None
    with pytest.raises(GroundlingError, match="no end token"):
        endless.score_guided(["a"], ["go"])
