"""`score` and its gradients, compared with the plain computation for every family; independence of the batch."""

import copy
import warnings

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from groundling.lm import LanguageModel
from groundling.lm.read import causal, scoring
from tests.lm.families import ACTIONS, CONFIGS, CORPUS, UNPACKABLE
from tests.lm.reference import plain_scores, plain_token_log_probs
from tests.lm.tiny import tiny_config, tiny_model
from tests.thorough import one_in, some_of, thorough

pytestmark = pytest.mark.filterwarnings("ignore:.*cannot read several candidates")

FAMILIES = list(CONFIGS)
PACKABLE = [family for family in FAMILIES if family not in UNPACKABLE]
# One encoder-decoder, one causal with learned positions, one with rotary positions and grouped heads, one unpacked.
SOME = ["t5", "gpt2", "llama", "bloom"]

PROMPTS = ["You see a wall 2 steps forward", "", CORPUS[0], "Où est la clé ? 鍵 🗝️", "!"]
CANDIDATES = [*ACTIONS, "", "!", "turn", "turn left, then go to the red ball", "drôle ☃", "turn left"]

texts = st.text(max_size=25) | st.sampled_from(PROMPTS) | st.sampled_from(CORPUS)
candidate_texts = st.sampled_from(CANDIDATES) | st.text(max_size=8)
property_test = settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))


@torch.no_grad()
def assert_plain_scores(lm, prompts, candidates):
    for prompt, scores in zip(prompts, lm.score(prompts, candidates), strict=True):
        assert scores.dtype == torch.float32
        torch.testing.assert_close(scores, plain_scores(lm, prompt, candidates), atol=1e-4, rtol=0)


def assert_close(one, other):
    torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-6)


@pytest.mark.parametrize("family", one_in(2, FAMILIES))
def test_scores_are_those_of_the_plain_computation(lms, family):
    assert_plain_scores(lms(family), PROMPTS, CANDIDATES)


@pytest.mark.parametrize("family", one_in(2, FAMILIES))
def test_families_are_packed_except_those_that_cannot_be(make_lm, family):
    lm = make_lm(family)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        lm.score(["a"], ["b"])
        lm.score(["a"], ["b"])
    messages = [str(warning.message) for warning in caught if "cannot read several" in str(warning.message)]
    assert len(messages) == (family in UNPACKABLE)
    assert lm._scorer.way_at(1) == ("lines" if family in UNPACKABLE else "tree")


@pytest.mark.parametrize("family", ["t5", "gpt2", "llama", "qwen2", "opt"])
def test_very_long_prompts(lms, family):
    lm, words = lms(family), CORPUS[1].split()
    prompts = [" ".join(words * 6), "short", " ".join(words * 4)]
    assert 180 < lm.token_lengths(prompts)[0] < 250
    assert_plain_scores(lm, prompts, ACTIONS)


def test_a_window_shorter_than_the_prompt(lms):
    lm, prompts = lms("mistral"), [CORPUS[1], "go to"]
    assert lm.backbone.layers.window == 24
    long, short = lm.token_lengths(prompts)
    assert short < 24 < long
    assert_plain_scores(lm, prompts, ACTIONS)


def counted_tokens(lm, monkeypatch):
    """Return a list to which each pass of the model's body appends its number of tokens."""
    body, read = lm._scorer.backbone.body, []
    forward = body.forward

    def counted(*arguments, **options):
        read.append(options["input_ids"].numel())
        return forward(*arguments, **options)

    monkeypatch.setattr(body, "forward", counted)
    return read


@pytest.mark.parametrize("family", ["gpt2", "llama", "qwen2", "qwen3", "opt"])
def test_a_common_prefix_is_read_once(lms, family, monkeypatch):
    lm = lms(family)
    prompts = [f"{CORPUS[0]}{CORPUS[1]} {end}" for end in ("You see a red key", "left", "", CORPUS[2])]
    lm.score(prompts, ACTIONS)  # runs the exactness checks
    with monkeypatch.context() as patched, torch.no_grad():
        read = counted_tokens(lm, patched)
        scores = lm.score(prompts, ACTIONS)
    assert sum(read) < 0.6 * sum(lm.token_lengths(prompts))
    assert_plain_scores(lm, prompts, ACTIONS)
    for prompt, its_scores in zip(prompts, scores, strict=True):
        assert_close(its_scores, lm.score([prompt], ACTIONS)[0])


@pytest.mark.parametrize("family", some_of(SOME, ["gpt2", "bloom"]))
@property_test
@given(data=st.data())
def test_scores_do_not_depend_on_the_batch(lms, family, data):
    """Other prompts (and padding and bucketing) and other candidates, their order and number have no effect."""
    lm = lms(family)
    prompts = data.draw(st.lists(texts, min_size=1, max_size=4))
    candidates = [data.draw(st.lists(candidate_texts, min_size=1, max_size=6)) for _ in prompts]
    which = data.draw(st.integers(0, len(prompts) - 1))
    order = data.draw(st.permutations(range(len(candidates[which]))))
    with torch.no_grad():
        together = lm.score(prompts, candidates)
        shuffled = lm.score([prompts[which]], [[candidates[which][index] for index in order]])[0]
        alone = torch.cat([lm.score([prompts[which]], [candidate])[0] for candidate in candidates[which]])
    assert_close(together[which], alone)
    assert_close(together[which][list(order)], shuffled)


@pytest.mark.parametrize("family", ["t5", "gpt2", "bart"])
@torch.no_grad()
def test_very_many_candidates_are_read_in_parts(lms, family, monkeypatch):
    lm, candidates = lms(family), [f"{action} {number}" for number in range(5) for action in ACTIONS]
    whole = lm.score_candidates(PROMPTS[:3], candidates)
    monkeypatch.setattr(scoring, "MAX_ROWS", 20)
    monkeypatch.setattr(scoring, "_MAX_LOGITS", 320 * 7)
    for module in (scoring, causal):
        monkeypatch.setattr(module, "TOKENS_AT_ONCE", 40)
    parts = lm.score_candidates(PROMPTS[:3], candidates)
    assert_close(whole.log_probs, parts.log_probs)
    assert_close(whole.state, parts.state)


def test_token_zero_and_the_pad_token_count(lms):
    for lm, zero in ((lms("gpt2"), "!"), (lms("t5"), "<pad>")):
        assert lm.tokenizer(zero, add_special_tokens=False)["input_ids"] == [0]
        for candidate in (zero, zero + zero, "go" + zero):
            expected = plain_token_log_probs(lm, "turn", candidate)
            assert len(expected) == len(lm.tokenizer(candidate, add_special_tokens=False)["input_ids"])
            score = lm.score(["turn"], [candidate])[0][0]
            torch.testing.assert_close(score, expected.sum(), atol=1e-4, rtol=0)


def loss_of(scores: list[torch.Tensor]) -> torch.Tensor:
    """Return a loss with a different gradient for every score."""
    return sum((row.log_softmax(0) * torch.linspace(0.3, 1.7, len(row))).sum() for row in scores) + sum(
        row.mean() for row in scores
    )


def gradients(lm: LanguageModel, loss: torch.Tensor) -> dict[str, torch.Tensor]:
    lm.zero_grad()
    loss.backward()
    return {name: p.grad.clone() for name, p in lm.named_parameters() if p.grad is not None}


def assert_gradients_equal(actual: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert set(actual) == set(expected)
    # A gradient that is zero except for rounding (such as a key's bias) is compared with all gradients.
    floor = 1e-3 * torch.stack([gradient.norm() for gradient in expected.values()]).max()
    for name, gradient in expected.items():
        error = (actual[name] - gradient).norm() / torch.maximum(gradient.norm(), floor)
        assert error <= 1e-5, (name, error)


@pytest.mark.parametrize(
    "family", ["t5", "bart", "llama", "bloom", *thorough("flan-t5", "gpt2", "qwen2", "qwen3", "opt")]
)
def test_gradients_are_those_of_the_plain_computation(make_lm, family):
    lm = make_lm(family)
    prompts, candidates = PROMPTS[:3], [*ACTIONS, "", "turn left, then go"]
    actual = gradients(lm, loss_of(lm.score(prompts, candidates)))
    expected = gradients(lm, loss_of([plain_scores(lm, prompt, candidates) for prompt in prompts]))
    assert_gradients_equal(actual, expected)


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_gradients_flow_through_a_common_prefix(make_lm, family):
    lm = make_lm(family)
    prompts = [f"{CORPUS[1]} {end}" for end in ("You see a red key", "left", "forward")]
    together = gradients(lm, loss_of(lm.score(prompts, ACTIONS)))
    alone = gradients(lm, loss_of([lm.score([prompt], ACTIONS)[0] for prompt in prompts]))
    assert_gradients_equal(together, alone)


@pytest.mark.parametrize("family", ["t5", "llama", *thorough("gpt2", "bart")])
def test_gradient_checkpointing_changes_nothing(make_lm, family):
    plain, checkpointed = make_lm(family), make_lm(family, gradient_checkpointing=True)
    checkpointed.eval()  # must not switch it off
    assert any(getattr(module, "gradient_checkpointing", False) for module in checkpointed.model.modules())
    assert checkpointed.model.training
    assert_same_scores_and_gradients(plain, checkpointed)


@pytest.mark.parametrize(
    ("family", "noise"),
    [
        ("phimoe", {"router_jitter_noise": 10.0}),  # samples among all experts
        *thorough(("mixtral", {"router_jitter_noise": 0.5}), ("switch_transformers", {"router_jitter_noise": 0.5})),
    ],
)
def test_experts_are_the_same_with_checkpointed_gradients(tokenizers, family, noise):
    model = tiny_model(tiny_config(family, **noise))
    tokenizer = tokenizers[bool(model.config.is_encoder_decoder)]
    plain, checkpointed = (
        LanguageModel(copy.deepcopy(model), tokenizer, gradient_checkpointing=on) for on in (False, True)
    )
    assert checkpointed.model.training and not plain.model.training
    assert_same_scores_and_gradients(plain, checkpointed)


def assert_same_scores_and_gradients(one, other):
    results = []
    for lm in (one, other):
        scored = lm.score_candidates(PROMPTS[:3], ACTIONS)
        loss = loss_of(list(scored.log_probs)) + scored.state.sin().sum()
        results.append((scored.log_probs.detach(), gradients(lm, loss)))
    assert_close(results[0][0], results[1][0])
    assert_gradients_equal(results[1][1], results[0][1])


@pytest.mark.parametrize("family", SOME)
def test_equal_questions_are_computed_once(make_lm, family, monkeypatch):
    lm = make_lm(family)
    lm.score(PROMPTS, ACTIONS)  # runs the exactness checks
    prompts, actions = ["go", "left", "go", "go"], [ACTIONS, ACTIONS, ACTIONS, ACTIONS[:2]]
    expected = [lm.score([p], [a])[0] for p, a in zip(prompts, actions, strict=True)]
    expected_gradients = gradients(lm, loss_of(expected))
    read = counted_tokens(lm, monkeypatch)
    lm.score(prompts[:2] + prompts[3:], actions[:2] + actions[3:])
    distinct_states = lm.encode(prompts[:2])
    tokens = sum(read)
    read.clear()
    scores, states = lm.score(prompts, actions), lm.encode(prompts)
    assert sum(read) == tokens
    assert torch.equal(states, distinct_states[[0, 1, 0, 0]])
    assert_close(torch.cat(scores), torch.cat(expected))
    assert_gradients_equal(gradients(lm, loss_of(scores)), expected_gradients)


def test_padding_brings_no_nan_into_gradients(make_lm):
    lm = make_lm("gpt2")
    scored = lm.score_candidates(PROMPTS[:2], [["drop"], ACTIONS])
    scored.log_probs.softmax(-1)[:, 0].sum().backward()
    assert all(p.grad.isfinite().all() for p in lm.parameters() if p.grad is not None)


@pytest.mark.parametrize("family", ["t5", "gpt2", "llama"])
def test_half_precision_and_autocast_are_packed_with_a_float32_softmax(make_lm, family):
    lm, half, prompts = make_lm(family), make_lm(family), ["go to", PROMPTS[0]]
    with torch.autocast("cpu", torch.bfloat16):
        autocast = lm.score_candidates(prompts, ACTIONS)
    autocast.log_probs.sum().backward()
    half.model.bfloat16()
    with torch.no_grad():
        exact, rounded = lm.score_candidates(prompts, ACTIONS), half.score_candidates(prompts, ACTIONS)
    for scored, model in ((autocast, lm), (rounded, half)):
        assert model._scorer.way_at(1) == "tree"
        assert scored.log_probs.dtype == scored.state.dtype == torch.float32
        torch.testing.assert_close(scored.log_probs.detach(), exact.log_probs, atol=0.6, rtol=0.05)


def test_eager_attention_is_packed_too(tokenizers):
    model = tiny_model(tiny_config("llama"))
    model.set_attn_implementation("eager")
    lm = LanguageModel(model, tokenizers[False])
    assert_plain_scores(lm, ["go"], ACTIONS)
    assert lm._scorer.way_at(1) == "tree"
