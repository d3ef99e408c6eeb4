"""Prompts that grow, read as one text or kept from call to call, against each prompt read alone."""

import random

import pytest
import torch
from torch.overrides import TorchFunctionMode

from groundling.lm.read.packing import ScoringQuestion
from groundling.lm.read.prompt_cache import PromptCache
from groundling.lm.read.transcript import chains, read_growing
from tests.lm.truth import _ids, lm_of, variants
from tests.thorough import one_in, some_of, thorough

CANDIDATES = [[11, 12], [11, 13], [14], [15, 16, 17], []]
FAMILIES = ["llama", "gpt2", "qwen2", "gpt_neox", "opt"]


@pytest.fixture(params=[False, True], ids=["one by one", "together"])
def together(request, monkeypatch):
    """Whether attention to what is kept is computed as on an accelerator."""
    monkeypatch.setattr("groundling.lm.read.prompt_cache.attends_together", lambda device: request.param)
    return request.param


def model(family, tokenizers):
    return lm_of(family, dict(variants(family))["plain"], tokenizers)


def episode():
    """The questions of an episode of six steps, whose actions change."""
    trunk = _ids(1, 90)
    lists = [CANDIDATES, CANDIDATES[:2], [[14]], CANDIDATES[::-1], [[]], CANDIDATES]
    return [
        ScoringQuestion(trunk[:length], candidates)
        for length, candidates in zip((20, 33, 34, 61, 77, 90), lists, strict=True)
    ]


def scores(lm, answers):
    return torch.cat(lm._scorer.scores_of(answers, raw=False))


class Masks(TorchFunctionMode):
    """Notes how large each mask is."""

    def __init__(self):
        super().__init__()
        self.sizes = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        mask = (kwargs or {}).get("attn_mask")
        if mask is not None:
            self.sizes.append(mask.numel())
        return func(*args, **(kwargs or {}))


def test_prompts_that_begin_with_each_other_are_found():
    prompts = [[1, 2, 3], [4], [1], [1, 2], [4, 5], [1, 2, 3], [1, 3], [4, 5, 1]]
    assert [[prompts[i] for i in group] for group in chains(prompts)] == [
        [[1], [1, 2], [1, 2, 3], [1, 2, 3]],
        [[1, 3]],
        [[4], [4, 5], [4, 5, 1]],
    ]


@pytest.mark.parametrize("family", one_in(2, FAMILIES))
def test_an_episode_is_what_its_prompts_are_alone(tokenizers, family):
    lm = model(family, tokenizers)
    weights = [weight for weight in lm.parameters() if weight.requires_grad]
    results = []
    for read in (
        lambda: read_growing(lm.backbone, episode()),
        lambda: [lm._scorer.answers([question])[0] for question in episode()],
    ):
        answers = read()
        values = torch.stack([answer.rows[0] for answer in answers])
        log_probs = scores(lm, answers)
        loss = (log_probs * torch.linspace(-1, 1, len(log_probs))).sum() + values.square().mean()
        results.append((log_probs, values, torch.autograd.grad(loss, weights, allow_unused=True)))
    (log_probs, values, gradients), (expected, expected_values, expected_gradients) = results
    torch.testing.assert_close(log_probs, expected, atol=1e-4, rtol=0)
    torch.testing.assert_close(values, expected_values, atol=1e-4, rtol=0)
    for gradient, expected_gradient in zip(gradients, expected_gradients, strict=True):
        torch.testing.assert_close(gradient, expected_gradient, atol=1e-4, rtol=1e-4)


def test_no_mask_of_tokens_by_tokens_is_laid_out(tokenizers, monkeypatch):
    lm = model("llama", tokenizers)
    monkeypatch.setattr("groundling.lm.read.transcript._ROWS_AT_ONCE", 4)
    expected = scores(lm, [lm._scorer.answers([question])[0] for question in episode()])
    masks = Masks()
    with masks:
        computed = scores(lm, read_growing(lm.backbone, episode()))
    torch.testing.assert_close(computed, expected, atol=1e-4, rtol=0)
    # Some eight rows at most, which see the whole trunk and each other.
    assert len(masks.sizes) > 2
    assert max(masks.sizes) <= 8 * 98


@pytest.mark.parametrize("family", some_of(FAMILIES, ["llama", "opt"]))
@pytest.mark.usefixtures("together")
def test_kept_prompts_are_what_they_are_alone(tokenizers, family):
    lm = model(family, tokenizers)
    kept, rng = PromptCache(lm.backbone), random.Random(3)
    texts = [_ids(seed, rng.randint(5, 30)) for seed in range(4)]
    for call in range(8):
        asked = rng.sample(range(4), 4 if call % 2 else 3)
        questions = [ScoringQuestion(list(texts[i]), CANDIDATES[: rng.randint(1, 5)]) for i in asked]
        with torch.no_grad():
            answers = kept.answers(questions)
            expected = [lm._scorer.answers([question])[0] for question in questions]
        torch.testing.assert_close(scores(lm, answers), scores(lm, expected), atol=1e-4, rtol=0)
        torch.testing.assert_close(
            torch.stack([answer.rows[0] for answer in answers]),
            torch.stack([answer.rows[0] for answer in expected]),
            atol=1e-4,
            rtol=0,
        )
        for i in asked[:-1]:  # one is asked again
            texts[i] = _ids(100 + call, 9) if rng.random() < 0.2 else texts[i] + _ids(50 + call, rng.randint(1, 20))


@pytest.mark.parametrize("family", some_of(FAMILIES, ["qwen2", "gpt_neox"]))
@pytest.mark.usefixtures("together")
def test_kept_prompts_under_autocast(tokenizers, family):
    lm = model(family, tokenizers)
    in_float32, in_bfloat16 = PromptCache(lm.backbone), PromptCache(lm.backbone)
    texts = [_ids(seed, 12 + seed) for seed in range(3)]
    for call in range(3):
        questions = [ScoringQuestion(list(text), CANDIDATES) for text in texts]
        with torch.no_grad():
            exact = scores(lm, in_float32.answers(questions))
            with torch.autocast("cpu", torch.bfloat16):
                rounded = scores(lm, in_bfloat16.answers(questions))
        torch.testing.assert_close(rounded.float(), exact, atol=0.3, rtol=0.05)
        texts = [text + _ids(50 + call, 5) for text in texts]
    assert in_float32.num_bytes == 2 * in_bfloat16.num_bytes


@pytest.mark.parametrize("family", some_of(FAMILIES, ["qwen2", "gpt2"]))
@pytest.mark.usefixtures("together")
def test_a_prompt_that_goes_on_by_one_token(tokenizers, family):
    """Of one row alone Transformers lays out the heads that share a key otherwise."""
    lm, text = model(family, tokenizers), _ids(1, 31)
    kept, longer = PromptCache(lm.backbone), ScoringQuestion(text, [[]])
    with torch.no_grad():
        kept.answers([ScoringQuestion(text[:30], [[]])])
        (grown,) = kept.answers([longer])
        (alone,) = lm._scorer.answers([longer])
        (first,) = read_growing(lm.backbone, [ScoringQuestion(text[:1], [[]])])
        (expected,) = lm._scorer.answers([ScoringQuestion(text[:1], [[]])])
    torch.testing.assert_close(grown.rows, alone.rows, atol=1e-4, rtol=0)
    torch.testing.assert_close(first.rows, expected.rows, atol=1e-4, rtol=0)


def test_only_what_is_new_is_read(tokenizers, monkeypatch):
    lm = model("llama", tokenizers)
    kept, lengths = PromptCache(lm.backbone), []
    read = lm.backbone.read

    def noted(tokens, *rest):
        lengths.append(tokens.numel())
        return read(tokens, *rest)

    monkeypatch.setattr(lm.backbone, "read", noted)
    first, second, other = _ids(1, 40), _ids(2, 50), _ids(3, 30)
    rows = 4  # that read the candidates' tokens but the last ones: 11, 15 and 15 16
    for prompts in ([first, second], [second + other, first + other[:10]], [first + other]):
        kept.answers([ScoringQuestion(prompt, CANDIDATES) for prompt in prompts])
    assert lengths == [90 + 2 * (rows - 1), 40 + 2 * (rows - 1), 20 + rows - 1]


@pytest.mark.usefixtures("together")
def test_one_prompt_asked_twice_in_a_call(tokenizers):
    lm = model("llama", tokenizers)
    kept, text = PromptCache(lm.backbone), _ids(1, 40)
    for prompts in ([text], [text, text], [[*text, 5], [*text, 6]]):
        questions = [ScoringQuestion(prompt, CANDIDATES) for prompt in prompts]
        with torch.no_grad():
            expected = scores(lm, lm._scorer.answers(questions))
            torch.testing.assert_close(scores(lm, kept.answers(questions)), expected, atol=1e-4, rtol=0)


@pytest.mark.usefixtures("together")
def test_what_is_kept_grows_with_the_longest_prompt_alone(tokenizers):
    lm = model("qwen2", tokenizers)
    kept = PromptCache(lm.backbone)
    config = lm.model.config
    for seed in range(5):
        kept.answers([ScoringQuestion(_ids(seed, 40), CANDIDATES)])
    size = config.hidden_size // config.num_attention_heads * config.num_key_value_heads
    assert kept.num_bytes == 2 * 4 * config.num_hidden_layers * 256 * size


def test_attention_of_several_prompts_is_computed_at_once(tokenizers, together):
    lm = model("qwen2", tokenizers)
    kept, texts = PromptCache(lm.backbone), [_ids(seed, 40 + seed) for seed in range(4)]
    kept.answers([ScoringQuestion(text[:30], CANDIDATES) for text in texts])
    masks = Masks()
    with masks:
        kept.answers([ScoringQuestion(text, CANDIDATES) for text in texts])
    assert len(masks.sizes) == lm.model.config.num_hidden_layers * (1 if together else 4)


def test_a_long_prompt_among_short_ones_pads_none_of_them(tokenizers, together):
    lm = model("llama", tokenizers)
    kept = PromptCache(lm.backbone)
    questions = [ScoringQuestion(_ids(seed, 700 if seed == 2 else 30), CANDIDATES) for seed in range(8)]
    masks = Masks()
    with masks:
        computed = scores(lm, kept.answers(questions))
    expected = scores(lm, [lm._scorer.answers([question])[0] for question in questions])
    torch.testing.assert_close(computed, expected, atol=1e-4, rtol=0)
    assert max(masks.sizes) <= 7 * 34 * 34 + 4 * 704
    config = lm.model.config
    a_token = 2 * 4 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim
    assert kept.num_bytes == a_token * (8 * 1054 if together else 7 * 256 + 1054)


@pytest.mark.parametrize("calls", [15, *thorough(120)])
@pytest.mark.usefixtures("together")
def test_slots_that_hold_the_same_text_are_told_apart(tokenizers, calls):
    """Of several envs that play alike one is ahead of the others, and these catch up."""
    lm = model("llama", tokenizers)
    kept, generator = PromptCache(lm.backbone), random.Random(0)
    texts = [_ids(seed, 60) for seed in range(2)]
    for _ in range(calls):
        prompts = {tuple(generator.choice(texts)[: generator.randint(5, 60)]) for _ in range(generator.randint(1, 4))}
        questions = [ScoringQuestion(list(prompt), CANDIDATES) for prompt in sorted(prompts)]
        expected = scores(lm, [lm._scorer.answers([question])[0] for question in questions])
        torch.testing.assert_close(scores(lm, kept.answers(questions)), expected, atol=1e-4, rtol=0)


def test_a_prompt_that_begins_another_one_has_the_others_read_from_where_they_were(tokenizers, monkeypatch):
    lm = model("llama", tokenizers)
    lengths, read = [], lm.backbone.read

    def noted(tokens, *rest):
        lengths.append(tokens.numel())
        return read(tokens, *rest)

    first, second = _ids(1, 200), _ids(2, 200)
    with torch.no_grad(), lm._scorer.keeping():
        lm._scorer.token_scores([ScoringQuestion(text, CANDIDATES) for text in (first, second)], growing=True)
        monkeypatch.setattr(lm.backbone, "read", noted)
        prompts = [first[:20], [*first, 5], [*second, 6, 7]]
        questions = [ScoringQuestion(prompt, CANDIDATES) for prompt in prompts]
        computed, _ = lm._scorer.token_scores(questions, growing=True)
        assert sum(lengths) < 60
        expected = torch.cat([lm._scorer.token_scores([question])[0] for question in questions])
    torch.testing.assert_close(computed, expected, atol=1e-4, rtol=0)
