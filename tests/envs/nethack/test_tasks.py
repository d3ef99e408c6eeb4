import subprocess
import sys
import warnings
from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from nle.env import tasks as nle_tasks
from nle.env.tasks import TASK_ACTIONS

import groundling  # noqa: F401  (registers)
from groundling.envs.nethack import ACTIONS, TASKS, make_goal, make_task
from groundling.envs.nethack.explorer import Explorer
from groundling.envs.nethack.observation import message_text
from groundling.envs.nethack.tasks import EndStatus
from groundling.errors import ConfigError
from tests.envs.nethack.game import Shown, scripted
from tests.thorough import one_in

NORTH, NORTH_WEST, EAT, DOWN = (ACTIONS.index(name) for name in ("north", "northwest", "eat", "down"))
ORACLE = 270  # nle's glyph
HALLUCINATING, BLIND = 512, 32
EXPLORED = 3  # in the game with this seed, the explorer soon finds the stairs


def test_the_nine_tasks_are_registered_without_nle() -> None:
    code = (
        "import sys, groundling, gymnasium; from groundling.envs.nethack import TASKS; "
        "assert all(id in gymnasium.registry for id in TASKS) and len(TASKS) == 9; "
        "assert not any(name.split('.')[0] in ('nle', 'torch', 'matplotlib') for name in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_missing_nle_gives_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'groundling\[nethack\]'"):
        gymnasium.make("NetHackScore-v1")


def test_unknown_names_are_errors() -> None:
    with pytest.raises(ConfigError, match="NetHackScore-v1"):
        make_task("NetHackScor-v1")
    with pytest.raises(ConfigError, match="staircase"):
        make_goal("stairs")
    with pytest.raises(ConfigError, match="sobre"):
        make_task("NetHackScore-v1", compat=["sobre"])
    with pytest.raises(ConfigError, match="max_steps"):
        make_task("NetHackScore-v1", max_steps=3)


def test_actions_have_names() -> None:
    far = {"K": "far north", "L": "far east", "J": "far south", "H": "far west"}
    far |= {"U": "far northeast", "N": "far southeast", "B": "far southwest", "Y": "far northwest"}
    keys = {"\r": "more", "<": "up", ">": "down", ".": "wait", "\x04": "kick", "e": "eat", "s": "search", **far}
    keys |= {key.lower(): name.removeprefix("far ") for key, name in far.items()}
    assert [keys[chr(action)] for action in TASK_ACTIONS] == list(ACTIONS)


def _play(env: gymnasium.Env[Any, Any], actions: Sequence[int]) -> list[object]:
    """Return the results of the actions, up to the end of the episode."""
    seen: list[object] = []
    for action in actions:
        observation, reward, terminated, truncated, info = env.step(action)
        seen.append((observation["tty_chars"].tobytes(), observation["message"].tobytes(), reward, info))
        if terminated or truncated:
            break
    return seen


@pytest.mark.parametrize("id", one_in(3, TASKS))
def test_equal_seeds_give_equal_episodes(id: str) -> None:
    env, other = gymnasium.make(id, max_episode_steps=60), gymnasium.make(id, max_episode_steps=60)
    actions = np.random.default_rng(1).integers(23, size=60).tolist()
    played = {}
    for seed in (4, 6):
        env.reset(seed=seed)
        other.reset(seed=seed)
        played[seed] = _play(env, actions)
        assert _play(other, actions) == played[seed]
        env.reset()
        other.reset()  # later episodes are also equal
        following = _play(env, actions)
        assert _play(other, actions) == following != played[seed]
    assert played[4] != played[6]
    env.close()
    other.close()


@pytest.mark.parametrize("id", one_in(3, TASKS))
def test_tasks_pass_gymnasiums_checker(id: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message=".*function is dropped.*")  # nle's seed
        check_env(gymnasium.make(id).unwrapped)


def test_seed_of_nle_determines_the_next_episode() -> None:
    env, other = make_task("NetHackScore-v1"), make_task("NetHackScore-v1")
    for each in (env, other):
        each.seed(1, 2, lgen=3)
    first, again = env.reset()[0], other.reset()[0]
    assert (first["tty_chars"] == again["tty_chars"]).all()
    assert (env.reset()[0]["tty_chars"] != first["tty_chars"]).any()


def test_the_score_task_equals_nles_without_meals() -> None:
    """Equal seeds and keys result in equal steps, apart from meals, which are the only difference."""
    keys = ("tty_chars", "tty_colors", "tty_cursor", "blstats", "message")
    env = make_task("NetHackScore-v1", observation_keys=keys, max_episode_steps=400)
    raw = nle_tasks.NetHackScore(observation_keys=keys, max_episode_steps=400, fix_moon_phase=True)
    rng = np.random.default_rng(0)
    ends, rewards = [], []
    for seed in range(5):
        observation, _ = env.reset(seed=seed)
        core, disp, lgen = np.random.default_rng(seed).integers(2**31, size=3).tolist()
        raw.seed(core, disp, reseed=False, lgen=lgen)
        raw.reset()
        while True:
            action = int(rng.integers(23))
            action = NORTH if action == EAT else action
            observation, reward, terminated, truncated, _ = env.step(action)
            expected, raw_reward, raw_done, *_ = raw.step(action)
            assert reward == pytest.approx(raw_reward)
            assert raw_done == (terminated or truncated)
            rewards.append(reward)
            if raw_done:
                ends.append((terminated, truncated))
                break
            assert all((observation[key] == expected[key]).all() for key in keys)
    assert len(rewards) > 500 and len({round(reward, 2) for reward in rewards}) > 2
    assert all(terminated != truncated for terminated, truncated in ends)


def test_score_pays_the_difference_and_a_hundredth_for_a_step_without_time() -> None:
    screens = [
        Shown(stats={9: 10, 20: 1}),
        Shown(stats={9: 25, 20: 2}),
        Shown(stats={9: 25, 20: 2}),
        Shown(stats={9: 31, 20: 2}),
        Shown(over=True, stats={20: 0}),
    ]
    env, _ = scripted("NetHackScore-v1", screens)
    steps = [env.advance(NORTH) for _ in range(4)]
    assert [reward for reward, _, _ in steps] == pytest.approx([15, -0.01, 5.99, 0])
    assert [(terminated, truncated) for _, terminated, truncated in steps] == [(False, False)] * 3 + [(True, False)]
    assert env.end_status == EndStatus.DEATH
    assert env.figures()["score"] == 31  # the score of the game, not of the empty screen that follows


DESCEND = "You descend the stairs."


@pytest.mark.parametrize("task, level", [("", 2), ("Lvl3", 3), ("Lvl4", 4)])
def test_a_staircase_counts_when_it_has_been_descended_to_the_level(task: str, level: int) -> None:
    screens = [
        Shown(),
        Shown("You see here a staircase down.", {24: level - 1}),
        Shown("You fall through a trap door.", {24: level}),
        Shown(DESCEND, {24: level + 1}),
        Shown(DESCEND, {24: level}),
    ]
    env, _ = scripted(f"NetHackStaircase{task}-v1", screens)
    steps = [env.advance(DOWN) for _ in range(4)]
    assert steps == [(0.0, False, False)] * 3 + [(50.0, True, False)]
    assert env.end_status == EndStatus.TASK_SUCCESSFUL


@pytest.mark.parametrize("task, level", [("", 2), ("Lvl3", 3), ("Lvl4", 4)])
def test_continual_tasks_pay_once(task: str, level: int) -> None:
    screens = [Shown(), Shown(DESCEND, {24: level}), Shown(), Shown(DESCEND, {24: level})]
    env, _ = scripted(f"NetHackStaircase{task}Continual-v1", screens)
    assert [env.advance(DOWN) for _ in range(3)] == [(50.0, False, False), (0.0, False, False), (0.0, False, False)]
    assert env.end_status == EndStatus.RUNNING


def test_stairs_descended_in_a_real_game() -> None:
    env, explorer = make_task("NetHackStaircase-v1"), Explorer()
    observation, _ = env.reset(seed=EXPLORED)
    rewards = []
    while True:
        observation, reward, terminated, truncated, info = env.step(explorer.act(observation))
        rewards.append(reward)
        if terminated or truncated:
            break
    assert info["end_status"] == EndStatus.TASK_SUCCESSFUL and info["dlvl"] == 2
    assert sum(rewards) == rewards[-1] == 50
    assert message_text(observation["message"]).startswith("You descend the stairs.")


def test_the_message_of_success_survives_the_more_behind_it() -> None:
    screens = [
        Shown(),
        Shown(DESCEND, {24: 2}, more=True),
        Shown("You remember a dagger.", {24: 2}, more=True),
        Shown("There is a doorway here.", {24: 2}),
    ]
    env, game = scripted("NetHackStaircase-v1", screens)
    assert env.advance(DOWN) == (50.0, True, False)
    assert game.keys == [ord(">"), ord(" "), ord(" ")]
    assert env.arrays["message"].tobytes().rstrip(b"\0") == DESCEND.encode()


def test_prompts_are_declined_except_for_those_of_the_agent() -> None:
    escape, space = 27, ord(" ")
    screens = [
        Shown(),
        Shown("Call it:", line=True),
        Shown("Again?", more=True),
        Shown("Really quit?", question=True),
        Shown("Never mind."),
        Shown("Really attack the gnome?", question=True),
        Shown("In what direction?", question=True),
    ]
    env, game = scripted("NetHackScore-v1", screens)
    env.advance(NORTH)
    env.advance(NORTH)
    env.advance(NORTH)
    assert game.keys == [ord("k"), escape, space, escape, ord("k"), ord("k")]


@pytest.mark.parametrize(
    "question, action, key",
    [
        ("What do you want to eat? [dfg or ?*]", NORTH_WEST, "d"),
        ("What do you want to eat? [$Bc or ?*]", NORTH_WEST, "B"),
        ("What do you want to eat? [g-k or ?*]", NORTH_WEST, "g"),
        ("What do you want to eat? [*]", NORTH_WEST, " "),
        ("What do you want to eat? [dfg or ?*]", NORTH, " "),
        ("What do you want to eat? [dfg or ?*]", EAT, " "),
        ("There is a newt corpse here; eat it? [ynq] (n)", NORTH_WEST, "y"),
        ("", NORTH_WEST, "y"),
    ],
)
def test_the_question_what_to_eat(question: str, action: int, key: str) -> None:
    env, game = scripted("NetHackScore-v1", [Shown(question, question=True), Shown()])
    env.advance(action)
    assert game.keys == [ord(key)]


def _oracle_at(row: int, column: int) -> dict[tuple[int, int], int]:
    return {(row, column): ORACLE}


@pytest.mark.parametrize("cell, success", [((5, 8), True), ((7, 10), True), ((6, 11), False), ((4, 9), False)])
def test_the_oracle_counts_from_the_next_square(cell: tuple[int, int], success: bool) -> None:
    at = {0: 9, 1: 6}  # column 9, row 6
    env, _ = scripted("NetHackOracle-v1", [Shown(stats=at), Shown(stats=at, glyphs=_oracle_at(*cell))])
    assert env.advance(NORTH) == ((50.0, True, False) if success else (0.0, False, False))


@pytest.mark.parametrize(
    "task, condition, compat, success",
    [
        ("NetHackOracleSober-v1", 0, (), True),
        ("NetHackOracleSober-v1", BLIND, (), True),
        ("NetHackOracleSober-v1", HALLUCINATING, (), False),
        ("NetHackOracleSober-v1", HALLUCINATING | BLIND, (), False),
        ("NetHackOracleSober-v1", HALLUCINATING | BLIND, ("sober",), True),  # the original's bug
        ("NetHackOracleSober-v1", HALLUCINATING, ("sober",), False),
        ("NetHackOracle-v1", HALLUCINATING, (), True),
    ],
)
def test_sober_at_the_oracle(task: str, condition: int, compat: tuple[str, ...], success: bool) -> None:
    stats = {0: 9, 1: 6, 25: condition}
    env, _ = scripted(task, [Shown(), Shown(stats=stats, glyphs=_oracle_at(5, 9))], compat=compat)
    assert env.advance(NORTH)[0] == (50.0 if success else 0.0)


def test_the_oracle_at_the_maps_edge() -> None:
    env, _ = scripted(
        "NetHackOracle-v1",
        [Shown(), Shown(stats={0: 0, 1: 0}, glyphs=_oracle_at(1, 1)), Shown(glyphs=_oracle_at(20, 78))],
    )
    assert env.advance(NORTH)[0] == 50


def test_scout_counts_the_explored_squares_of_all_levels() -> None:
    some = {(3, column): 2378 for column in range(7)}
    more = {(3, column): 2378 for column in range(9)}
    screens = [
        Shown(),
        Shown(glyphs=some),
        Shown(glyphs=more),
        Shown(stats={24: 2, 12: 2, 13: 40, 18: 3}, glyphs=some),
        Shown(stats={23: 2, 24: 2, 12: 5}, glyphs=some),
    ]
    env, _ = scripted("NetHackScore-v1", screens)
    scouts = []
    for _ in range(3):
        env.advance(NORTH)
        scouts.append(env.figures()["scout"])
    assert scouts == [7, 9, 9 + 7]
    assert env.figures() | {"turns": 0} == {"score": 0, "dlvl": 2, "gold": 40, "xlvl": 3, "turns": 0, "scout": 16}
    env.advance(NORTH)
    assert (env.figures()["scout"], env.figures()["dlvl"]) == (9 + 7 + 7, 5)  # the Mines' level 2 is a different level


@pytest.mark.parametrize("compat, kept", [((), 0), (("scout",), 1000)])
def test_scout_restarts_with_each_episode(compat: tuple[str, ...], kept: int) -> None:
    env = make_task("NetHackScore-v1", compat=compat)
    fresh = make_task("NetHackScore-v1").reset(seed=2)[1]["scout"]
    env.reset(seed=1)
    env._explored[3, 9] = 1000
    assert env.reset(seed=2)[1]["scout"] == fresh + kept


def test_steps_return_copies() -> None:
    env = make_task("NetHackScore-v1", max_episode_steps=3)
    first, _ = env.reset(seed=0)
    kept = first["tty_chars"].copy()
    steps = [env.step(ACTIONS.index(name)) for name in ("far west", "search", "search")]
    assert (first["tty_chars"] == kept).all()
    assert b"Dlvl:1" in steps[-1][0]["tty_chars"].tobytes()  # the last screen of the game, not the screen after it
    assert steps[-1][3] and not steps[-1][2]
    assert steps[-1][4]["end_status"] == EndStatus.ABORTED and steps[-1][4]["turns"] > 0


def test_rendering() -> None:
    text, picture = (
        make_task("NetHackScore-v1", render_mode=mode, max_episode_steps=1) for mode in ("ansi", "rgb_array")
    )
    for env in (text, picture):
        env.reset(seed=0)
        assert env.step(NORTH)[3]
    assert text.render().split("\n")[23].startswith("Dlvl:1")
    drawn = picture.render()
    assert drawn.dtype == np.uint8 and drawn.shape[2] == 3 and drawn.any()
    with pytest.raises(ConfigError, match="human"):
        make_task("NetHackScore-v1", render_mode="human")


@pytest.mark.parametrize("limit", [20, 5_003])
def test_the_time_limit_of_gymnasium_ends_the_task_with_its_status(limit: int) -> None:
    env = gymnasium.make("NetHackScore-v1", max_episode_steps=limit)
    for one in (env, gymnasium.make(env.spec)):
        one.reset(seed=3)
        for _ in range(limit):  # action 0 takes no game time
            _, _, terminated, truncated, info = one.step(0)
        assert (terminated, truncated, info["end_status"]) == (False, True, -1)
        one.close()
    assert gymnasium.make("NetHackScore-v1").unwrapped._max_episode_steps == 5_000
