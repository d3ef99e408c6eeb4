"""Compare the speed of the NetHack envs with that of NLE's own env and its raw observations.

    python benchmarks/nethack_env.py            # one to two minutes on two cores
    python benchmarks/nethack_env.py --quick    # smoke test with few steps; writes no results

*Step.* Three variants are interleaved in one thread of one process, with random actions and resets: `nle` is NLE's
unwrapped NetHackScore with the six observation keys that Motif's wrappers use; `task` is our env of that name through
Gymnasium's interface; `features` is the vector env without workers, which writes the window, the vector, and the
message with its id and count. Values are medians over rounds of CPU seconds, for 16 envs each (a worker's share of a
group of 32). NLE's env cannot answer what to eat, so its games differ from ours, but each variant plays many games.

*Words.* `words` is NetHackWords-Score-v1, which describes each step in sentences and lists the admissible actions. It
plays uniformly among them, and NLE's env is stepped with the same keys, from the same seeds: with admissible actions,
more game time passes in a step than with random keys.

*Throughput.* Frames per second of wall time, for `features` and for workers that step 64 envs in two groups without a
policy. The workers' CPU seconds are also reported, because the machine may be busy.

*Start-up.* The time from the constructor to the first observations of 64 envs, as wall time and CPU time (all processes).
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import psutil
from machine import machine
from nle.env import tasks

from groundling.envs.nethack import make_task
from groundling.envs.nethack.observation import STEP_FIELDS
from groundling.envs.nethack.vector import NetHackVectorEnv

RESULTS = Path(__file__).parent / "results"
MOTIFS_KEYS = ("tty_chars", "tty_colors", "tty_cursor", "blstats", "message", "glyphs")
TASK = "NetHackScore-v1"
NUM_ACTIONS = 23
STEP_LIMIT, START_LIMIT, BYTES_LIMIT = 1.5, 5.0, 800


def step_costs(num_envs: int, rounds: int, num_steps: int, seed: int) -> dict[str, Any]:
    """Return the CPU microseconds of a step, by round."""
    raw = [tasks.NetHackScore(observation_keys=MOTIFS_KEYS) for _ in range(num_envs)]
    own = [make_task(TASK) for _ in range(num_envs)]
    vector = NetHackVectorEnv(TASK, num_envs, num_workers=0, num_groups=1, seed=seed)
    vector.reset()
    for i, env in enumerate(raw):
        env.seed(i, i, reseed=False, lgen=i)
        env.reset()
    for i, env in enumerate(own):
        env.reset(seed=i)

    def play_raw(actions: np.ndarray) -> None:
        for row in actions.tolist():
            for env, action in zip(raw, row, strict=True):
                if env.step(action)[2]:
                    env.reset()

    def play_own(actions: np.ndarray) -> None:
        for row in actions.tolist():
            for env, action in zip(own, row, strict=True):
                _, _, terminated, truncated, _ = env.step(action)
                if terminated or truncated:
                    env.reset()

    def play_features(actions: np.ndarray) -> None:
        for row in actions:
            vector.send(0, row)
            vector.receive(0)

    players = {"nle": play_raw, "task": play_own, "features": play_features}
    times: dict[str, list[float]] = {name: [] for name in players}
    rng = np.random.default_rng(seed)
    for number in range(rounds + 1):  # the first round warms up
        actions = rng.integers(NUM_ACTIONS, size=(num_steps, num_envs))
        for name, play in players.items():
            began = time.process_time()
            play(actions)
            if number:
                times[name].append((time.process_time() - began) / actions.size * 1e6)
    vector.close()
    raw_median = statistics.median(times["nle"])
    return {
        name: {
            "us": statistics.median(own_times),
            "of_nle": statistics.median(own_times) / raw_median,
            "of_nle_by_round": statistics.median(a / b for a, b in zip(own_times, times["nle"], strict=True)),
            "rounds_us": own_times,
        }
        for name, own_times in times.items()
    }


def words_costs(num_envs: int, rounds: int, num_steps: int, seed: int) -> dict[str, Any]:
    """Return the CPU microseconds of a step described in words and of NLE's env with the same keys, by round."""
    from groundling.envs.nethack.words import make_words  # here, because workers import this module

    words = [make_words("score") for _ in range(num_envs)]
    raw = [tasks.NetHackScore(observation_keys=MOTIFS_KEYS, fix_moon_phase=True) for _ in range(num_envs)]
    rng = np.random.default_rng(seed)

    def reset(env: int, game: int) -> list[str]:
        for task in (words[env]._task, raw[env]):
            task.seed(game, game, reseed=False, lgen=game)
        raw[env].reset()
        return list(words[env].reset()[1]["actions"])

    listed = [reset(env, env) for env in range(num_envs)]
    times: dict[str, list[float]] = {"nle": [], "words": []}
    for number in range(rounds + 1):  # the first round warms up
        spent = {"nle": 0, "words": 0}
        for step in range(num_steps):
            for env, draw in enumerate(rng.random(num_envs).tolist()):
                action = listed[env][int(draw * len(listed[env]))]
                key = words[env]._admissible[action]
                began = time.process_time_ns()
                _, _, terminated, truncated, info = words[env].step(action)
                between = time.process_time_ns()
                has_ended = raw[env].step(key)[2]
                spent["words"] += between - began
                spent["nle"] += time.process_time_ns() - between
                listed[env] = info["actions"]
                if terminated or truncated or has_ended:
                    listed[env] = reset(env, (number * num_steps + step + 1) * num_envs + env)
        for name, own_times in times.items() if number else ():
            own_times.append(spent[name] / (num_steps * num_envs) / 1000)
    median = {name: statistics.median(own_times) for name, own_times in times.items()}
    by_round = statistics.median(a / b for a, b in zip(times["words"], times["nle"], strict=True))
    return {
        "us": median["words"],
        "nle_us": median["nle"],
        "of_nle": median["words"] / median["nle"],
        "of_nle_by_round": by_round,
        "rounds_us": times["words"],
        "nle_rounds_us": times["nle"],
    }


def throughput(num_envs: int, num_workers: int, num_steps: int, seed: int) -> dict[str, float]:
    """Return the seconds up to the first frames, frames per second, and the CPU time of all processes per frame."""
    began, cpu = time.perf_counter(), time.process_time()
    envs = NetHackVectorEnv(TASK, num_envs, num_workers, seed=seed)
    envs.reset()
    started, start_cpu = time.perf_counter() - began, time.process_time() - cpu
    workers = [psutil.Process(pid) for pid in envs.process_ids]
    start_cpu += _cpu_seconds(workers)
    processes = [psutil.Process(), *workers]
    actions = np.random.default_rng(seed).integers(NUM_ACTIONS, size=(num_steps + 1, envs.group_size))
    began, cpu = time.perf_counter(), _cpu_seconds(processes)
    for group in range(envs.num_groups):
        envs.send(group, actions[0])
    for row in actions[1:]:
        for group in range(envs.num_groups):
            envs.receive(group)
            envs.send(group, row)
    seconds, cpu = time.perf_counter() - began, _cpu_seconds(processes) - cpu
    for group in range(envs.num_groups):
        envs.receive(group)
    envs.close()
    frames = num_steps * num_envs
    return {
        "start_s": started,
        "start_cpu_s": start_cpu,
        "frames_per_s": frames / seconds,
        "cpu_us_per_frame": cpu / frames * 1e6,
    }


def _cpu_seconds(processes: list[psutil.Process]) -> float:
    times = [process.cpu_times() for process in processes]
    return sum(own.user + own.system for own in times)


def print_table(results: dict[str, Any]) -> None:
    print(f"{'one step, one thread':24} {'CPU us':>8} {'x nle':>6} {'median of rounds':>17}")
    for name, own in results["step"].items():
        missed = name in ("features", "words") and own["of_nle"] > STEP_LIMIT
        print(
            f"{name:24} {own['us']:8.1f} {own['of_nle']:6.2f} {own['of_nle_by_round']:17.2f}"
            f"{'  MISSED' if missed else ''}"
        )
    print(f"\n{'64 envs, two groups':24} {'start s':>8} {'its CPU s':>10} {'frames/s':>9} {'CPU us / frame':>15}")
    for name, own in results["vector"].items():
        missed = own["start_s"] > START_LIMIT
        print(
            f"{name:24} {own['start_s']:8.2f} {own['start_cpu_s']:10.2f} {own['frames_per_s']:9.0f} "
            f"{own['cpu_us_per_frame']:15.1f}{'  MISSED' if missed else ''}"
        )
    print(f"\nbytes per frame: {results['bytes_per_frame']}")
    print(
        f"targets: features and words <= {STEP_LIMIT} x nle, start <= {START_LIMIT:g} s, <= {BYTES_LIMIT} bytes per frame"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--steps", type=int, default=250, help="number of steps of each of the 16 envs in each round")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="run 2 rounds of 100 steps; write no results")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.rounds, arguments.steps = 2, 100
    results = {
        "step": step_costs(16, arguments.rounds, arguments.steps, arguments.seed)
        | {"words": words_costs(16, arguments.rounds, arguments.steps, arguments.seed)},
        "vector": {
            f"{num_workers} workers": throughput(64, num_workers, 2 * arguments.steps, arguments.seed)
            for num_workers in (0, 1, 2)
        },
        "bytes_per_frame": sum(np.dtype(field).itemsize for field in STEP_FIELDS.values()),
        "bytes": {
            name: np.dtype(dtype).itemsize * int(np.prod(shape, dtype=int))
            for name, (dtype, shape) in STEP_FIELDS.items()
        },
        "settings": vars(arguments),
        "machine": machine(),
        "versions": {
            "python": platform.python_version(),
            "nle": version("nle"),
            "gymnasium": gymnasium.__version__,
            "numpy": np.__version__,
        },
    }
    print_table(results)
    if not arguments.quick:
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / "nethack_env.json").write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
