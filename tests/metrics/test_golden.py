"""Values recorded from RL4LMs, and the values that it intended."""

import math
from typing import Any

import pytest

from groundling import metrics
from groundling.errors import RunError
from groundling.metrics import MetricResult
from tests.metrics.conftest import golden

CALLS: dict[str, tuple[str, dict[str, Any]]] = {
    "rouge_multi": ("rouge", {"use_single_ref": False}),
    "sacre_bleu_intl": ("sacre_bleu", {"tokenize": "intl"}),
    "diversity_w10": ("diversity", {"window_size": 10}),
}
"""Golden names that stand for an id with arguments."""
SINGLES = golden("single")
BY_ID = {case["id"]: case for case in SINGLES}
FAULTY = ("meteor", "rouge", "rouge_multi", "bleu", "cider")
"""Metrics whose default values differ from the original's."""
ASCII = [case for case in SINGLES if case["id"] not in (19, 54)]
"""Cases without Chinese (19) and accents written in two ways (54), which the original compares incorrectly."""


def measured(name: str, case: dict[str, Any], compat: str | None) -> dict[str, MetricResult]:
    id, args = CALLS.get(name, (name, {}))
    metric = metrics.create(id, compat=compat, **args)
    return metric.compute([case["prompt"]], [case["generation"]], [case["references"]])


def agrees(result: MetricResult, sentences: list[float] | None, corpus: float | str) -> bool:
    wanted = math.nan if corpus == "n/a" else corpus
    same = result.corpus == pytest.approx(wanted, abs=1e-9, nan_ok=True)
    return same and (sentences is None or result.sentences == pytest.approx(sentences, abs=1e-9))


@pytest.mark.parametrize("name", sorted(SINGLES[0]["metrics"]))
def test_compat_gives_the_figures_of_the_original(name: str, request: pytest.FixtureRequest) -> None:
    if name == "meteor":
        request.getfixturevalue("with_wordnet")
    for case in SINGLES:
        wanted = case["metrics"][name]
        if "error" in wanted:
            with pytest.raises(RunError):
                measured(name, case, "rl4lms")
            continue
        results = measured(name, case, "rl4lms")
        assert set(results) == set(wanted), case["id"]
        for key, figures in wanted.items():
            assert agrees(results[key], *figures), (case["id"], key, results[key], figures)


@pytest.mark.parametrize("name", sorted(set(SINGLES[0]["metrics"]) - set(FAULTY)))
def test_the_default_gives_the_originals_correct_figures(name: str) -> None:
    for case in ASCII:
        results = measured(name, case, None)
        for key, figures in case["metrics"][name].items():
            assert agrees(results[key], *figures), (case["id"], key, results[key], figures)


@pytest.mark.usefixtures("with_wordnet")
def test_the_defaults_of_meteor_and_rouge_are_what_the_original_intended() -> None:
    for intended in golden("intended"):
        if (case := BY_ID.get(intended["id"])) in ASCII:
            results = measured("meteor", case, None) | measured("rouge", case, None)
            assert results["lexical/meteor"].corpus == pytest.approx(intended["meteor_max"], abs=1e-9), case
            for name, figure in intended["rouge_max"].items():
                assert results[f"lexical/rouge_{name}"].corpus == pytest.approx(figure, abs=1e-9), case


def test_synthetic_tasks() -> None:
    for case in golden("increasing_numbers"):
        metric = metrics.create("increasing_numbers", min_tokens=case["min_tokens"])
        result = metric.compute([""], [case["text"]], [[]])["synthetic/increasing_numbers_in_text"]
        assert result.corpus == pytest.approx(case["value"], abs=1e-12), case
    for case in golden("dates"):
        results = metrics.create("dates").compute([""], [case["text"]], [[]])
        assert results["synthetic/dates_in_text"].corpus == case["value"], case


@pytest.mark.parametrize("case", golden("parent"), ids=lambda case: case["generation"])
def test_parent(case: dict[str, Any]) -> None:
    metric = metrics.create("parent_totto", lambda_weight=case["lambda_weight"], smoothing=case["smoothing"])
    results = metric.compute([""], [case["generation"]], [case["references"]], [{"raw_table": case["table"]}])
    for name in ("precision", "recall", "f_score"):
        assert results[f"table_to_text/parent_overall_{name}"].corpus == pytest.approx(case[name], abs=1e-12)
