"""Compare observations from look-up tables with Minigrid's own, on many random states.

    python benchmarks/sight.py                       # every BabyAI env, with 100,000 states each: 30 to 60 minutes
    python benchmarks/sight.py --states 1000         # half a minute
    python benchmarks/sight.py --prefix MiniGrid-    # MiniGrid's other envs

Half of the states of an episode result from random actions. For the other half, the grid is changed at random: the agent
is placed anywhere, including in walls; objects are placed, removed and carried; doors are opened, closed and locked.
"""

from __future__ import annotations

import argparse
import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import minigrid
import numpy as np
from minigrid.core.constants import COLOR_NAMES
from minigrid.core.world_object import Ball, Box, Door, Floor, Goal, Key, Lava, Wall
from minigrid.minigrid_env import MiniGridEnv

import groundling  # noqa: F401  (registers)
from groundling.envs.babyai_text.sight import image_by_tables, use_lookup_tables

RESULTS = Path(__file__).parent / "results"


def random_states(id: str, count: int, seed: int, per_episode: int = 200) -> Iterator[Any]:
    """Yield the unwrapped env of this id in `count` states; its observations are read from the tables."""
    env: Any = gymnasium.make(id, disable_env_checker=True).unwrapped
    use_lookup_tables(env)
    rng = np.random.default_rng(seed)
    for number in range(count):
        moment = number % per_episode
        if moment == 0:
            reset(env, int(rng.integers(2**31)))
        elif moment < per_episode // 2:
            _, _, terminated, truncated, _ = env.step(int(rng.integers(env.action_space.n)))
            if terminated or truncated:
                reset(env, int(rng.integers(2**31)))
        else:
            upset(env, rng)
        yield env
    env.close()


def reset(env: Any, seed: int) -> None:
    """Start an episode, and skip seeds for which Minigrid searches endlessly for a place for the agent.

    If small rooms are full, this happens once in hundreds of levels, for example in BabyAI-SynthS5R2-v0.
    """

    def give_up(*_: object) -> None:
        raise TimeoutError

    signal.signal(signal.SIGALRM, give_up)
    for attempt in range(10):
        signal.alarm(5)
        try:
            env.reset(seed=seed + attempt)
            return
        except TimeoutError:
            print(f"seed {seed + attempt} makes Minigrid search for ever", flush=True)
        finally:
            signal.alarm(0)
    raise TimeoutError("no seed gives a level")


def upset(env: Any, rng: np.random.Generator) -> None:
    """Place the agent, and sometimes an object, anywhere."""
    grid = env.grid
    env.agent_pos = (int(rng.integers(grid.width)), int(rng.integers(grid.height)))
    env.agent_dir = int(rng.integers(4))
    for _ in range(2):
        x, y = int(rng.integers(grid.width)), int(rng.integers(grid.height))
        if rng.random() < 0.5:
            grid.set(x, y, random_thing(rng) if rng.random() < 0.5 else None)
    if rng.random() < 0.3:
        env.carrying = random_thing(rng) if rng.random() < 0.5 else None
    for thing in grid.grid:
        if isinstance(thing, Door) and rng.random() < 0.1:
            thing.is_open, thing.is_locked = bool(rng.random() < 0.5), bool(rng.random() < 0.5)


def random_thing(rng: np.random.Generator) -> Any:
    kind: Any = (Wall, Floor, Goal, Lava, Key, Ball, Box, Door)[rng.integers(8)]
    colour = COLOR_NAMES[rng.integers(len(COLOR_NAMES))]
    return kind() if kind in (Goal, Lava) else kind(colour)


def same(env: Any) -> bool:
    """Return True if the env's observation equals Minigrid's in values, types and memory layout."""
    ours, own = env.gen_obs(), MiniGridEnv.gen_obs(env)
    image, expected = ours["image"], own["image"]
    return (
        image_by_tables(env) is not None
        and image.shape == expected.shape
        and image.dtype == expected.dtype
        and image.tobytes() == expected.tobytes()
        and image.strides == expected.strides
        and image.flags.writeable
        and list(ours) == list(own)
        and ours["direction"] == own["direction"]
        and ours["mission"] is own["mission"]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prefix", default="BabyAI-")
    parser.add_argument("--states", type=int, default=100_000, help="number of states of each env")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--resume", action="store_true", help="keep the results that the output already contains")
    parser.add_argument("--output", type=Path, help="default: results/sight-PREFIX.json")
    arguments = parser.parse_args()
    ids = sorted(id for id in gymnasium.registry if id.startswith(arguments.prefix))
    results: dict[str, Any] = {"minigrid": minigrid.__version__, "seed": arguments.seed, "envs": {}}
    output = arguments.output or RESULTS / f"sight-{arguments.prefix.strip('-').lower()}.json"
    RESULTS.mkdir(exist_ok=True)
    if arguments.resume:
        results["envs"] = json.loads(output.read_text())["envs"]
    for id in ids:
        if id in results["envs"]:
            continue
        began = time.process_time()
        states = random_states(id, arguments.states, arguments.seed)
        try:
            different = sum(not same(env) for env in states)
        except gymnasium.error.DependencyNotInstalled as error:
            print(f"{id:45} skipped: {error}", flush=True)
            continue
        results["envs"][id] = {"states": arguments.states, "different": different}
        print(
            f"{id:45} {arguments.states:8} states  {different:6} different  {time.process_time() - began:6.1f} s",
            flush=True,
        )
        output.write_text(json.dumps(results, indent=1) + "\n")
    wrong = [id for id, own in results["envs"].items() if own["different"]]
    print(f"{len(ids)} envs, {len(ids) * arguments.states} states; different in: {', '.join(wrong) or 'none'}")


if __name__ == "__main__":
    main()
