"""Lexical metrics on non-ASCII texts, and their committed table (benchmarks/metric_scripts.py)."""

import csv
import importlib.util
import unicodedata
from pathlib import Path
from typing import Any

import pytest

from groundling import metrics
from groundling.errors import RunError
from groundling.metrics.summac import _sentences
from groundling.metrics.tokens import alphanumeric, spaced, three_sentence_summary

ROOT = Path(__file__).parents[2]


def _load() -> Any:
    spec = importlib.util.spec_from_file_location("metric_scripts", ROOT / "benchmarks" / "metric_scripts.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


TABLE = _load()
TEXTS = TABLE.TEXTS


def _committed() -> dict[tuple[str, str], list[float]]:
    with (ROOT / "results" / "metrics" / "scripts.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    return {(row["metric"], row["language"]): [float(row[case]) for case in TABLE.CASES] for row in rows}


def test_the_committed_table_has_figures_of_every_metric_and_language() -> None:
    assert list(_committed()) == [(TABLE.label(f), language) for f in TABLE.FIGURES for language in TEXTS]


@pytest.mark.parametrize("figure", TABLE.FIGURES, ids=TABLE.label)
def test_equal_texts_are_best_and_every_changed_word_counts(figure: Any, request: pytest.FixtureRequest) -> None:
    if figure.id == "meteor":
        request.getfixturevalue("with_wordnet")
    committed = _committed()
    for language in TEXTS:
        equal, changed, other = TABLE.measure(figure, language)
        assert [equal, changed, other] == pytest.approx(committed[TABLE.label(figure), language], abs=1e-3)
        if figure.id == "diversity":
            assert equal < changed < other <= 1
        else:
            assert equal == pytest.approx(figure.best, abs=1e-3), language
            assert abs(figure.best - equal) < abs(figure.best - changed) <= abs(figure.best - other), language


@pytest.mark.parametrize("id", ["rouge", "rouge_l_max"])
def test_rouge_with_compat_keeps_the_originals_figures_and_warns(id: str) -> None:
    for text, other, wanted in ((*TEXTS["Russian"][:2], 0.0), (*TEXTS["French"][:2], 1.0)):
        metric = metrics.create(id, compat="rl4lms")
        with pytest.warns(UserWarning, match="drops letters other than a to z"):
            results = metric.compute(["p", "p"], [text, other], [[text], [text]])
        assert next(iter(results.values())).sentences == [wanted, wanted]


def test_ascii_words_are_those_of_rouge() -> None:
    from rouge_score import tokenize

    text = "".join(map(chr, range(128))) + " Don't stop-gap 3.5% of_it"
    assert alphanumeric(text) == tokenize.tokenize(text, None)
    assert spaced(text) == text


def test_combining_marks_stay_with_their_letters() -> None:
    assert alphanumeric("हिन्दी में") == ["हिन्दी", "में"]
    assert spaced("ที่นี่").split() == ["ที่", "นี่"]
    assert alphanumeric("می\u200cخواهم، نه؟") == ["میخواهم", "نه"]
    assert spaced("هل؟ نعم،").split() == ["هل", "؟", "نعم", "،"]
    assert spaced("ที่\u200dนี่").split() == ["ที่\u200d", "นี่"]
    assert spaced("ខ្ញុំ\u200bទៅ").split() == ["ខ្", "ញុំ", "ទៅ"]


@pytest.mark.parametrize("text", ["ꦲꦏ꧀ꦱꦫꦗꦮ", "ꆈꌠꁱꂷ", "ᨠᩣᩴᨾᩮᩬᩥᨦᨠᩣ"])
def test_characters_of_rarer_scripts_without_spaces_are_words(text: str) -> None:
    for id, name in (("rouge", "lexical/rouge_rouge2"), ("bleu", "lexical/bleu"), ("ter", "lexical/ter")):
        assert metrics.create(id).compute(["p"], [text], [[text]])[name].corpus == float(id != "ter")


def test_composed_and_decomposed_accents_are_one_text() -> None:
    text = TEXTS["French"][0]
    decomposed = unicodedata.normalize("NFD", text)
    for id, name in (("rouge", "lexical/rouge_rouge2"), ("chrf", "lexical/chrf"), ("bleu", "lexical/bleu")):
        assert metrics.create(id).compute(["p"], [decomposed], [[text]])[name].corpus == pytest.approx(1)


def test_sacre_bleu_splits_chinese_as_its_own_tokenizer_does() -> None:
    text, changed, _ = TEXTS["Chinese"]
    samples = (["p"], [f"{changed} OK, 3.5"], [[f"{text} OK, 3.6"]])
    assert metrics.create("sacre_bleu").compute(*samples) == metrics.create("sacre_bleu", tokenize="zh").compute(
        *samples
    )
    with pytest.warns(UserWarning, match="one word, as RL4LMs does"):
        whole = metrics.create("sacre_bleu", compat="rl4lms").compute(*samples)
    assert whole["lexical/sacrebleu"].corpus < 0.5


def test_diversity_drops_punctuation_of_every_script() -> None:
    results = metrics.create("diversity").compute(["p"], ["大鱼。"], [[]])
    assert results["diversity_metrics/total_length"].corpus == 3
    assert results["diversity_metrics/total_length-nopunct"].corpus == 2


def test_sentences_end_in_every_script() -> None:
    assert _sentences("男孩今天抓到鱼。他很高兴吗？嗯。") == ["男孩今天抓到鱼。", "他很高兴吗？"]
    assert _sentences("هل الولد سعيد؟ نعم هو سعيد جدا.") == ["هل الولد سعيد؟", "نعم هو سعيد جدا."]
    assert three_sentence_summary("一。二！三？四。") == "一。\n二！\n三？"


def test_spice_refuses_texts_that_are_not_english() -> None:
    with pytest.raises(RunError, match="SPICE only parses English and found no words in 'рыба'"):
        metrics.create("spice").compute(["p"], ["рыба"], [["fish"]])
