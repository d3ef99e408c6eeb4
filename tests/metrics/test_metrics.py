"""Metrics on examples that were computed by hand or with another library."""

import importlib.util
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from groundling import metrics, rewards
from groundling.envs.text_generation import Sample, tasks
from groundling.errors import ConfigError, GroundlingError, RunError
from groundling.metrics import matching
from groundling.registry import ComponentConfig
from groundling.rewards import RewardPartConfig
from groundling.worlds.writing.collect import reward_inputs
from groundling.worlds.writing.measures import make_measured_reward, make_metrics
from groundling.worlds.writing.world import WritingWorld

WORDS = st.lists(st.sampled_from(["a", "b", "c", "d", "e"]), min_size=1, max_size=12).map(" ".join)


def corpus(id: str, generations: list[str], references: list[list[str]], **args: Any) -> float:
    prompts = args.pop("prompts", [f"p{i}" for i in range(len(generations))])
    meta = args.pop("meta", None)
    figures = metrics.create(id, **args).compute(prompts, generations, references, meta)
    assert len(figures) == 1
    return next(iter(figures.values())).corpus


@given(st.lists(st.tuples(WORDS, WORDS), min_size=1, max_size=4))
def test_bleu_of_one_reference_is_sacrebleus_without_tokeniser_or_smoothing(pairs: list[tuple[str, str]]) -> None:
    from sacrebleu.metrics import BLEU

    generations, references = [g for g, _ in pairs], [r for _, r in pairs]
    wanted = BLEU(tokenize="none", smooth_method="none").corpus_score(generations, [references]).score / 100
    assert corpus("bleu", generations, [[r] for r in references]) == pytest.approx(wanted, abs=1e-12)


def test_bleu_takes_the_shortest_reference_and_the_most_matches_of_any() -> None:
    # Five words; one reference contains "a b c d" and the other "b c d e", so all n-grams but the 5-gram match.
    assert corpus("bleu", ["a b c d e"], [["a b c d", "b c d e f g h"]]) == 1.0
    assert corpus("bleu", [""], [["a"]]) == corpus("bleu", ["a"], [[""]]) == 0.0


@pytest.mark.parametrize("id", ["sacre_bleu", "chrf", "ter"])
def test_samples_may_have_different_numbers_of_references(id: str) -> None:
    generations = ["the cat sat on the mat", "a dog ran over the hill today"]
    ragged = [["the cat sat on a mat", "the cat sat on the mat"], ["a dog ran over the hill"]]
    full = [ragged[0], ragged[1] * 2]  # a repeated reference changes only the mean length in TER
    assert corpus(id, generations, ragged) == pytest.approx(corpus(id, generations, full), abs=1e-9)


def test_rouge_of_a_corpus_is_the_mean_and_compat_keeps_numpys_state() -> None:
    import numpy as np

    args = (["p", "q"], ["a b", "a"], [["a b"], ["b"]])
    assert metrics.create("rouge").compute(*args)["lexical/rouge_rouge1"].corpus == 0.5
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    metrics.create("rouge", compat="rl4lms").compute(*args)
    assert (np.random.get_state()[1] == before).all()  # noqa: NPY002


def test_rouge_l_max_takes_the_best_reference_and_stems() -> None:
    assert corpus("rouge_l_max", ["the dogs barked"], [["x", "the dog barks"]]) == 1.0
    # Two of four words in common, in the same order: precision and recall 1/2, to the power of 1 / 1.2.
    assert corpus("rouge_l_max", ["a b c d"], [["a x b y"]]) == pytest.approx(0.5 ** (1 / 1.2))
    assert corpus("rouge_l_max", ["a b c d"], [["a x b y"]], weight_factor=1.0) == pytest.approx(0.5)
    assert corpus("rouge_l_max", ["a b c d"], [["a b y z"]], length_limit=2) == 1.0


def test_cider_by_hand() -> None:
    # Three documents; "a" is in two of them, all other words in one: idf(a) = log 3/2, others log 3.
    generations, references = ["a b", "c d e f", "g"], [["a b"], ["c d e f"], ["a"]]
    assert corpus("cider", generations, references) == pytest.approx((5 + 10 + 0) / 3)
    scores = metrics.create("cider").compute(["p"] * 3, generations, references)["lexical/cider"].sentences
    assert scores == pytest.approx([5, 10, 0])  # "a b" matches in two of four orders
    # For "a x": cosine of unigrams idf(a)² / (√(idf(a)² + idf(x)²) √(idf(a)² + idf(b)²)), x unseen: idf log 3.
    low, high = math.log(3 / 2) ** 2, math.log(3) ** 2
    scores = metrics.create("cider").compute(["p"] * 3, ["a x", "c", "g"], references)["lexical/cider"].sentences
    assert scores is not None and scores[0] == pytest.approx(10 * low / (low + high) / 4)
    # "c" for "c d e f": unigram cosine 1/2, three words shorter.
    assert scores[1] == pytest.approx(10 * 0.5 / 4 * math.exp(-9 / 72))
    # "a a a" for "a": clipped cosine 1/3, two words longer.
    scores = metrics.create("cider").compute(["p", "q"], ["a a a", "b"], [["a"], ["b"]])["lexical/cider"].sentences
    assert scores == pytest.approx([10 / 4 / 3 * math.exp(-4 / 72), 10 / 4])


def test_cider_keeps_samples_with_equal_prompts() -> None:
    args = (["p", "p", "q"], ["x", "a b", "c"], [["y"], ["a b"], ["c"]])
    assert metrics.create("cider").compute(*args)["lexical/cider"].sentences == pytest.approx([0, 5, 2.5])
    collapsed = metrics.create("cider", compat="rl4lms").compute(*args)["lexical/cider"]
    assert collapsed.sentences == pytest.approx([5, 5, 2.5])  # one for each sample
    assert collapsed.corpus == pytest.approx((5 + 2.5) / 2)
    assert corpus("cider", ["a", "b"], [[""], [""]]) == 0.0


def test_cider_of_one_prompt_needs_a_corpus() -> None:
    group = (["p", "p"], ["a b", "c"], [["a b"], ["a b"]])
    for samples in (group, tuple(column[:1] for column in group)):
        with pytest.raises(RunError, match=r"prompts other than 'p': set corpus="):
            metrics.create("cider").compute(*samples)
        assert metrics.create("cider", compat="rl4lms").compute(*samples)["lexical/cider"].corpus == 0
    # Each word is in one of three documents, so its idf is log 3; "a b" has two of four orders.
    corpus = [["a b"], ["c"], ["d"]]
    assert metrics.create("cider", corpus=corpus).compute(*group)["lexical/cider"].sentences == [5, 0]
    assert rewards.create("cider", corpus=corpus)(*group).tolist() == [5, 0]
    with pytest.raises(ConfigError, match="at least two prompts"):
        metrics.create("cider", corpus=corpus[:1])


def test_cider_takes_document_frequencies_from_the_whole_split() -> None:
    split = [Sample(str(i), f"p{i}", (text,)) for i, text in enumerate(["a b", "a c", "d e", "a b"])]
    batch = (["p0", "p1"], ["a x", "a c"], [["a b"], ["a c"]])
    # Four documents: "a" is in three, "b" in two, and "x" in none, which has the same weight as in one.
    a, b, x = math.log(4 / 3), math.log(2), math.log(4)
    wanted = 10 * a * a / math.hypot(a, x) / math.hypot(a, b) / 4
    metric = metrics.create("cider")
    metric.read_corpus(split)
    for samples in (batch, tuple(column[:1] for column in batch)):
        scores = metric.compute(*samples)["lexical/cider"].sentences
        assert scores is not None and scores[0] == pytest.approx(wanted)
    for id, args in (("cider", {}), ("weighted_sum", {"parts": [{"id": "cider"}]})):
        reward = rewards.create(id, **args)
        reward.read_corpus(split)
        assert reward(*(column[:1] for column in batch)).item() == pytest.approx(wanted)


def test_metrics_and_rewards_of_a_pool_read_its_split() -> None:
    split = [Sample(str(i), f"p{i}", (text,)) for i, text in enumerate(["a b", "c", "d"])]
    (metric,) = make_metrics([ComponentConfig(id="cider")], SimpleNamespace(), split)
    assert metric.compute(["p0"], ["a b"], [["a b"]])["lexical/cider"].corpus == 5
    parts: Any = {"cider": RewardPartConfig()}
    world: Any = SimpleNamespace(reward_parts=parts, spec=WritingWorld.offers, device="cpu")
    policy: Any = SimpleNamespace(lm=None)
    reward = make_measured_reward(world, policy, split)
    written = reward_inputs(split[:1] * 2, [["a b"], ["c"]])
    assert reward is not None and reward(written).total.tolist() == [[5, 0]]


def test_parent_reads_tottos_own_tables() -> None:
    cells = [
        [{"value": "Name", "is_header": True}, {"value": "Year", "is_header": True}],
        [{"value": "Ann", "is_header": False}, {"value": "1901", "is_header": False}],
    ]
    table = {"table": cells, "table_page_title": "Queens", "table_section_title": "", "highlighted_cells": [[1, 0]]}
    pairs = [["page", "Queens"], ["name", "Ann"]]
    args = ([""], ["ann of 1901"], [["ann was a queen"]])
    metric = metrics.create("parent_totto")
    results = metric.compute(*args, [{"raw_table": table}])
    assert results == metric.compute(*args, [{"raw_table": pairs}])
    everything = metric.compute(*args, [{"raw_table": table | {"highlighted_cells": []}}])
    precision = "table_to_text/parent_overall_precision"
    assert everything[precision].corpus > results[precision].corpus  # the table now entails 1901
    for meta in (None, [{}], [{"raw_table": "x"}], [{"raw_table": []}]):
        with pytest.raises(RunError, match="raw_table"):
            metric.compute(*args, meta)


def test_diversity_counts() -> None:
    figures = metrics.create("diversity", window_size=2).compute(["p", "q"], ["A a b!", "c"], [[], []])
    figure = {name.removeprefix("diversity_metrics/"): result.corpus for name, result in figures.items()}
    assert figure["total_length"] == 5 and figure["total_length-nopunct"] == 4
    assert figure["vocab_size-1"] == 4 and figure["unique-1"] == 3 and figure["distinct-1"] == 4 / 5
    assert figure["entropy-1"] == pytest.approx(0.4 * math.log2(2.5) + 0.6 * math.log2(5))
    assert figure["vocab_size-2"] == 3 and figure["entropy-2"] == pytest.approx(math.log2(3))
    assert figure["msttr-2"] == 0.75  # "a a", "b !", and the remaining "c"
    assert figure["msttr-2_nopunct"] == 0.75
    assert figure["median_pred_length"] == 2.5 and figure["std_pred_length"] == 1.5


@pytest.mark.usefixtures("with_wordnet")
def test_meteor_is_of_the_best_reference() -> None:
    assert corpus("meteor", ["a small cat"], [["x y", "a little cat"]]) == corpus(
        "meteor", ["a small cat"], [["a little cat"]]
    )
    assert corpus("meteor", ["hello"], [["hello"]]) == 0.5  # one match, one chunk: penalty 1/2
    assert corpus("meteor", ["hello"], [["hello"]], compat="rl4lms") == 0.0


def test_words_are_those_of_nltk_3_7() -> None:
    assert tasks.words("['hello', 'a b']") == ["[", "'hello", "'", ",", "'", "a", "b", "'", "]"]
    assert tasks.words("one—two") == ["one—two"]
    assert tasks.words("I can't go. She'll go.") == ["I", "ca", "n't", "go.", "She", "'ll", "go", "."]


def test_invalid_input_is_an_error() -> None:
    for id in ("meteor", "rouge", "sacre_bleu", "parent_totto"):
        with pytest.raises(RunError, match=r"sample 1 has none \(prompt 'q'\)"):
            metrics.create(id).compute(["p", "q"], ["a", "b"], [["a"], []], [{}, {}])
    with pytest.raises(RunError, match="1 prompts, 2 generations, 1 references"):
        metrics.create("dates").compute(["p"], ["a", "b"], [[]])
    with pytest.raises(RunError, match="no sample"):
        metrics.create("dates").compute([], [], [])
    for id, args in (
        ("increasing_numbers", {"min_tokens": 0}),
        ("rouge", {"single": True}),
        ("rouge", {"compat": "rl4lm"}),
        ("chrf", {"char_order": -1}),
        ("parent_totto", {"lambda_weight": 2}),
        ("rouge_l_max", {"length_limit_type": "letters"}),
        ("sacre_bleu", {"smooth_method": "some"}),
    ):
        with pytest.raises(ConfigError, match=next(iter(args))):
            metrics.create(id, **args)


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def ensure_loaded() -> None:
        raise LookupError

    find_spec = importlib.util.find_spec
    libraries = {"cider": "spacy", "rouge": "rouge_score", "ter": "sacrebleu", "bert_score": "bert_score"}
    for id, name in (libraries | {"diversity": "nltk", "meteor": "nltk"}).items():
        with monkeypatch.context() as patch:
            patch.setattr("importlib.util.find_spec", lambda n, *a, name=name: None if n == name else find_spec(n, *a))
            with pytest.raises(
                GroundlingError, match=rf"{name} is not installed: pip install 'groundling\[metrics\]'"
            ):
                metrics.create(id).check()
    corpora = SimpleNamespace(wordnet=SimpleNamespace(ensure_loaded=ensure_loaded))
    monkeypatch.setattr(matching, "library", lambda module: corpora)
    monkeypatch.setattr(matching, "DEBIAN_WORDNET", Path("nowhere"))
    with pytest.raises(GroundlingError, match=r"nltk\.downloader wordnet, or apt install wordnet-base"):
        matching.wordnet.__wrapped__()
    monkeypatch.setenv("PATH", "")
    with pytest.raises(GroundlingError, match="needs Java and pycocoevalcap"):
        corpus("spice", ["a"], [["a"]])
