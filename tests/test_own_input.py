"""Input from the user's own classes, functions and data is used as it is or refused, never replaced by a guess."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from pydantic import ValidationError
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

import groundling.worlds  # noqa: F401  (registers subjects of judges)
from groundling import metrics
from groundling.envs import ToolEnv
from groundling.envs.text_env import TextEnv, TextObservation
from groundling.envs.text_generation.columns import Listed
from groundling.envs.vector import TextVectorEnv
from groundling.errors import ConfigError, RunError
from groundling.evaluation.controls import ControlResults
from groundling.judges import Question, Reply, Request, TransformersJudge
from groundling.judges.asking.judge import Judge, Outcome, ask
from groundling.judges.asking.rubric import Rubric
from groundling.judges.preferences.pairs import Comparison, Preference
from groundling.lm import LanguageModel
from groundling.prompts import Conversation, PromptReader, prompts
from groundling.rewards.functions import FunctionReward
from groundling.worlds.episode import Episode, Played
from groundling.worlds.text.demonstrations import _ROWS

_MESSAGES = [{"role": "assistant", "content": "a"}, {"role": "user", "content": "b"}]


class _Tool:
    reward = 0.0

    def reset(self) -> None:
        pass

    def wait(self) -> None:
        """Wait."""


class _Awaited(_Tool):
    async def success(self) -> bool:
        return False


class _Worded(_Tool):
    success = "no"


class _Undefined(_Tool):
    success = float("nan")


@pytest.mark.filterwarnings("ignore:coroutine")
@pytest.mark.parametrize("made", [_Awaited, _Worded, _Undefined])
def test_a_tools_success_must_be_a_boolean(made: Any) -> None:
    env = ToolEnv(made)
    env.reset(seed=0)
    with pytest.raises(ConfigError, match=f"{made.__name__}.success must be, or return, True or False"):
        env.step("done")


class _Reused(gymnasium.Env[Any, int]):
    """Writes each observation into the same array."""

    observation_space, action_space = gymnasium.spaces.Dict(), gymnasium.spaces.Discrete(2)

    def __init__(self) -> None:
        self.seen: dict[str, Any] = {"image": np.zeros(1), "text": "here", "mission": "go"}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.seen["image"][:] = 0
        return self.seen, {"admissible_commands": ["env's", "own"]}

    def step(self, action: int) -> Any:
        self.seen["image"] += 1
        return self.seen, 0.0, False, False, {"admissible_commands": ["env's", "own"]}


def _first(env: gymnasium.Env[Any, Any]) -> TextObservation:
    return TextVectorEnv(lambda: env, 1, None, lambda env, episode: episode).reset()[0]


def test_observations_do_not_change_after_their_step() -> None:
    envs = TextVectorEnv(_Reused, 1, None, lambda env, episode: episode)
    seen = [envs.reset()[0], *(envs.step([0]).observations[0] for _ in range(2))]
    assert [one.raw["image"].item() for one in seen] == [0, 1, 2]


def test_a_text_envs_function_that_returns_none_is_not_replaced() -> None:
    with pytest.raises(ConfigError, match="must return a list of strings as descriptions, got None"):
        _first(TextEnv(_Reused(), descriptions=lambda observation, info: None))
    with pytest.raises(RunError, match="no action is admissible"):
        _first(TextEnv(_Reused(), actions=lambda observation, info: None))


@pytest.mark.parametrize(
    ("views", "choices", "answers"),
    [("You see it", ("",), ()), (("old", "new"), ("", ""), ()), (("new",), "Actions: go", ())],
)
def test_a_conversations_turns_must_match(views: Any, choices: Any, answers: Any) -> None:
    try:
        prompts.register("own-turns")(lambda observation, language: Conversation("", "", views, choices, answers))
        with pytest.raises(ConfigError, match="prompt 'own-turns' needs tuples, with one answer fewer than views"):
            PromptReader("own-turns").read(TextObservation("go", (("it",),), (), ("go",), {}))
    finally:
        prompts._factories.pop("own-turns", None)
        prompts._origins.pop("own-turns", None)


def test_an_actions_index_must_be_its_own() -> None:
    row = {"goal": "", "descriptions": [["it"]], "past_actions": [], "actions": ["go", "stay"], "action": "stay"}
    row |= {"reward": 0.0, "done": True, "log_prob": None, "tools": None}
    _ROWS.validate_python([row | {"action_index": 1}])
    with pytest.raises(ValidationError, match="action_index must be the index of action, 'stay', in actions"):
        _ROWS.validate_python([row | {"action_index": 0}])


def test_a_users_message_is_no_reference() -> None:
    with pytest.raises(ConfigError, match="completion must be an answer, but has roles"):
        Listed(samples=[{"prompt": "q", "completion": _MESSAGES}]).prepare("train")
    assert Listed(samples=[{"prompt": "q", "completion": _MESSAGES[:1]}]).prepare("train")[0].references == ("a",)


def test_references_are_lists() -> None:
    metric = metrics.create("chrf")
    assert metric.compute(["p"], ["a red key"], [["a red key"]])["lexical/chrf"].corpus == 1
    with pytest.raises(RunError, match="references must be a list of texts for each sample"):
        metric.compute(["p"], ["a red key"], ["a red key"])


def test_a_function_cannot_change_the_data() -> None:
    def last_of(generations: list[str], references: list[list[str]], steps: list[list[str]]) -> list[float]:
        generations.sort()
        references[0].clear()
        return [float(len(one.pop())) for one in steps]

    texts, references, meta = ["b", "a"], [["r"], []], [{"steps": ["x", "long"]}, {"steps": ["xy"]}]
    reward = FunctionReward(last_of, {})
    for _ in range(2):
        assert reward(["p", "q"], texts, references, meta).tolist() == [4, 2]
    assert (texts, references, meta[0]["steps"]) == (["b", "a"], [["r"], []], ["x", "long"])


class _Unsure(Judge):
    def __init__(self, probabilities: Sequence[float]) -> None:
        self.probabilities = tuple(probabilities)

    def answer(self, request: Request) -> Reply:
        return Reply("", probabilities=self.probabilities)


def _outcome(probabilities: Sequence[float], question: Question) -> Outcome:
    outcomes: list[Outcome] = []
    ask(_Unsure(probabilities), question, [Comparison("a", "b")], outcomes.append)
    return outcomes[0]


def test_equal_probabilities_are_a_tie() -> None:
    question = Question(world="text")
    for probabilities, choice in (((0.5, 0.5, 0), Preference.TIE), ((0.2, 0.5, 0.3), Preference.SECOND)):
        verdict = _outcome(probabilities, question).verdict
        assert verdict is not None and verdict.choice == choice


def test_a_judges_probabilities_must_sum_to_1() -> None:
    rubric = Rubric(instructions="Any.", scale=(1, 3))
    assert rubric.score(_outcome((0, 0.1, 0.9), rubric)) == pytest.approx(2.9)
    for probabilities in ((0, 10, 90), (0.1, 0.9)):  # would be a score of 191 or 1.9
        with pytest.raises(RunError, match="probabilities of 1, 2, 3 must sum to 1"):
            _outcome(probabilities, rubric)


def _model(folder: Path, unknown: str | None) -> str:
    """Write a model whose tokenizer knows only some words; it drops others unless there is an ``unknown`` token."""
    words = ["</s>", "<unk>", "go", "left"]
    if unknown is None:
        tokenizer = Tokenizer(models.BPE({word: n for n, word in enumerate([*words, *"olfetg"])}, []))
    else:
        tokenizer = Tokenizer(models.WordLevel({word: n for n, word in enumerate(words)}, unknown))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>", unk_token=unknown).save_pretrained(folder)
    sizes = {"vocab_size": 16, "n_positions": 64, "n_embd": 8, "n_layer": 1, "n_head": 1}
    torch.manual_seed(0)
    GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0)).save_pretrained(folder)
    return str(folder)


def test_an_action_without_tokens_is_not_certain(tmp_path: Path) -> None:
    lm = LanguageModel.from_pretrained(_model(tmp_path, None), device="cpu")
    assert lm.score(["go"], ["go left", ""])[0][1] == 0
    with pytest.raises(ConfigError, match="the tokenizer has no tokens for '上'"):
        lm.score(["go"], ["go left", "上"])


def test_a_judge_must_distinguish_its_verdicts(tmp_path: Path) -> None:
    folder, question = _model(tmp_path, "<unk>"), Question(world="text")
    refusal = TransformersJudge(folder, device="cpu").accepts(question)
    assert refusal == "the judge's tokenizer cannot distinguish 1 and 2 and tie: set answer=line"
    assert TransformersJudge(folder, "line", device="cpu").accepts(question) is None


def test_a_single_episode_shows_nothing() -> None:
    high, low = ({"trained": Played([Episode({"success": share})])} for share in (1.0, 0.0))
    assert "a single episode does not show" in ControlResults("trained", {"held-out": high, "swapped": low}).verdict
