"""The first object that the agent interacts with, in hand-made and BabyAI's rooms; missions with altered texts."""

import re
from collections import Counter
from typing import Any

import gymnasium
import pytest
from minigrid.core.world_object import Ball, Box, Door, Key, WorldObj
from minigrid.envs.babyai.core.roomgrid_level import RoomGridLevel
from minigrid.envs.babyai.core.verifier import (
    AfterInstr,
    AndInstr,
    BeforeInstr,
    GoToInstr,
    Instr,
    ObjDesc,
    OpenInstr,
    PickupInstr,
    PutNextInstr,
)

from groundling.envs.babyai_text import CONTROLS, MIXED_TASKS, BabyAIText
from groundling.envs.make import make_text_env
from groundling.envs.text_episode import FirstInteraction
from groundling.envs.vector import TextVectorEnv
from groundling.errors import ConfigError, RunError
from tests.conftest import Corridor

_LEFT, _RIGHT, _FORWARD, _PICK_UP, _DROP, _TOGGLE = range(6)
_MIXED = "BabyAI-MixedTrainLocal-v0"
_RED_KEY, _BLUE_BALL = ("key", "red"), ("ball", "blue")


class _Room(RoomGridLevel):
    """The agent in the middle of a room, facing right: a red key 2 cells ahead, a blue ball 2 cells behind it.

    A green box is in a corner, out of its way.
    """

    def __init__(self, instruction: Instr, things: dict[tuple[int, int], WorldObj] | None = None) -> None:
        self._instruction = instruction
        self._things = (
            things if things is not None else {(5, 3): Key("red"), (1, 3): Ball("blue"), (1, 1): Box("green")}
        )
        super().__init__(room_size=7, num_rows=1, num_cols=2)

    def gen_mission(self) -> None:
        for (x, y), thing in self._things.items():
            self.grid.set(x, y, thing)
            thing.cur_pos = (x, y)
        self.agent_pos, self.agent_dir = (3, 3), 0
        self.instrs = self._instruction


def _play(env: gymnasium.Env[Any, Any], *actions: int) -> dict[str, Any] | None:
    """Return the env's information about the first interaction after these actions."""
    env.reset(seed=0)
    info: dict[str, Any] = {}
    for action in actions:
        info = env.step(action)[4]
    return info.get("first_interaction")


def _first(instruction: Instr, *actions: int, things: dict[tuple[int, int], WorldObj] | None = None) -> Any:
    interaction = _play(BabyAIText(_Room(instruction, things)), *actions)
    return None if interaction is None else (interaction["target"], interaction["chance"], *interaction["named"])


_TO_KEY = (_FORWARD,)
_TO_BALL = (_RIGHT, _RIGHT, _FORWARD)


@pytest.mark.parametrize(
    ("instruction", "named"),
    [
        (PickupInstr(ObjDesc(*_RED_KEY)), "the red key"),
        (PutNextInstr(ObjDesc(*_RED_KEY), ObjDesc(*_BLUE_BALL)), "the red key"),
        (BeforeInstr(PickupInstr(ObjDesc(*_RED_KEY)), GoToInstr(ObjDesc(*_BLUE_BALL))), "the red key"),
        (AfterInstr(GoToInstr(ObjDesc(*_BLUE_BALL)), PickupInstr(ObjDesc(*_RED_KEY))), "the red key"),
    ],
    ids=["pick up", "put next", "before", "after"],
)
def test_picking_up_a_thing(instruction: Instr, named: str) -> None:
    third = pytest.approx(1 / 3)
    assert _first(instruction, *_TO_KEY) == ("none", third, named)  # standing before an object is not picking it up
    assert _first(instruction, *_TO_KEY, _PICK_UP) == ("named", third, named)
    assert _first(instruction, *_TO_BALL, _PICK_UP) == ("other", third, named)
    then_named = (*_TO_BALL, _PICK_UP, _RIGHT, _DROP, _RIGHT, _FORWARD, _FORWARD, _PICK_UP)
    assert _first(instruction, *then_named) == ("other", third, named)  # the first object remains the first


def test_going_to_a_thing_is_facing_it() -> None:
    instruction = GoToInstr(ObjDesc("ball", None))
    assert _first(instruction, _LEFT, _LEFT) == ("none", pytest.approx(1 / 3), "the ball")
    assert _first(instruction, *_TO_BALL)[0] == "named"
    assert _first(instruction, *_TO_KEY)[0] == "other"
    assert _first(instruction, *_TO_KEY, _LEFT, _LEFT, _FORWARD, _FORWARD)[0] == "other"


def test_either_of_two_parallel_things_counts() -> None:
    both = AndInstr(PickupInstr(ObjDesc(*_RED_KEY)), PickupInstr(ObjDesc(*_BLUE_BALL)))
    expected = (pytest.approx(2 / 3), "the red key", "the blue ball")
    assert _first(both, *_TO_KEY, _PICK_UP) == ("named", *expected)
    assert _first(both, *_TO_BALL, _PICK_UP) == ("named", *expected)


def _by_doors(locked: bool) -> dict[tuple[int, int], WorldObj]:
    return {(6, 3): Door("grey", is_locked=locked), (3, 6): Door("red"), (5, 5): Key("grey"), (1, 3): Key("blue")}


def test_opening_is_toggling_or_picking_up_the_key() -> None:
    grey = OpenInstr(ObjDesc("door", "grey"))
    ahead, below = (_FORWARD, _FORWARD, _TOGGLE), (_RIGHT, _FORWARD, _FORWARD, _TOGGLE)
    assert _first(grey, *ahead[:2], things=_by_doors(False)) == ("none", 0.5, "the grey door")
    assert _first(grey, *ahead, things=_by_doors(False))[0] == "named"
    assert _first(grey, *below, things=_by_doors(False))[0] == "other"
    assert _first(grey, *ahead, things=_by_doors(True)) == ("none", 0.5, "the grey door")
    to_key = (_FORWARD, _FORWARD, _RIGHT, _FORWARD, _PICK_UP)
    assert _first(grey, *to_key, things=_by_doors(True))[0] == "named"
    assert _first(grey, *_TO_BALL, _PICK_UP, things=_by_doors(True))[0] == "other"


def test_unreachable_things_have_no_first_interaction() -> None:
    beyond = {(6, 3): Door("grey", is_locked=True), (9, 3): Ball("blue"), (1, 1): Key("red")}
    assert _first(PickupInstr(ObjDesc(*_BLUE_BALL)), _LEFT, things=beyond) is None
    assert _first(GoToInstr(ObjDesc(*_BLUE_BALL)), _LEFT, things=beyond) is None
    beyond[6, 3] = Door("grey")  # the agent can pass through a closed door
    assert _first(PickupInstr(ObjDesc(*_BLUE_BALL)), _LEFT, things=beyond) == ("none", 0.5, "the blue ball")
    carrying = make_text_env("BabyAI-PutNextS5N2Carrying-v0")
    assert _play(carrying, _LEFT) is None
    assert _play(make_text_env("MiniGrid-Fetch-5x5-N2-v0"), _LEFT) is None


@pytest.mark.parametrize("task", MIXED_TASKS)
def test_chance_is_the_share_of_named_things(task: str) -> None:
    env = make_text_env(_MIXED, task=task, num_dists=4)
    seen = set()
    for seed in range(25):
        env.reset(seed=seed)
        interaction = env.step(_LEFT)[4]["first_interaction"]
        things = Counter(
            (thing.color, thing.type)
            for thing in env.unwrapped.grid.grid
            if thing is not None and thing.type in ("key", "ball", "box")
        )
        assert sum(things.values()) == {"putnext": 6, "pick up seq go to": 6}.get(task, 5)
        if task == "open":
            doors = [thing for thing in env.unwrapped.grid.grid if thing is not None and thing.type == "door"]
            named = (doors[0].color, "key")
        else:
            (words,) = interaction["named"]
            named = tuple(words.split()[1:])
        assert interaction["chance"] == pytest.approx(things[named] / things.total())
        seen.add(interaction["chance"])
    assert len(seen) > 1 or task == "putnext"


_OBJECT = re.compile(r"(?:the|a) (\w+) (key|ball|box|door)")


@pytest.mark.parametrize("task", [task for task in MIXED_TASKS if task != "open"])
def test_swapped_missions_name_another_thing(task: str) -> None:
    env = make_text_env(_MIXED, task=task, num_dists=3, control="swapped")
    for seed in range(20):
        mission = env.reset(seed=seed)[0]["mission"]
        assert mission == env.reset(seed=seed)[0]["mission"]
        true, swapped = _OBJECT.findall(env.unwrapped.mission), _OBJECT.findall(mission)
        place = 1 if "after" in mission else 0
        assert swapped[place] not in true and len(swapped) == len(true)
        assert swapped[:place] + swapped[place + 1 :] == true[:place] + true[place + 1 :]
        present = [thing for thing in env.unwrapped.grid.grid if thing is not None]
        matching = [thing for thing in present if (thing.color, thing.type) == swapped[place]]
        assert matching and f"{'the' if len(matching) == 1 else 'a'} {' '.join(swapped[place])}" in mission
        info = env.step(_LEFT)
        assert info[0]["mission"] == mission
        things = [thing for thing in present if thing.type in ("key", "ball", "box")]
        assert info[4]["first_interaction"]["chance"] == len(matching) / len(things)


def test_following_a_swapped_mission_fails() -> None:
    instruction = PickupInstr(ObjDesc(*_RED_KEY))
    env = BabyAIText(
        _Room(instruction, {(5, 3): Key("red"), (1, 3): Ball("blue")}), language="french", control="swapped"
    )
    assert env.reset(seed=1)[0]["mission"] == "ramasser la balle bleue"
    interaction = _play(env, *_TO_BALL, _PICK_UP)
    assert interaction == {
        "target": "named", "chance": 0.5, "named": ("la balle bleue",), "thing": "blue ball", "step": 4,
    }  # fmt: skip
    assert _play(env, *_TO_KEY, _PICK_UP)["target"] == "other"
    assert env.env.unwrapped.instrs is instruction
    env.reset(seed=1)
    env.step(_FORWARD)
    assert env.step(_PICK_UP)[1] > 0  # the env rewards its own mission, whatever the text was


@pytest.mark.parametrize("language", ["english", "french"])
@pytest.mark.parametrize("task", MIXED_TASKS)
def test_dropped_and_scrambled_missions_name_no_thing(task: str, language: str) -> None:
    words = re.compile(
        r"\b(red|green|blue|purple|yellow|grey|key|ball|box|door|"
        r"rouge|verte|bleue|violette|jaune|grise|clef|balle|boîte|porte)\b"
    )
    plain, dropped, scrambled = (
        make_text_env(_MIXED, task=task, num_dists=2, language=language, control=control)
        for control in (None, "dropped", "scrambled")
    )
    for seed in range(10):
        missions = [env.reset(seed=seed)[0]["mission"] for env in (plain, dropped, scrambled)]
        assert words.search(missions[0])
        assert not words.search(missions[1]) and len(missions[1].split()) <= 6
        assert not words.search(missions[2])
        assert [sorted(word) for word in missions[2].split()] == [sorted(word) for word in missions[0].split()]
        assert missions[2] == scrambled.reset(seed=seed)[0]["mission"]
        assert dropped.unwrapped.mission == plain.unwrapped.mission
        firsts = [env.step(_LEFT)[4]["first_interaction"] for env in (plain, dropped, scrambled)]
        assert len({first["chance"] for first in firsts}) == 1  # the named object is still that of the env
    assert (
        dropped.reset(seed=0)[0]["mission"]
        in {
            "goto": ("go to", "aller à"),
            "pickup": ("pick up", "ramasser"),
            "open": ("open", "ouvrir"),
            "putnext": ("put next to", "poser à côté de"),
            "pick up seq go to": (
                *("pick up, then go to", "go to after you pick up"),
                *("ramasser, puis aller à", "aller à après avoir ramassé"),
            ),
        }[task]
    )


def test_unsuitable_controls_are_errors() -> None:
    for args in ({"task": "pickup", "num_dists": 0}, {"task": "open"}):
        with pytest.raises(ConfigError, match=r"had no other thing that the mission .* could name.*num_dists=3"):
            make_text_env(_MIXED, control="swapped", **args).reset(seed=0)
    with pytest.raises(ConfigError, match="'swapped'"):
        make_text_env(_MIXED, control="swap")
    for control in CONTROLS:
        with pytest.raises(ConfigError, match="not a string or a mapping with strings"):
            make_text_env("CartPole-v1", control=control).reset(seed=0)


class _Doors(Corridor):
    """A corridor that reports which of its two ends was reached."""

    interaction: Any = None

    def step(self, action: int) -> Any:
        observation, reward, terminated, truncated, info = super().step(action)
        target = "none" if not terminated else "named" if reward else "other"
        return (
            observation,
            reward,
            terminated,
            truncated,
            info | {"first_interaction": self.interaction or {"target": target, "chance": 0.5}},
        )


def _envs(env: type[gymnasium.Env[Any, Any]], seed: int = 0) -> TextVectorEnv:
    envs = TextVectorEnv(env, 1, ["left", "right", "stay"], seed_of=lambda i, k: seed + 2 * k)
    envs.reset()
    return envs


def test_envs_report_first_interactions_by_their_info() -> None:
    targets = set()
    for seed in range(8):
        envs = _envs(_Doors, seed)
        (episode,) = [e for _ in range(4) for e in envs.step([0]).episodes][:1]
        assert episode.first == FirstInteraction("named" if episode.success else "other", 0.5)
        assert episode.figures == {
            "first_named": episode.success,
            "first_other": not episode.success,
            "first_none": 0,
            "first_precision": episode.success,
            "first_chance": 0.5,
        }
        targets.add(episode.first.target)
    assert targets == {"named", "other"}
    envs = _envs(_Doors)
    (episode,) = [e for _ in range(12) for e in envs.step([2]).episodes]
    assert "first_precision" not in episode.figures and episode.figures["first_none"] == 1
    (silent,) = [e for _ in range(4) for e in _envs(Corridor).step([0]).episodes] or [None]
    assert silent is None or (silent.first is None and not silent.figures)


@pytest.mark.parametrize(
    ("interaction", "message"),
    [
        ("named", "is 'named': Input should be a dictionary"),
        ({"target": "nmed"}, r"\['target'\] is 'nmed': Input should be 'named', 'other' or 'none'"),
        ({"target": "named", "chanc": 1}, r"\['chanc'\] is 1"),
        ({"target": "named", "chance": 1.5}, r"\['chance'\] is 1\.5: Input should be less than or equal to 1"),
    ],
)
def test_wrong_first_interactions_are_errors(interaction: Any, message: str) -> None:
    envs = _envs(type("_Wrong", (_Doors,), {"interaction": interaction}))
    with pytest.raises(RunError, match=message):
        for _ in range(12):
            envs.step([2])


def test_a_saved_state_keeps_the_first_interaction() -> None:
    def make() -> TextVectorEnv:
        return TextVectorEnv(
            lambda: make_text_env(_MIXED, task="pickup", num_dists=8, control="swapped"),
            2,
            ["turn left", "turn right", "go forward", "pick up", "drop", "toggle"],
            seed_of=lambda i, k: 10 * k + i,
        )

    envs, again = make(), make()
    envs.reset()
    for step in range(45):
        envs.step([(0, 2, 3, 4)[step % 4]] * 2)
    again.load_state_dict(envs.state_dict())
    finished = [[e for _ in range(20) for e in both.step([2, 2]).episodes] for both in (envs, again)]
    assert finished[0] == finished[1] and len(finished[0]) == 2 and all(e.first for e in finished[0])
