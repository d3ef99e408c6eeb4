"""Text envs of anybody: admissible actions that change, others' spellings, and workers that crash."""

import functools
import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import PreTrainedTokenizerFast

from groundling.cli.check_env import texts_alike
from groundling.cli.main import main
from groundling.envs.checking import RandomPlay, check_env
from groundling.envs.make import TextEnvMaker, make_text_env, name_actions
from groundling.envs.observation import TextObservation
from groundling.envs.seeds import training_seed
from groundling.envs.splits import compare_splits
from groundling.envs.text_env import ACTIONS, TextEnv, read_text_step
from groundling.envs.vector import TextVectorEnv
from groundling.errors import ConfigError, RunError
from groundling.judges.asking.quoting import fence
from groundling.prompts import PromptReader, prompts
from groundling.reports.gif import draw
from groundling.worlds.display import Frame
from groundling.worlds.text.pairs import caption
from tests.conftest import Corridor
from tests.envs.doors import Doors, Ends, Wandering
from tests.thorough import thorough


def _make(num_envs: int = 3, workers: int = 0, timeout: float = 60.0, **args: Any) -> TextVectorEnv:
    return TextVectorEnv(
        functools.partial(Doors, **args),
        num_envs,
        None,
        lambda i, k: training_seed(0, i, k),
        num_workers=workers,
        timeout=timeout,
        warn=lambda text: None,
    )


def _play(envs: TextVectorEnv, steps: int, seed: int = 0) -> list[Any]:
    rng, rollout = np.random.default_rng(seed), []
    for _ in range(steps):
        actions = [int(rng.integers(len(o.actions))) for o in envs.observations()]
        step = envs.step(actions)
        rollout.append((step.observations, step.rewards.tolist(), step.truncated.tolist(), step.episodes))
    return rollout


def test_each_observation_has_its_own_actions() -> None:
    envs = _make()
    envs.reset()
    assert {len(o.actions) for observations, *_ in _play(envs, 40) for o in observations} == {1, 2, 3, 4, 5}
    for o in envs.observations():
        assert o.descriptions[-1] == ("You see doors.", "", *(a.removeprefix("open ") for a in o.actions))
        assert o.goal.startswith("open ") and o.raw == {}
    with pytest.raises(RunError, match="chose action 5 of"):
        envs.step([5, 5, 5])


@pytest.mark.parametrize("discrete", [0, 5])
def test_texts_and_numbers_are_the_same_actions(discrete: int) -> None:
    envs, other = _make(), _make(discrete=discrete)
    envs.reset(), other.reset()
    assert _play(envs, 30) == _play(other, 30)


def test_a_list_longer_than_the_action_space_is_refused() -> None:
    envs = _make(discrete=3)
    with pytest.raises(RunError, match=r"seed \d+, step \d+: [45] actions are admissible, .* has 3"):
        envs.reset()
        _play(envs, 30)


def test_a_state_with_changing_lists_resumes_exactly() -> None:
    envs, again = _make(), _make()
    envs.reset()
    _play(envs, 29)
    again.load_state_dict(json.loads(json.dumps(envs.state_dict())))
    assert again.observations() == envs.observations()
    assert _play(again, 40, seed=1) == _play(envs, 40, seed=1)


@pytest.mark.parametrize("name", ACTIONS)
def test_other_engines_keys_are_read(name: str) -> None:
    step = read_text_step("A room.\n A door. ", {name: ["east", "west"], "objective": "leave"})
    assert (step.goal, step.descriptions, step.actions) == (
        "leave",
        ("A room.", " A door."),
        ("east", "west"),
    )


_MAPS = ["@\n    +", "    @\n    +", "\n@\n    +", "@\n\n    +", "@\n +", "@\n\t+", "@ x\n+", "@  x\n+"]


def test_the_layout_of_a_text_observation_is_kept() -> None:
    read = [read_text_step(text, {}, "reach +").descriptions for text in _MAPS]
    assert len(set(read)) == len(_MAPS) and ["\n".join(lines) for lines in read] == _MAPS
    assert read_text_step("@ \n    +\t \n \n", {}, "reach +").descriptions == ("@", "    +")
    assert read_text_step("", {}, "go").descriptions == () == read_text_step(" \n", {}, "go").descriptions
    assert read_text_step("a\u2028b\x0bc\r\nd\n", {}, "go").descriptions == ("a\u2028b\x0bc", "d")


@pytest.mark.parametrize("id", list(prompts))
def test_layouts_of_maps_stay_distinct(id: str) -> None:
    shown = [
        TextObservation(
            "reach +", (read_text_step(text, {}, "reach +").descriptions,), (), ("up", "down"), {}
        )
        for text in _MAPS
    ]
    assert len({PromptReader(id)(one) for one in shown}) == len(_MAPS)
    captions = [caption(one, "up") for one in shown]
    assert len({fence(one, "x", "0") for one in captions}) == len(_MAPS)
    assert len({draw(Frame(one.descriptions[-1])).tobytes() for one in shown}) == len(_MAPS)


def test_trimming_templates_keep_maps() -> None:
    maps = [("    @", "    +"), ("@", "    +")]
    turns = [
        [
            said["content"].strip()
            for said in prompts.get("conversation")(
                TextObservation("reach +", (seen, seen), ("up",), ("up",), {}), "english"
            ).messages()
        ]
        for seen in maps
    ]
    assert turns[0][-1] == "View:\n    @\n    +" and turns[1][-1] == "@\n    +"


def test_lists_of_actions_must_be_texts() -> None:
    assert read_text_step("A room", {"valid": True}, "leave").actions is None
    for wrong in ("east", [1, 2], {"east": 1}):
        with pytest.raises(ConfigError, match=r"info\['actions'\] must be a list of texts"):
            read_text_step("A room", {"actions": wrong}, "leave")
    with pytest.raises(ConfigError, match="gives no goal"):
        read_text_step("A room", {})
    with pytest.raises(ConfigError, match="gives no descriptions"):
        read_text_step(np.zeros(3), {"goal": "leave"})


def test_text_env_takes_functions() -> None:
    env = TextEnv(
        Corridor(),
        goal=lambda observation, info: f"please {observation['mission']}",
        descriptions=lambda observation, info: [f"cell {observation['position']}"],
        actions=["left", "right", "stay"],
    )
    observation, info = env.reset(seed=1)
    assert info["descriptions"] == [f"cell {observation['position']}"] and info["goal"].startswith(
        "please go"
    )
    assert info["actions"] == ["left", "right", "stay"] == env.step(2)[-1]["actions"]


def test_names_fit_the_action_space() -> None:
    with pytest.raises(ConfigError, match=r"names 2 actions .* has 3 actions"):
        name_actions("test/Corridor-v0", {}, given=["left", "right"])
    with pytest.raises(ConfigError, match="has any text as its action"):
        name_actions("test/Doors-v0", {}, given=["left", "right"])
    with pytest.raises(ConfigError, match=r"a name in world\.actions has .* UTF-8 cannot encode"):
        name_actions("test/Corridor-v0", {}, given=["left", "right", "stay \ud800"])
    assert name_actions("BabyAI-GoToObj-v0", {}).names is not None  # GLAM's six of its seven
    few, moves = "MiniGrid-Dynamic-Obstacles-5x5-v0", ("turn left", "turn right", "go forward")
    assert name_actions(few, {}).names == moves  # "drop" would go forward, its last action
    with pytest.raises(ConfigError, match=r"names 4 actions .* has 3 actions"):
        name_actions(few, {}, given=[*moves, "drop"])
    with pytest.raises(
        ConfigError, match=r"test/Free-v0 takes any text as its action and lists none: .* valid_actions"
    ):
        name_actions("test/Free-v0", {})
    with pytest.raises(ConfigError, match=r"does not name its actions: set world\.actions"):
        TextVectorEnv(Corridor, 1, None, lambda i, k: 0).reset()
    with pytest.raises(ConfigError, match="lists its admissible actions itself"):
        TextVectorEnv(Doors, 1, ["a"], lambda i, k: 0).reset()


@pytest.mark.parametrize("workers", [1, 2])
def test_workers_equal_the_local_process(workers: int) -> None:
    envs, other = _make(), _make(workers=workers)
    assert envs.reset() == other.reset()
    assert _play(envs, 30) == _play(other, 30)
    assert other.incidents.lost_envs == 0
    other.close()


def test_an_env_lost_at_its_first_step_has_no_success() -> None:
    envs = TextVectorEnv(
        Ends, 1, ["left", "right", "stay"], lambda i, k: 100 * k + 1, num_workers=1, warn=lambda text: None
    )
    envs.reset()
    (first,) = envs.step([2]).episodes
    (lost,) = envs.step([2]).episodes
    envs.close()
    assert first.success and not lost.success and lost.length == 0


@pytest.mark.parametrize("trouble", ["die", *thorough("raise", "hang")])
def test_a_lost_env_resumes_exactly(trouble: str, tmp_path: Path) -> None:
    times = tmp_path / "times"
    times.write_text("x")
    envs = _make()
    other = _make(workers=2, timeout=2.0, trouble=trouble, times=str(times))
    assert envs.reset() == other.reset()
    assert _play(envs, 30) == _play(other, 30)
    assert other.incidents.lost_envs >= 1 and other.incidents.cut_episodes == 0
    other.close()


def test_an_env_lost_twice_at_a_step_ends_its_episode() -> None:
    envs = _make(num_envs=2, workers=1, trouble="raise")
    envs.reset()
    rollout = _play(envs, 9)
    lost = [e for _, _, _, episodes in rollout for e in episodes if not e.success]
    assert lost and all(len(e.actions) == 2 for e in lost) and envs.incidents.cut_episodes == len(lost)
    assert envs.state_dict()[0]["incidents"]["cut_episodes"] == len(lost)
    envs.close()


def test_check_env_plays_and_replays() -> None:
    played = check_env("test/Doors-v0", {}, num_episodes=4)
    assert len(played.episodes) == 4 and played.most_actions == 5 and len(played.texts["actions"]) == 5
    assert played.steps == sum(len(e.actions) for e in played.episodes)
    assert played.resumed_after == max(e.length for e in played.episodes) - 1 > 0
    assert played.choices and all(len(o.actions) > 1 for o in played.choices)


def test_check_env_plays_until_an_episode_has_two_steps() -> None:
    played = check_env("test/Hasty-v0", {"at_once": 5}, num_episodes=2)
    assert [e.length for e in played.episodes] == [1, 1, 1, 1, 1, 2] and played.resumed_after == 1
    played = check_env("test/Hasty-v0", {"at_once": 1000}, num_episodes=2)
    assert len(played.episodes) == 102 and played.resumed_after == 0


@pytest.mark.parametrize(
    ("which", "where"), [(3, r"after 1 steps its goal"), (5, r"and in a new env 'open black'")]
)
def test_check_env_resumes_in_the_middle_of_an_episode(
    which: int, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Wandering, "instances", 0)
    with pytest.raises(ConfigError, match=rf"Draw everything from self\.np_random.*{where}"):
        check_env("test/Wandering-v0", {"which": which}, num_episodes=2)


@pytest.mark.parametrize(
    ("part", "field"), [("order", "actions"), ("number", "actions"), ("text", "descriptions")]
)
def test_check_env_reports_parts_that_the_seed_does_not_determine(
    part: str, field: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check-env", "tests.envs.doors:Unseeded", f"world.args.part={part}"]) == 1
    line = capsys.readouterr().err
    assert "Draw everything from self.np_random" in line and f"its {field} differed" in line
    assert "policy" not in line and "checkpoint" not in line


def test_check_env_finds_shared_state() -> None:
    with pytest.raises(ConfigError, match=r"next to another env .* share the module random"):
        check_env("test/Shared-v0", {"part": "order"}, num_episodes=2)


def test_check_env_finds_episodes_that_depend_on_their_number() -> None:
    with pytest.raises(ConfigError, match=r"reverse order.* take nothing from the episodes before"):
        check_env("test/Counted-v0", {}, num_episodes=2)


def test_check_env_counts_steps_with_a_short_history(capsys: pytest.CaptureFixture[str]) -> None:
    assert list(check_env("test/Doors-v0", {}, history=1).shown) == [0, 1]
    assert main(["check-env", "tests.envs.doors:Doors", "world.history=1"]) == 0
    assert "what a model reads after 1 actions" in capsys.readouterr().out


def test_check_env_warns_about_empty_and_broken_texts(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check-env", "tests.envs.doors:Careless"]) == 0
    error = capsys.readouterr().err
    for doubt in ("a goal is empty", "an action is empty", r"an action has line breaks, which"):
        assert f"warning: check-env/Careless-v0: {doubt}" in error
    assert not any(
        "a goal" in doubt or "an action" in doubt for doubt in check_env("test/Doors-v0", {}).doubts
    )


def test_check_env_plays_in_a_process_with_another_hash_seed(capsys: pytest.CaptureFixture[str]) -> None:
    before = os.environ.get("PYTHONHASHSEED")
    assert main(["check-env", "tests.envs.doors:Hashed"]) == 1
    line = capsys.readouterr().err
    assert "in another process, with PYTHONHASHSEED=" in line and "sort what comes from a set" in line
    assert "after 0 steps its actions differed" in line and os.environ.get("PYTHONHASHSEED") == before


def test_check_env_reads_tasks_of_babyai() -> None:
    played = check_env("BabyAI-MixedTrainLocal-v0", {"num_dists": 1, "max_steps": 4}, num_episodes=2)
    assert played.doubts == [] and {episode.task for episode in played.episodes} != {
        "BabyAI-MixedTrainLocal-v0"
    }


def _compared(**args: Any) -> list[str]:
    return compare_splits("test/Games-v0", TextEnvMaker.of("test/Games-v0", **args))


def test_check_env_compares_the_splits() -> None:
    few = check_env("test/Games-v0", {"count": 3}, num_episodes=1).doubts
    assert len(few) == 1 and few == _compared(count=3)
    assert few[0].startswith("200 of 200 held-out episodes begin as one of 200 training episodes")
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
    """By ids of any integer type; in an env without ids, by first observations."""
    of_training, of_held_out = _compared(by_range=True, identity=identity)
    assert of_training.startswith(f"only training episodes have the {training}")
    assert of_held_out.startswith(f"only held-out episodes have the {held_out}")


def test_check_env_reports_texts_with_equal_tokens() -> None:
    words = WordLevel({"open": 0, "look": 1, "[UNK]": 2}, unk_token="[UNK]")
    tokenizer = Tokenizer(words)
    tokenizer.pre_tokenizer = Whitespace()
    policy: Any = SimpleNamespace(
        lm=SimpleNamespace(tokenizer=PreTrainedTokenizerFast(tokenizer_object=tokenizer))
    )
    actions, goals, observations = ["open {", "look", "open }"], ["open", "look"], ["@\n +", "@ +", "look"]
    texts = {"goals": goals, "actions": actions, "observations": observations}
    played = RandomPlay(texts={kind: dict.fromkeys(texts) for kind, texts in texts.items()})
    assert [text.split(";")[0] for text in texts_alike(policy, played)] == [
        "the model cannot distinguish these actions, whose tokens are equal: 'open {' and 'open }'",
        r"the model cannot distinguish these observations, whose tokens are equal: '@\n +' and '@ +'",
    ]


def test_check_env_scores_a_limited_number_of_actions(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("groundling.cli.check_env._MOST_READ", 20)
    for count, message in (
        (8, "over 2 lists of 16 (at most 20 actions are scored)"),
        (30, "these 30 actions are not scored: at most 20 are"),
    ):
        assert main(["check-env", "tests.envs.doors:Many", f"world.args.num_actions={count}"]) == 0
        out = " ".join(capsys.readouterr().out.split())
        assert message in out and ("nats" in out) == (count == 8), out


def test_check_env_prints_its_findings(capsys: pytest.CaptureFixture[str]) -> None:
    for name, wanted in (
        ("Forgetful", "its actions differed"),
        ("Endless", "has not ended after 10,000 steps"),
    ):
        assert main(["check-env", f"tests.envs.doors:{name}"]) == 1
        assert wanted in capsys.readouterr().err
    assert main(["check-env", "tests.envs.doors:Doors"]) == 0
    printed = capsys.readouterr().out
    assert "Goal of the agent: open" in printed and "1 to 5 at a step" in printed
    assert "what it prefers, untrained: " in printed and "entropy (action_scoring, untrained)" in printed
    assert "a run in this env can be resumed exactly" in printed
    assert main(["check-env", "tests.envs.doors:Doors", "training.steps=3"]) == 1
    assert "takes settings of world, policy and model, got 'training.steps=3'" in capsys.readouterr().err
    assert main(["check-env", "tests.nowhere:Doors"]) == 1
    assert "there is no module" in capsys.readouterr().err


@pytest.mark.parametrize("error", ["KeyError", "SystemExit"])
@pytest.mark.parametrize(
    ("method", "message"),
    [
        ("init", "env check-env/Broken-v0, as it was made with"),
        ("reset", f"in its reset: seed {training_seed(0, 0, 0)}, episode 0, after 0 steps"),
        ("step", "in its step 'open "),
        ("close", "as it was closed,"),
    ],
)
def test_check_env_reports_where_an_env_raised(
    method: str, message: str, error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    args = [f"world.args.method={method}", f"world.args.error={error}"]
    assert main(["check-env", "tests.envs.doors:Broken", *args]) == 1
    line = capsys.readouterr().err.splitlines()[0]
    assert line.startswith("error: env") and message in line and f"raised {error}" in line


def test_check_env_reports_a_module_that_raises(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "raising_world.py").write_text("raise SystemExit(0)")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    assert main(["check-env", "raising_world:World"]) == 1
    assert capsys.readouterr().err.startswith("error: the module raising_world, as it was imported, raised")


def test_check_env_warns_if_only_short_actions_are_likely(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["check-env", "tests.envs.doors:Long", "device=cpu"]) == 1  # no setting of the check's
    capsys.readouterr()
    for words, wanted in (([], True), (["policy.id=action_writing", "policy.args.temperature=2"], False)):
        assert main(["check-env", "tests.envs.doors:Long", *words]) == 0
        output = capsys.readouterr()
        assert ("policy.args.normalize=sum adds up" in output.err) == wanted, output.err
        assert ("1.000  wait" in output.out) == wanted


def test_a_text_env_is_made_by_its_id() -> None:
    assert make_text_env("test/Doors-v0").reset(seed=0)[1]["actions"]
