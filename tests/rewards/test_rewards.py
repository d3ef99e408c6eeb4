"""Rewards of texts: metrics, sums, tokens, functions, and their errors."""

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from groundling import metrics, rewards
from groundling.errors import ConfigError, RunError
from groundling.metrics import Metric, MetricResult
from groundling.metrics.bleu import Spice
from groundling.rewards import GeneratedTexts, Reward, RewardInputs, TextPart, TokenReward
from groundling.rewards.composite import WeightedSum
from tests.thorough import THOROUGH

BATCH: tuple[list[str], list[str], list[list[str]]] = (["p", "q"], ["1 2 3", "2020-01-31"], [["1 2 3"], ["x"]])


@dataclass(kw_only=True)
class Given(Reward):
    """Returns its argument."""

    values: Any

    def score(self, *samples: Any) -> Any:
        return self.values


@dataclass(kw_only=True)
class Longer(TokenReward):
    """The number of characters that each token adds; plus 100 at the end."""

    def at_token(
        self, prompt: str, previous: str, current: str, done: bool, references: Sequence[str], meta: Any
    ) -> float:
        return len(current) - len(previous) + 100 * done


@dataclass(kw_only=True)
class Repeats(TokenReward):
    """-1 for a token whose id occurred before, 10 for id 7."""

    def at_token(self, *_: Any, action: int | None = None, tokens: Sequence[int] = ()) -> float:
        assert action is None or action == tokens[-1]
        return 10.0 * (action == 7) - float(action in tokens[:-1])


def test_a_token_reward_gets_ids() -> None:
    texts = GeneratedTexts(["p", "q"], [["a", "aa", "aab"], ["b"]], [[], []], [{}, {}], [[1, 1, 7], [7]])
    wanted = [[0.0, -1.0, 10.0], [10.0, 0.0, 0.0]]
    for reward in (Repeats(), WeightedSum(parts=[(Repeats(), 1.0)])):
        part = TextPart(reward)
        assert part.rewards(RewardInputs.of_texts(texts)).T.tolist() == wanted
    assert Repeats()(["p"], ["aab"], [[]]).tolist() == [0.0]  # a whole text has no id
    both = WeightedSum(parts=[(Repeats(), 1.0), (Longer(), 1.0)])  # one of the rewards does not use ids
    assert TextPart(both).rewards(RewardInputs.of_texts(texts)).T.tolist() == [[1.0, 0.0, 111.0], [111.0, 0.0, 0.0]]


def test_every_metric_is_a_reward_and_every_reward_a_metric() -> None:
    assert set(metrics.metrics) < set(rewards.rewards) == set(rewards.measures)
    for id in rewards.rewards:
        known = inspect.signature(rewards.rewards.get(id)).parameters
        assert "shaping_fn" in known, id
        if id in metrics.metrics and id not in ("rouge", "intent_accuracy"):  # these rewards differ from the metrics
            assert {"key", "scale", "offset"} <= set(known), id
    measure = rewards.measures.create("rouge_combined")
    assert measure.compute(["p", "q"], ["a b", "x"], [["a b"], ["a b"]]) == {
        "reward/rouge_combined": MetricResult(0.5, [1.0, 0.0])
    }


def test_one_of_several_figures_must_be_named() -> None:
    with pytest.raises(ConfigError, match="several values: set key to one of"):
        rewards.create("diversity")(*BATCH)
    distinct = rewards.create("diversity", key="diversity_metrics/distinct-1")(["p"], ["a a b"], [[]])
    assert distinct.item() == pytest.approx(2 / 3)
    with pytest.raises(ConfigError, match="did you mean 'diversity_metrics/distinct-1'"):
        rewards.create("diversity", key="diversity_metrics/distnct-1")(*BATCH)


def test_figures_are_scaled() -> None:
    ter = metrics.create("ter").compute(["p"], ["a b c"], [["a b"]])["lexical/ter"].corpus
    both = rewards.create("ter")(["p", "q"], ["a b c", "a b"], [["a b"], ["a b"]])  # each is a separate corpus
    assert both.tolist() == pytest.approx([1 - ter, 1]) == [0.5, 1]
    lengths = rewards.create("diversity", key="diversity_metrics/total_length", scale=-0.5, offset=2.0)
    assert lengths(["p"], ["a b c"], [[]]).item() == 0.5


def test_rouge_rewards() -> None:
    args = (["p"], ["a b c"], [["x", "a b"]])
    values = {name: rewards.create("rouge", rouge_type=name)(*args).item() for name in ("rouge1", "rouge2", "rougeL")}
    assert values == pytest.approx({"rouge1": 0.8, "rouge2": 2 / 3, "rougeL": 0.8})
    assert rewards.create("rouge_combined")(*args).item() == pytest.approx(sum(values.values()) / 3)
    assert rewards.create("rouge", use_single_ref=True)(*args).item() == 0.0
    with pytest.raises(ConfigError, match="rouge_type must be one of"):
        rewards.create("rouge", rouge_type="rouge3")


def test_saying_the_reference_is_rewarded_once() -> None:
    reward = rewards.create("says_reference")
    texts = [
        [" turn", " turn left", " turn left ", " turn left on"],  # whitespace is ignored, later tokens have no reward
        ["turn", "turn right"],
        ["turn lefty"],
        ["turn left"],
    ]
    prompts, references = ["Say it"] * 4, [["turn left", "go left"]] * 4
    expected = [[0, 1, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0], [1, 0, 0, 0]]
    assert reward.at_tokens(prompts, texts, references).tolist() == expected
    assert reward(prompts, [text[-1] for text in texts], references).tolist() == [0, 0, 0, 1]
    assert reward.needs_references


def test_spider_weighs_spice_and_cider(monkeypatch: pytest.MonkeyPatch) -> None:
    def spice(self: Metric, prompts: Any, generations: Any, references: Any, meta: Any) -> dict[str, MetricResult]:
        return {"lexical/spice": MetricResult(0.5, [0.25, 0.75])}

    monkeypatch.setattr(Spice, "measure", spice)
    cider = metrics.create("cider").compute(*BATCH)["lexical/cider"].sentences or []
    scores = rewards.create("spider", spice_coeff=2.0, cider_coeff=0.1)(*BATCH)
    assert scores.tolist() == pytest.approx([0.5 + 0.1 * cider[0], 1.5 + 0.1 * cider[1]])


@pytest.mark.parametrize(
    ("generation", "penalty"),
    [
        ("A dog runs on a field.", 0),
        ("Dog run field is what", -1),
        ("now Generate it", -1),
        ("the sentence is", -1),
        ("the concepts ball throw here", -1),
        ("", 0),
    ],
)
def test_repeating_the_prompt_costs_one(generation: str, penalty: int) -> None:
    reward = rewards.create("common_gen_repeat_penalty")
    prompt = "generate a sentence with: dog run field."
    assert reward([prompt], [generation], [[]], [{"concepts": ["ball", "throw"]}]).item() == penalty
    assert reward(["p3"], ["anything"], [[]]).item() == 0


def test_a_weighted_sum_of_rewards() -> None:
    parts = [
        {"id": "increasing_numbers", "args": {"min_tokens": 6}, "weight": 2.0},
        {"id": "sentences_with_dates"},
        {"id": "ter", "weight": -1},
    ]
    assert rewards.create("weighted_sum", parts=parts)(*BATCH).tolist() == pytest.approx([2 + 0 - 1, 0 + 1 - 0])
    shaped = rewards.create("increasing_numbers", min_tokens=6, shaping_fn={"id": "dates", "weight": 0.5})
    assert shaped(*BATCH).tolist() == [1, 0.5]
    strange = ([{"id": "ter", "weight": weight}] for weight in ("much", float("nan")))
    for wrong in ([], 5, {"id": "ter"}, [{"id": "ter", "factor": 1}], [5], *strange):
        with pytest.raises(ConfigError, match=r"weighted_sum|parts must be a list"):
            rewards.create("weighted_sum", parts=wrong)


def test_a_sum_is_per_token_if_a_part_is() -> None:
    both = WeightedSum(parts=[(Longer(), 1.0), (Given(values=[10.0, 20.0]), 0.5)])
    assert both.per_token and Longer()(["p", "q"], ["abc", "xy"], [[], []]).tolist() == [103, 102]
    token_rewards = both.at_tokens(["p", "q"], [["a", "abc"], ["x"]], [[], []])
    assert token_rewards.tolist() == [[1, 102 + 5], [101 + 10, 0]]
    assert both(["p", "q"], ["abc", "x"], [[], []]).tolist() == [108, 111]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([1.0], "Given returned the wrong number of rewards: expected 2, got 1"),
        ([[1.0], [2.0]], r"got 2 x 1"),
        ([1.0, float("nan")], r"Given returned nan at index 1: rewards must be finite"),
        (torch.tensor([float("inf"), 0]), r"Given returned inf at index 0"),
    ],
)
def test_an_invalid_reward_is_an_error_in_one_line(values: Any, message: str) -> None:
    with pytest.raises(RunError, match=message):
        Given(values=values)(*BATCH)


def test_a_users_metric_is_a_reward_and_a_users_reward_a_metric() -> None:
    """Constructors do not need ``compat``."""

    class Scaled(Given):
        def __init__(self, k: int = 1) -> None:
            super().__init__(values=[1.0 * k])

    class Times(Metric):
        def __init__(self, k: int = 1) -> None:
            super().__init__()
            self.k = k

        def measure(self, prompts: Any, generations: Any, references: Any, meta: Any) -> Any:
            return {"test/times": metrics.mean_of([float(self.k)] * len(generations))}

    rewards.register("test-scaled")(Scaled)
    metrics.register("test-times")(Times)
    for reward in (
        rewards.create("weighted_sum", parts=[{"id": "test-scaled", "args": {"k": 2}}], compat="rl4lms"),
        rewards.create("test-times", k=1, scale=2.0),
        rewards.create("test-times", k=1, shaping_fn="test-times"),
    ):
        assert reward(["a"], ["b"], [[]]).tolist() == [2]
    results = rewards.measures.create("test-scaled", k=3).compute(["a"], ["b"], [[]])
    assert results == {"reward/test-scaled": MetricResult(3.0, [3.0])}


@dataclass(kw_only=True)
class Asked(Reward):
    """The number of earlier calls."""

    times: int = 0

    def score(self, prompts: Sequence[str], generations: Any, references: Any, meta: Any) -> list[float]:
        self.times += 1
        return [self.times - 1.0] * len(prompts)


def test_a_plain_function_is_a_reward() -> None:
    @rewards.register("test-letter-count")
    def letters(prompts, completions, letter: str = "a", weight: float = 1.0, **_):
        return [
            weight * (text.count(letter) - prompt.count(letter))
            for prompt, text in zip(prompts, completions, strict=True)
        ]

    made = rewards.create("test-letter-count", letter="b")
    assert made(["ab", ""], ["bbb", "a"], [[], []]).tolist() == [2.0, 0.0]
    assert letters([""], ["aa"]) == [2.0]  # the decorated function is unchanged
    with pytest.raises(ConfigError, match="reward 'test-letter-count' has an unknown argument 'letters'"):
        rewards.create("test-letter-count", letters="b")
    with pytest.raises(RunError, match="letters returned the wrong number of rewards"):

        @rewards.register("test-none")
        def letters(generations):
            return []

        rewards.create("test-none")([""], ["a"], [[]])


@THOROUGH
def test_a_pool_of_processes_gives_the_same_rewards_and_keeps_the_loaded_reward() -> None:
    pooled = rewards.create("pooled", reward={"id": "ter"}, num_processes=1)
    assert pooled(*BATCH).equal(rewards.create("ter")(*BATCH))
    pooled = rewards.create("pooled", reward=Asked(), num_processes=1)
    assert pooled(["p"] * 12, list("abcdefghijkl"), [[]] * 12).tolist() == [0.0] * 4 + [1.0] * 4 + [2.0] * 4


def test_a_pool_needs_a_reward_of_each_sample_by_itself() -> None:
    shared = {"id": "weighted_sum", "args": {"parts": [{"id": "chrf"}, {"id": "cider"}]}}
    for id in (shared, {"id": "intent_accuracy", "args": {"compat": "rl4lms"}}, Longer()):
        with pytest.raises(ConfigError, match="cannot be pooled"):
            rewards.create("pooled", reward=id)
    for nothing in ({}, {"ter": {}}, {"id": "ter", "arg": 1}, 3):
        with pytest.raises(ConfigError, match="pooled expects a reward as"):
            rewards.create("pooled", reward=nothing)
