"""Parts of the direct generator, compared with the plain procedures that must have the same distribution."""

from collections import Counter
from collections.abc import Hashable, Iterable

import gymnasium
import numpy as np
import pytest
from minigrid.core.roomgrid import RoomGrid
from minigrid.core.world_object import Ball

from groundling.envs.babyai_text import LocalLevel
from groundling.envs.babyai_text.direct import (
    NOUNS,
    Places,
    all_in_reach,
    draw_nouns,
    draw_places,
    draw_places_by_door,
)
from tests.thorough import thorough

_HELD_OUT = [i for i, noun in enumerate(NOUNS) if noun in {("box", "yellow"), ("key", "red"), ("ball", "green")}]


def _assert_same_distribution(one: Iterable[Hashable], other: Iterable[Hashable]) -> None:
    """Compare two samples with a chi-squared test at five deviations; rare categories are merged."""
    counts = Counter(one), Counter(other)
    sizes = [sum(c.values()) for c in counts]
    totals = counts[0] + counts[1]
    rare = [k for k in totals if totals[k] < 20]
    rows = [[c[k] for c in counts] for k in totals if k not in rare] + [[sum(c[k] for k in rare) for c in counts]]
    statistic = 0.0
    for row in rows:
        for observed, size in zip(row, sizes, strict=True):
            expected = sum(row) * size / sum(sizes)
            statistic += (observed - expected) ** 2 / expected if expected else 0.0
    freedom = len(rows) - 1 - (not rare)
    assert freedom >= 1
    assert statistic < freedom + 5 * (2 * freedom) ** 0.5


def _nouns_by_rejection(
    rng: np.random.Generator, size: int, count: int, num_named: int, admitted: list[int]
) -> list[tuple[int, int, int]]:
    """Return the features of ``size`` samples of the original, without those that the split rejects."""
    nouns = rng.integers(len(NOUNS), size=(size, count))
    rows = np.arange(size)
    first, second = rng.integers(count, size=(2, size))
    like_first = (nouns == nouns[rows, first][:, None]).sum(axis=1)
    redrawn = (first + rng.integers(1, count, size=size)) % count  # any of the other values
    second = np.where((second == first) & (like_first == 1), redrawn, second)
    named = nouns[rows, first], nouns[rows, second if num_named == 2 else first]
    kept = np.isin(named[0], admitted) & np.isin(named[1], admitted)
    return list(zip(named[0][kept].tolist(), named[1][kept].tolist(), like_first[kept].tolist(), strict=True))


@pytest.mark.parametrize(
    ("count", "num_named", "admitted"),
    [
        (9, 1, _HELD_OUT),
        (10, 2, list(range(len(NOUNS)))),
        *thorough((5, 2, _HELD_OUT), (10, 2, _HELD_OUT), (2, 2, _HELD_OUT)),
    ],
)
def test_nouns_have_the_distribution_of_rejection(count: int, num_named: int, admitted: list[int]) -> None:
    rng = np.random.default_rng(0)
    size = 20_000 * (len(NOUNS) // len(admitted)) ** num_named
    plain = _nouns_by_rejection(rng, size, count, num_named, admitted)
    drawn = []
    for _ in range(13_000):
        nouns = draw_nouns(rng, count, num_named, admitted)
        assert len(nouns) == count
        drawn.append((nouns[0], nouns[num_named - 1], nouns.count(nouns[0])))
    _assert_same_distribution(drawn, plain)
    coarse = [[(first == second, like_first) for first, second, like_first in s] for s in (drawn, plain)]
    _assert_same_distribution(*coarse)


def _empty_room(rng: np.random.Generator, columns: int = 1) -> LocalLevel:
    level = LocalLevel(task="open" if columns == 2 else "goto")
    level.reset(seed=0)
    level.np_random = rng
    RoomGrid._gen_grid(level, level.width, level.height)
    return level


def test_reach_is_what_minigrid_finds() -> None:
    rng, verdicts = np.random.default_rng(1), Counter()
    for _ in range(300):
        level = _empty_room(rng)
        level.place_agent()
        for _ in range(int(rng.integers(6, 14))):
            level.place_obj(Ball("red"))
        cells = [x + 8 * y for x in range(1, 7) for y in range(1, 7) if level.grid.get(x, y)]
        agent = int(level.agent_pos[0] + 8 * level.agent_pos[1])
        verdict = level.check_objs_reachable(raise_exc=False)
        assert all_in_reach(agent, sum(1 << cell for cell in cells)) == verdict
        verdicts[verdict] += 1
    assert min(verdicts[True], verdicts[False]) > 50


def _places_by_rejection(rng: np.random.Generator, count: int) -> tuple[object, ...]:
    while True:
        level = _empty_room(rng)
        level.place_agent()
        things = [tuple(map(int, level.place_in_room(0, 0, Ball("red"))[1])) for _ in range(count)]
        if level.check_objs_reachable(raise_exc=False):
            return tuple(map(int, level.agent_pos)), int(level.agent_dir), things[0]


def test_places_have_the_distribution_of_rejection() -> None:
    rng = np.random.default_rng(2)
    plain = [_places_by_rejection(rng, 10) for _ in range(500)]
    drawn = [draw_places(rng, 10) for _ in range(2000)]
    _assert_same_distribution([p.agent for p in drawn], [p[0] for p in plain])
    _assert_same_distribution([p.direction for p in drawn], [p[1] for p in plain])
    _assert_same_distribution([p.things[0] for p in drawn], [p[2] for p in plain])
    _assert_same_distribution([_apart(p.agent, p.things[0]) for p in drawn], [_apart(p[0], p[2]) for p in plain])


def _apart(one: tuple[int, int], other: tuple[int, int]) -> int:
    return abs(one[0] - other[0]) + abs(one[1] - other[1])


def test_two_rooms_are_drawn_as_the_original_draws_them() -> None:
    env = gymnasium.make("BabyAI-MixedTestLocal-v0", task="open", generator="original")
    plain = []
    for seed in range(400):
        env.reset(seed=seed)
        level = env.unwrapped
        column, door = int(level.agent_pos[0] > 7), level.instrs.desc.obj_poss[0]
        agent = (int(level.agent_pos[0]) - 7 * column, int(level.agent_pos[1]))
        key = level.room_grid[0][column].objs[0].init_pos
        plain.append((column, int(door[1]), agent, int(level.agent_dir), (int(key[0]) - 7 * column, int(key[1]))))
    rng = np.random.default_rng(3)
    drawn = [draw_places_by_door(rng, 9) for _ in range(2000)]
    for column, row, places in drawn:
        step = ((1, 0), (0, 1), (-1, 0), (0, -1))[places.direction]
        ahead = (places.agent[0] + step[0], places.agent[1] + step[1])
        assert ahead not in places.things and ahead != (0 if column else 7, row)
        assert (1 if column else 6, row) not in places.things  # otherwise the door would be out of reach
    for feature in (
        lambda c, row, agent, direction, key: (c, row),
        lambda c, row, agent, direction, key: (c, agent),
        lambda c, row, agent, direction, key: (c, key),
        lambda c, row, agent, direction, key: (direction, agent[0] in (1, 6), agent[1] in (1, 6)),
        lambda c, row, agent, direction, key: _apart(agent, (0 if c else 7, row)),
    ):
        features = [feature(c, row, p.agent, p.direction, p.things[0]) for c, row, p in drawn]
        _assert_same_distribution(features, [feature(*p) for p in plain])


def test_things_to_be_put_next_to_each_other_are_apart_at_first() -> None:
    places = Places((1, 1), 0, [(2, 3), (2, 4), (5, 5), (3, 4)])
    assert places.touching([0], [1]) and places.touching([1], [3]) and places.touching([2, 1], [0])
    assert not places.touching([0], [2, 3])
    env = gymnasium.make("BabyAI-MixedTrainLocal-v0", task="putnext", num_dists=12)
    for seed in range(100):
        env.reset(seed=seed)
        instruction = env.unwrapped.instrs
        instruction.reset_verifier(env.unwrapped)
        assert not instruction.objs_next()
        assert not set(map(id, instruction.desc_move.obj_set)) & set(map(id, instruction.desc_fixed.obj_set))
