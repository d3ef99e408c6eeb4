"""`groundling check-env`."""

import os
from types import SimpleNamespace
from typing import Any

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import PreTrainedTokenizerFast

from groundling.cli.check_env import texts_alike
from groundling.cli.main import main
from groundling.envs.checking import RandomEpisodes, check_env, compare_splits
from groundling.envs.make import TextEnvMaker
from groundling.envs.seeds import training_seed
from groundling.errors import ConfigError
from tests.envs.doors import Wandering

_DRAW = "Sample everything from self.np_random"


def test_episodes_are_played_and_replayed() -> None:
    played = check_env("test/Doors-v0", {}, num_episodes=4)
    assert len(played.episodes) == 4 and played.most_actions == 5 and len(played.texts["actions"]) == 5
    assert played.steps == sum(len(e.actions) for e in played.episodes)
    assert played.resumed_after == max(e.length for e in played.episodes) - 1 > 0
    assert played.choices and all(len(o.actions) > 1 for o in played.choices)
    assert not any("a goal" in doubt or "an action" in doubt for doubt in played.doubts)
    assert list(check_env("test/Doors-v0", {}, history=1).shown) == [0, 1]  # steps, not quoted observations


@pytest.mark.parametrize(("which", "where"), [(3, r"after 1 steps its goal"), (5, r"but in a new env \('open black'")])
def test_an_episode_is_resumed_in_its_middle(which: int, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Wandering, "instances", 0)
    with pytest.raises(ConfigError, match=rf"Sample everything from self\.np_random.*{where}"):
        check_env("test/Wandering-v0", {"which": which}, num_episodes=2)


@pytest.mark.parametrize(
    ("id", "args", "message"),
    [
        ("test/Shared-v0", {"part": "order"}, "alongside another env .* random module is shared"),
        ("test/Counted-v0", {}, "reverse order.* carry nothing over from earlier episodes"),
    ],
)
def test_state_shared_by_envs_or_episodes_is_an_error(id: str, args: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_env(id, args, num_episodes=2)


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["tests.envs.doors:Unseeded", "world.args.part=order"], [_DRAW, "its actions differed"]),
        (["tests.envs.doors:Unseeded", "world.args.part=number"], [_DRAW, "its actions differed"]),
        (["tests.envs.doors:Unseeded", "world.args.part=text"], [_DRAW, "its descriptions differed"]),
        (["tests.envs.doors:Forgetful"], ["its actions differed"]),
        (["tests.envs.doors:Endless"], ["has not ended after 10,000 steps"]),
        (["tests.nowhere:Doors"], ["there is no module"]),
    ],
)  # fmt: skip
def test_unsuitable_envs_give_one_line(words: list[str], parts: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check-env", *words]) == 1
    line = capsys.readouterr().err
    assert all(part in line for part in parts), line
    assert "checkpoint" not in line


def test_episodes_are_played_with_another_hash_seed(capsys: pytest.CaptureFixture[str]) -> None:
    before = os.environ.get("PYTHONHASHSEED")
    assert main(["check-env", "tests.envs.doors:Hashed"]) == 1
    line = capsys.readouterr().err
    assert "in another process with PYTHONHASHSEED=" in line and "sort sets with" in line
    assert "after 0 steps its actions differed" in line and os.environ.get("PYTHONHASHSEED") == before


def test_empty_and_broken_texts_give_warnings(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check-env", "tests.envs.doors:Careless"]) == 0
    error = capsys.readouterr().err
    for doubt in ("a goal is empty", "an action is empty", r"an action has line breaks, which"):
        assert f"warning: Careless-v0: {doubt}" in error


def test_tasks_of_babyai_are_read() -> None:
    played = check_env("BabyAI-MixedTrainLocal-v0", {"num_dists": 1, "max_steps": 4}, num_episodes=2)
    assert played.doubts == []
    assert {episode.task for episode in played.episodes} != {"BabyAI-MixedTrainLocal-v0"}


def _compared(**args: Any) -> list[str]:
    return compare_splits("test/Games-v0", TextEnvMaker.of("test/Games-v0", **args))


def test_the_splits_are_compared() -> None:
    few = check_env("test/Games-v0", {"count": 3}, num_episodes=1).doubts
    assert len(few) == 1 and few == _compared(count=3)
    assert few[0].startswith("200 of 200 held-out episodes start exactly like one of 200 training episodes")
    assert _compared(count=2**20, identity="shown") == []


@pytest.mark.parametrize(
    ("identity", "training", "held_out"),
    [
        ("int", "task_id '0', '1', '2' and 1 more", "task_id '4', '5', '6' and 1 more"),
        ("numpy", "task_id '0', '1', '2' and 1 more", "task_id '4', '5', '6' and 1 more"),
        ("shown", "first observation 'This is game 0.'", "first observation 'This is game 4.'"),
    ],
)
def test_tasks_of_one_split_are_reported(identity: str, training: str, held_out: str) -> None:
    of_training, of_held_out = _compared(by_range=True, identity=identity)
    assert of_training.startswith(f"only training episodes have the {training}")
    assert of_held_out.startswith(f"only held-out episodes have the {held_out}")


def test_texts_with_equal_tokens_are_reported() -> None:
    tokenizer = Tokenizer(WordLevel({"open": 0, "look": 1, "[UNK]": 2}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    lm = SimpleNamespace(tokenizer=PreTrainedTokenizerFast(tokenizer_object=tokenizer))
    actions, goals, observations = ["open {", "look", "open }"], ["open", "look"], ["@\n +", "@ +", "look"]
    texts = {"goals": goals, "actions": actions, "observations": observations}
    played = RandomEpisodes(texts={kind: dict.fromkeys(texts) for kind, texts in texts.items()})
    policy: Any = SimpleNamespace(lm=lm)
    assert [text.split(";")[0] for text in texts_alike(policy, played)] == [
        "the model cannot distinguish these actions, whose tokens are identical: 'open {' and 'open }'",
        r"the model cannot distinguish these observations, whose tokens are identical: '@\n +' and '@ +'",
    ]


@pytest.mark.parametrize(
    ("count", "message"),
    [
        (8, "over 2 of 16 lists (at most 20 actions are scored)"),
        (30, "these 30 actions are not scored: the limit is 20"),
    ],
)
def test_a_limited_number_of_actions_is_scored(
    count: int, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("groundling.cli.check_env._MOST_READ", 20)
    assert main(["check-env", "tests.envs.doors:Many", f"world.args.num_actions={count}"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert message in out and ("nats" in out) == (count == 8), out


def test_findings_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check-env", "tests.envs.doors:Doors", "world.history=1"]) == 0
    assert "the model's prompt at step 1" in capsys.readouterr().out
    assert main(["check-env", "tests.envs.doors:Doors"]) == 0
    printed = capsys.readouterr().out
    assert "Goal of the agent: open" in printed and "1 to 5 per step" in printed
    assert "the model's preferences before training: " in printed and "entropy (action_writing, untrained)" in printed
    assert "so runs can be resumed exactly" in " ".join(printed.split())


@pytest.mark.parametrize("error", ["KeyError", "SystemExit"])
@pytest.mark.parametrize(
    ("method", "message"),
    [
        ("init", "env Broken-v0, while being created with"),
        ("reset", f"during reset: seed {training_seed(0, 0, 0)}, episode 0, after 0 steps"),
        ("step", "during step 'open "),
        ("close", "while being closed,"),
    ],
)
def test_the_first_line_says_where_an_env_raised(
    method: str, message: str, error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    args = [f"world.args.method={method}", f"world.args.error={error}"]
    assert main(["check-env", "tests.envs.doors:Broken", *args]) == 1
    line = capsys.readouterr().err.splitlines()[0]
    assert line.startswith("error: env") and message in line and f"raised {error}" in line


@pytest.mark.parametrize(
    ("words", "warns"), [(["policy.id=action_scoring", "policy.args.temperature=1"], True), ([], False)]
)
def test_likely_short_actions_give_a_warning(
    words: list[str], warns: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check-env", "tests.envs.doors:Long", *words]) == 0
    output = capsys.readouterr()
    assert ("policy.args.normalize=sum adds up" in output.err) == warns, output.err
    assert ("1.000  wait" in output.out) == warns


def test_what_is_read_is_printed_with_proposals(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check-env", "tests.envs.test_objects:Quest", "--episodes", "2"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert (
        "goal none; proposed: 'come to the end'" in printed and "the env's attribute action_names: stay, go" in printed
    )
    proposed = (
        "as overrides: world.env=tests.envs.test_objects:Quest world.goal_key=the_task 'world.actions=[stay, go]'"
    )
    assert proposed in printed
    assert "Goal of the agent" not in printed
    words = ["world.goal_key=the_task", "world.actions=[halt, go]"]
    assert main(["check-env", "tests.envs.test_objects:Quest", "--episodes", "2", *words]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "Possible action of the agent: halt, go Goal of the agent: come to the end Observation 0" in printed
    assert "goal world.goal_key=the_task" in printed and "actions world.actions" in printed
    assert "as overrides: world.env=tests.envs.test_objects:Quest world.goal_key=the_task 'world.actions=[" in printed


def test_an_env_without_text_gets_a_mend(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check-env", "FrozenLake-v1"]) == 1
    error = capsys.readouterr().err
    assert "its observation is 0 (int), not a string" in error and "TextEnv(env, descriptions=" in error
