"""Prompts that are prefixes of others, in one call or in successive calls, compared with each prompt alone."""

import random

import pytest
import torch
from torch.overrides import TorchFunctionMode

from groundling.lm.read import prefix_tree
from groundling.lm.read.batching import ScoringQuestion
from groundling.lm.read.prefix_tree import KeyValueMemory
from tests.lm.truth import _ids, lm_of, variants
from tests.thorough import one_in, some_of, thorough

CANDIDATES = [[11, 12], [11, 13], [14], [15, 16, 17], []]
ROWS = 3  # of the candidates: 11, 15, and 15 16
FAMILIES = ["llama", "gpt2", "qwen2", "gpt_neox", "opt"]


def model(family, tokenizers):
    return lm_of(family, dict(variants(family))["plain"], tokenizers)


def questions_of(prompts, candidates=CANDIDATES):
    return [ScoringQuestion(list(prompt), candidates) for prompt in prompts]


def episode():
    """Return the questions of an episode of six steps with changing actions."""
    trunk = _ids(1, 90)
    lists = [CANDIDATES, CANDIDATES[:2], [[14]], CANDIDATES[::-1], [[]], CANDIDATES]
    return [
        ScoringQuestion(trunk[:length], candidates)
        for length, candidates in zip((20, 33, 34, 61, 77, 90), lists, strict=True)
    ]


def scores(lm, answers):
    return torch.cat(lm._scorer.scores_of(answers, raw=False))


def alone(lm, questions):
    return [lm._scorer.answers([question])[0] for question in questions]


def assert_same(lm, answers, expected, **tolerance):
    tolerance = {"atol": 1e-4, "rtol": 0} | tolerance
    torch.testing.assert_close(scores(lm, answers).float(), scores(lm, expected), **tolerance)
    roots, expected_roots = (torch.stack([one.rows[0] for one in some]) for some in (answers, expected))
    torch.testing.assert_close(roots.float(), expected_roots, **tolerance)


@pytest.fixture
def count_tokens(monkeypatch):
    """Return `count_tokens(lm)`, which returns a list to which each pass of the body appends its number of tokens."""

    def count(lm):
        lengths, read = [], lm.backbone.read

        def counted(tokens, *rest):
            lengths.append(tokens.numel())
            return read(tokens, *rest)

        monkeypatch.setattr(lm.backbone, "read", counted)
        return lengths

    return count


class Masks(TorchFunctionMode):
    """Records the shape of each mask."""

    def __init__(self):
        super().__init__()
        self.shapes = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        mask = (kwargs or {}).get("attn_mask")
        if mask is not None:
            self.shapes.append(tuple(mask.shape))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("family", one_in(2, FAMILIES))
@pytest.mark.parametrize("queries", [512, 4])
def test_an_episode_and_its_gradients_are_those_of_its_prompts_alone(tokenizers, family, queries, monkeypatch):
    monkeypatch.setattr(prefix_tree, "_MAX_QUERIES", queries)
    lm = model(family, tokenizers)
    weights = [weight for weight in lm.parameters() if weight.requires_grad]
    results = []
    for read in (lm._scorer.tree.read, lambda questions: alone(lm, questions)):
        answers = read(episode())
        values, log_probs = torch.stack([answer.rows[0] for answer in answers]), scores(lm, answers)
        loss = (log_probs * torch.linspace(-1, 1, len(log_probs))).sum() + values.square().mean()
        results.append([log_probs, values, *torch.autograd.grad(loss, weights, allow_unused=True)])
    for computed, expected in zip(*results, strict=True):
        torch.testing.assert_close(computed, expected, atol=1e-4, rtol=1e-4)


def test_what_prompts_share_is_read_once(tokenizers, count_tokens):
    lm = model("llama", tokenizers)
    assert lm._scorer.tree.why_not is None
    lengths, start = count_tokens(lm), _ids(1, 40)
    lm._scorer.tree.read(questions_of([start[:30], start, start[:20] + _ids(2, 5)]))
    assert lengths == [40 + 5 + 3 * ROWS]


@pytest.mark.parametrize("family", some_of(FAMILIES, ["llama", "opt"]))
def test_kept_prompts_are_those_read_alone(tokenizers, family):
    lm = model(family, tokenizers)
    memory, rng = KeyValueMemory(), random.Random(3)
    texts = [_ids(seed, rng.randint(5, 30)) for seed in range(4)]
    for call in range(8):
        asked = rng.sample(range(4), 4 if call % 2 else 3)
        questions = [ScoringQuestion(list(texts[i]), CANDIDATES[: rng.randint(1, 5)]) for i in asked]
        with torch.no_grad():
            assert_same(lm, lm._scorer.tree.read(questions, memory), alone(lm, questions))
        for i in asked[:-1]:  # the last one is read again
            texts[i] = _ids(100 + call, 9) if rng.random() < 0.2 else texts[i] + _ids(50 + call, rng.randint(1, 20))


@pytest.mark.parametrize("family", some_of(FAMILIES, ["qwen2", "gpt_neox"]))
@torch.no_grad()
def test_kept_prompts_under_autocast(tokenizers, family):
    lm = model(family, tokenizers)
    exact, rounded = KeyValueMemory(), KeyValueMemory()
    texts = [_ids(seed, 12 + seed) for seed in range(3)]
    for call in range(3):
        questions = questions_of(texts)
        expected = lm._scorer.tree.read(questions, exact)
        with torch.autocast("cpu", torch.bfloat16):
            answers = lm._scorer.tree.read(questions, rounded)
        assert_same(lm, answers, expected, atol=0.3, rtol=0.05)
        texts = [text + _ids(50 + call, 5) for text in texts]
    assert exact.num_bytes == 2 * rounded.num_bytes


@pytest.mark.parametrize("family", some_of(FAMILIES, ["qwen2", "gpt2"]))
@torch.no_grad()
def test_a_prompt_that_continues_by_one_token(tokenizers, family):
    """For a single query, Transformers arranges the heads that share a key differently."""
    lm, text, memory = model(family, tokenizers), _ids(1, 31), KeyValueMemory()
    for length in (1, 30, 31):
        questions = questions_of([text[:length]], [[]])
        rows = lm._scorer.tree.read(questions, memory)[0].rows
        torch.testing.assert_close(rows, alone(lm, questions)[0].rows, atol=1e-4, rtol=0)


@torch.no_grad()
def test_only_new_tokens_are_read(tokenizers, count_tokens):
    lm, memory = model("llama", tokenizers), KeyValueMemory()
    assert lm._scorer.tree.why_not is None
    lengths = count_tokens(lm)
    first, second, other = _ids(1, 40), _ids(2, 50), _ids(3, 30)
    for prompts in ([first, second], [second + other, first + other[:10]], [first + other]):
        lm._scorer.tree.read(questions_of(prompts), memory)
    assert lengths == [90 + 2 * ROWS, 40 + 2 * ROWS, 20 + ROWS]


@torch.no_grad()
def test_a_prompt_that_begins_a_kept_one_needs_only_its_last_token(tokenizers, count_tokens):
    lm = model("llama", tokenizers)
    first, second = _ids(1, 200), _ids(2, 200)
    with lm._scorer.keeping():
        lm._scorer.token_scores(questions_of([first, second]), growing=True)
        lengths = count_tokens(lm)
        questions = questions_of([first[:20], [*first, 5], [*second, 6, 7]])
        computed, _ = lm._scorer.token_scores(questions, growing=True)
        assert lengths == [1 + 1 + 2 + 3 * ROWS]
    torch.testing.assert_close(computed, scores(lm, alone(lm, questions)), atol=1e-4, rtol=0)


@torch.no_grad()
def test_memory_is_that_of_the_last_prompts(tokenizers):
    lm, memory = model("qwen2", tokenizers), KeyValueMemory()
    config = lm.model.config
    for seed in range(5):
        lm._scorer.tree.read(questions_of([_ids(seed, 40)]), memory)
    size = config.hidden_size // config.num_attention_heads * config.num_key_value_heads
    # While a prompt is read, the previous prompt is still cached.
    most = 2 * 40 + ROWS
    assert memory.num_bytes <= 2 * 4 * config.num_hidden_layers * size * most * 3 // 2
    assert len(memory.children) == 40


@torch.no_grad()
def test_a_long_prompt_pads_no_short_ones(tokenizers):
    lm = model("llama", tokenizers)
    questions = questions_of(_ids(seed, 700 if seed == 2 else 30) for seed in range(8))
    masks = Masks()
    with masks:
        answers = lm._scorer.tree.read(questions)
    assert_same(lm, answers, alone(lm, questions))
    assert all(texts * queries * keys <= 512 * 703 for texts, _, queries, keys in masks.shapes)


@pytest.mark.parametrize("calls", [15, *thorough(120)])
@torch.no_grad()
def test_prompts_that_catch_up_with_each_other(tokenizers, calls):
    """Of several envs that play the same episode, one is ahead of the others."""
    lm, memory, rng = model("llama", tokenizers), KeyValueMemory(), random.Random(0)
    texts = [_ids(seed, 60) for seed in range(2)]
    for _ in range(calls):
        prompts = {tuple(rng.choice(texts)[: rng.randint(5, 60)]) for _ in range(rng.randint(1, 4))}
        questions = questions_of(sorted(prompts))
        assert_same(lm, lm._scorer.tree.read(questions, memory), alone(lm, questions))


@torch.no_grad()
def test_a_failed_pass_leaves_nothing_in_the_memory(tokenizers, monkeypatch):
    lm, memory, questions = model("llama", tokenizers), KeyValueMemory(), questions_of([_ids(1, 40)])
    assert lm._scorer.tree.why_not is None

    def fail(*_):
        raise torch.OutOfMemoryError("CUDA out of memory")

    with monkeypatch.context() as patched:
        patched.setattr(lm.backbone, "read", fail)
        with pytest.raises(torch.OutOfMemoryError):
            lm._scorer.tree.read(questions, memory)
    assert not memory.children
    assert_same(lm, lm._scorer.tree.read(questions, memory), alone(lm, questions))
