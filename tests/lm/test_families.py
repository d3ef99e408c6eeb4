"""A sample of model families, compared with each text alone; docs/families.md contains all families."""

import pytest
import torch
from scripts import families

from groundling.errors import GroundlingError
from groundling.lm import LanguageModel
from groundling.lm.backbone import Layers
from groundling.lm.read.batching import ScoringQuestion
from tests.lm.reference import plain_ids_log_probs
from tests.lm.tiny import ORIGINAL, tiny_config, tiny_model, with_rope
from tests.lm.truth import CANDIDATES, EXACT, _ids, lm_of, row_of, variants
from tests.thorough import some_of

# Whether scoring and generation are announced as slower, by family and variant.
SAMPLE = {
    ("llama", "dynamic 40"): "",
    ("gpt_oss", "window 24"): "",
    ("gemma3_text", "window 24"): "",
    ("llama4_text", "window 24"): "",
    ("modernbert-decoder", "window 24"): "",
    ("qwen3_5_text", "plain"): "scores",
    ("mamba", "plain"): "scores",
    ("bloom", "plain"): "scores",
    ("recurrent_gemma", "plain"): "scores, writes",
    ("rwkv", "plain"): "scores, writes",
    ("switch_transformers", "plain"): "",
    ("prophetnet", "plain"): "refused",
}
_USUAL = [("gemma3_text", "window 24"), ("prophetnet", "plain")]


def changes_of(family, variant):
    return dict(variants(family))[variant]


@pytest.mark.parametrize(("family", "variant"), some_of(SAMPLE, _USUAL))
def test_results_are_those_of_each_text_alone(tokenizers, family, variant):
    row = row_of(family, variant, lm_of(family, changes_of(family, variant), tokenizers))
    outcomes = [row.score, row.shared, row.padded, row.sampled]
    expected = SAMPLE[family, variant]
    if expected == "refused":
        assert all(outcome.startswith(f"refused: {row.model} cannot ") for outcome in outcomes)
        return
    assert max(map(float, outcomes)) <= EXACT, row
    assert ("cannot read several candidates" in row.warnings) == ("scores" in expected)
    assert ("generates for" in row.warnings) == ("writes" in expected)
    assert "scores" in expected or row.read <= 1.5


@pytest.mark.parametrize(("family", "variant"), [("gemma3_text", "window 24"), ("qwen3_5_text", "plain")])
@pytest.mark.filterwarnings("ignore:.*cannot read several candidates")
def test_gradients_are_those_of_each_text_alone(tokenizers, family, variant):
    lm = lm_of(family, changes_of(family, variant), tokenizers)
    prompts = [_ids(1, 9), _ids(2, 31)]
    scores, _ = lm._scorer([ScoringQuestion(prompt, CANDIDATES) for prompt in prompts])
    plain = torch.stack([plain_ids_log_probs(lm, p, c).sum() for p in prompts for c in CANDIDATES])
    weights = [weight for weight in lm.parameters() if weight.requires_grad]
    computed, expected = (
        torch.autograd.grad(total.sin().sum(), weights, allow_unused=True) for total in (scores, plain)
    )
    floor = 1e-3 * max(float(gradient.norm()) for gradient in expected if gradient is not None)
    for one, other in zip(computed, expected, strict=True):
        assert (one is None) == (other is None)
        if one is not None and other is not None:
            assert (one - other).norm() <= 1e-3 * max(float(other.norm()), floor)


def test_the_context_of_longrope_is_the_original_one(tokenizers):
    config = tiny_config("llama")
    lm = LanguageModel(tiny_model(tiny_config("llama", **with_rope(config, "longrope"))), tokenizers[False])
    assert lm.max_positions == ORIGINAL
    with pytest.raises(GroundlingError, match=r"prompt 0 has 41 tokens, but this model has room for 40"):
        lm.encode([_ids(1, 41)])


def test_a_prompt_beyond_a_dynamic_context_is_refused(tokenizers):
    lm = lm_of("llama", changes_of("llama", "dynamic 40"), tokenizers)
    with pytest.raises(GroundlingError, match=r"prompt 0 has \d+ tokens, but this model has room for 25\d"):
        lm.score(["red " * 300], ["go"])


def test_attention_spans_come_from_the_config():
    both = Layers.of(tiny_config("gpt_oss", sliding_window=24))
    assert both.spans == {"sliding_attention": 24, "full_attention": None}
    assert (both.others, both.window) == ((), 24)
    assert [both.check_length(length) for length in (24, 25, 300)] == [0, 25, 25]
    assert Layers.of(tiny_config("llama")).spans == {"full_attention": None}
    assert Layers.of(tiny_config("qwen3_next")).others == ("linear_attention",)


def test_masks_of_windows_and_chunks_follow_positions():
    layers = Layers({"full_attention": None, "sliding_attention": 3, "chunked_attention": 4}, ())
    positions = torch.tensor([[0, 1, 2, 3, 4, 4]])  # two rows that both follow position 3
    allowed = torch.ones(6, 6, dtype=torch.bool).tril()[None, None]
    masks = layers.masks(allowed, positions, positions)
    assert torch.equal(masks["full_attention"], allowed)
    assert masks["sliding_attention"][0, 0, 5].tolist() == [False, False, True, True, True, True]
    assert masks["chunked_attention"][0, 0, 5].tolist() == [False, False, False, False, True, True]
    assert layers.masks(allowed[..., :3, :3], positions[:, :3], positions[:, :3]) is not masks


def test_the_page_shows_the_table_and_every_inexact_way_is_announced():
    rows = families.read_table()
    assert len({row.family for row in rows}) >= 60
    assert families.PAGE.read_text() == families.page(rows)
    for row in rows:
        for column, words in families._ANNOUNCED.items():
            text = getattr(row, column)
            if not text.startswith("refused: "):
                assert float(text) <= EXACT or any(word in row.warnings for word in words), row
        if row.read > 1.5:
            assert "cannot read several candidates" in row.warnings, row
