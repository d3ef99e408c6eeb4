"""Rewards of texts: metrics, sums, tokens, functions, and their errors."""

import importlib.util
import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from groundling import metrics, rewards
from groundling.errors import ConfigError, GroundlingError, RunError
from groundling.metrics import Metric, MetricResult
from groundling.registry import Registry
from groundling.rewards import GeneratedTexts, Pooled, Reward, RewardInputs, TextPart, TokenReward, WeightedSum
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
    """Characters that each token adds; 100 more at the end."""

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
    both = WeightedSum(parts=[(Repeats(), 1.0), (Longer(), 1.0)])  # one that takes no ids
    assert TextPart(both).rewards(RewardInputs.of_texts(texts)).T.tolist() == [[1.0, 0.0, 111.0], [111.0, 0.0, 0.0]]


def test_every_metric_is_a_reward() -> None:
    assert set(metrics.metrics) <= set(rewards.rewards) and "chrf" in rewards.rewards
    scores = rewards.create("increasing_numbers", min_tokens=6)(*BATCH)
    assert scores.dtype == torch.float32 and scores.tolist() == [1.0, 0.0]


def test_every_reward_is_a_metric() -> None:
    assert set(rewards.measures) == {*metrics.metrics, *rewards.rewards} > set(metrics.metrics)
    assert rewards.measures.get("ter") is metrics.Ter
    measure = rewards.measures.create("rouge_combined")
    assert measure.compute(["p", "q"], ["a b", "x"], [["a b"], ["a b"]]) == {
        "reward/rouge_combined": MetricResult(0.5, [1.0, 0.0])
    }


@pytest.mark.parametrize("registry", [rewards.rewards, rewards.measures])
def test_a_missing_library_is_an_error_of_check(registry: Registry[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    there = importlib.util.find_spec
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name, *a: None if name == "rouge_score" else there(name, *a)
    )
    with pytest.raises(GroundlingError, match=r"rouge_score is not installed"):
        registry.create("rouge_combined").check()


def test_each_sample_is_a_corpus_for_corpus_metrics() -> None:
    both = rewards.create("chrf")(*BATCH)
    alone = [
        metrics.create("chrf").compute(["p"], [g], [r])["lexical/chrf"].corpus for g, r in zip(*BATCH[1:], strict=True)
    ]
    assert both.tolist() == pytest.approx(alone) and alone[0] == 1.0


def test_one_of_several_figures_must_be_named() -> None:
    with pytest.raises(ConfigError, match="several figures, name one with key"):
        rewards.create("diversity")(*BATCH)
    distinct = rewards.create("diversity", key="diversity_metrics/distinct-1")(["p"], ["a a b"], [[]])
    assert distinct.item() == pytest.approx(2 / 3)
    with pytest.raises(ConfigError, match="did you mean 'diversity_metrics/distinct-1'"):
        rewards.create("diversity", key="diversity_metrics/distnct-1")(*BATCH)


def test_figures_are_scaled() -> None:
    ter = metrics.create("ter").compute(["p"], ["a b c"], [["a b"]])["lexical/ter"].corpus
    assert rewards.create("ter")(["p"], ["a b c"], [["a b"]]).item() == pytest.approx(1 - ter) == 0.5
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


def test_the_reward_of_parent_is_its_f_score() -> None:
    args = (["p"], ["ann was"], [["ann was a queen"]], [{"raw_table": [["name", "ann"]]}])
    figures = metrics.create("parent_totto").compute(*args)
    f_score = figures["table_to_text/parent_overall_f_score"].corpus
    for id in ("parent", "parent_totto"):
        assert rewards.create(id)(*args).item() == pytest.approx(f_score)


def test_spider_weighs_spice_and_cider(monkeypatch: pytest.MonkeyPatch) -> None:
    def spice(self: Metric, prompts: Any, generations: Any, references: Any, meta: Any) -> dict[str, MetricResult]:
        return {"lexical/spice": MetricResult(0.5, [0.25, 0.75])}

    monkeypatch.setattr(metrics.Spice, "measure", spice)
    cider = metrics.create("cider").compute(*BATCH)["lexical/cider"].sentences or []
    scores = rewards.create("spider", spice_coeff=2.0, cider_coeff=0.1)(*BATCH)
    assert scores.tolist() == pytest.approx([0.5 + 0.1 * cider[0], 1.5 + 0.1 * cider[1]])


@pytest.mark.parametrize("id", ["common_gen_repeat_penalty", "common_gen_repeat_penalty_batched"])
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
def test_repeating_the_prompt_costs_one(id: str, generation: str, penalty: int) -> None:
    prompt = "generate a sentence with: dog run field."
    score = rewards.create(id)([prompt], [generation], [[]], [{"concepts": ["ball", "throw"]}])
    assert score.item() == penalty


def test_a_prompt_without_the_prefix_forbids_no_text() -> None:
    assert rewards.create("common_gen_repeat_penalty")(["p3"], ["anything"], [[]]).item() == 0


def test_shaping_is_added() -> None:
    prompt, generation = "generate a sentence with: dog run.", "dog run"
    for shaping in ("common_gen_repeat_penalty", {"id": "common_gen_repeat_penalty", "weight": 0.5}):
        reward = rewards.create("chrf", shaping_fn=shaping)
        weight = 1.0 if isinstance(shaping, str) else 0.5
        assert reward([prompt], [generation], [[generation]]).item() == pytest.approx(1 - weight)


def test_a_weighted_sum_of_rewards() -> None:
    parts = [
        {"id": "increasing_numbers", "args": {"min_tokens": 6}, "weight": 2.0},
        {"id": "sentences_with_dates"},
        {"id": "ter", "weight": -1},
    ]
    assert rewards.create("weighted_sum", parts=parts)(*BATCH).tolist() == pytest.approx([2 + 0 - 1, 0 + 1 - 0])
    with pytest.raises(ConfigError, match="id, args and weight, got id, factor"):
        rewards.create("weighted_sum", parts=[{"id": "ter", "factor": 1}])
    for parts in ([], 5, {"id": "ter"}):
        with pytest.raises(ConfigError, match=r"must be a list|a list of at least one part"):
            rewards.create("weighted_sum", parts=parts)
    with pytest.raises(ConfigError, match="id, args and weight, got 5"):
        rewards.create("weighted_sum", parts=[5])
    with pytest.raises(ConfigError, match=r"weight of ter .* must be a number, got 'much'"):
        rewards.create("weighted_sum", parts=[{"id": "ter", "weight": "much"}])


def test_the_last_token_has_the_reward_of_the_text() -> None:
    texts = [["1", "1 2", "1 2 3"], ["2020-01-31"]]
    reward = rewards.create("chrf")
    assert not reward.per_token
    at_tokens = reward.at_tokens(BATCH[0], texts, BATCH[2])
    whole = reward(*BATCH)
    assert at_tokens.tolist() == [[0, 0, whole[0]], [whole[1], 0, 0]]


def test_tokens_are_rewarded_by_the_texts_before_and_after() -> None:
    texts = [["a", "abc"], ["", "x", "xy"]]
    assert Longer().at_tokens(["p", "q"], texts, [[], []]).tolist() == [[1, 102, 0], [0, 1, 101]]
    assert Longer()(["p", "q"], ["abc", "xy"], [[], []]).tolist() == [103, 102]


def test_a_sum_is_per_token_if_a_part_is() -> None:
    both = WeightedSum(parts=[(Longer(), 1.0), (Given(values=[10.0, 20.0]), 0.5)])
    assert both.per_token
    token_rewards = both.at_tokens(["p", "q"], [["a", "abc"], ["x"]], [[], []])
    assert token_rewards.tolist() == [[1, 102 + 5], [101 + 10, 0]]
    assert both(["p", "q"], ["abc", "x"], [[], []]).tolist() == [108, 111]


def test_a_token_reward_gets_the_meta_of_its_sample() -> None:
    class Seen(TokenReward):
        def at_token(self, prompt: str, previous: str, current: str, done: bool, references: Any, meta: Any) -> float:
            return meta["weight"] * len(references)

    token_rewards = Seen().at_tokens(
        ["p", "q"], [["a"], ["b"]], [["x"], ["y", "z"]], [{"weight": 1.0}, {"weight": 3.0}]
    )
    assert token_rewards.tolist() == [[1], [6]]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([1.0], r"Given must give one reward for each of 2 samples, got shape \(1,\)"),
        ([[1.0], [2.0]], r"got shape \(2, 1\)"),
        ([1.0, float("nan")], "Given gave nan for sample 1: rewards must be finite"),
        (torch.tensor([float("inf"), 0]), "Given gave inf for sample 0"),
    ],
)
def test_an_invalid_reward_is_an_error_in_one_line(values: Any, message: str) -> None:
    with pytest.raises(RunError, match=message):
        Given(values=values)(*BATCH)


def test_an_undefined_metric_is_not_a_reward() -> None:
    with pytest.raises(RunError, match="Bleu gave nan for sample 0"):
        rewards.create("bleu", compat="rl4lms")(["p"], [""], [["a"]])


def test_invalid_input_is_an_error() -> None:
    with pytest.raises(ConfigError, match="did you mean 'rouge_combined'"):
        rewards.create("rouge_combine")
    with pytest.raises(ConfigError, match="unknown argument of reward 'ter' 'normalised'"):
        rewards.create("ter", normalised=True)
    with pytest.raises(ConfigError, match="compat must be one of"):
        rewards.create("rouge_combined", compat="other")
    with pytest.raises(RunError, match="needs a reference"):
        rewards.create("chrf")(["p"], ["g"], [[]])
    with pytest.raises(RunError, match="at least one token"):
        rewards.create("chrf").at_tokens(["p"], [[]], [["r"]])


def test_a_users_metric_is_a_reward_and_a_users_reward_a_metric() -> None:
    @metrics.register("test-vowels")
    @dataclass(kw_only=True)
    class Vowels(Metric):
        letters: str = "aeiou"

        def measure(self, prompts: Any, generations: Sequence[str], references: Any, meta: Any) -> Any:
            return {"test/vowels": metrics.mean_of([sum(c in self.letters for c in g) for g in generations])}

    rewards.register("test-given")(Given)
    assert rewards.create("test-vowels", letters="b", scale=2.0)(["p"], ["abba"], [[]]).item() == 4.0
    results = rewards.measures.create("test-given", values=[1.0, 3.0]).compute(*BATCH)
    assert results == {"reward/test-given": MetricResult(2.0, [1.0, 3.0])}


def test_a_users_constructor_needs_no_compat() -> None:
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
    term = {"id": "test-scaled", "args": {"k": 2}}
    for reward in (
        rewards.create("weighted_sum", parts=[term], compat="rl4lms"),
        rewards.create("pooled", reward=term),
        rewards.create("test-times", k=2),
        rewards.create("test-times", k=1, shaping_fn="test-times"),
    ):
        assert reward(["a"], ["b"], [[]]).tolist() == [2]
    (figure,) = rewards.measures.create("test-scaled", k=3).compute(["a"], ["b"], [[]], None).values()
    assert figure.corpus == 3
    with pytest.raises(ConfigError, match=r"args of reward 'test-scaled' must be a mapping.*got \[1\]"):
        rewards.create("weighted_sum", parts=[{"id": "test-scaled", "args": [1]}])


def test_every_reward_can_be_shaped_and_every_metric_scaled() -> None:
    """As docs/metrics.md says."""
    for id in rewards.rewards:
        assert "shaping_fn" in inspect.signature(rewards.rewards.get(id)).parameters, id
    for id in [*metrics.metrics, "parent", "sentences_with_dates"]:
        if id not in ("rouge", "intent_accuracy"):  # rewards of these ids are not the metrics
            assert {"key", "scale", "offset"} <= set(inspect.signature(rewards.rewards.get(id)).parameters), id


@dataclass(kw_only=True)
class Counting(Reward):
    """The length of each text; counts the samples."""

    asked: int = 0

    def score(self, prompts: Any, generations: Sequence[str], references: Any, meta: Any) -> list[float]:
        self.asked += len(generations)
        return [float(len(text)) for text in generations]


def test_pooled_caches_by_prompt_text_references_and_meta() -> None:
    counting = Counting()
    pooled = Pooled(reward=counting, remembered=3)
    assert pooled(["p", "p", "q"], ["ab", "ab", "ab"], [[], [], []]).tolist() == [2, 2, 2] and counting.asked == 2
    assert pooled(["p", "p"], ["ab", "c"], [[], ["x"]]).tolist() == [2, 1] and counting.asked == 3
    pooled(["p"], ["ab"], [[]], [{"weight": 1}])
    assert counting.asked == 4  # three are cached, without the oldest
    pooled(["p"], ["ab"], [[]])
    assert counting.asked == 5


@THOROUGH
def test_processes_give_the_same_rewards() -> None:
    samples = [f"the cat {word} on the mat" for word in ["sat", "lay", "ran", "jumped", "slept", "stood"]]
    args = (["p"] * 6, samples, [["the cat sat on the mat"]] * 6)
    pooled = rewards.create("pooled", reward={"id": "ter"}, num_processes=1)
    assert pooled(*args).equal(rewards.create("ter")(*args))


@dataclass(kw_only=True)
class Asked(Reward):
    """Number of earlier calls."""

    times: int = 0

    def score(self, prompts: Sequence[str], generations: Any, references: Any, meta: Any) -> list[float]:
        self.times += 1
        return [self.times - 1.0] * len(prompts)


def test_a_process_keeps_the_loaded_reward() -> None:
    pooled = Pooled(reward=Asked(), num_processes=1)
    assert pooled(["p"] * 12, list("abcdefghijkl"), [[]] * 12).tolist() == [0.0] * 4 + [1.0] * 4 + [2.0] * 4


@pytest.mark.parametrize("id", ["cider", "weighted_sum", "intent_accuracy"])
def test_rewards_that_depend_on_other_samples_are_not_pooled(id: str) -> None:
    args: dict[str, Any] = {
        "cider": {},
        "weighted_sum": {"parts": [{"id": "chrf"}, {"id": "cider"}]},
        "intent_accuracy": {"compat": "rl4lms"},
    }[id]
    with pytest.raises(ConfigError, match="cannot be pooled"):
        rewards.create("pooled", reward={"id": id, "args": args})
    with pytest.raises(ConfigError, match="cannot be pooled"):
        Pooled(reward=Longer())
    for nothing in ({}, {"ter": {}}, {"id": "ter", "arg": 1}, 3):
        with pytest.raises(ConfigError, match=r"pooled needs reward=\{id: …, args: \{…\}\}, got"):
            rewards.create("pooled", reward=nothing)
    with pytest.raises(ConfigError, match="num_processes"):
        rewards.create("pooled", reward=Counting(), num_processes=-1)


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
    with pytest.raises(ConfigError, match="argument of reward 'test-letter-count' 'letters'"):
        rewards.create("test-letter-count", letters="b")
    with pytest.raises(RunError, match="letters must give one reward for each of 1"):

        @rewards.register("test-none")
        def letters(generations):
            return []

        rewards.create("test-none")([""], ["a"], [[]])

    @rewards.register("test-misnamed")
    def lengths(texts):
        return list(map(len, texts))

    with pytest.raises(ConfigError, match=r"needs texts; .* takes them as generations \(or completions\)"):
        rewards.create("test-misnamed")

    @rewards.register("test-weighted")
    def weighted(generations, weight):
        return [weight] * len(generations)

    with pytest.raises(ConfigError, match="needs weight") as refused:
        rewards.create("test-weighted")
    assert "takes them as" not in str(refused.value)
