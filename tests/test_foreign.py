"""Errors in users' envs, prompts, pools and rewards contain their location, and the command fails."""

import signal
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from groundling.cli import main as cli
from groundling.envs.text_env import SUCCESSES, TextObservation, read_success, success_key
from groundling.envs.text_generation import Sample, pools
from groundling.envs.vector import TextVectorEnv
from groundling.errors import ConfigError, ForeignError, GroundlingError, TimeIsUp, foreign
from groundling.prompts import PromptReader, prompts
from groundling.rewards import GeneratedTexts, RewardInputs
from groundling.rewards.functions import FunctionReward
from groundling.rewards.sum import RewardSum
from groundling.rewards.text import TextPart
from groundling.training import slurm
from groundling.worlds.writing.config import WritingConfig, samples_of

_STEP = ("a text", 0.0, False, False, {"goal": "win", "actions": ["a", "b"]})


class _Scripted(gymnasium.Env[str, Any]):
    """An env whose second step returns ``then()``."""

    observation_space = gymnasium.spaces.Text(100)
    action_space = gymnasium.spaces.Text(10)

    def __init__(self, then: Callable[[], Any]) -> None:
        self.then = then

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
        self.steps = 0
        return _STEP[0], dict(_STEP[4])

    def step(self, action: Any) -> Any:
        self.steps += 1
        return self.then() if self.steps == 2 else _STEP


def _second_step(then: Callable[[], Any]) -> None:
    envs = TextVectorEnv(lambda: _Scripted(then), 1, None, lambda env, episode: 42)
    envs.reset()
    envs.step([0])
    envs.step([1])


def _raise(error: BaseException) -> Any:
    raise error


@pytest.mark.parametrize("error", [ValueError("no"), ConnectionError("lost"), SystemExit(0), GeneratorExit()])
def test_an_env_that_raises_is_reported(error: BaseException) -> None:
    with pytest.raises(ForeignError) as caught:
        _second_step(lambda: _raise(error))
    assert caught.value.__cause__ is error
    for word in ("env 0", "seed 42", "episode 0", "after 1 steps", "step 'b'", type(error).__name__):
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (1, None, "reward must be a number, got None"),
        (1, "1", "reward must be a number, got '1'"),
        (1, float("nan"), "reward is nan"),
        (1, np.ones(2), "reward must be a number"),
        (2, None, "terminated must be True or False, got None"),
        (3, "no", "truncated must be True or False, got 'no'"),
        (4, [], "info must be a dict"),
        (4, {"goal": "win", "actions": ["a", "a"]}, "listed twice"),
        (4, {"goal": "win", "actions": ["a", 1]}, "list of strings"),
        (4, {"goal": "win", "actions": []}, "no action is admissible"),
        (4, {"goal": "win"}, "list of admissible actions is missing"),
        (4, {"goal": "win", "actions": ["go \ud800"]}, r"an action has .* UTF-8 cannot .*'go \\ud800'"),
        (4, {"goal": "\udfff", "actions": ["a"]}, "the goal has a character that UTF-8 cannot"),
        (0, "a \ud800", "a description has a character that UTF-8 cannot"),
        (
            4,
            {"goal": "win", "actions": ["a"], "descriptions": "abc"},
            r"info\['descriptions'\] must be a list .*'abc' \(str\)",
        ),
        (0, {"image": 3}, r"observation is \{'image': 3\} \(dict\), not .* no info\['descriptions'\]"),
    ],
)
def test_values_of_an_env_are_checked(place: int, value: Any, message: str) -> None:
    with pytest.raises(GroundlingError, match=message):
        _second_step(lambda: (*_STEP[:place], value, *_STEP[place + 1 :]))


@pytest.mark.parametrize("name", ["success", "is_success"])
def test_success_is_true_or_false(name: str) -> None:
    last = ("a text", 0.0, True, False, dict(_STEP[4]))
    for value in ("no", 2, 0.5, float("nan"), None):
        with pytest.raises(
            GroundlingError, match=rf"step 2: info\['{name}'\] must be True or False .*, got {value!r}"
        ):
            _second_step(lambda value=value: (*last[:4], last[4] | {name: value}))  # type: ignore[misc]
    for value in (True, np.bool_(True), np.float32(1), 0):
        _second_step(lambda value=value: (*last[:4], last[4] | {name: value}))  # type: ignore[misc]
    assert read_success({name: np.bool_(True)}, False) is True and read_success({name: False}, True) is False


@pytest.mark.parametrize("name", SUCCESSES)
@pytest.mark.parametrize(
    "kind", [bool, int, float, np.bool_, np.float32, np.array, torch.tensor, lambda x: np.array([x])]
)
def test_every_key_of_success_is_read(name: str, kind: Callable[[bool], Any]) -> None:
    assert read_success({name: kind(True)}, False) is True and read_success({name: kind(False)}, True) is False
    assert success_key({name: kind(False), "goal_achieved": True, "lost": True}) == name


def test_keys_of_success_have_an_order_and_other_values_are_skipped() -> None:
    assert read_success({"won": True, "success": False}, True) is False
    assert read_success({"won": 250, "win": "north", "victory": None, "solved": True}, False) is True
    assert read_success({"lost": True}, True) is False and read_success({"taskfailure": 1, "won": True}, False)
    assert success_key({"lost": False, "won": [], "win": torch.ones(2)}) is None
    assert read_success({"lost": False}, True) and not read_success({}, False)


def test_numbers_of_numpy_and_torch_are_accepted() -> None:
    for reward in (1, np.float32(1), np.int64(1), torch.tensor(1.0)):
        _second_step(lambda reward=reward: ("a text", reward, np.bool_(False), 0, _STEP[4]))  # type: ignore[misc]
    with pytest.raises(GroundlingError, match="step must return"):
        _second_step(lambda: ("a text", 1.0, True, {}))


def test_a_prompt_that_raises_or_gives_no_text_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = TextObservation("win", (("a wall",),), (), ("a", "b"), {})
    reader = PromptReader("brief")
    monkeypatch.setattr(prompts, "get", lambda id: lambda observation, language: {}["goal"])
    with pytest.raises(ForeignError, match="prompt 'brief' raised KeyError"):
        reader(seen)
    with pytest.raises(ForeignError, match="prompt 'brief' raised KeyError"):
        PromptReader(["brief", "glam"])
    monkeypatch.setattr(prompts, "get", lambda id: lambda observation, language: 7)
    with pytest.raises(ConfigError, match="prompt 'brief' must return a string or a Conversation, got 7"):
        reader(seen)


def test_a_pool_that_raises_or_gives_no_samples_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    config = WritingConfig(pool="commongen")
    for prepared, error, message in (
        (lambda split: {}["train"], ForeignError, r"pool 'commongen' \(split train\) raised KeyError"),
        (lambda split: ["a text"], ConfigError, "must return a list of Sample, got 'a text' at 0"),
        (lambda split: [None], ConfigError, "must return a list of Sample, got None at 0"),
        (lambda split: 7, ConfigError, "must return a list of Sample, got 7"),
    ):
        monkeypatch.setattr(pools, "create", lambda id, p=prepared, **args: SimpleNamespace(prepare=p))
        with pytest.raises(error, match=message):
            samples_of(config, "train")


def test_a_pools_later_samples_are_checked_when_they_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    class Read(list[Any]):
        def __getitem__(self, place: Any) -> Any:
            places.append(place)
            return super().__getitem__(place)

    places: list[int] = []
    given = Read([Sample("a", "a"), Sample("b", "b"), 7])
    monkeypatch.setattr(pools, "create", lambda id, **args: SimpleNamespace(prepare=lambda split: given))
    samples = samples_of(WritingConfig(pool="commongen"), "train")
    assert (len(samples), places) == (3, [0]) and [one.id for one in samples[:2]] == ["a", "b"]
    with pytest.raises(ConfigError, match=r"pool 'commongen' \(split train\) must return .* got 7 at 2"):
        list(samples)


def test_a_time_limit_ends_a_job_within_foreign_code() -> None:
    with pytest.raises(TimeIsUp), slurm.time_limit(lambda: True), foreign("a pool"):
        signal.raise_signal(slurm._SIGNAL)


def test_a_reward_that_raises_is_reported() -> None:
    def broken(generations: list[str]) -> list[float]:
        return [1 / (len(text) - 3) for text in generations]

    reward = RewardSum({"mine": TextPart(FunctionReward(broken, {}))})
    texts = GeneratedTexts(["p", "q"], [["a"], ["abc"]], [[], []], [{}, {}])
    with pytest.raises(ForeignError, match=r"reward\.mine: broken, called with 2 texts, raised") as caught:
        reward(RewardInputs((1, 2), None, texts=texts))
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def _command(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("groundling.cli.doctor.run", lambda arguments: _raise(error))


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory: x")])
def test_a_lack_of_memory_is_reported_in_one_line(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _command(error, monkeypatch)
    assert cli.main(["doctor"]) == 1
    output = capsys.readouterr().err
    assert output.startswith("error: out of memory") and output.count("\n") == 1 and "world.num_envs" in output


def test_a_foreign_traceback_follows_its_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    error = ForeignError("env 3 raised")
    error.__cause__ = ValueError("theirs")
    _command(error, monkeypatch)
    assert cli.main(["doctor"]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "error: env 3 raised" and lines[-1] == "ValueError: theirs"


def test_our_own_failures_ask_for_a_report(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _command(KeyError("ours"), monkeypatch)
    with pytest.raises(KeyError):
        cli.main(["doctor"])  # main does not catch them
    monkeypatch.setattr("sys.argv", ["groundling", "doctor"])
    for name in ("end_with_launcher", "keep_writing"):
        monkeypatch.setattr(cli, name, lambda: None)
    monkeypatch.setattr("faulthandler.enable", lambda: None)
    with pytest.raises(SystemExit) as ended:
        cli.entry_point()
    output = capsys.readouterr().err
    assert ended.value.code == 1 and "Please report" in output.splitlines()[0] and "Traceback" in output
