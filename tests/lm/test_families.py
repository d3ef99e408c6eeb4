"""A sample of model families against each text alone; all of them: docs/families.md."""

import warnings

import pytest
import torch
from scripts import families

from groundling.errors import GroundlingError
from groundling.lm.read.batching import ScoringQuestion
from groundling.lm.read.layers import Layers
from groundling.lm.write.decoding import Decoder
from groundling.lm.write.sampling import Sampling
from groundling.policies.text_states import Sequences, read_states
from tests.lm.reference import plain_ids_log_probs
from tests.lm.tiny import ORIGINAL, tiny_config
from tests.lm.truth import CANDIDATES, EXACT, _ids, lm_of, row_of, variants
from tests.thorough import some_of

# Which of scoring and generation is announced as slower, by family and variant.
SAMPLE = {
    ("llama", "longrope 40"): "writes",
    ("phi3", "longrope 40"): "writes",
    ("lfm2", "longrope 40"): "scores, writes",
    ("llama", "dynamic 40"): "",
    ("gpt_oss", "window 24"): "",
    ("gemma3_text", "window 24"): "",
    ("llama4_text", "window 24"): "",
    ("modernbert-decoder", "window 24"): "",
    ("qwen3_5_text", "plain"): "",
    ("mamba", "plain"): "",
    ("bloom", "plain"): "",
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
    assert ("generates for" in row.warnings or "reads the whole text again" in row.warnings) == ("writes" in expected)
    assert "scores" in expected or row.read <= 1.5


@pytest.mark.parametrize(
    ("family", "variant", "way"),
    [
        ("gemma3_text", "window 24", "tree"),
        ("qwen3_5_text", "plain", "after"),
        ("mamba2", "plain", "after"),
        ("mamba", "plain", "lines"),  # its steps overwrite states that gradients need
    ],
)
def test_gradients_are_those_of_each_text_alone(tokenizers, family, variant, way):
    lm = lm_of(family, changes_of(family, variant), tokenizers)
    prompts = [_ids(1, 9), _ids(2, 31)]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            scores, _ = lm._scorer([ScoringQuestion(prompt, CANDIDATES) for prompt in prompts])
    assert lm._scorer.way_at(34) == way
    assert sum("no gradients" in str(warning.message) for warning in caught) == (2 if way == "lines" else 0) / 2
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


def test_texts_on_both_sides_of_a_context_are_read_separately(tokenizers):
    lm = lm_of("llama", changes_of("llama", "longrope 40"), tokenizers)
    lines = [_ids(1, 12), _ids(2, 60), _ids(3, 39), _ids(4, 41)]
    counts = [3, 5, 2, 4]
    with torch.no_grad():
        together = read_states(
            lm, Sequences([line[:1] for line in lines], [line[1:] for line in lines], counts)
        ).split(counts)
        for line, count, states in zip(lines, counts, together, strict=True):
            alone = lm.backbone.body(input_ids=torch.tensor([line])).last_hidden_state[0, -count:]
            torch.testing.assert_close(states, alone, atol=1e-5, rtol=1e-5)


def test_rollouts_do_not_cross_a_context(tokenizers):
    lm = lm_of("llama", changes_of("llama", "longrope 40"), tokenizers)
    uniforms = torch.rand(1, 4, dtype=torch.float64)
    with pytest.raises(GroundlingError, match=r"prompt 0 has 38 tokens.*beyond 40 tokens.*max_prompt_length"):
        Decoder(lm)([_ids(1, 38)], Sampling(), uniforms)
    Decoder(lm)([_ids(1, 37)], Sampling(), uniforms)  # the last token is never read


def test_a_prompt_beyond_a_dynamic_context_is_refused(tokenizers):
    lm = lm_of("llama", changes_of("llama", "dynamic 40"), tokenizers)
    with pytest.raises(GroundlingError, match=r"prompt 0 has \d+ tokens, but this model has room for 25\d"):
        lm.score(["red " * 300], ["go"])


def test_attention_spans_come_from_the_config():
    both = Layers.of(tiny_config("gpt_oss", sliding_window=24))
    assert both.spans == {"sliding_attention": 24, "full_attention": None}
    assert (both.others, both.switches, both.window) == ((), (), 24)
    assert [both.check_length(length) for length in (24, 25, 300)] == [0, 25, 25]
    assert Layers.of(tiny_config("llama")).spans == {"full_attention": None}
    assert Layers.of(tiny_config("qwen3_next")).others == ("linear_attention",)
    stretched = Layers.of(tiny_config("llama", **changes_of("llama", "longrope 40")))
    assert stretched.switches == (ORIGINAL,)
    assert [stretched.stage(length) for length in (40, 41)] == [0, 1]
    assert [stretched.switch_between(*ends) for ends in ((39, 40), (40, 41), (41, 90))] == [0, 40, 0]


def test_masks_of_windows_and_chunks_follow_positions():
    layers = Layers({"full_attention": None, "sliding_attention": 3, "chunked_attention": 4}, (), ())
    positions = torch.tensor([[0, 1, 2, 3, 4, 4]])  # two rows that both come after position 3
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
