"""Compare the speed of text envs with that of Minigrid's own envs without text.

    taskset -c 0 python benchmarks/environment.py            # one to two minutes on one core
    taskset -c 0 python benchmarks/environment.py --quick    # smoke test: two rounds with few steps

All variants run in one process, interleaved in each round, with random actions from GLAM's six. The comparison uses
the medians over rounds of the process's CPU seconds:

minigrid        Minigrid's BabyAI-GoToLocal-v0 as Gymnasium makes it, without text
go to, told     the same env with text
mixed, …        GLAM's BabyAI-MixedTrainLocal-v0 and BabyAI-MixedTestLocal-v0 with text; each reset samples a task
TASK, …         the same with a single task

Steps are reported without and with their share of resets, and resets as the mean over all rounds. Set-up is excluded.
The second part steps 256 envs in a `TextVectorEnv`, as in training. Each round makes new envs, so that the process
contains no others, which Python's garbage collector would also scan.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import minigrid
import numpy as np
from machine import machine

import groundling  # noqa: F401  (registers)
from groundling.envs.babyai_text import ACTIONS, MIXED_TASKS
from groundling.envs.make import make_text_env
from groundling.envs.vector import TextVectorEnv

RESULTS = Path(__file__).parent / "results"
RAW = "minigrid"
STEP_LIMIT = 0.35
"""The target ratio to Minigrid's step, for every text env."""
RESET_LIMIT = 1.5
"""The target for the mean of a reset in milliseconds, for each of GLAM's tasks."""
NUM_ENVS = 256


def make_envs() -> dict[str, gymnasium.Env[Any, Any]]:
    envs: dict[str, gymnasium.Env[Any, Any]] = {
        RAW: gymnasium.make("BabyAI-GoToLocal-v0", disable_env_checker=True),
        "go to, told": make_text_env("BabyAI-GoToLocal-v0"),
    }
    for split in ("train", "test"):
        id = f"BabyAI-Mixed{split.title()}Local-v0"
        envs[f"mixed, {split}"] = make_text_env(id)
        for task in MIXED_TASKS:
            envs[f"{task}, {split}"] = make_text_env(id, task=task)
    return envs


def play(env: gymnasium.Env[Any, Any], num_steps: int, seed: int) -> dict[str, Any]:
    """Return the CPU microseconds of a step without and with resets, and the CPU milliseconds of each reset."""
    actions = np.random.default_rng(seed).integers(len(ACTIONS["english"]), size=num_steps).tolist()
    clock: Callable[[], float] = time.process_time
    env.reset(seed=seed)
    resets = []
    began = clock()
    for action in actions:
        _, _, terminated, truncated, _ = env.step(action)
        if terminated or truncated:
            ended = clock()
            env.reset()
            resets.append(clock() - ended)
    took = clock() - began
    return {
        "step_us": (took - sum(resets)) / num_steps * 1e6,
        "step_with_resets_us": took / num_steps * 1e6,
        "resets_ms": [1e3 * reset for reset in resets],
    }


def measure(rounds: int, num_steps: int, seed: int) -> dict[str, dict[str, Any]]:
    envs = make_envs()
    played: dict[str, list[dict[str, Any]]] = {name: [] for name in envs}
    for number in range(rounds + 1):  # the first round warms up
        for name, env in envs.items():
            figures = play(env, num_steps, seed + number)
            if number:
                played[name].append(figures)
    results: dict[str, dict[str, Any]] = {}
    for name, own in played.items():
        resets = [reset for figures in own for reset in figures["resets_ms"]]
        results[name] = {
            "reset_ms": {
                "mean": statistics.fmean(resets),
                "median": statistics.median(resets),
                "max": max(resets),
                "count": len(resets),
            }
        }
        for key in ("step_us", "step_with_resets_us"):
            times = [figures[key] for figures in own]
            ratios = [figures[key] / raw[key] for figures, raw in zip(own, played[RAW], strict=True)]
            results[name][key] = {
                "median": statistics.median(times),
                "of_minigrids": statistics.median(times) / statistics.median(raw[key] for raw in played[RAW]),
                "of_minigrids_by_round": [min(ratios), max(ratios)],
                "rounds": times,
            }
    return results


def make_vector(id: str, spent: list[float]) -> TextVectorEnv:
    """Make and reset ``NUM_ENVS`` envs; the seconds of each later reset are appended to ``spent``."""
    envs = TextVectorEnv.make(id, NUM_ENVS)
    for env in envs.envs:
        env.reset = timed(env.reset, spent)  # type: ignore[method-assign]
    envs.reset()
    return envs


def play_many(envs: TextVectorEnv, num_steps: int, seed: int, spent: list[float]) -> dict[str, float]:
    """Like `play`, for all envs; ``spent`` contains the seconds of each reset."""
    rng = np.random.default_rng(seed)
    actions = rng.integers(len(ACTIONS["english"]), size=(num_steps // NUM_ENVS, NUM_ENVS)).tolist()
    spent.clear()
    began = time.process_time()
    for row in actions:
        envs.step(row)
    took, count = time.process_time() - began, len(actions) * NUM_ENVS
    return {"step_us": (took - sum(spent)) / count * 1e6, "step_with_resets_us": took / count * 1e6}


def measure_vectors(rounds: int, num_steps: int, seed: int) -> dict[str, dict[str, Any]]:
    ids = {"go to": "BabyAI-GoToLocal-v0", "mixed, train": "BabyAI-MixedTrainLocal-v0"}
    played: dict[str, list[dict[str, float]]] = {}
    for number in range(rounds + 1):  # the first round warms up
        for name, id in ids.items():
            spent: list[float] = []
            envs = make_vector(id, spent)
            gc.collect()
            figures = play_many(envs, num_steps, seed + number, spent)
            if number:
                played.setdefault(name, []).append(figures)
    return {
        name: {
            key: {
                "median": statistics.median(figures[key] for figures in own),
                "steps_per_second": 1e6 / statistics.median(figures[key] for figures in own),
                "steps_per_second_by_round": sorted(1e6 / figures[key] for figures in own),
            }
            for key in ("step_us", "step_with_resets_us")
        }
        for name, own in played.items()
    }


def timed(reset: Callable[..., Any], spent: list[float]) -> Callable[..., Any]:
    def reset_and_note(**kwargs: Any) -> Any:
        began = time.process_time()
        returned = reset(**kwargs)
        spent.append(time.process_time() - began)
        return returned

    return reset_and_note


def print_rates(vectors: dict[str, dict[str, Any]]) -> None:
    print(f"\n{f'{NUM_ENVS} envs':28} {'step us':>8} {'steps/s':>9} {'with resets':>12} {'steps/s':>9}")
    for name, own in vectors.items():
        step, whole = own["step_us"], own["step_with_resets_us"]
        print(
            f"{name:28} {step['median']:8.1f} {step['steps_per_second']:9,.0f} {whole['median']:12.1f} "
            f"{whole['steps_per_second']:9,.0f}"
        )


def print_table(results: dict[str, dict[str, Any]]) -> None:
    print(f"{'':28} {'step us':>8} {'x raw':>6} {'with resets':>12} {'x raw':>6}   {'reset ms: mean':>14} {'max':>6}")
    for name, own in results.items():
        step, whole, reset = own["step_us"], own["step_with_resets_us"], own["reset_ms"]
        missed = name != RAW and (whole["of_minigrids"] > STEP_LIMIT or step["of_minigrids"] > STEP_LIMIT)
        missed |= name not in (RAW, "go to, told") and reset["mean"] > RESET_LIMIT
        print(
            f"{name:28} {step['median']:8.1f} {step['of_minigrids']:6.2f} {whole['median']:12.1f} "
            f"{whole['of_minigrids']:6.2f}   {reset['mean']:14.2f} {reset['max']:6.2f}{'   MISSED' if missed else ''}"
        )
    print(f"targets: a step with text <= {STEP_LIMIT} x raw; a reset of GLAM's tasks <= {RESET_LIMIT} ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, default=4000, help="number of steps of each env in each round")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="run 2 rounds of 1,000 steps; write no results")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.rounds, arguments.steps = 2, 1000
    before = machine()
    envs = measure(arguments.rounds, arguments.steps, arguments.seed)
    print_table(envs)
    vectors = measure_vectors(arguments.rounds, 16 * arguments.steps, arguments.seed)
    print_rates(vectors)
    about = {
        "settings": vars(arguments),
        "machine": before,
        "versions": {"minigrid": minigrid.__version__, "gymnasium": gymnasium.__version__},
    }
    if not arguments.quick:
        RESULTS.mkdir(exist_ok=True)
        for name, results in (("environment", {"envs": envs}), ("environment-vectors", {"vectors": vectors})):
            (RESULTS / f"{name}-cpu.json").write_text(json.dumps(about | results, indent=1) + "\n")


if __name__ == "__main__":
    main()
