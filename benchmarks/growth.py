"""Measure how cost grows with prompt length, actions, envs, pairs, and the updates of a reported run.

    taskset -c 0 python benchmarks/growth.py            # about five minutes
    taskset -c 0 python benchmarks/growth.py --quick    # smoke test: two sizes each, one round

Costs are CPU seconds of one thread, as the minimum over rounds with interleaved sizes. The slope is d log(cost) /
d log(size), by least squares over the upper half of the sizes: 1 is linear growth, and 2 is quadratic growth.

prompt, causal        tokens in a prompt after which the bundled Llama scores six actions
prompt, encoder       the same with the bundled T5
actions               actions that the bundled Llama scores after a prompt of 100 tokens
envs                  text envs of BabyAI-GoToLocal-v0, each with 200 random steps
pairs                 preferences between messages, in one epoch of Motif's reward model with batches of 256
updates               rows of a run's metrics for `groundling report`, without start-up
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from machine import machine
from reward_model import make_pairs

from groundling.envs.vector import TextVectorEnv
from groundling.judges.reward_models import MotifRewardModel
from groundling.judges.reward_models.distill import train_epoch
from groundling.lm import LanguageModel
from groundling.runtime import devices

RESULTS = Path(__file__).parent / "results"
SIZES: dict[str, tuple[int, ...]] = {
    "prompt, causal": (50, 100, 200, 400, 800),
    "prompt, encoder": (50, 100, 200, 400, 800, 1600, 3200),
    "actions": (4, 8, 16, 32, 64, 128, 256, 512),
    "envs": (1, 4, 16, 64, 256),
    "pairs": (1_000, 4_000, 16_000),
    "updates": (1_000, 10_000, 30_000, 100_000),
}

ACTIONS = ["turn left", "turn right", "go forward", "pick up", "drop", "toggle"]
WORDS = ["You", "see", "a", "red", "ball", "2", "steps", "forward", "and", "a", "wall", "1", "step", "left", "."]


def words(count: int) -> str:
    """Return a prompt of about this many tokens."""
    return " ".join(WORDS[number % len(WORDS)] for number in range(count))


def scoring(lm: LanguageModel, prompt: str, candidates: Sequence[str]) -> Callable[[], object]:
    @torch.no_grad()
    def run() -> object:
        return lm.score([prompt], candidates)

    return run


def prompts(model: str, sizes: Sequence[int]) -> dict[int, Callable[[], object]]:
    lm = LanguageModel.from_pretrained(model)
    return {lm.token_lengths([words(size)])[0]: scoring(lm, words(size), ACTIONS) for size in sizes}


def actions(sizes: Sequence[int]) -> dict[int, Callable[[], object]]:
    lm = LanguageModel.from_pretrained("starter-causal")
    verbs, things = ("go to the", "pick up the", "look at the"), [f"thing {number}" for number in range(200)]
    every = [f"{verb} {thing}" for thing in things for verb in verbs]
    return {size: scoring(lm, words(100), every[:size]) for size in sizes}


def envs(sizes: Sequence[int]) -> dict[int, Callable[[], object]]:
    def playing(size: int) -> Callable[[], object]:
        vector, drawn = TextVectorEnv.make("BabyAI-GoToLocal-v0", size), np.random.default_rng(0)
        vector.reset()

        def run() -> None:
            for _ in range(200):
                vector.step(drawn.integers(len(ACTIONS), size=size).tolist())

        return run

    return {size: playing(size) for size in sizes}


def pairs(sizes: Sequence[int]) -> dict[int, Callable[[], object]]:
    every = make_pairs(max(sizes), 20_000, 0)

    def training(size: int) -> Callable[[], object]:
        part, model = every[torch.arange(size)], MotifRewardModel()
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-5)
        return lambda: train_epoch(model, optimizer, part, 256, torch.Generator().manual_seed(0))

    return {size: training(size) for size in sizes}


def updates(sizes: Sequence[int], folder: Path) -> dict[int, Callable[[], object]]:
    """Make a run with two updates and repeat its rows."""
    short = folder / "short"
    _groundling("train", "demo-easy", f"run_dir={short}", "training.steps=2560")
    rows = [json.loads(line) for line in (short / "metrics.jsonl").read_text().splitlines()]

    def reporting(size: int) -> Callable[[], object]:
        run_dir = folder / str(size)
        if not run_dir.exists():
            shutil.copytree(short, run_dir)
            repeated = ({**rows[n % len(rows)], "update": n + 1, "step": 128 * (n + 1)} for n in range(size))
            (run_dir / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in repeated))
        return lambda: _groundling("report", str(run_dir), "--output", str(folder / "page.html"))

    return {size: reporting(size) for size in (len(rows), *sizes)}


def _groundling(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "groundling", *arguments], check=True, capture_output=True)


def seconds(run: Callable[[], object]) -> float:
    """Return the CPU seconds of this process and its children."""

    def clock() -> float:
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        return time.process_time() + children.ru_utime + children.ru_stime

    start = clock()
    run()
    return clock() - start


def measure(runs: dict[int, Callable[[], object]], rounds: int) -> dict[int, float]:
    """Return the minimum over rounds, by size."""
    taken: dict[int, list[float]] = {size: [] for size in runs}
    for number in range(rounds + 1):  # the first round warms up
        for size, run in runs.items():
            second = seconds(run)
            if number:
                taken[size].append(second)
    return {size: min(of_size) for size, of_size in taken.items()}


def slope(costs: dict[int, float]) -> float:
    upper = sorted(costs)[len(costs) // 2 - (len(costs) <= 3) :]
    x, y = ([math.log(value) for value in values] for values in (upper, [costs[size] for size in upper]))
    return float(np.polyfit(x, y, 1)[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="run one round with two sizes each; write no results")
    arguments = parser.parse_args()
    devices.configure()  # as in a run
    torch.set_num_threads(1)
    sizes = {name: of[:2] if arguments.quick else of for name, of in SIZES.items()}
    rounds = 1 if arguments.quick else arguments.rounds
    curves: dict[str, dict[str, object]] = {}
    with tempfile.TemporaryDirectory() as folder:
        made: dict[str, Callable[[], dict[int, Callable[[], object]]]] = {
            "prompt, causal": lambda: prompts("starter-causal", sizes["prompt, causal"]),
            "prompt, encoder": lambda: prompts("starter", sizes["prompt, encoder"]),
            "actions": lambda: actions(sizes["actions"]),
            "envs": lambda: envs(sizes["envs"]),
            "pairs": lambda: pairs(sizes["pairs"]),
            "updates": lambda: updates(sizes["updates"], Path(folder)),
        }
        for name, make in made.items():
            costs = measure(make(), 1 if name == "updates" else rounds)
            if name == "updates":  # start-up
                least = costs.pop(min(costs))
                costs = {size: max(cost - least, 1e-3) for size, cost in costs.items()}
            curves[name] = {"seconds": costs, "slope": slope(costs)}
            line = "  ".join(f"{size:,}: {cost:.3g}" for size, cost in costs.items())
            print(f"{name:16} slope {curves[name]['slope']:5.2f}   {line}", flush=True)
    if not arguments.quick:
        (RESULTS / "growth-cpu.json").write_text(json.dumps({"machine": machine(), "curves": curves}, indent=1) + "\n")


if __name__ == "__main__":
    main()
