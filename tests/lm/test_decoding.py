"""Sampling a batch of texts with traced steps, compared with Transformers' loop and the plain computation."""

import copy

import pytest
import torch
from transformers import GenerationConfig

from groundling.lm.language_model import LanguageModel
from groundling.lm.write.decoding import Decoder
from groundling.lm.write.sampling import Sampling, draw, filtered
from groundling.lm.write.steps import Stepper
from groundling.runtime import devices
from tests.lm.families import VOCABULARY
from tests.lm.reference import plain_ids_log_probs
from tests.thorough import some_of

PROMPTS = [[5, 6, 7], [8, 9], [10, 11, 12, 13, 14, 15], [5, 6, 7]]
STEPPED = ["gpt2", "llama", "qwen3", "gemma2", "t5", "flan-t5", "bart"]
OTHERWISE = ["mamba"]


def uniforms(rows, steps, seed=0):
    return torch.rand(rows, steps, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(
    "family", some_of([*STEPPED, "opt", "bloom", "mistral", *OTHERWISE], ["gpt2", "llama", "t5", "bloom", "mamba"])
)
def test_log_probs_are_those_of_the_plain_computation(make_lm, family):
    lm = make_lm(family)
    decoder = Decoder(lm)
    decoded = decoder(PROMPTS, Sampling(), uniforms(4, 5))
    if family in STEPPED:
        assert decoder._stepper.exact and decoder._stepper._traced is not None
    if family in OTHERWISE:
        assert not decoder._stepper.exact
    for row, prompt in enumerate(PROMPTS):
        ids = decoded.tokens[row, : decoded.lengths[row]].tolist()
        with torch.no_grad():
            expected = plain_ids_log_probs(lm, prompt, ids)
        torch.testing.assert_close(decoded.log_probs[row, : len(ids)], expected, atol=1e-3, rtol=0)
        torch.testing.assert_close(decoded.raw_log_probs, decoded.log_probs)


def test_out_of_memory_in_the_check_is_raised_and_not_remembered(make_lm, monkeypatch):
    stepper = Decoder(make_lm("gpt2"))._stepper

    def fail(*_):
        raise torch.OutOfMemoryError("CUDA out of memory")

    with monkeypatch.context() as patched:
        patched.setattr(stepper, "_plain", fail)
        with pytest.raises(torch.OutOfMemoryError):
            _ = stepper.exact
    assert stepper.exact


@pytest.mark.parametrize("family", ["gpt2", "llama", "t5", "bart"])
def test_half_precision_bodies_with_float32_logits(make_lm, family, monkeypatch):
    """As on GPUs, the body computes in bfloat16, and the head in the dtype of its weights."""
    monkeypatch.setattr(LanguageModel, "autocast", lambda self: torch.autocast("cpu", torch.bfloat16))
    monkeypatch.setattr(Stepper, "_trace", lambda self, prompts: None)
    lm = make_lm(family)
    decoder = Decoder(lm)
    decoded = decoder(PROMPTS, Sampling(), uniforms(4, 5))
    assert decoder._stepper._checked
    for row, prompt in enumerate(PROMPTS):
        ids = decoded.tokens[row, : decoded.lengths[row]].tolist()
        with torch.no_grad():
            expected = plain_ids_log_probs(lm, prompt, ids)
        torch.testing.assert_close(decoded.log_probs[row, : len(ids)], expected, atol=0.2, rtol=0)
    states = torch.randn(3, lm.hidden_size)
    expected = lm.backbone.logits(states)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(lm.backbone.logits(states), expected)


@pytest.mark.parametrize("family", ["gpt2", "llama", "t5", "bart"])
def test_greedy_texts_are_those_of_transformers(make_lm, family):
    lm = make_lm(family)
    lm.model.generation_config.forced_eos_token_id = None  # BART has such a token, but the decoder forces none
    decoded = Decoder(lm)(PROMPTS, Sampling(do_sample=False), uniforms(4, 8))
    for row, prompt in enumerate(PROMPTS):
        made = lm.model.generate(
            input_ids=torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            generation_config=GenerationConfig(
                max_new_tokens=8, pad_token_id=0, eos_token_id=1, decoder_start_token_id=lm.start_token
            ),
        )[0, 1 if lm.is_encoder_decoder else len(prompt) :]
        length = int(decoded.lengths[row])
        assert decoded.tokens[row, :length].tolist() == made[:length].tolist()


def test_the_trace_follows_changed_weights(make_lm):
    lm = make_lm("gpt2")
    decoder = Decoder(lm)
    before = decoder(PROMPTS, Sampling(), uniforms(4, 4))
    with torch.no_grad():
        for parameter in lm.parameters():
            parameter.mul_(1.1)
    after = decoder(PROMPTS, Sampling(), uniforms(4, 4))
    assert not torch.equal(before.log_probs, after.log_probs)
    with torch.no_grad():
        expected = plain_ids_log_probs(lm, PROMPTS[0], after.tokens[0].tolist())
    torch.testing.assert_close(after.log_probs[0], expected, atol=1e-3, rtol=0)


def test_a_copy_has_its_own_weights(make_lm):
    decoder = Decoder(make_lm("gpt2"))
    first = decoder(PROMPTS, Sampling(), uniforms(4, 4))
    again = copy.deepcopy(decoder)
    with torch.no_grad():
        for parameter in decoder.lm.parameters():
            parameter.zero_()
    assert torch.equal(again(PROMPTS, Sampling(), uniforms(4, 4)).tokens, first.tokens)


@pytest.mark.parametrize("family", ["gpt2", "t5", "mamba"])
def test_texts_end(make_lm, family):
    """Finished texts leave the batch, and the others do not change."""
    lm = make_lm(family)
    endless = Decoder(lm)(PROMPTS * 4, Sampling(terminate_on_eos=False), uniforms(16, 10))
    lm.model.generation_config.eos_token_id = list(range(1, VOCABULARY, 5))
    ends = torch.tensor(lm.model.generation_config.eos_token_id)
    decoded = Decoder(lm)(PROMPTS * 4, Sampling(), uniforms(16, 10))
    for row in range(16):
        hits = torch.isin(endless.tokens[row], ends).nonzero()[:, 0].tolist()
        length = min([hit + 1 for hit in hits] + [10])
        assert decoded.lengths[row] == length
        assert decoded.tokens[row, :length].tolist() == endless.tokens[row, :length].tolist()
        assert not decoded.tokens[row, length:].any() and not decoded.log_probs[row, length:].any()
    assert decoded.lengths.min() < 4 and decoded.lengths.max() > 6


def test_min_length_is_counted_as_by_transformers(make_lm):
    for family, given in (("gpt2", 3), ("t5", 1)):
        lm = make_lm(family)
        lm.model.generation_config.eos_token_id = list(range(VOCABULARY - 5))
        decoded = Decoder(lm)([[5, 6, 7]] * 20, Sampling(min_length=6), uniforms(20, 9))
        assert decoded.lengths.min() == 6 - given + 1  # followed by the end token
        sampled = Decoder(lm)([[5, 6, 7]] * 20, Sampling(min_new_tokens=4), uniforms(20, 9))
        generated = lm.generate([[5, 6, 7]] * 20, min_new_tokens=4, max_new_tokens=9, do_sample=True)
        lengths = [len(text.token_ids) for text in generated]
        assert sampled.lengths.min() == min(lengths) == 4 + 1


def test_the_step_is_traced_in_inference_mode(make_lm, monkeypatch):
    """Inference tensors have no versions; layers use oneDNN."""
    if not torch.backends.mkldnn.is_available():
        pytest.skip("this PyTorch has no oneDNN")
    monkeypatch.setattr(devices, "onednn_is_faster", lambda: True)
    monkeypatch.setattr(devices, "_LEAST_WEIGHTS", 0)
    lm = make_lm("gpt2")
    with torch.inference_mode():
        decoder = Decoder(lm)
        decoder(PROMPTS, Sampling(), uniforms(4, 5))
    assert decoder._stepper._traced is not None


def test_filters_are_those_of_transformers():
    from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

    logits = torch.randn(50, 30, generator=torch.Generator().manual_seed(0)) * 3
    sampling = Sampling(temperature=0.7, top_k=9, top_p=0.8)
    expected = logits
    for warp in (TemperatureLogitsWarper(0.7), TopKLogitsWarper(9), TopPLogitsWarper(0.8)):
        expected = warp(None, expected)
    torch.testing.assert_close(filtered(logits, sampling), expected.log_softmax(-1))


@pytest.mark.parametrize("size", [1, 7, 64, 65, 1000])
def test_draws_invert_the_cumulative_distribution(size):
    logits = 3 * torch.randn(200, size, generator=torch.Generator().manual_seed(0))
    if size > 1:
        logits[:, ::3] = logits[:, -1] = -torch.inf  # excluded
    numbers = uniforms(200, 1)[:, 0]
    numbers[:2] = torch.tensor([0.0, 1.0])  # due to rounding, the last sum may equal 1
    log_probs = logits.log_softmax(-1)
    drawn = draw(log_probs, numbers)
    assert log_probs.gather(1, drawn[:, None]).isfinite().all()
    cumulative = log_probs.double().exp().cumsum(-1)
    cumulative = cumulative / cumulative[:, -1:]
    expected = (cumulative <= numbers[:, None]).sum(-1).clamp_(max=size - 1)
    assert torch.equal(drawn[2:], expected[2:]) and drawn[0] == expected[0]
