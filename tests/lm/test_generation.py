import pytest
import torch

from groundling.errors import GroundlingError
from tests.lm.reference import plain_ids_log_probs

PROMPTS = ["turn", "You see a wall 2 steps forward and a red ball", "", "go to"]
SOME = ["t5", "bart", "gpt2", "llama", "opt", "bloom"]


def prompt_ids(lm, prompt):
    return lm.tokenizer(prompt)["input_ids"] or [1]


@pytest.mark.parametrize("family", SOME)
def test_log_probs_are_those_of_the_plain_computation(lms, family):
    lm = lms(family)
    torch.manual_seed(0)
    made = lm.generate(PROMPTS, max_new_tokens=6, do_sample=True, top_k=0)
    for prompt, generation in zip(PROMPTS, made, strict=True):
        ids = generation.token_ids.tolist()
        assert 1 <= len(ids) <= 6
        with torch.no_grad():
            expected = plain_ids_log_probs(lm, prompt_ids(lm, prompt), ids)
        torch.testing.assert_close(generation.raw_token_log_probs, expected, atol=1e-4, rtol=0)
        if family != "bart":  # its generation config forces the end token as the last token
            torch.testing.assert_close(generation.token_log_probs, expected, atol=1e-4, rtol=0)
        assert generation.text == lm.tokenizer.decode(ids, skip_special_tokens=True)


def test_log_probs_are_of_the_filtered_distribution(lms):
    lm = lms("gpt2")
    torch.manual_seed(0)
    for generation in lm.generate(PROMPTS, max_new_tokens=5, do_sample=True, top_k=1):
        assert generation.token_log_probs.abs().max() < 1e-6
        assert generation.raw_token_log_probs.max() < -1e-3
    prompt, temperature = "turn", 3.0
    made = lm.generate([prompt], max_new_tokens=1, do_sample=True, top_k=0, temperature=temperature)[0]
    with torch.no_grad():
        logits = lm.model(input_ids=torch.tensor([prompt_ids(lm, prompt)])).logits[0, -1]
    expected = (logits / temperature).log_softmax(-1)[made.token_ids]
    torch.testing.assert_close(made.token_log_probs, expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("family", ["t5", "gpt2", "llama", "bloom"])
def test_does_not_depend_on_batch_mates(lms, family):
    lm = lms(family)
    together = lm.generate(PROMPTS, max_new_tokens=5)
    for prompt, generation in zip(PROMPTS, together, strict=True):
        alone = lm.generate([prompt], max_new_tokens=5)[0]
        assert torch.equal(alone.token_ids, generation.token_ids)
        torch.testing.assert_close(alone.token_log_probs, generation.token_log_probs, atol=1e-4, rtol=0)


def test_ends_with_the_end_token_where_it_is_reached(lms, monkeypatch):
    lm = lms("gpt2")
    whole = lm.generate(["turn"], max_new_tokens=6)[0].token_ids
    end = int(whole[3])
    first = whole.tolist().index(end)
    cut = lm.generate(["turn", "go to"], max_new_tokens=6, eos_token_id=end)[0]
    assert cut.token_ids.tolist() == whole[: first + 1].tolist()
    assert len(cut.token_log_probs) == first + 1


@pytest.mark.parametrize("family", ["t5", "gpt2"])
def test_beams_and_several_sequences(lms, family):
    lm = lms(family)
    beams = lm.generate(PROMPTS[:2], max_new_tokens=4, num_beams=3, num_return_sequences=2)
    assert len(beams) == 4
    for index, generation in enumerate(beams):
        with torch.no_grad():
            ids = generation.token_ids.tolist()
            expected = plain_ids_log_probs(lm, prompt_ids(lm, PROMPTS[index // 2]), ids)
        torch.testing.assert_close(generation.raw_token_log_probs, expected, atol=1e-4, rtol=0)
    assert beams[0].raw_token_log_probs.sum() >= beams[1].raw_token_log_probs.sum() - 1e-4


def test_checkpointing_gradients_does_not_change_generation(make_lm):
    plain, checkpointed = make_lm("gpt2"), make_lm("gpt2", gradient_checkpointing=True)
    expected, generation = (lm.generate(["turn"], max_new_tokens=5)[0] for lm in (plain, checkpointed))
    assert torch.equal(expected.token_ids, generation.token_ids)
    assert checkpointed.model.training


def test_large_batches_go_through_in_parts(lms, monkeypatch):
    lm = lms("gpt2")
    whole = lm.generate(PROMPTS, max_new_tokens=4, num_return_sequences=2, num_beams=2)
    monkeypatch.setattr("groundling.lm.write.generation._MAX_SCORES", 320 * 4 * 4)
    parts = lm.generate(PROMPTS, max_new_tokens=4, num_return_sequences=2, num_beams=2)
    assert [generation.text for generation in parts] == [generation.text for generation in whole]


def test_no_prompts_and_no_room(lms):
    lm = lms("gpt2")
    assert lm.generate([]) == []
    with pytest.raises(GroundlingError, match="stop_strings cannot be used"):
        lm.generate(["go"], stop_strings=["red"])
    with pytest.raises(GroundlingError, match="has room for 57"):
        lm.generate(["red " * 120], max_new_tokens=200)


@pytest.mark.parametrize(("setting", "tokens"), [({"max_new_tokens": 257}, 257), ({"max_length": 258}, 257)])
def test_a_text_longer_than_the_decoder_is_refused(lms, setting, tokens):
    with pytest.raises(GroundlingError, match=f"{tokens} tokens follow .* decoder has room for 256"):
        lms("bart").generate(["go"], **setting)
    assert len(lms("bart").generate(["go"], max_new_tokens=256, min_new_tokens=256)[0].token_ids) == 256
