"""Generated texts for a split, and their metrics, during and after a run."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from groundling import rewards
from groundling.config.compose import compose
from groundling.config.schema import Config
from groundling.envs.text_generation import Sample, SampleOrder
from groundling.errors import ConfigError, GroundlingError
from groundling.io.row_files import read_rows
from groundling.lm import LanguageModel
from groundling.metrics import Metric
from groundling.policies.token import TokenPolicy
from groundling.rewards import Reward, RewardSum, TextPart, TokenReward
from groundling.training.build import world_of
from groundling.worlds.writing.collect import WrittenTexts
from groundling.worlds.writing.config import PromptEncoder
from groundling.worlds.writing.measures import MeasuredTexts, TextMeasures, make_metrics, write_texts
from groundling.worlds.writing.world import WritingWorld

SAMPLES = [Sample(f"val_{i}", prompt) for i, prompt in enumerate(["go left", "toggle", "turn right", "drop"])]


def _config(*overrides: str) -> Config:
    fixed = ["device=cpu", "world.num_tokens=6", "training.steps=60", "world.args.n_samples=3"]
    return compose("rl4lms/increasing_numbers_ppo", [*fixed, *overrides])


def _world(*overrides: str) -> WritingWorld:
    world = world_of(_config(*overrides))
    assert isinstance(world, WritingWorld)
    return world


@rewards.register("test-characters")
@dataclass(kw_only=True)
class Characters(TokenReward):
    """1 for each token that lengthens the text, which differs from the last token's reward for a whole text."""

    def at_token(
        self, prompt: str, previous: str, current: str, done: bool, references: Sequence[str], meta: Any
    ) -> float:
        return float(len(current) > len(previous))


@rewards.register("test-counting")
@dataclass(kw_only=True)
class Counting(Reward):
    """The number of texts that have been scored so far."""

    by_sample = False
    count = 0

    def score(self, prompts: Any, generations: Sequence[str], references: Any, meta: Any) -> list[float]:
        first = self.count
        self.count += len(generations)
        return [float(n) for n in range(first, self.count)]

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.count = state["count"]


def _measure(
    policy: TokenPolicy, world: WritingWorld, metrics: Sequence[Metric], reward: RewardSum | None
) -> MeasuredTexts:
    measures = TextMeasures(world, policy, SAMPLES, metrics, reward)
    return measures.measure(list(write_texts(policy, world, SAMPLES)))


def _rewarding(reward: Reward) -> RewardSum:
    return RewardSum({"it": TextPart(reward)})


@pytest.mark.parametrize("family", ["gpt2", "bart"])
def test_generation_settings_start_and_end_texts_as_in_training(
    family: str, make_lm: Callable[..., LanguageModel]
) -> None:
    """The model's own generation config has no effect."""
    lm = make_lm(family)
    config = lm.model.generation_config
    config.no_repeat_ngram_size, config.temperature, config.suppress_tokens = 1, 0.01, [5, 6, 7]
    if family == "bart":
        config.forced_bos_token_id = 9
    start = 40 if family == "bart" else None
    prompts = PromptEncoder(lm.tokenizer)(SAMPLES)

    def greedy(terminate_on_eos: bool = True) -> TokenPolicy:
        generation = {"do_sample": False, "terminate_on_eos": terminate_on_eos}
        return TokenPolicy(lm, generation=generation, context_start_token=start, value="shared")

    texts = greedy(terminate_on_eos=False).write(prompts, torch.zeros(4, 12, dtype=torch.float64), 12).token_ids()
    config.eos_token_id = int(texts[0][3])  # an end token other than the tokenizer's
    policy = greedy()
    ended = policy.write(prompts, torch.zeros(4, 12, dtype=torch.float64), 12).token_ids()
    assert len(ended[0]) <= 4
    world = _world("world.num_tokens=12", "evaluation.generation={do_sample:false}")
    for each, wanted in ((policy, ended), (greedy(terminate_on_eos=False), texts)):
        written = _measure(each, world, [], None)
        assert written.generations == lm.tokenizer.batch_decode(wanted, skip_special_tokens=True)
    assert lm.model.generation_config is config


@pytest.mark.parametrize("generation", ["{}", "{do_sample:false}"])
def test_a_token_reward_is_summed_over_a_text_as_in_training(
    generation: str, make_lm: Callable[..., LanguageModel]
) -> None:
    lm = make_lm("gpt2")
    policy = TokenPolicy(lm, generation={"do_sample": generation == "{}"}, value="shared")
    world = _world(f"evaluation.generation={generation}")
    written = _measure(policy, world, [], _rewarding(rewards.create("test-characters")))
    torch.manual_seed(world.seed)
    uniforms = torch.rand(len(SAMPLES), 6, dtype=torch.float64)
    wanted = []
    for ids in policy.write(PromptEncoder(lm.tokenizer)(SAMPLES), uniforms, 6).token_ids():
        texts = ["", *(lm.tokenizer.decode(ids[: i + 1], skip_special_tokens=True) for i in range(len(ids)))]
        wanted.append(sum(len(now) > len(before) for before, now in pairwise(texts)))
    assert written.rewards == wanted and max(wanted) > 1


def test_texts_do_not_depend_on_the_global_generator(
    make_lm: Callable[..., LanguageModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = TokenPolicy(make_lm("gpt2"), value="shared")
    world = _world("evaluation.batch_size=1")
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    alone = _measure(policy, world, [], None).generations
    assert torch.equal(torch.rand(3), expected)
    write = policy.write

    def disturbed(*arguments: Any) -> Any:
        torch.manual_seed(7)  # as by a judge, which writes in its own thread
        return write(*arguments)

    monkeypatch.setattr(policy, "write", disturbed)
    assert _measure(policy, world, [], None).generations == alone


def test_validation_is_logged_to_listeners_also_after_the_last_update(
    tmp_path: Path, make_lm: Callable[..., LanguageModel]
) -> None:
    policy = TokenPolicy(make_lm("gpt2"), value="shared")
    world = _world("evaluation.every=2", "~reward", "reward.test-counting={}", "evaluation.metrics=[]")
    records: list[Any] = []

    class Recorder:
        def log_validation(self, figures: Mapping[str, float], update: int, step: int) -> None:
            records.append((dict(figures), update, step))

    algorithm: Any = None  # this algorithm does not evaluate anything
    (log,) = world.logs(policy, algorithm, tmp_path, 0, 60, [Recorder()])
    for update in (1, 2, 3):
        log.log({"update": update, "step": 20 * update})
    # For a reward that remembers texts, each evaluation of the 3 samples starts again: 0, 1, 2.
    assert records == [({"validation/reward": 1.0}, u, s) for u, s in ((0, 0), (2, 40), (3, 60))]
    assert [row["update"] for row in read_rows(tmp_path / "validation.jsonl")] == [0, 2, 3]


def test_the_state_of_a_reward_is_saved_with_the_collector(
    make_lm: Callable[..., LanguageModel], tmp_path: Path
) -> None:
    policy = TokenPolicy(make_lm("gpt2"), value="shared")

    def collector() -> WrittenTexts:
        order, encode = SampleOrder(SAMPLES, 0, replacement=False), PromptEncoder(policy.lm.tokenizer)
        parts = [{"id": "test-counting"}, {"id": "increasing_numbers", "weight": 0}]
        reward = _rewarding(rewards.create("weighted_sum", parts=parts))
        return WrittenTexts(order, encode, reward, 2, slice(0, 2), 3)

    first = collector()
    generator = torch.Generator().manual_seed(0)
    first.collect(policy, generator=generator)
    second = collector()
    second.load_state_dict(first.state_dict())
    assert len(first.state_dict()) == 2
    first.save_shared(tmp_path)
    second.load_shared(tmp_path)
    assert [text.episode_return for text in second.collect(policy, generator=generator)[1]] == [2, 3]


@pytest.mark.parametrize(
    ("metric", "error", "message"),
    [
        ("{id:summaCConv}", GroundlingError, "needs its trained layers"),
        ("{id:learned_reward,args:{model_name:./nowhere,label_ix:0}}", GroundlingError, "nowhere cannot be loaded"),
        ("{id:causal_perplexity}", ConfigError, "set lm=FOLDER_OR_ID"),
        ("{id:common_gen_preference_model}", GroundlingError, "needs model_name=FOLDER"),
        ("{id:weighted_sum,args:{parts:[{id:common_gen_preference_model}]}}", GroundlingError, "needs model_name"),
        ("{id:pooled,args:{reward:{id:learned_reward,args:{model_name:./no,label_ix:0}}}}", GroundlingError, "./no c"),
    ],
)
def test_requirements_of_metrics_are_checked_first(
    metric: str, error: type[Exception], message: str, make_lm: Callable[..., LanguageModel]
) -> None:
    policy = TokenPolicy(make_lm("t5"), value="shared")
    with pytest.raises(error, match=message):
        make_metrics(_config(f"evaluation.metrics=[{metric}]").evaluation.metrics, policy)


def test_no_metric_hides_anothers_figures(make_lm: Callable[..., LanguageModel]) -> None:
    policy = TokenPolicy(make_lm("gpt2"), value="shared")
    one, other = (f"{{id:increasing_numbers,args:{{min_tokens:{n}}}}}" for n in (2, 3))
    world = _world(f"evaluation.metrics=[{one},{other}]")
    with pytest.raises(ConfigError, match=r"min_tokens=2\) and .*min_tokens=3\) both return synthetic/increasing"):
        _measure(policy, world, make_metrics(world.evaluation.metrics, policy), None)
    world = _world(f"evaluation.metrics=[{one},{{id:dates}},{one}]")  # repeated metrics hide nothing
    written = _measure(policy, world, make_metrics(world.evaluation.metrics, policy), None)
    assert len(written.results) == 2
