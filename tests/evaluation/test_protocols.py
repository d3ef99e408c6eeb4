"""Benchmarks with their own protocols, for runs, models and servers."""

import json
from pathlib import Path

import pytest

from groundling.cli.main import main
from groundling.evaluation import protocols
from groundling.evaluation.protocols import mean_of_tasks
from groundling.worlds.episode import Figure
from tests.judges.asking.chat_server import ChatServer, serving

_TASKS = ("goto", "pickup", "open", "putnext", "pick-up-seq-go-to")


def test_an_expert_scores_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["evaluate", "expert", "--protocol", "balrog-babyai", "--episodes", "2"]
    assert main([*words, f"run_dir={tmp_path}"]) == 0
    assert "the mean success rate over five tasks" in " ".join(capsys.readouterr().out.split())
    figures = json.loads((tmp_path / "evaluation/balrog-babyai.json").read_text())["agents"]["expert"]["figures"]
    assert figures.keys() == {"mean", *(f"balrog-{task}" for task in _TASKS)}
    assert figures["mean"]["value"] == 1 and figures["mean"]["episodes"] == 10


def test_a_server_receives_balrogs_prompts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    server = ChatServer(write=lambda body: "GO forward." if len(body["messages"]) % 4 else "I would rather not")
    with serving(server):
        command = ["evaluate", server.url, "--protocol", "balrog-babyai", "--suite", "balrog-goto"]
        words = ["policy.args.model=talker", "evaluation.baselines=[]", f"run_dir={tmp_path}/run"]
        assert main([*command, "--episodes", "2", *words]) == 0
    assert {body["model"] for body in server.bodies} == {"talker"}
    assert {body["temperature"] for body in server.bodies} == {1.0}
    longest = max(server.bodies, key=lambda body: len(body["messages"]))["messages"]
    assert len(longest) == 2 + 2 * 16  # a system prompt and 16 turns before the current one
    assert [message["role"] for message in longest[:3]] == ["system", "user", "assistant"]
    assert "Your task: go to" in longest[1]["content"] and "You see" not in longest[1]["content"]
    assert {m["content"] for m in longest if m["role"] == "assistant"} == {"go forward"}  # even if invalid
    (row,) = json.loads((tmp_path / "run/evaluation/balrog-goto.json").read_text())["agents"].values()
    assert 0 < row["figures"]["invalid_actions"]["value"] < 0.7
    assert not (tmp_path / "run/evaluation/balrog-babyai.json").exists()  # one suite of five is not a result


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["no/such/model"], "or server URL"),
        (["http://127.0.0.1:1/v1"], "add policy.args.model=NAME"),
        (["http://me:secret@127.0.0.1:1/v1", "policy.args.model=m"], "base_url contains a user, password or query"),
        (["http://[::1", "policy.args.model=m"], "base_url must be a URL such as http://127.0.0.1:8000/v1"),
        (["expert", "--suite", "held-out"], "is not part of the protocol balrog-babyai"),
        (["expert", "world.args.max_steps=9"], "world.args.max_steps=9 would change the world of balrog-babyai"),
        (["expert", "++world={history: 2, args: {room_size: 5}}"], "would change the world of balrog-babyai"),
        (["expert", "~world.args"], "~world.args would change the world of balrog-babyai"),
    ],
)
def test_unknown_agents_are_refused(words: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", *words, "--protocol", "balrog-babyai"]) != 0
    assert says in " ".join(capsys.readouterr().err.split())
    assert not [path for path in Path("runs").glob("**/*") if "secret" in path.name]


@pytest.mark.parametrize(
    ("overrides", "episodes"),
    [
        (["evaluation={deterministic: true}", "world.history=2"], 100),
        (["++evaluation.episodes=7"], 7),
        (["evaluation={episodes: 7}"], 7),
    ],
)
def test_all_agents_play_equally_many_episodes(overrides: list[str], episodes: int) -> None:
    expert = protocols.find_player("expert", "balrog-babyai", overrides, pytest.fail)
    assert expert.config.evaluation.episodes != 100
    assert protocols.num_episodes(expert, "balrog-babyai") == episodes


def test_the_interval_of_the_mean_follows_from_the_tasks() -> None:
    mean = mean_of_tasks([Figure(1.0, 0.9, 1.0, 50), Figure(0.5, 0.3, 0.7, 50)])
    assert (mean.value, mean.episodes) == (0.75, 100)
    assert mean.low == pytest.approx(0.75 - (0.1**2 + 0.2**2) ** 0.5 / 2)
    assert mean.high == pytest.approx(0.85)
