"""Levels stepped together tell, pay and become, to the last value, what each env's own steps make of them."""

from dataclasses import replace
from typing import Any

import gymnasium
import minigrid  # noqa: F401
import numpy as np
import pytest
from minigrid.core.grid import Grid
from minigrid.core.world_object import Ball, Key, WorldObj
from minigrid.envs.babyai.core.verifier import BeforeInstr, GoToInstr, Instr, ObjDesc, PickupInstr

import groundling  # noqa: F401  (registers)
from groundling.envs.babyai_text import CONTROLS, MIXED_TASKS, BabyAIText, Expert, LocalLevel, describe
from groundling.envs.babyai_text.batch import FEWEST, BatchedLevels, step_together
from groundling.envs.babyai_text.sentences import OWN_CELL, tell
from groundling.envs.babyai_text.sight import CODED, ENCODED
from groundling.envs.make import make_text_env
from groundling.envs.observation import TextObservation
from groundling.envs.text_env import ReadStep, read_text_step
from groundling.envs.vector import TextVectorEnv
from groundling.envs.workers import LocalEnvs
from tests.data import golden
from tests.thorough import one_in, thorough

_BABYAI = sorted(id for id in gymnasium.registry if id.startswith("BabyAI-"))
_MIXED = "BabyAI-MixedTrainLocal-v0"


def _envs(id: str, count: int = 4, **args: Any) -> list[gymnasium.Env[Any, Any]]:
    return [make_text_env(id, **args) for _ in range(count)]


def _state(env: Any) -> Any:
    """All that a level holds: where everything is, what is in it, and what its mission's verifier remembers."""
    level = env.unwrapped
    things = [thing for thing in [*level.grid.grid, level.carrying] if thing is not None]
    names = {id(thing): f"thing {number}" for number, thing in enumerate(things)}

    def plain(value: Any) -> Any:
        if isinstance(value, WorldObj):  # the very one, and not one that is alike
            return names.get(id(value), f"{value.color} {value.type}, gone")
        if isinstance(value, list | tuple | np.ndarray):
            return [plain(one) for one in value]
        if isinstance(value, Instr | ObjDesc):
            return {name: plain(one) for name, one in vars(value).items() if name != "env"}
        return value

    return {
        "agent": plain([level.agent_pos, level.agent_dir, level.carrying]),
        "time": (level.step_count, level.max_steps),
        "grid": [thing and (thing.encode(), plain(thing.contains)) for thing in level.grid.grid],
        "places": [plain(thing.cur_pos) for thing in things],
        "instructions": plain(level.instrs),
    }


def _assert_same(ours: Any, theirs: Any) -> None:
    """Whether two envs gave the same, images to the byte."""
    image, other = ours[0]["image"], theirs[0]["image"]
    assert image.dtype == other.dtype and image.shape == other.shape and image.tobytes() == other.tobytes()
    assert image.flags.writeable and image.flags.c_contiguous
    assert list(ours[0]) == list(theirs[0])
    assert ours[0] | {"image": None} == theirs[0] | {"image": None}
    assert ours[1:5] == theirs[1:5]
    assert list(ours[-1 if len(ours) == 2 else 4]) == list(theirs[-1])
    if isinstance(ours, ReadStep):
        assert ours.shown == read_text_step(theirs[0], theirs[4], has_lists=False)


class _Player:
    """Plays by chance, its hands on what it meets; half of the episodes in GLAM's levels as BabyAI's bot."""

    def __init__(self, env: Any, rng: np.random.Generator) -> None:
        self._env, self._rng, self._expert = env, rng, Expert(env)
        self._asked = 0

    def act(self) -> int:
        level = self._env.unwrapped
        if level.step_count == 0 and isinstance(level, LocalLevel):
            self._asked = int(self._rng.integers(12)) if self._rng.random() < 0.5 else 1000
        if level.step_count < self._asked:  # the bot may search for ever where it was not obeyed
            return self._expert.act()
        ahead = level.grid.get(*level.front_pos)
        if self._rng.random() < 0.4 and (level.carrying or (ahead and ahead.type != "wall")):
            return int(self._rng.integers(3, 6))
        return int(self._rng.choice([0, 1, 2, 2, 2, 3, 4, 5, 6]))


def _play(
    batched: list[gymnasium.Env[Any, Any]], single: list[gymnasium.Env[Any, Any]], steps: int, seed: int
) -> list[ReadStep]:
    """What all steps gave, once both gave the same."""
    ours, theirs = BatchedLevels(batched), LocalEnvs(single)
    rng = np.random.default_rng(seed)
    players = [_Player(env, rng) for env in batched]
    given = []

    def command(env: int, command: str, value: int) -> Any:
        for envs in (ours, theirs):
            envs.send(env, command, value)

    def compare(env: int) -> Any:
        one, other = ours.receive(env), theirs.receive(env)
        _assert_same(one, other)
        assert _state(batched[env]) == _state(single[env])
        return one

    everyone = range(len(batched))
    for i in everyone:
        command(i, "reset", seed * 1000 + i)
        compare(i)
    for number in range(steps):
        stepped = [i for i in everyone if rng.random() < 0.9]  # some stay as they are
        for i in stepped:
            command(i, "step", players[i].act())
        for i in stepped:
            given.append(compare(i))
            if given[-1][2] or given[-1][3]:
                command(i, "reset", seed * 1000 + len(batched) * (number + 1) + i)
                compare(i)
    return given


@pytest.mark.parametrize("id", one_in(12, _BABYAI))
def test_every_level_goes_as_its_envs_do_by_themselves(id: str) -> None:
    assert step_together(_envs(id, FEWEST))
    assert len(_play(_envs(id), _envs(id), steps=25, seed=1)) > 60


@pytest.mark.parametrize(
    "args",
    one_in(
        4,
        [
            *({"task": task, "num_dists": 3} for task in MIXED_TASKS),
            {"generator": "original"},
            {"language": "french"},
            {"language": "french", "compat": "glam", "task": "putnext"},
            *({"control": control, "language": "french", "task": "pickup"} for control in CONTROLS),
            {"task": "goto", "max_steps": 5},
        ],
    ),
    ids=str,
)
def test_glams_levels_go_so_with_every_setting(args: dict[str, Any]) -> None:
    given = _play(_envs(_MIXED, **args), _envs(_MIXED, **args), steps=180, seed=2)
    ends = {(step.terminated, step.truncated) for step in given}
    assert ends >= {(True, False), (False, True)} or len(args) == 1
    assert len({step.info["first_interaction"]["target"] for step in given}) > 1


@pytest.mark.parametrize(
    "id",
    [
        "BabyAI-KeyInBox-v0",  # what was in a box
        "BabyAI-PickupDistDebug-v0",  # missions that can fail
        "BabyAI-PutNextS5N2Carrying-v0",  # hands full as the episode begins
        *thorough("BabyAI-MiniBossLevel-v0"),  # all kinds of instructions
        *thorough("BabyAI-OpenDoorsOrderN4Debug-v0", "BabyAI-GoToSeqS5R2-v0", "BabyAI-UnlockLocalDist-v0"),
    ],
)
def test_rare_rules_go_so_in_many_episodes(id: str) -> None:
    assert len(_play(_envs(id), _envs(id), steps=110, seed=3)) > 350


def test_a_thing_is_gone_to_where_it_was_carried() -> None:
    batched, single = _envs(_MIXED, 1), _envs(_MIXED, 1)
    ours, theirs = BatchedLevels(batched), LocalEnvs(single)
    for envs, (env,) in ((ours, batched), (theirs, single)):
        envs.send(0, "reset", 0)
        envs.receive(0)
        level: Any = env.unwrapped
        level.grid = Grid(8, 8)
        level.grid.wall_rect(0, 0, 8, 8)
        level.put_obj(Ball("blue"), 2, 1)
        level.put_obj(Key("red"), 1, 2)
        level.agent_pos, level.agent_dir = (1, 1), 0
        level.instrs = BeforeInstr(PickupInstr(ObjDesc("key", "red")), GoToInstr(ObjDesc("ball", "blue")))
        level.instrs.reset_verifier(level)
    ours._take_up(0)
    left, right, forward, pick_up, drop = range(5)
    carry, fetch = [pick_up, forward, drop], [right, right, forward, left, pick_up]
    for action in [*carry, *fetch, left, forward]:
        for envs in (ours, theirs):
            envs.send(0, "step", action)
        step = ours.receive(0)
        _assert_same(step, theirs.receive(0))
        assert _state(batched[0]) == _state(single[0])
    assert step.terminated and step.reward > 0


def test_recorded_episodes_are_told_to_the_letter() -> None:
    for case in golden("glam_episodes"):
        options = {} if case["kind"] is None else {"task": case["kind"]}
        envs = BatchedLevels(_envs(case["env"], 1, generator="original", **options))
        envs.send(0, "reset", case["seed"])
        assert envs.receive(0)[0]["mission"] == case["mission"]
        for action, reward, done, descriptions, _ in case["steps"]:
            envs.send(0, "step", action)
            _, own_reward, terminated, truncated, info, shown = envs.receive(0)
            assert own_reward == pytest.approx(reward)
            assert (terminated or truncated) == done
            assert info["descriptions"] == [*shown.descriptions] == descriptions


@pytest.mark.parametrize(("language", "compat"), [("english", None), ("french", None), ("french", "glam")])
def test_whatever_fills_a_view_is_told_as_describe_tells_it(language: Any, compat: Any) -> None:
    rng = np.random.default_rng(4)
    filled = rng.random((400, 49)) < rng.choice([0.1, 0.3, 0.6], (400, 1))
    seen = np.where(filled, rng.integers(len(CODED), size=(400, 49)), rng.integers(2, size=(400, 49)))
    hands = [code for code, thing in enumerate(CODED) if thing is None or thing.can_pickup()][1:]
    seen[:, OWN_CELL] = rng.choice(hands, 400)
    descriptions = tell(seen.astype(np.uint8), language, compat)
    for codes, sentences in zip(seen.tolist(), descriptions, strict=True):
        image = ENCODED[codes].reshape(7, 7, 3)
        assert sentences == describe(image, CODED[codes[OWN_CELL]], language, compat)


def _vector(num_envs: int, batched: bool, **args: Any) -> TextVectorEnv:
    envs = TextVectorEnv.make(_MIXED, num_envs, seed=5, num_dists=2, max_steps=20, **args)
    assert isinstance(envs._stepper, BatchedLevels)
    if not batched:
        envs._stepper = LocalEnvs(envs.envs)
    return envs


def _steps(envs: TextVectorEnv, count: int, seed: int) -> list[Any]:
    rng = np.random.default_rng(seed)
    steps = []
    for _ in range(count):
        step = envs.step([int(a) if a < 6 else None for a in rng.integers(7, size=envs.num_envs)])
        steps.append((*map(_plain, step.observations), step.rewards.tolist(), step.dones.tolist()))
        steps.append((step.episodes, {i: _plain(o) for i, o in step.final_observations.items()}))
    return steps


def _plain(observation: TextObservation) -> Any:
    raw = {name: np.array(one).tolist() for name, one in observation.raw.items()}
    return replace(observation, raw=raw)


def test_runs_go_and_resume_the_same_whoever_steps_them() -> None:
    ours, theirs = _vector(7, True), _vector(7, False)
    assert [*map(_plain, ours.reset())] == [*map(_plain, theirs.reset())]
    assert _steps(ours, 70, 0) == _steps(theirs, 70, 0)
    assert ours.state_dict() == theirs.state_dict()
    expected = None
    for saved, batched in ((theirs, True), (ours, False)):
        resumed = _vector(7, batched)
        resumed.load_state_dict(saved.state_dict())
        assert [*map(_plain, resumed.observations())] == [*map(_plain, saved.observations())]
        went_on = _steps(resumed, 30, 1)
        assert went_on == (expected or went_on)
        expected = went_on
    assert _steps(ours, 30, 1) == expected


class _Own(LocalLevel):
    """A level of one's own, whose rules may be others."""


class _Wrapped(gymnasium.Wrapper[Any, Any, Any, Any]):
    pass


def test_what_may_have_rules_of_its_own_takes_its_own_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = [BabyAIText(LocalLevel()) for _ in range(FEWEST)]
    assert step_together(plain)
    assert not step_together(plain[1:])
    assert not step_together([*plain, BabyAIText(_Own())])
    assert not step_together([*plain, _Wrapped(BabyAIText(LocalLevel()))])
    assert not step_together([*plain, BabyAIText(_Wrapped(LocalLevel()))])
    assert not step_together([*plain, LocalLevel()])
    for settings in ({"agent_view_size": 5}, {"render_mode": "human"}):
        assert not step_together([*plain, BabyAIText(LocalLevel(**settings))])
    assert not step_together(_envs("MiniGrid-LavaCrossingS9N1-v0", FEWEST))
    monkeypatch.setattr("minigrid.envs.babyai.core.verifier.use_done_actions", True)
    assert not step_together(plain)
