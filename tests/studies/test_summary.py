"""Summaries of arms: common suites, differences, changes."""

import pytest

from groundling.studies.page import SHARED, Score, by_arm, changes, differences, rows_of, shared_suites, with_shared


def _score(arm: str, seed: int, suite: str, success: float, agent: str = "trained") -> Score:
    return Score(arm, seed, agent, suite, "all", 10, success, 0.0, 1.0, None, None, None, None)


def test_a_difference_in_one_suite_is_no_outlier() -> None:
    suites = ["a", "b", "c", "d"]
    plain = [_score("plain", seed, suite, 0.2) for seed in range(5) for suite in suites]
    better = [_score("better", seed, suite, 0.8 if suite == "c" else 0.2) for seed in range(5) for suite in suites]
    table = with_shared(differences(by_arm([*plain, *better]), "plain"), suites)
    assert {row.suite: row.estimate.value for row in rows_of("difference", table)} == pytest.approx(
        {"a": 0, "b": 0, "c": 0.6, "d": 0, SHARED: 0.15}
    )


def test_a_suite_in_which_an_agent_fails_counts_as_much_as_the_others() -> None:
    by_suite = {"a": 0.9, "b": 0.9, "c": 0.1, "d": 0.9, "control": 0.0}
    scores = [_score("one", seed, suite, value) for seed in range(5) for suite, value in by_suite.items()]
    success = by_arm(scores)
    table = with_shared(success, shared_suites(success, ["control"], ()))
    assert {row.suite: row.estimate.value for row in rows_of("success", table)} == pytest.approx(
        {**by_suite, SHARED: 0.7}
    )


def test_arms_with_their_own_suites_do_not_decide_which_are_shared() -> None:
    scores = [_score(arm, 1, suite, 0.5) for arm in ("one", "other") for suite in ("a", "b")]
    scores += [_score("costly", 1, "a", 0.4), _score("one", 1, "c", 0.1), _score("bot", 1, "c", 1.0, "expert")]
    success = by_arm(scores)
    assert shared_suites(success, (), ["costly"]) == ["a", "b"]
    assert shared_suites(success, (), ()) == ["a"]
    assert shared_suites(success, (), ["costly", "one", "other"]) == ["a"]
    table = with_shared(success, ["a", "b"])
    assert SHARED in table["other", "trained"] and SHARED not in table["costly", "trained"]


def test_a_change_is_that_of_the_same_agent() -> None:
    usual = [_score("one", seed, "held-out", 0.5 + seed / 10) for seed in range(3)]
    other = [_score("one", seed, "french", 0.2 + seed / 10) for seed in (0, 2, 3)]  # seed 3 has no usual suite
    before = [_score("one", seed, suite, 0.1, "zero-shot") for seed in range(3) for suite in ("held-out", "french")]
    scores = [*usual, *other, *before, _score("two", 0, "french", 0.3)]
    (row,) = rows_of("change", changes(by_arm(scores), "held-out"))
    assert (row.arm, row.suite, row.seeds) == ("one", "french", 2)
    assert [row.estimate.value, row.estimate.low, row.estimate.high] == pytest.approx([-0.3] * 3)
