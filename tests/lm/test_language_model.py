"""States, normalisation, options, copies and errors of `LanguageModel`."""

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM

from groundling.errors import GroundlingError
from groundling.lm import LanguageModel
from tests.lm.families import ACTIONS, CONFIGS, CORPUS
from tests.lm.reference import plain_ids_log_probs
from tests.thorough import some_of

pytestmark = pytest.mark.filterwarnings("ignore:.*cannot read several candidates")

FAMILIES = list(CONFIGS)
SOME = ["t5", "gpt2", "llama", "bloom"]
PROMPTS = ["You see a wall 2 steps forward", "", CORPUS[0], "Où est la clé ? 鍵 🗝️", "!"]


@pytest.mark.parametrize("family", ["t5", "bart", "gpt2", "opt", "bloom"])
@torch.no_grad()
def test_the_state_is_that_of_the_first_decoder_position_or_the_last_prompt_token(lms, family):
    lm = lms(family)
    scored, encoded = lm.score_candidates(PROMPTS, ACTIONS), lm.encode(PROMPTS)
    assert scored.state.shape == (len(PROMPTS), lm.hidden_size)
    torch.testing.assert_close(scored.state, encoded, atol=1e-5, rtol=1e-5)
    for prompt, state in zip(PROMPTS, encoded, strict=True):
        ids = torch.tensor([lm.tokenizer(prompt)["input_ids"] or [1]])
        if lm.is_encoder_decoder:
            start = torch.tensor([[lm.model.config.decoder_start_token_id]])
            body = lm.model.get_encoder()(input_ids=ids).last_hidden_state
            body = lm.model.get_decoder()(input_ids=start, encoder_hidden_states=body)
        else:
            body = lm.model.get_decoder()(input_ids=ids)
        torch.testing.assert_close(state, body.last_hidden_state[0, -1], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("family", SOME)
def test_gradients_follow_torchs_mode(lms, family):
    lm = lms(family)
    assert lm.score(["go"], ACTIONS)[0].requires_grad
    with torch.no_grad():
        assert not lm.score(["go"], ACTIONS)[0].requires_grad
    with torch.inference_mode():
        lm.score(["go"], ACTIONS)


@torch.no_grad()
def test_candidates_may_differ_from_prompt_to_prompt(lms):
    lm, candidates = lms("gpt2"), [["turn left"], ACTIONS, ["", "drop"]]
    scored, scores = lm.score_candidates(PROMPTS[:3], candidates), lm.score(PROMPTS[:3], candidates)
    assert scored.log_probs.shape == scored.mask.shape == (3, 6)
    assert scored.mask.sum(1).tolist() == [1, 6, 2]
    assert (scored.log_probs[~scored.mask] == -torch.inf).all()
    for row, mask, expected in zip(scored.log_probs, scored.mask, scores, strict=True):
        assert torch.equal(row[mask], expected)


@pytest.mark.parametrize("family", SOME)
def test_no_prompts(lms, family):
    lm = lms(family)
    assert lm.score([], ACTIONS) == []
    assert lm.score_candidates([], ACTIONS).state.shape == (0, lm.hidden_size)
    assert lm.encode([]).shape == (0, lm.hidden_size)


@torch.no_grad()
def test_normalisation(lms):
    lm, candidates = lms("gpt2"), ["turn left", "", "drop", "go to the red ball"]
    total, per_token, per_word = (lm.score(["go"], candidates, normalize=n)[0] for n in ("sum", "token", "word"))
    tokens = torch.tensor([len(lm.tokenizer(c, add_special_tokens=False)["input_ids"]) for c in candidates])
    torch.testing.assert_close(per_token, total / tokens.clamp(min=1))
    torch.testing.assert_close(per_word, total / torch.tensor([2, 1, 1, 5]))


@pytest.mark.parametrize("family", ["t5", "gpt2"])
@torch.no_grad()
def test_compat_glam_sums_raw_logits_and_counts_padding(lms, family):
    lm, candidates = lms(family), ["turn left", "drop", "go to the red ball"]
    ids, prompt = lm.candidate_tokens(candidates), lm.prompt_tokens(["go"])[0]
    for score, tokens in zip(lm.score(["go"], candidates, compat="glam")[0], ids, strict=True):
        if lm.is_encoder_decoder:
            decoder_ids = torch.tensor([[lm.start_token, *tokens]])
            logits = lm.model(input_ids=torch.tensor([prompt]), decoder_input_ids=decoder_ids).logits[0]
        else:
            logits = lm.model(input_ids=torch.tensor([prompt + tokens])).logits[0, len(prompt) - 1 :]
        total = sum(logits[place, token] for place, token in enumerate(tokens))
        expected = total + max(map(len, ids)) - len(tokens)
        torch.testing.assert_close(score, expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("family", some_of(FAMILIES, SOME))
def test_dropout_is_off_even_in_training_mode(tokenizers, family):
    config = CONFIGS[family]()
    for key in vars(config):
        if "drop" in key and isinstance(getattr(config, key), float):
            setattr(config, key, 0.5)
    config.vocab_size, config.eos_token_id, config.bos_token_id = 320, 1, 1
    auto = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
    tokenizer = tokenizers[config.is_encoder_decoder]
    lm = LanguageModel(auto.from_config(config), tokenizer, gradient_checkpointing=True)
    lm.train()
    first, second = lm.score(["go"], ACTIONS)[0], lm.score(["go"], ACTIONS)[0]
    assert first.requires_grad
    assert torch.equal(first, second)
    lm.eval()
    assert torch.equal(first, lm.score(["go"], ACTIONS)[0])


def test_prompts_without_special_tokens_are_those_of_lamorel_since_2023(make_lm):
    """In Lamorel, the encoder reads no ``</s>``; the candidate's tokens and the decoder are the same."""
    trained, lamorel = make_lm("t5"), make_lm("t5", add_special_tokens=False)
    prompt, actions = "You see a red ball 2 steps left", ["turn left", "go forward"]
    ids = lamorel.tokenizer(prompt, add_special_tokens=False)["input_ids"]
    for lm, tokens in ((trained, [*ids, lamorel.end_tokens.of_text]), (lamorel, ids)):
        expected = [plain_ids_log_probs(lm, tokens, c).sum() for c in lm.candidate_tokens(actions)]
        torch.testing.assert_close(lm.score([prompt], actions)[0], torch.stack(expected), atol=1e-4, rtol=0)
        assert lm.token_lengths([prompt]) == [len(tokens)]
    assert (trained.score([prompt], actions)[0] - lamorel.score([prompt], actions)[0]).abs().max() > 1e-3
    assert len(lamorel.prompt_tokens([""])[0]) == 1  # never empty
    with pytest.raises(GroundlingError, match=r"add_special_tokens=false does nothing: .* leave it at true"):
        make_lm("gpt2", add_special_tokens=False)


@pytest.mark.parametrize(
    ("prompts", "candidates", "options", "message"),
    [
        (["a", "b"], [["go"], []], {}, "prompt 1 has no candidates"),
        (["a", "b"], [], {}, "prompt 0 has no candidates"),
        (["a", "b"], [["go"]], {}, "got 2 prompts, but candidates for 1"),
        (["a"], ["go"], {"normalize": "words"}, "unknown normalize"),
        (["a"], ["go"], {"compat": "lamorel"}, "unknown compat"),
        (["go", "red " * 300], ACTIONS, {}, r"prompt 1 has \d+ tokens.*max_prompt_tokens=(\d+)"),
    ],
)
def test_invalid_arguments(lms, prompts, candidates, options, message):
    with pytest.raises(GroundlingError, match=message):
        lms("gpt2").score(prompts, candidates, **options)


@torch.no_grad()
def test_prompts_that_are_too_long_keep_their_last_tokens_if_asked(lms, make_lm):
    lm, cut, long = lms("gpt2"), make_lm("gpt2", max_prompt_tokens=10), "red " * 300
    with pytest.warns(UserWarning, match=r"of \d+ tokens is truncated to its last 10,.*max_prompt_tokens") as told:
        assert cut.token_lengths(["go", long, f"{long} blue"])[1:] == [10, 10]
    assert len(told) == 1
    ids, candidate = lm.tokenizer(long)["input_ids"][-10:], lm.candidate_tokens(["drop"])[0]
    score = cut.score([long], ["drop"])[0][0]
    torch.testing.assert_close(score, plain_ids_log_probs(lm, ids, candidate).sum(), atol=1e-4, rtol=0)
    with pytest.raises(GroundlingError, match="prompt 0 has"):
        lms("bart").encode([long])
    lms("t5").score([long], ACTIONS)  # relative positions are not limited
