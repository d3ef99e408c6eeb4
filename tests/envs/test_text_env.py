"""Text envs: goals, descriptions, changing actions, and workers that crash."""

import functools
import json
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from groundling.envs.make import name_actions
from groundling.envs.seeds import training_seed
from groundling.envs.text_env import ACTIONS, GoalKey, TextEnv, TextObservation, read_success, read_text_step
from groundling.envs.vector import TextVectorEnv
from groundling.errors import ConfigError, RunError
from groundling.judges.asking.quoting import fence
from groundling.prompts import PromptReader, prompts
from groundling.reports.page import draw
from groundling.worlds.episode import Frame
from groundling.worlds.text.pairs import caption
from tests.conftest import Corridor
from tests.envs.doors import Doors, Ends
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
    assert (step.goal, step.descriptions, step.actions) == ("leave", ("A room.", " A door."), ("east", "west"))


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
        TextObservation("reach +", (read_text_step(text, {}, "reach +").descriptions,), (), ("up", "down"), {})
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
        with pytest.raises(ConfigError, match=r"info\['actions'\] must be a list of strings"):
            read_text_step("A room", {"actions": wrong}, "leave")


@pytest.mark.parametrize(
    ("observation", "info", "goal", "descriptions"),
    [
        ("A room", {}, "", ("A room",)),
        ("A room", {"goal": None, "objective": "leave"}, "leave", ("A room",)),
        ({"text": "A room\nA door", "goal": "leave", "image": 3}, {}, "leave", ("A room", "A door")),
        ({"room": "A hall", "map": "#.\n.#"}, {}, "", ("room: A hall", "map:", "#.", ".#")),
        ({"mission": "leave"}, {"goal": "stay", "descriptions": ["A room"]}, "stay", ("A room",)),
        ({"mission": "leave", "text": "A room"}, {}, "leave", ("A room",)),
    ],
)
def test_goals_and_observations_are_found(
    observation: Any, info: dict[str, Any], goal: str, descriptions: tuple[str, ...]
) -> None:
    assert read_text_step(observation, info)[:2] == (goal, descriptions)


@pytest.mark.parametrize(
    ("observation", "info", "mend"),
    [
        (None, {}, "return it from reset and step"),
        (b"A room", {}, r"decode it, as in observation\.decode\(\)"),
        (3, {}, r"describe it, as in TextEnv\(env, descriptions="),
        (np.zeros(3), {"goal": "leave"}, r"describe it, as in TextEnv\(env, descriptions="),
        (["A room"], {}, r"join it, as in '\\n'\.join"),
        ("", {}, "first observation is empty and it has no goal"),
        ("x" * 10_000_000, {}, r"10,000,000 characters, .* at most 1,000,000 .*: shorten it"),
        ({"mission": 3}, {}, r"observation\['mission'\] must be a string, got 3 \(int\)"),
        ("A room", {"goal": 3}, r"its goal, info\['goal'\], must be a string, got 3 \(int\)"),
    ],
    ids=lambda value: str(value)[:9],
)
def test_what_is_no_text_gets_a_mend(observation: Any, info: dict[str, Any], mend: str) -> None:
    with pytest.raises(ConfigError, match=mend) as raised:
        read_text_step(observation, info)
    assert len(str(raised.value)) < 300


def test_a_goal_is_read_under_a_key() -> None:
    class Quest(Doors):
        def _look(self) -> tuple[str, dict[str, Any]]:
            observation, info = super()._look()
            return observation, {"actions": info["actions"]} | ({} if self.steps else {"quest": info["goal"]})

    env = TextEnv(Quest(), goal=GoalKey("quest"))
    goal = env.reset(seed=1)[1]["goal"]
    assert goal.startswith("open") and env.step("wait")[-1]["goal"] == goal  # it stays in effect
    with pytest.raises(ConfigError, match=r"world\.goal_key=task returns no goal at reset; .*: actions, quest"):
        TextEnv(Quest(), goal=GoalKey("task")).reset(seed=1)


def test_a_list_must_name_each_action() -> None:
    with pytest.raises(ConfigError, match=r"actions has 2 names, but .* has 4 actions: name each"):
        TextEnv(gymnasium.make("FrozenLake-v1"), actions=["left", "right"])
    assert TextEnv(gymnasium.make("FrozenLake-v1"), actions=["left", "down", "right", "up"])


def test_text_env_takes_functions() -> None:
    env = TextEnv(
        Corridor(),
        goal=lambda observation, info: f"please {observation['mission']}",
        descriptions=lambda observation, info: [f"cell {observation['position']}"],
        actions=["left", "right", "stay"],
    )
    observation, info = env.reset(seed=1)
    assert info["descriptions"] == [f"cell {observation['position']}"] and info["goal"].startswith("please go")
    assert info["actions"] == ["left", "right", "stay"] == env.step(2)[-1]["actions"]


def test_names_fit_the_action_space() -> None:
    with pytest.raises(ConfigError, match=r"has 2 names .* has 3 actions"):
        name_actions("test/Corridor-v0", {}, given=["left", "right"])
    with pytest.raises(ConfigError, match="has free-text actions"):
        name_actions("test/Doors-v0", {}, given=["left", "right"])
    with pytest.raises(ConfigError, match=r"a name in world\.actions has .* UTF-8 cannot encode"):
        name_actions("test/Corridor-v0", {}, given=["left", "right", "stay \ud800"])
    assert name_actions("BabyAI-GoToObj-v0", {}).names is not None  # GLAM's six of its seven
    few, moves = "MiniGrid-Dynamic-Obstacles-5x5-v0", ("turn left", "turn right", "go forward")
    assert name_actions(few, {}).names == moves  # "drop" would go forward, its last action
    with pytest.raises(ConfigError, match=r"has 4 names .* has 3 actions"):
        name_actions(few, {}, given=[*moves, "drop"])
    assert name_actions("test/Free-v0", {}).names == ()  # any text is an action
    assert name_actions("test/Free-v0", {}, given=["left", "right"]).names == ("left", "right")
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


def test_a_string_is_no_success() -> None:
    with pytest.raises(ConfigError, match=r"info\['won'\] must be True or False \(or 1 or 0\), got 'False'"):
        read_success({"won": "False"}, otherwise=True)
    assert read_success({"won": 30}, otherwise=True)  # an amount of money
    assert read_success({"won": "Alice"}, otherwise=True)  # a name
