"""The parts of a run's reward, and their sum."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any

import pytest
import torch
from torch import Tensor

from groundling import rewards
from groundling.envs.text_env import WorldSpec
from groundling.errors import ConfigError, RunError
from groundling.fields import Provided
from groundling.judges.preferences.pairs import caption_id, caption_ids
from groundling.judges.reward_models import reward_models
from groundling.judges.reward_models.reward_model import QUANTILE_LEVELS, Normalization
from groundling.rewards import (
    Captions,
    EpisodeCounts,
    GeneratedTexts,
    Part,
    RewardContext,
    RewardInputs,
    RewardModelPart,
    RewardPartConfig,
    RewardSum,
    make_parts,
)
from groundling.rewards.text import TextPart
from groundling.runtime.processes import Processes
from groundling.worlds import worlds

PLACE = WorldSpec(
    "Place-v0", frozenset({"words"}), "choice", 6, evidence=frozenset({"env", "captions", "counts"}), subject="text"
)
POOL = WorldSpec(
    "pool p", frozenset({"prompt"}), "token", evidence=frozenset({"captions", "references"}), subject="writing"
)
NORMALIZATION = Normalization(0.5, 4.0, tuple(2 * q - 1 for q in QUANTILE_LEVELS))  # median 0, spread -0.9 to 0.9


def _sum(world: WorldSpec = PLACE, **parts: Any) -> RewardSum:
    """Create the parts from their settings, without loading a reward model."""
    settings = {name: None if part is None else RewardPartConfig(**part) for name, part in parts.items()}
    return make_parts(settings, world)


def _steps(env: Sequence[Sequence[float]], step_captions: Sequence[Sequence[str]], goal: str = "go") -> RewardInputs:
    """Return rewards and captions ``(num_steps, num_envs)``; every caption occurs for the first time."""
    texts = [text for step in step_captions for text in step]
    captions = Captions(
        _reading(texts), [goal] * len(texts), torch.from_numpy(caption_ids(texts)), torch.ones(len(texts))
    )
    return RewardInputs((len(env), len(env[0])), torch.tensor(env), captions)


def _reading(texts: Sequence[str]) -> Callable[[Sequence[int]], list[str]]:
    return lambda places: [texts[place] for place in places]


def _generated(*texts: tuple[str, list[str], list[str]]) -> RewardInputs:
    prompts, so_far, references = zip(*texts, strict=True)
    return RewardInputs.of_texts(GeneratedTexts(prompts, so_far, references, [{}] * len(texts)))


class Scripted:
    """A reward model with given outputs."""

    version = 1

    def __init__(self, numbers: Mapping[str, float], normalization: Normalization | None) -> None:
        self._numbers, self.normalization = numbers, normalization

    def rewards(self, captions: Sequence[str]) -> Tensor:
        return torch.tensor([self._numbers[caption] for caption in captions])


def _motif(
    env: Sequence[float],
    raw: Sequence[float],
    counts: Sequence[float],
    normalization: Normalization | None = NORMALIZATION,
    extrinsic: float = 0.1,
    intrinsic: float = 0.1,
    **args: Any,
) -> Tensor:
    """Compute Motif's formula as a sum of parts, for steps of one env."""
    part = RewardModelPart(**args)
    part.use(Scripted({str(i): number for i, number in enumerate(raw)}, normalization))  # type: ignore[arg-type]
    paid = rewards.parts.create("env", scale=0.1, clip=10)
    total = RewardSum({"env": paid, "model": part}, {"env": extrinsic, "model": intrinsic})
    places = torch.arange(len(env))
    captions = Captions(_reading([str(i) for i in places.tolist()]), ["g"] * len(env), places, torch.tensor(counts))
    return total(RewardInputs((len(env), 1), torch.tensor(env)[:, None], captions)).total[:, 0]


def test_motifs_formula_by_hand() -> None:
    env, raw, counts = [50.0, 1000.0, 0.0], [4.5, 400.5, 4.5], [1.0, 1.0, 2.0]
    # Intrinsic: 2; 200, neither clipped nor scaled; 2 / 8.
    expected = [0.1 * 5 + 0.1 * 2, 0.1 * 10 + 0.1 * 200, 0.1 * 0.25]
    assert _motif(env, raw, counts).tolist() == pytest.approx(expected)
    # Values equal to the threshold are removed: normalised 1, 2, -0.1; 0, -2, 0.5, whose median is 0.
    totals = _motif([0.0] * 6, [2.5, 4.5, 0.3, 0.5, -3.5, 1.5], [1, 2, 1, 1, 1, 3.0], intrinsic=1.0)
    assert totals.tolist() == pytest.approx([1.0, 2 / 8, 0, 0, 0, 0.5 / 27])
    labels = _motif([0.0] * 2, [0.0, 1.0], [1.0, 2.0], None, intrinsic=0.4, normalize=False, threshold_quantile=0)
    assert labels.tolist() == pytest.approx([0, 0.05])
    with pytest.raises(ConfigError, match="normalize=false"):
        _motif([0.0], [0.0], [1.0], None)
    # β = 0: repetition has no effect; β = 1: 1 / n.
    for exponent, value in ((0, 6.0), (1, 2.0), (0.5, 6 / math.sqrt(3))):
        totals = _motif([0.0], [12.5], [3.0], intrinsic=1.0, count_exponent=exponent)
        assert totals.item() == pytest.approx(value)


@pytest.mark.parametrize("normalize", [True, False])
def test_the_threshold_is_the_same_caption_with_and_without_normalisation(normalize: bool) -> None:
    raw = torch.tensor([-3.0, 0.49, 0.51, 1.69, 1.71])  # quantile 0.8 is 0.6 normalised, 1.7 raw
    for quantile, kept in ((0, 5), (0.5, 3), (0.8, 1), (0.55, 2)):  # 0.55: 0.7 raw
        part = RewardModelPart(threshold_quantile=quantile, normalize=normalize)
        worth = part.transform(raw, torch.ones(5), NORMALIZATION)
        assert (worth != 0).sum() == kept
        assert torch.allclose(worth[-1], torch.tensor(0.605 if normalize else 1.71))


def test_new_captions_are_worth_more() -> None:
    counts = EpisodeCounts(2)
    seen = [[counts.add(env, caption_id(text)) for env in (0, 1)] for text in ("a", "b", "a")]
    assert seen == [[1, 1], [1, 1], [2, 2]]
    counts.end([1])
    again = EpisodeCounts(2)
    again.load_state_dict(counts.state_dict())
    assert [again.add(env, caption_id("a")) for env in (0, 1)] == [3, 1]
    captions = Captions(
        _reading(["a"] * 4), ["g"] * 4, torch.zeros(4, dtype=torch.int64), torch.tensor([1.0, 2, 4, 1])
    )
    bonus = _sum(env=None, count={"coefficient": 2.0})(RewardInputs((2, 2), captions=captions))
    assert bonus.total.flatten().tolist() == pytest.approx([2, 2 / math.sqrt(2), 1, 2])
    assert bonus.by_part["count"][1, 0] == 0.5  # without the coefficient


def test_a_plain_function_rewards_captions() -> None:
    asked = []

    @rewards.register("test-mentions")
    def mentions(prompts: list[str], generations: list[str], letter: str = "b") -> list[float]:
        asked.extend(zip(prompts, generations, strict=True))
        return [float(text.count(letter)) for text in generations]

    steps = _steps([[1.0, 2.0], [3.0, 4.0]], [["ab", "bb"], ["ab", "cc"]])
    reward = _sum(spoken={"id": "test-mentions", "coefficient": 10})
    assert reward(steps).total.tolist() == [[11, 22], [13, 4]]
    assert sorted(asked) == [("go", "ab"), ("go", "bb"), ("go", "cc")]
    assert _sum(env=None, x={"id": "test-mentions", "args": {"letter": "c"}})(steps).total.sum() == 2


class _Given(Part):
    """Returns its argument."""

    def __init__(self, rewards: Any) -> None:
        self._rewards = rewards

    def rewards(self, inputs: RewardInputs) -> Any:
        return self._rewards


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (torch.ones(2), r"reward\.mine: it returned the wrong number of rewards: expected 2 x 2, got 2"),
        (torch.ones(2, 1), r"got 2 x 1"),
        (torch.tensor([[1.0, 2.0], [3.0, math.nan]]), r"returned nan at index 1, 1"),
    ],
)
def test_invalid_rewards_of_a_part_are_an_error(given: Any, message: str) -> None:
    with pytest.raises(RunError, match=message):
        RewardSum({"mine": _Given(given)})(_steps([[1.0, 2.0], [3.0, 4.0]], [["a", "b"], ["c", "d"]]))
    halves = RewardSum({"mine": _Given(torch.full((1, 1), 0.5, dtype=torch.float64))})
    assert halves(_steps([[0.0]], [["a"]])).total.dtype == torch.float32


def test_written_texts_are_rewarded_at_their_tokens() -> None:
    written = _generated(("p", ["a", "a b"], ["a b"]), ("q", ["1", "1 2", "1 2 3"], ["x"]))
    reward = _sum(POOL, rouge={}, numbers={"id": "increasing_numbers", "args": {"min_tokens": 6}, "coefficient": 2})
    assert reward(written).total.T.tolist() == [[0, 1, 0], [0, 0, 2]]
    model = RewardModelPart(normalize=False, threshold_quantile=0)
    model.use(Scripted({"p\na b": 5.0, "q\n1 2 3": 7.0}, None))  # type: ignore[arg-type]
    assert model.rewards(written).T.tolist() == [[0, 5, 0], [0, 0, 7]]


class _Two(Processes):
    """One of two processes with the same data."""

    def gather(self, value: Any) -> list[Any]:
        return [value, value]

    def from_main(self, work: Any) -> Any:
        return work()


def test_a_reward_of_the_batch_gets_the_texts_of_all_processes() -> None:
    @rewards.register("test-share")
    @dataclass(kw_only=True)
    class Share(rewards.Reward):
        by_sample = False

        def score(self, prompts: Any, generations: Sequence[str], references: Any, meta: Any) -> list[float]:
            return [len(text) / len(generations) for text in generations]

    both = {"env": None, "test-share": {}}
    for rank in (0, 1):
        reward = _sum(**both)
        reward.begin(RewardContext(processes=_Two(rank, 2)))
        assert reward(_steps([[0.0, 0.0]], [["aaaa", "aaaa"]])).total.tolist() == [[1, 1]]
        written = _sum(POOL, **{"test-share": {}})
        written.begin(RewardContext(processes=_Two(rank, 2)))
        assert written(_generated(("p", ["aa", "aaaa"], []), ("p", ["bb"], []))).total.tolist() == [[0, 0.5], [1, 0]]


def test_a_reward_gets_the_model_under_training() -> None:
    @rewards.register("test-reader")
    class Reader(rewards.Reward):
        def __init__(self, lm: Annotated[Any, Provided("lm")]) -> None:
            super().__init__()
            self._lm = lm

        def score(self, prompts: Any, generations: Sequence[str], references: Any, meta: Any) -> list[float]:
            return [self._lm.number] * len(generations)

    settings = {"env": None, "test-reader": {}}
    reward = _sum(**settings)
    reward.begin(RewardContext(lm=SimpleNamespace(number=3.0)))
    assert reward(_steps([[0.0]], [["a"]])).total.item() == 3
    with pytest.raises(RunError, match=r"needs the trained language model.* args.lm=FOLDER"):
        _sum(**settings).begin(RewardContext())


@pytest.mark.parametrize(
    ("world", "settings", "message"),
    [
        (POOL, {"env": {}, "rouge": {}}, "is incompatible with pool p: it needs an env that pays a reward; remove it"),
        (POOL, {"count": {}}, "counts of each caption within the episode.*remove it with ~reward.count"),
        (PLACE, {"rouge": {}}, r"reward.rouge is incompatible with Place-v0: it needs reference texts"),
        (PLACE, {"weighted_sum": {"args": {"parts": [{"id": "chrf"}]}}}, "reference texts"),
        (PLACE, {"shaped": {"id": "dates", "args": {"shaping_fn": "meteor"}}}, "reference texts"),
        (PLACE, {"pooled": {"args": {"reward": {"id": "rouge_combined"}}}}, "reference texts"),
        (POOL, {}, "pool p has no reward"),
        (PLACE, {"env": None}, "Place-v0 has no reward"),
        (PLACE, {"../env": {"id": "env"}}, "must consist of letters"),
        (PLACE, {"env": {"args": {"clip": 0}}}, "reward.env: clip must be greater than 0"),
        (PLACE, {"reward_model": {}}, "set path to a folder"),
        (PLACE, {"reward_model": {"args": {"path": "/nowhere"}}}, "no reward model in /nowhere"),
        (PLACE, {"reward_model": {"args": {"threshold_quantile": -0.5}}}, "threshold_quantile"),
        (PLACE, {"reward_model": {"args": {"online": {"goal": "gold"}}}}, "online needs a judge"),
        (PLACE, {"reward_model": {"args": {"online": {"judges": "x"}}}}, "did you mean 'judge'"),
        (PLACE, {"reward_model": {"args": {"online": {"judge": "rules", "learning": {"epoch": 1}}}}}, "'epochs'"),
        (PLACE, {"reward_model": {"args": {"online": {"judge": "rules", "args": 3}}}}, "online.args must be"),
        (PLACE, {"reward_model": {"args": {"online": {"judge": "rules"}}}}, "has no table for the goal 'mission'"),
        (POOL, {"reward_model": {"args": {"online": {"judge": "rules", "goal": "gold"}}}}, "unknown goal 'gold'"),
        (PLACE, {"reward_model": {"args": {"online": {"judge": "return"}}}}, "cannot judge single captions"),
    ],
)  # fmt: skip
def test_invalid_parts_are_refused_before_anything_is_loaded(
    world: WorldSpec, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        _sum(world, **settings)


@rewards.register("test-memory")
class _Seen(rewards.Reward):
    """Rewards a text with its number of occurrences; returns its mutable state."""

    def __init__(self) -> None:
        self.state: dict[Any, Any] = {}

    def score(self, prompts: Any, generations: Sequence[str], references: Any, meta: Any) -> list[float]:
        for text in generations:
            self.state[text] = self.state.get(text, 0) + 1
        return [float(self.state[text]) for text in generations]

    def state_dict(self) -> dict[str, Any]:
        return self.state

    def load_state_dict(self, state: Any) -> None:
        self.state = state


def test_the_state_of_parts_is_in_the_checkpoint(tmp_path: Path) -> None:
    reward_models.create("motif").save(tmp_path / "distilled")
    model = {"args": {"path": str(tmp_path / "distilled"), "normalize": False, "threshold_quantile": 0}}
    settings = {"env": None, "reward_model": model, "test-memory": {}}
    steps = _steps([[0.0]], [["a"]])
    one = _sum(**settings)
    one.begin(RewardContext())
    first = one(steps).total
    one.save(tmp_path)
    assert sorted(p.name for p in (tmp_path / "rewards").iterdir()) == ["reward_model", "test-memory"]
    again = _sum(**settings)
    again.begin(RewardContext())
    again.load(tmp_path)
    assert (again(steps).total - first).item() == pytest.approx(1)
    for _ in range(2):
        again.forget()
        assert torch.equal(again(steps).total, first)


@pytest.mark.parametrize("state", [{10: 1}, {"a": torch.ones(2)}, {"a": math.nan}])
def test_a_state_that_json_changes_is_an_error(state: Any, tmp_path: Path) -> None:
    part = TextPart(_Seen())
    part.reward.state = state  # type: ignore[attr-defined]
    with pytest.raises(RunError, match=r"state_dict\(\) must be valid JSON"):
        part.save(tmp_path)
    part.reward.state = {"a": [1, [2.5, None]], "best": -math.inf}  # type: ignore[attr-defined]
    part.save(tmp_path)
    part.load(tmp_path)
    assert part.reward.state == {"a": [1, [2.5, None]], "best": -math.inf}  # type: ignore[attr-defined]


def test_a_judge_trains_a_new_model_in_one_process() -> None:
    rules = {"rules": [["gold", 1.0]]}
    args = {"normalize": False, "threshold_quantile": 0, "online": {"judge": "rules", "args": rules, "model": "table"}}
    reward = _sum(env=None, reward_model={"args": args})
    reward.begin(RewardContext(world="text"))
    reward(_steps([[0.0, 0.0]], [["You see here a gold piece.", "You see here a gold piece."]]))
    assert reward.figures()["online_messages"] == 1
    reward.close()
    with pytest.raises(ConfigError, match="single process"):
        _sum(reward_model={"args": args}).begin(RewardContext(world="text", processes=Processes(0, 2)))
    args["online"] = {"judge": "openai", "model": "table"}
    with pytest.raises(ConfigError, match=r"judge 'openai' needs model"):
        _sum(reward_model={"args": args}).begin(RewardContext(world="text"))


def test_a_reward_model_of_another_world_is_refused(tmp_path: Path) -> None:
    for about, refused in ({"world": "writing"}, True), ({"world": "text"}, False), ({}, False):
        reward_models.create("characters", channels=8, hidden_size=8).save(tmp_path, about)
        reason = RewardModelPart(path=str(tmp_path)).accepts(worlds.get("text").offers)
        assert (reason is not None and "'writing'" in reason) == refused
    (tmp_path / "reward_model.json").write_text("[]")
    with pytest.raises(ConfigError, match=r"reward_model\.json cannot be read"):
        RewardModelPart(path=str(tmp_path)).accepts(worlds.get("text").offers)
