"""An evaluation that was stopped goes on where it was, and comes to what it would have come to."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from groundling.config.compose import compose
from groundling.errors import RunError
from groundling.evaluation import journals as journals_module
from groundling.evaluation.evaluate import evaluate
from groundling.evaluation.journals import Journals, journals_of_command_lines
from groundling.evaluation.target import Target
from groundling.policies import Policy
from groundling.policies.token import TokenPolicy
from groundling.worlds import journal as journal_module
from groundling.worlds.journal import Journal, UnequalObservation
from tests.thorough import some_of

_TEXT = ["world.args.max_steps=8", "evaluation.num_envs=3", "evaluation.episodes=7"]
_POOL = ["world.num_tokens=6", "evaluation.batch_size=2", "evaluation.episodes=7"]
_CASES = {
    "scoring": ("demo-easy", _TEXT),
    "conversation": ("demo", [*_TEXT, "world.history=null", "policy.args.prompt=conversation"]),
    "writing turns": (
        "demo",
        [
            *_TEXT,
            "world.history=null",
            "policy.id=action_generating",
            "~policy.args",
            "policy.args={guided: false}",
        ],
    ),
    "recurrent": ("glam/symbolic", _TEXT),
    "NetHack": (
        "motif/score",
        [
            *(
                "~reward.reward_model",
                "world.args.max_episode_steps=20",
                "policy.args={hidden_size: 8, recurrence: 4}",
            ),
            *("evaluation.num_envs=2", "evaluation.episodes=5"),
        ],
    ),
    "texts": ("rl4lms/increasing_numbers_ppo", [*_POOL, "evaluation.generation={}"]),
    "generated texts": (
        "rl4lms/increasing_numbers_ppo",
        [*_POOL, "evaluation.generation={do_sample: true, min_new_tokens: 2}"],
    ),
}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where journals lie, written at each choice."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(journal_module, "_SECONDS", 0.0)
    return tmp_path / "cache" / "groundling" / "evaluations"


def _target(case: str, run_dir: Path) -> Target:
    experiment, words = _CASES[case]
    config = compose(experiment, [*words, "evaluation.baselines=[]", "device=cpu", f"run_dir={run_dir}"])
    return Target("zero-shot", run_dir, config)


def _files(run_dir: Path) -> dict[str, bytes]:
    """What was written of the episodes and texts."""
    paths = [*run_dir.glob("evaluation/*.csv"), *run_dir.glob("predictions/*")]
    return {path.name: path.read_bytes() for path in paths}


def _counted(monkeypatch: pytest.MonkeyPatch, most: float) -> list[None]:
    """One entry for each time that a policy chooses; it is stopped where there would be more than ``most``."""
    calls: list[None] = []

    def counting(choose: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **kwargs: Any) -> Any:
            if len(calls) == most:
                raise KeyboardInterrupt
            calls.append(None)
            return choose(*args, **kwargs)

        return counted

    make = Target.policy

    def made(target: Target, agent: str) -> Policy | None:
        policy = make(target, agent)
        assert policy is not None
        if isinstance(policy, TokenPolicy):
            generate, write = policy.lm.generate, policy.write
            monkeypatch.setattr(policy, "write", counting(write))
            monkeypatch.setattr(policy.lm, "generate", counting(generate))
        else:
            monkeypatch.setattr(policy, "act", counting(policy.act))
        return policy

    monkeypatch.setattr(Target, "policy", made)
    return calls


def _evaluate(target: Target, suite: str, told: list[str]) -> None:
    with Journals() as journals:
        evaluate(target, suite, target.config.evaluation.episodes, warn=told.append, journals=journals)


@pytest.mark.parametrize("case", some_of(_CASES, ["conversation", "NetHack"]))
def test_one_that_was_stopped_comes_to_the_same(case: str, cache: Path, tmp_path: Path) -> None:
    suite = next(iter(_target(case, tmp_path).world.suites))
    told: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        torch.manual_seed(0)
        whole = _counted(patch, float("inf"))
        _evaluate(_target(case, tmp_path / "whole"), suite, told)
    assert not told and not list(cache.iterdir())  # what came to its end is forgotten
    done = 0
    for most in (1, len(whole) // 2, len(whole)):
        with pytest.MonkeyPatch.context() as patch:
            torch.manual_seed(0)
            calls = _counted(patch, most - done)
            if most == len(whole):
                _evaluate(_target(case, tmp_path / "stopped"), suite, told)
            else:
                with pytest.raises(KeyboardInterrupt):
                    _evaluate(_target(case, tmp_path / "stopped"), suite, told)
            done += len(calls)
    assert (
        done == len(whole) and len(told) == 2 and all("goes on where it was stopped" in line for line in told)
    )
    assert _files(tmp_path / "stopped") == _files(tmp_path / "whole") != {}
    assert not list(cache.iterdir())


def test_other_weights_settings_and_suites_go_on_with_nothing(cache: Path, tmp_path: Path) -> None:
    target = _target("scoring", tmp_path)
    policy = target.policy("zero-shot")
    assert policy is not None
    names = []
    with Journals() as journals:
        for change in ("nothing", "suite", "episodes", "seed", "weights"):
            config = compose("demo-easy", ["seed=2"]) if change == "seed" else target.config
            if change == "weights":
                next(policy.parameters()).data[0] += 0.01
            suite, episodes = "french" if change == "suite" else "held-out", 8 if change == "episodes" else 7
            names.append(journals.of(config, "zero-shot", policy, suite, episodes).path)
        again = journals.of(target.config, "zero-shot", policy, "held-out", 7).path
        assert journals.of(target.config, "random", None, "held-out", 7).path is None
    assert len(set(names)) == 5 and again == names[-1]


def test_a_world_that_shows_something_else_is_begun_anew(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        _counted(patch, 3)
        with pytest.raises(KeyboardInterrupt):
            _evaluate(_target("scoring", tmp_path), "held-out", told)
    (path,) = cache.iterdir()
    lines = path.read_text().splitlines()
    assert '"actions": [["' in lines[1]
    path.write_text("\n".join([lines[0], lines[1].replace('[["', '[["0'), lines[2]]) + "\n")
    _evaluate(_target("scoring", tmp_path), "held-out", told)
    assert ["goes on" in told[0], "begins anew" in told[1], len(told)] == [True, True, 2]


def test_what_a_kill_cut_off_is_done_again(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "journal.jsonl"
    generator = torch.Generator().manual_seed(3)
    memories = {
        0: torch.tensor([0.5, -1.5], dtype=torch.bfloat16),
        7: torch.tensor([2.0], dtype=torch.float64),
    }
    states = []
    with_three = Journal(path)
    with_three.begin([generator], memories)
    for number in range(3):
        torch.rand(1, generator=generator)
        memories |= {env: memory * 2 for env, memory in memories.items()}
        states.append((generator.get_state(), dict(memories)))
        with_three.record(("shown", number), [number])
    with_three.close()
    path.write_bytes(path.read_bytes()[:-5])
    two = Journal(path)
    assert two.repeated == 2
    memories.clear()
    two.begin([generator], memories)
    assert torch.equal(generator.get_state(), states[1][0]) and memories.keys() == {0, 7}
    assert all(torch.equal(memory, states[1][1][env]) for env, memory in memories.items())
    assert [two.repeat(("shown", number)) for number in range(3)] == [[0], [1], None]
    two.record(("shown", 2), [5])
    two.close()
    three = Journal(path)
    assert three.repeated == 3 and three.repeat(("shown", 0)) == [0]
    with pytest.raises(UnequalObservation):
        three.repeat(("shown", 7))
    three.forget()
    assert not path.exists()


def test_a_process_leaves_anothers_journal_alone(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    early = Journal(path)  # before there is a file
    writing = Journal(path)
    writing.record("a", [1])
    late = Journal(path)
    for other in (early, late):
        other.record("a", [2])
        other.end()
        other.forget()
    writing.record("b", [3])
    writing.close()
    assert [Journal(path).repeat("a"), path.read_text().count("\n")] == [[1], 2]


def test_an_agent_that_draws_otherwise_begins_anew(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    first, generators = Journal(path), [torch.Generator().manual_seed(seed) for seed in (1, 2)]
    first.begin(generators)
    first.record("a", [1])
    first.close()
    second, before = Journal(path), generators[0].get_state()
    assert second.repeated == 1
    second.begin([*generators, torch.Generator()])
    assert (
        second.repeated == 0 and second.repeat("b") is None and torch.equal(generators[0].get_state(), before)
    )
    second.record("b", [2])
    second.close()
    assert Journal(path).repeat("b") == [2]


def test_short_evaluations_are_kept_once_the_command_has_run_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_module, "_SECONDS", 1000.0)
    kept = []
    for began in (time.monotonic(), time.monotonic() - 1001):
        journal = Journal(tmp_path / str(len(kept)), began)
        journal._written = time.monotonic()
        journal.record("a", [1])
        kept.append((tmp_path / str(len(kept))).exists())
        journal.end()
        kept[-1] = (kept[-1], (tmp_path / str(len(kept) - 1)).exists())
    assert kept == [(False, False), (False, True)]


def test_long_lines_are_written_before_their_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_module, "_SECONDS", 1000.0)
    path = tmp_path / "journal.jsonl"
    journal = Journal(path)
    for number in range(2):
        journal.record(number, "a" * 2**21)
    journal.close()
    assert Journal(path).repeated == 2


def test_a_line_that_cannot_be_read_costs_no_other(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    journal = Journal(path)
    journal.record("a", [1])
    journal.close()
    with path.open("a") as file:
        file.write('{"actions": [["x"]]}\n')
    assert Journal(path).repeated == 1 and path.read_text().count("\n") == 1


def test_command_lines_leave_their_journals_to_the_command_that_runs_them(
    cache: Path, tmp_path: Path
) -> None:
    target, told = _target("scoring", tmp_path), list[str]()
    with pytest.raises(RunError), journals_of_command_lines(["evaluate", "x"]):
        _evaluate(target, "held-out", told)
        raise RunError("another suite failed")
    assert len(list(cache.glob("*/*.jsonl"))) == 1
    with pytest.MonkeyPatch.context() as patch:
        calls = _counted(patch, 0)
        with journals_of_command_lines(["evaluate", "x"]):
            _evaluate(target, "held-out", told)
    assert not calls and "goes on" in told[0] and not list(cache.iterdir())


def test_the_code_that_decides_is_all_of_ours_and_what_the_user_has_loaded() -> None:
    files = {name for name, _, _ in journals_module._code()}
    ours = Path(journals_module.__file__).parents[1]
    assert {str(path) for path in ours.rglob("*.py")} < files and __file__ in files
    assert str(torch.__file__) not in files and json.__file__ not in files


def test_other_weights_have_other_digests() -> None:
    weights = torch.randn(70, 1000)
    others = [weights.flip(0), weights.T, weights + 1e-6, weights.bfloat16(), weights.flatten()]
    assert len({journals_module._digest_of(one) for one in [weights, weights.clone(), *others]}) == 6
    assert journals_module._digest_of(torch.tensor(3)) and journals_module._digest_of(torch.empty(0))
    assert journals_module._digest_of(torch.empty(5, device="meta"))


@pytest.mark.parametrize("content", ["{}\n", '{"actions": 3, "state": ""}\n', "[1]\n", "\x00\n", ""])
def test_a_journal_that_cannot_be_read_is_begun_anew(tmp_path: Path, content: str) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_text(content)
    journal = Journal(path)
    assert journal.repeated == 0
    journal.record("shown", [1])
    journal.close()
    assert Journal(path).repeated == 1


@pytest.mark.parametrize("place", ["a file", "a folder", "a locked place"])
def test_where_nothing_can_be_written_nothing_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    path = tmp_path / "folder" if place == "a folder" else tmp_path / "file" / "journal.jsonl"
    if place == "a locked place":
        monkeypatch.setattr(Path, "exists", Mock(side_effect=PermissionError))  # another user's, say
    journal = Journal(path)
    for number in range(2):
        journal.record(number, [number])
    journal.end()
    journal.forget()
    assert journal.path is None
