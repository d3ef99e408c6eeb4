"""`score` against the plain computation, on every family, and what it must not depend on."""

import copy
import warnings

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from groundling.errors import GroundlingError
from groundling.lm import LanguageModel
from groundling.lm.read import reader, scoring
from tests.lm.families import ACTIONS, CONFIGS, CORPUS, UNPACKABLE
from tests.lm.reference import plain_ids_log_probs, plain_scores, plain_token_log_probs
from tests.lm.tiny import tiny_config, tiny_model
from tests.thorough import one_in, some_of, thorough

pytestmark = pytest.mark.filterwarnings("ignore:.*cannot read several candidates")

FAMILIES = list(CONFIGS)
PACKABLE = [family for family in FAMILIES if family not in UNPACKABLE]
# One encoder-decoder, one causal with learned positions, one with rotary ones and grouped heads, one not packed.
SOME = ["t5", "gpt2", "llama", "bloom"]

PROMPTS = ["You see a wall 2 steps forward", "", CORPUS[0], "Où est la clé ? 鍵 🗝️", "!"]
CANDIDATES = [*ACTIONS, "", "!", "turn", "turn left, then go to the red ball", "drôle ☃", "turn left"]

texts = st.text(max_size=25) | st.sampled_from(PROMPTS) | st.sampled_from(CORPUS)
candidate_texts = st.sampled_from(CANDIDATES) | st.text(max_size=8)
property_test = settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))


def test_prompts_without_special_tokens_are_those_of_lamorel_since_2023(make_lm):
    """Lamorel: the encoder reads no ``</s>``; the candidate's tokens and the decoder are the same."""
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


@pytest.mark.parametrize("family", one_in(2, FAMILIES))
def test_equals_the_plain_computation(lms, family):
    lm = lms(family)
    with torch.no_grad():
        scores = lm.score(PROMPTS, CANDIDATES)
        for prompt, prompt_scores in zip(PROMPTS, scores, strict=True):
            assert prompt_scores.dtype == torch.float32
            assert prompt_scores.shape == (len(CANDIDATES),)
            torch.testing.assert_close(prompt_scores, plain_scores(lm, prompt, CANDIDATES), atol=1e-4, rtol=0)


@pytest.mark.parametrize("family", one_in(2, FAMILIES))
def test_families_are_packed_but_for_those_that_cannot_be(make_lm, family):
    lm = make_lm(family)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        lm.score(["a"], ["b"])
        lm.score(["a"], ["b"])
    messages = [str(warning.message) for warning in caught if "cannot read several" in str(warning.message)]
    assert len(messages) == (family in {"bart", "mamba"})  # Mamba's steps have no gradients
    with torch.no_grad():
        assert lm._scorer.way_at(1) == UNPACKABLE.get(family, "tree")


@pytest.mark.parametrize("family", ["t5", "gpt2", "llama", "qwen2", "opt"])
def test_a_very_long_prompt_equals_the_plain_computation(lms, family):
    lm = lms(family)
    words = CORPUS[1].split()
    prompts = [" ".join(words * 6), "short", " ".join(words * 4)]
    assert 180 < lm.token_lengths(prompts)[0] < 250
    with torch.no_grad():
        for prompt, prompt_scores in zip(prompts, lm.score(prompts, ACTIONS), strict=True):
            torch.testing.assert_close(prompt_scores, plain_scores(lm, prompt, ACTIONS), atol=1e-4, rtol=0)


SHARING = ["gpt2", "llama", "qwen2", "qwen3", "opt"]


@pytest.mark.parametrize("family", SHARING)
def test_what_prompts_begin_with_is_read_once(lms, family, monkeypatch):
    lm = lms(family)
    start = CORPUS[0] + CORPUS[1]
    prompts = [f"{start} {end}" for end in ("You see a red key", "left", "", CORPUS[2])]
    lm.score(prompts, ACTIONS)  # the trial is over
    read = []
    body = lm._scorer.backbone.body
    monkeypatch.setattr(body, "forward", _counting(body.forward, read))
    with torch.no_grad():
        scores = lm.score(prompts, ACTIONS)
    tokens = sum(rows * length for rows, length in read)
    assert tokens < 0.6 * sum(lm.token_lengths(prompts))
    monkeypatch.undo()
    with torch.no_grad():
        for prompt, prompt_scores in zip(prompts, scores, strict=True):
            torch.testing.assert_close(prompt_scores, plain_scores(lm, prompt, ACTIONS), atol=1e-4, rtol=0)
            torch.testing.assert_close(prompt_scores, lm.score([prompt], ACTIONS)[0], atol=1e-5, rtol=1e-6)


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_gradients_flow_through_what_prompts_share(make_lm, family):
    lm = make_lm(family)
    prompts = [f"{CORPUS[1]} {end}" for end in ("You see a red key", "left", "forward")]
    torch.stack(lm.score(prompts, ACTIONS)).sum().backward()
    together = {name: p.grad.clone() for name, p in lm.named_parameters() if p.grad is not None}
    lm.zero_grad()
    sum(lm.score([prompt], ACTIONS)[0].sum() for prompt in prompts).backward()
    for name, parameter in lm.named_parameters():
        if parameter.grad is not None:
            torch.testing.assert_close(together[name], parameter.grad, atol=1e-5, rtol=1e-4, msg=name)


def _counting(forward, read):
    def counted(*arguments, **options):
        read.append(options["input_ids"].shape)
        return forward(*arguments, **options)

    return counted


@pytest.mark.parametrize("family", some_of(SOME, ["gpt2", "bloom"]))
@property_test
@given(data=st.data())
def test_does_not_depend_on_the_company(lms, family, data):
    """Batch mates (so padding and bucketing), other candidates, their order and number change nothing."""
    lm = lms(family)
    prompts = data.draw(st.lists(texts, min_size=1, max_size=4))
    candidates = [data.draw(st.lists(candidate_texts, min_size=1, max_size=6)) for _ in prompts]
    which = data.draw(st.integers(0, len(prompts) - 1))
    order = data.draw(st.permutations(range(len(candidates[which]))))
    with torch.no_grad():
        together = lm.score(prompts, candidates)
        shuffled = lm.score([prompts[which]], [[candidates[which][index] for index in order]])[0]
        alone = torch.cat([lm.score([prompts[which]], [candidate])[0] for candidate in candidates[which]])
    torch.testing.assert_close(together[which], alone, atol=1e-5, rtol=1e-6)
    torch.testing.assert_close(together[which][list(order)], shuffled, atol=1e-5, rtol=1e-6)


@pytest.mark.parametrize("family", PACKABLE)
def test_does_not_depend_on_packing(lms, family):
    lm = lms(family)
    _, questions = lm._questions(PROMPTS, CANDIDATES)
    with torch.no_grad():
        packed = lm._scorer.scores_of(lm._scorer.reader.packed(questions), raw=False)
        plain = lm._scorer.scores_of(lm._scorer.reader.plain(questions), raw=False)
    torch.testing.assert_close(torch.cat(packed), torch.cat(plain), atol=1e-5, rtol=1e-6)


@pytest.mark.parametrize("family", ["t5", "gpt2", "bart"])
def test_very_many_candidates_are_read_in_parts(lms, family, monkeypatch):
    lm = lms(family)
    candidates = [f"{action} {number}" for number in range(5) for action in ACTIONS]
    with torch.no_grad():
        whole = lm.score_candidates(PROMPTS[:3], candidates)
        monkeypatch.setattr(scoring, "MAX_ROWS", 20)
        monkeypatch.setattr(scoring, "_MAX_LOGITS", 320 * 7)
        monkeypatch.setattr(scoring, "TOKENS_AT_ONCE", 40)
        monkeypatch.setattr(reader, "TOKENS_AT_ONCE", 40)
        parts = lm.score_candidates(PROMPTS[:3], candidates)
    torch.testing.assert_close(whole.log_probs, parts.log_probs, atol=1e-5, rtol=1e-6)
    torch.testing.assert_close(whole.state, parts.state, atol=1e-5, rtol=1e-6)


def test_what_a_decoder_attends_to_at_once_is_bounded(lms, monkeypatch):
    lm, shapes = lms("t5"), []
    prompts = [f"go to the {letter}" for letter in "abcde"]
    few = [ACTIONS[:2], ACTIONS[:1], ACTIONS[1:2], ACTIONS[2:3]]
    candidates = [[f"{action} {number}" for number in range(3) for action in ACTIONS], *few]
    with torch.no_grad():
        whole = lm.score_candidates(prompts, candidates)
        decode = lm.backbone.decode

        def counted(tokens, *others):
            shapes.append(tuple(tokens.shape))
            return decode(tokens, *others)

        monkeypatch.setattr(lm.backbone, "decode", counted)
        lm.score_candidates(prompts, candidates)
        assert [rows for rows, _ in shapes] == [len(prompts)]  # which is little
        shapes.clear()
        monkeypatch.setattr(reader.Batching, "for_device", lambda device: reader.Batching(4096, 0.03, 1000))
        parts = lm.score_candidates(prompts, candidates)
    assert sorted(rows for rows, _ in shapes) == [1, 4]
    assert all(rows == 1 or rows * width**2 <= 1000 for rows, width in shapes)
    torch.testing.assert_close(whole.log_probs, parts.log_probs, atol=1e-5, rtol=1e-6)
    torch.testing.assert_close(whole.state, parts.state, atol=1e-5, rtol=1e-6)


def test_a_window_shorter_than_the_prompt_is_respected(lms):
    lm = lms("mistral")
    assert lm.backbone.layers.window == 24
    short, long = "go to", CORPUS[1]
    assert lm.token_lengths([short])[0] < 24 < lm.token_lengths([long])[0]
    with torch.no_grad():
        for prompt, prompt_scores in zip([long, short], lm.score([long, short], ACTIONS), strict=True):
            torch.testing.assert_close(prompt_scores, plain_scores(lm, prompt, ACTIONS), atol=1e-4, rtol=0)


def test_token_zero_and_the_pad_token_count(lms):
    causal, encoder_decoder = lms("gpt2"), lms("t5")
    assert causal.tokenizer("!", add_special_tokens=False)["input_ids"] == [0]
    assert encoder_decoder.tokenizer("<pad>", add_special_tokens=False)["input_ids"] == [0]
    for lm, zero in ((causal, "!"), (encoder_decoder, "<pad>")):
        for candidate in (zero, zero + zero, "go" + zero):
            expected = plain_token_log_probs(lm, "turn", candidate)
            assert len(expected) == len(lm.tokenizer(candidate, add_special_tokens=False)["input_ids"])
            torch.testing.assert_close(lm.score(["turn"], [candidate])[0][0], expected.sum(), atol=1e-4, rtol=0)


@pytest.mark.parametrize("family", SOME)
def test_an_empty_candidate_is_certain(lms, family):
    lm = lms(family)
    assert lm.score(["go"], ["", "go"])[0][0] == 0.0
    assert lm.score(["go"], [""])[0].tolist() == [0.0]


@pytest.mark.parametrize("family", SOME)
def test_one_token_candidates_are_a_distribution(lms, family):
    lm = lms(family)
    question = scoring.ScoringQuestion(lm._tokens.prompts(["go to"])[0], [[token] for token in range(320)])
    with torch.no_grad():
        scores, _ = lm._scorer([question])
    torch.testing.assert_close(scores.exp().sum(), torch.tensor(1.0), atol=1e-5, rtol=0)


def loss_of(scores: list[torch.Tensor]) -> torch.Tensor:
    """Something of which every score's gradient differs."""
    return sum((row.log_softmax(0) * torch.linspace(0.3, 1.7, len(row))).sum() for row in scores) + sum(
        row.mean() for row in scores
    )


def gradients(lm: LanguageModel, loss: torch.Tensor) -> dict[str, torch.Tensor]:
    lm.zero_grad()
    loss.backward()
    return {name: p.grad.clone() for name, p in lm.named_parameters() if p.grad is not None}


def assert_gradients_equal(actual: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert set(actual) == set(expected)
    # A gradient that is zero but for rounding (a key's bias, say) is measured against all gradients.
    floor = 1e-3 * torch.stack([gradient.norm() for gradient in expected.values()]).max()
    for name, gradient in expected.items():
        error = (actual[name] - gradient).norm() / torch.maximum(gradient.norm(), floor)
        assert error <= 1e-5, (name, error)


@pytest.mark.parametrize(
    "family", ["t5", "bart", "llama", "bloom", *thorough("flan-t5", "gpt2", "qwen2", "qwen3", "opt")]
)
def test_gradients_equal_the_plain_computation(make_lm, family):
    lm = make_lm(family)
    prompts, candidates = PROMPTS[:3], [*ACTIONS, "", "turn left, then go"]
    actual = gradients(lm, loss_of(lm.score(prompts, candidates)))
    expected = gradients(lm, loss_of([plain_scores(lm, prompt, candidates) for prompt in prompts]))
    assert_gradients_equal(actual, expected)


@pytest.mark.parametrize("family", ["t5", "llama", *thorough("gpt2", "bart")])
def test_gradient_checkpointing_changes_nothing(make_lm, family):
    plain, checkpointed = make_lm(family), make_lm(family, gradient_checkpointing=True)
    checkpointed.eval()  # must not switch it off
    assert any(getattr(module, "gradient_checkpointing", False) for module in checkpointed.model.modules())
    assert checkpointed.model.training
    results = []
    for lm in (plain, checkpointed):
        scored = lm.score_candidates(PROMPTS[:3], ACTIONS)
        results.append((scored, gradients(lm, loss_of(list(scored.log_probs)) + scored.state.sin().sum())))
    torch.testing.assert_close(results[0][0].log_probs, results[1][0].log_probs, atol=1e-5, rtol=1e-6)
    assert_gradients_equal(results[1][1], results[0][1])


@pytest.mark.parametrize("family", some_of(FAMILIES, SOME))
def test_dropout_is_off_even_in_training_mode(tokenizers, family):
    config = CONFIGS[family]()
    for key in vars(config):
        if "drop" in key and isinstance(getattr(config, key), float):
            setattr(config, key, 0.5)
    config.vocab_size, config.eos_token_id, config.bos_token_id = 320, 1, 1
    from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM

    auto = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
    lm = LanguageModel(auto.from_config(config), tokenizers[config.is_encoder_decoder], gradient_checkpointing=True)
    lm.train()
    first, second = lm.score(["go"], ACTIONS)[0], lm.score(["go"], ACTIONS)[0]
    assert first.requires_grad
    assert torch.equal(first, second)
    lm.eval()
    assert torch.equal(first, lm.score(["go"], ACTIONS)[0])


@pytest.mark.parametrize(
    ("family", "noise"),
    [
        ("phimoe", {"router_jitter_noise": 10.0}),  # so that it draws among all experts
        *thorough(("mixtral", {"router_jitter_noise": 0.5}), ("switch_transformers", {"router_jitter_noise": 0.5})),
    ],
)
def test_experts_are_chosen_alike_with_checkpointed_gradients(tokenizers, family, noise):
    model = tiny_model(tiny_config(family, **noise))
    results = []
    for checkpoints in (False, True):
        tokenizer = tokenizers[bool(model.config.is_encoder_decoder)]
        lm = LanguageModel(copy.deepcopy(model), tokenizer, gradient_checkpointing=checkpoints)
        assert lm.model.training == checkpoints
        scored = lm.score_candidates(PROMPTS[:3], ACTIONS)
        results.append((scored.log_probs, gradients(lm, loss_of(list(scored.log_probs)))))
    torch.testing.assert_close(results[1][0], results[0][0], atol=1e-5, rtol=1e-6)
    assert_gradients_equal(results[1][1], results[0][1])


@pytest.mark.parametrize("family", SOME)
def test_gradients_follow_torchs_mode(lms, family):
    lm = lms(family)
    assert lm.score(["go"], ACTIONS)[0].requires_grad
    with torch.no_grad():
        assert not lm.score(["go"], ACTIONS)[0].requires_grad
    with torch.inference_mode():
        lm.score(["go"], ACTIONS)


@pytest.mark.parametrize("family", ["t5", "bart", "gpt2", "opt", "bloom"])
def test_the_state_is_the_final_one_of_the_first_decoder_position_or_the_last_prompt_token(lms, family):
    lm = lms(family)
    with torch.no_grad():
        scored = lm.score_candidates(PROMPTS, ACTIONS)
        encoded = lm.encode(PROMPTS)
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
def test_what_is_asked_twice_is_computed_once(make_lm, family, monkeypatch):
    lm = make_lm(family)
    lm.score(PROMPTS, ACTIONS)  # the trials are over
    prompts, actions = ["go", "left", "go", "go"], [ACTIONS, ACTIONS, ACTIONS, ACTIONS[:2]]
    expected = torch.cat([lm.score([p], [a])[0] for p, a in zip(prompts, actions, strict=True)])
    gradients = torch.autograd.grad(expected.sum(), list(lm.parameters()), allow_unused=True)
    body, read = lm._scorer.backbone.body, []
    monkeypatch.setattr(body, "forward", _counting(body.forward, read))
    distinct = (lm.score(prompts[:2] + prompts[3:], actions[:2] + actions[3:]), lm.encode(prompts[:2]))
    tokens = sum(rows * length for rows, length in read)
    read.clear()
    scores = torch.cat(lm.score(prompts, actions))
    states = lm.encode(prompts)
    assert sum(rows * length for rows, length in read) == tokens
    assert len(distinct[0]) == 3 and torch.equal(states, distinct[1][[0, 1, 0, 0]])
    torch.testing.assert_close(scores, expected, atol=1e-5, rtol=1e-6)
    for gradient, other in zip(
        torch.autograd.grad(scores.sum(), list(lm.parameters()), allow_unused=True), gradients, strict=True
    ):
        torch.testing.assert_close(gradient, other, atol=1e-4, rtol=1e-4)


def test_candidates_may_differ_from_prompt_to_prompt(lms):
    lm = lms("gpt2")
    candidates = [["turn left"], ACTIONS, ["", "drop"]]
    with torch.no_grad():
        scored = lm.score_candidates(PROMPTS[:3], candidates)
        scores = lm.score(PROMPTS[:3], candidates)
    assert scored.log_probs.shape == scored.mask.shape == (3, 6)
    assert scored.mask.sum(1).tolist() == [1, 6, 2]
    assert (scored.log_probs[~scored.mask] == -torch.inf).all()
    for row, mask, expected in zip(scored.log_probs, scored.mask, scores, strict=True):
        assert torch.equal(row[mask], expected)


def test_padding_brings_no_nan_into_gradients(make_lm):
    lm = make_lm("gpt2")
    scored = lm.score_candidates(PROMPTS[:2], [["drop"], ACTIONS])
    scored.log_probs.softmax(-1)[:, 0].sum().backward()
    assert all(p.grad.isfinite().all() for p in lm.parameters() if p.grad is not None)


def test_normalisation(lms):
    lm = lms("gpt2")
    candidates = ["turn left", "", "drop", "go to the red ball"]
    with torch.no_grad():
        total, per_token, per_word = (lm.score(["go"], candidates, normalize=n)[0] for n in ("sum", "token", "word"))
    tokens = torch.tensor([len(lm.tokenizer(c, add_special_tokens=False)["input_ids"]) for c in candidates])
    torch.testing.assert_close(per_token, total / tokens.clamp(min=1))
    torch.testing.assert_close(per_word, total / torch.tensor([2, 1, 1, 5]))


@pytest.mark.parametrize("family", ["t5", "gpt2"])
def test_compat_glam_sums_raw_logits_and_counts_padding(lms, family):
    lm = lms(family)
    candidates = ["turn left", "drop", "go to the red ball"]
    with torch.no_grad():
        scores = lm.score(["go"], candidates, compat="glam")[0]
        ids = [lm.tokenizer(c, add_special_tokens=False)["input_ids"] for c in candidates]
        prompt = lm.tokenizer("go")["input_ids"]
        for score, candidate_ids in zip(scores, ids, strict=True):
            if lm.is_encoder_decoder:
                start = lm.model.config.decoder_start_token_id
                logits = lm.model(
                    input_ids=torch.tensor([prompt]), decoder_input_ids=torch.tensor([[start, *candidate_ids]])
                ).logits[0]
            else:
                logits = lm.model(input_ids=torch.tensor([prompt + candidate_ids])).logits[0, len(prompt) - 1 :]
            expected = (
                sum(logits[place, token] for place, token in enumerate(candidate_ids))
                + max(map(len, ids))
                - len(candidate_ids)
            )
            torch.testing.assert_close(score, expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("family", ["t5", "gpt2"])
def test_half_precision_takes_the_softmax_in_float32(make_lm, family):
    lm, half = make_lm(family), make_lm(family)
    half.model.bfloat16()
    with torch.no_grad():
        exact, rounded = lm.score_candidates(["go to"], ACTIONS), half.score_candidates(["go to"], ACTIONS)
    assert half._scorer.way_at(1) == "tree"
    assert rounded.log_probs.dtype == rounded.state.dtype == torch.float32
    torch.testing.assert_close(rounded.log_probs, exact.log_probs, atol=0.6, rtol=0.05)


@pytest.mark.parametrize("family", ["t5", "gpt2", "llama"])
def test_packs_under_autocast(make_lm, family):
    lm = make_lm(family)
    with torch.autocast("cpu", torch.bfloat16):
        rounded = lm.score_candidates(["go to", PROMPTS[0]], ACTIONS)
    assert lm._scorer.way_at(1) == "tree"
    assert rounded.log_probs.dtype == rounded.state.dtype == torch.float32
    rounded.log_probs.sum().backward()
    with torch.no_grad():
        exact = lm.score_candidates(["go to", PROMPTS[0]], ACTIONS)
    torch.testing.assert_close(rounded.log_probs.detach(), exact.log_probs, atol=0.6, rtol=0.05)


def test_a_deep_copy_is_a_model_of_its_own(make_lm):
    lm = make_lm("gpt2")
    copied = copy.deepcopy(lm)
    with torch.no_grad():
        before = lm.score(["go"], ACTIONS)[0]
        for parameter in copied.parameters():
            parameter.mul_(0.5)
        assert torch.equal(lm.score(["go"], ACTIONS)[0], before)
        assert not torch.equal(copied.score(["go"], ACTIONS)[0], before)


def test_eager_attention_packs_too(tokenizers):
    from transformers import AutoModelForCausalLM

    config = CONFIGS["llama"]()
    config.vocab_size = 320
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    lm = LanguageModel(model, tokenizers[False])
    with torch.no_grad():
        torch.testing.assert_close(lm.score(["go"], ACTIONS)[0], plain_scores(lm, "go", ACTIONS), atol=1e-4, rtol=0)
    assert lm._scorer.way_at(1) == "tree"


@pytest.mark.parametrize("family", SOME)
def test_no_prompts(lms, family):
    lm = lms(family)
    assert lm.score([], ACTIONS) == []
    assert lm.score_candidates([], ACTIONS).state.shape == (0, lm.hidden_size)
    assert lm.encode([]).shape == (0, lm.hidden_size)


def test_bad_candidates_are_told(lms):
    lm = lms("gpt2")
    with pytest.raises(GroundlingError, match="prompt 1 has no candidates"):
        lm.score(["a", "b"], [["go"], []])
    with pytest.raises(GroundlingError, match="prompt 0 has no candidates"):
        lm.score(["a", "b"], [])
    with pytest.raises(GroundlingError, match="2 prompts, but candidates for 1"):
        lm.score(["a", "b"], [["go"]])
    with pytest.raises(GroundlingError, match="unknown normalize"):
        lm.score(["a"], ["go"], normalize="words")
    with pytest.raises(GroundlingError, match="unknown compat"):
        lm.score(["a"], ["go"], compat="lamorel")


def test_a_prompt_too_long_is_told_with_its_mend(lms, make_lm):
    lm = lms("gpt2")
    long = "red " * 300
    with pytest.raises(GroundlingError, match=r"prompt 1 has \d+ tokens.*max_prompt_tokens=(\d+)"):
        lm.score(["go", long], ACTIONS)
    cut = make_lm("gpt2", max_prompt_tokens=10)
    with pytest.warns(
        UserWarning, match=r"prompt of \d+ tokens is cut to its last 10,.*model\.max_prompt_tokens"
    ) as told:
        assert cut.token_lengths(["go", long, f"{long} blue"])[1:] == [10, 10]
    assert len(told) == 1
    ids = lm.tokenizer(long)["input_ids"][-10:]
    candidate_ids = lm.tokenizer("drop", add_special_tokens=False)["input_ids"]
    with torch.no_grad():
        score = cut.score([long], ["drop"])[0][0]
        torch.testing.assert_close(score, plain_ids_log_probs(lm, ids, candidate_ids).sum(), atol=1e-4, rtol=0)
    with pytest.raises(GroundlingError, match="prompt 0 has"):
        lms("bart").encode([long])
    lms("t5").score([long], ACTIONS)  # relative positions have no end
