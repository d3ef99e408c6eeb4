"""An evaluation that was stopped goes on where it was, and comes to what it would have come to."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from groundling.configs.compose import compose
from groundling.evaluation.evaluate import evaluate
from groundling.evaluation.journals import Journals
from groundling.evaluation.target import Target
from groundling.policies import Policy
from groundling.policies.token import TokenPolicy
from groundling.worlds import journal as journal_module
from groundling.worlds.journal import Journal, UnequalMoment

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


@pytest.mark.parametrize("case", _CASES)
def test_one_that_was_stopped_comes_to_the_same(case: str, cache: Path, tmp_path: Path) -> None:
    suite = next(iter(_target(case, tmp_path).world.suites))
    told: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        torch.manual_seed(0)  # of heads without a checkpoint
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
    path.write_text("\n".join([lines[0], lines[1].replace('[["', '[["0'), lines[2]]) + "\n")
    _evaluate(_target("scoring", tmp_path), "held-out", told)
    assert ["goes on" in told[0], "begins anew" in told[1], len(told)] == [True, True, 2]


def test_what_a_kill_cut_off_is_done_again(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "journal.jsonl"
    generator, memories = torch.Generator().manual_seed(3), {0: torch.tensor([0.5, -1.5])}
    states = []
    with_three = Journal(path)
    with_three.begin([generator], memories)
    for number in range(3):
        torch.rand(1, generator=generator)
        memories[0] = memories[0] * 2
        states.append((generator.get_state(), memories[0]))
        with_three.note(("shown", number), [number])
    with_three.close()
    path.write_bytes(path.read_bytes()[:-5])
    two, other = Journal(path), Journal(path)
    assert (two.repeated, other.repeated) == (2, 0)  # another process leaves it alone
    two.begin([generator], memories)
    assert torch.equal(generator.get_state(), states[1][0]) and torch.equal(memories[0], states[1][1])
    assert [two.repeat(("shown", number)) for number in range(3)] == [[0], [1], None]
    two.note(("shown", 2), [5])
    two.close()
    three = Journal(path)
    assert three.repeated == 3 and three.repeat(("shown", 0)) == [0]
    with pytest.raises(UnequalMoment):
        three.repeat(("shown", 7))
    three.forget()
    assert not path.exists()


@pytest.mark.parametrize("content", ["{}\n", '{"choices": 3, "state": {}}\n', "[1]\n", "\x00\n", ""])
def test_a_journal_that_cannot_be_read_is_begun_anew(tmp_path: Path, content: str) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_text(content)
    journal = Journal(path)
    assert journal.repeated == 0
    journal.note("shown", [1])
    journal.close()
    assert Journal(path).repeated == 1


def test_where_nothing_can_be_written_nothing_is_kept(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    journal = Journal(tmp_path / "file" / "journal.jsonl")
    for number in range(2):
        journal.note(number, [number])
    journal.forget()
