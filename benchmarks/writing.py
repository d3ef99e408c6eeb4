"""Train on RL4LMs' increasing-numbers task with seven algorithms and five seeds on one core.

    OMP_NUM_THREADS=1 python benchmarks/writing.py              # about a quarter of an hour; run again to resume
    OMP_NUM_THREADS=1 python benchmarks/writing.py ppo nlpo     # only these algorithms

The script trains `rl4lms/increasing_numbers_ALGORITHM` in runs/writing/ and writes to results/rl4lms/: curves.csv (one
row per update), curves.json (interquartile means over seeds with intervals), curves.png and README.md.
"""

import csv
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from groundling.cli.main import main
from groundling.config.compose import compose
from groundling.intervals import IntervalEstimate, estimate
from groundling.reports import plots
from groundling.training.tracking import read_metrics

ALGORITHMS = ("ppo", "nlpo", "a2c", "trpo", "rloo", "grpo", "reinforce_pp")
SEEDS = (1, 2, 3, 4, 5)
RUNS = Path("runs/writing")
RESULTS = Path(__file__).parents[1] / "results" / "rl4lms"
LAST = 0.1
"""The share of the tokens, counted from the end, over which the final reward is averaged."""
GOAL = 3.0
"""The target reward, as a multiple of the initial reward."""
Rows = Sequence[dict[str, Any]]


def run(algorithms: Sequence[str]) -> int:
    """Train the unfinished runs of ``algorithms``, seed by seed, and write the results of all complete runs."""
    for seed in SEEDS:
        for name in algorithms:
            if not complete(name, seed) and (status := train(name, seed)):
                return status
    write_results()
    return 0


def train(name: str, seed: int) -> int:
    """Train one run, record its CPU time, and return the exit status."""
    began = time.process_time()
    status = main(["train", experiment(name), f"seed={seed}", f"run_dir={run_dir(name, seed)}", "device=cpu"])
    path = run_dir(name, seed) / "cpu.json"
    before = json.loads(path.read_text()) if path.exists() else 0.0
    path.write_text(json.dumps(before + time.process_time() - began))
    return status


def experiment(name: str) -> str:
    return f"rl4lms/increasing_numbers_{name}"


def run_dir(name: str, seed: int) -> Path:
    return RUNS / f"{name}-seed{seed}"


def complete(name: str, seed: int) -> bool:
    path = run_dir(name, seed)
    rows = read_metrics(path) if path.exists() else []
    return bool(rows) and rows[-1]["step"] >= compose(experiment(name)).training.steps


def first_and_last(rows: Rows) -> tuple[float, float]:
    """Return the mean reward of the first update's texts and of the texts in the last tenth of the tokens."""
    from_step = (1 - LAST) * rows[-1]["step"]
    counts = np.diff([0, *(row["episodes"] for row in rows)])
    last = [(row["return_mean"], n) for row, n in zip(rows, counts, strict=True) if row["step"] > from_step]
    rewards, texts = np.array(last).T
    return rows[0]["return_mean"], float(np.average(rewards, weights=texts))


def write_results() -> None:
    runs = {name: {seed: rows_of(name, seed) for seed in SEEDS if complete(name, seed)} for name in ALGORITHMS}
    runs = {name: own for name, own in runs.items() if own}
    if not runs:
        return
    RESULTS.mkdir(parents=True, exist_ok=True)
    figures = {name: figures_of(name, own) for name, own in runs.items()}
    missing = {n: left for n in ALGORITHMS if (left := [s for s in SEEDS if s not in runs.get(n, {})])}
    write_csv(runs)
    (RESULTS / "curves.json").write_text(
        json.dumps({"goal": GOAL, "missing": missing, "algorithms": figures}, indent=1) + "\n"
    )
    draw(runs)
    (RESULTS / "README.md").write_text(readme(figures, missing))


def rows_of(name: str, seed: int) -> Rows:
    return read_metrics(run_dir(name, seed))


def figures_of(name: str, runs: dict[int, Rows]) -> dict[str, Any]:
    ends = [first_and_last(rows) for rows in runs.values()]
    start, last = np.array(ends).T
    began = float(start.mean())  # over all seeds, whose initial weights are the same
    seconds = [json.loads((run_dir(name, seed) / "cpu.json").read_text()) for seed in runs]
    return {
        "seeds": list(runs),
        "start": began,
        "reward": asdict(estimate(last)),
        "times_start": asdict(estimate(last / began)),
        "least_times_start": float((last / began).min()),
        "by_seed": {seed: round(float(x), 4) for seed, x in zip(runs, last, strict=True)},
        "cpu_seconds": round(float(np.mean(seconds)), 1),
    }


def write_csv(runs: dict[str, dict[int, Rows]]) -> None:
    keys = ("update", "step", "episodes", "return_mean", "episode_length", "entropy", "kl_mean")
    with (RESULTS / "curves.csv").open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["algorithm", "seed", *keys])
        for name, own in runs.items():
            for seed, rows in own.items():
                for row in rows:
                    values = [row[key] for key in keys]
                    cells = [f"{x:.5g}" if isinstance(x, float) else x for x in values]
                    writer.writerow([name, seed, *cells])


def draw(runs: dict[str, dict[int, Rows]]) -> None:
    groups = {name: list(own.values()) for name, own in runs.items()}
    figure = plots.draw_learning_curve(groups, "return_mean", "reward of a text (smoothed)", steps="tokens written")
    axes = figure.axes[0]
    start = np.mean([rows[0]["return_mean"] for own in groups.values() for rows in own])
    axes.axhline(GOAL * start, color="#555", linestyle="--", linewidth=1)
    axes.annotate(f"{GOAL:g} × the start", (0, GOAL * start), fontsize=8, va="bottom", color="#555")
    axes.set_ylim(bottom=0)
    figure.savefig(RESULTS / "curves.png", dpi=150, metadata={"Software": None})


def readme(figures: dict[str, dict[str, Any]], missing: dict[str, list[int]]) -> str:
    lines = [
        "| algorithm | seeds | start | trained | times the start | worst seed | CPU seconds per run |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, f in figures.items():
        cells = (
            f"`{name}`",
            str(len(f["seeds"])),
            f"{f['start']:.3f}",
            text_of(IntervalEstimate(**f["reward"]), 3),
            text_of(IntervalEstimate(**f["times_start"]), 1),
            f"{f['least_times_start']:.1f}",
            f"{f['cpu_seconds']:.0f}",
        )
        lines.append("| " + " | ".join(cells) + " |")
    steps = compose(experiment("ppo")).training.steps
    parts = [
        "# Increasing numbers",
        "These are results on RL4LMs' task with the bundled model `starter-causal` (one million parameters). The reward of "
        "a text is the number of increasing numbers at its start, divided by its number of words (or by ten, if it has "
        "fewer). Command:",
        "```\nOMP_NUM_THREADS=1 python benchmarks/writing.py\n```",
        f"Each run used one core and {steps:,} tokens. *Start* is the mean reward of the first update's texts over all "
        f"seeds, which start from the same weights. *Trained* is the mean reward of the texts in the last {LAST:.0%} of the "
        "tokens: the interquartile mean over seeds (plain mean if there are fewer than four) with a 95% bootstrap "
        "interval, which is too narrow if there are few seeds. CPU seconds were measured on a busy machine. The settings in "
        "`src/groundling/config/experiment/rl4lms/` were chosen in a few trials with seeds 1 and 2, with more effort for "
        "some algorithms than for others. The table shows that each algorithm learns, not which one is best.",
        "\n".join(lines),
        "![Reward of a text over tokens written, interquartile mean over seeds](curves.png)",
        "`curves.csv` contains every update, and `curves.json` every seed.",
    ]
    if missing:
        left = "; ".join(f"{name}, seeds {', '.join(map(str, seeds))}" for name, seeds in missing.items())
        parts.insert(4, f"**Missing: {left}.** The same command resumes.")
    return "\n\n".join(parts) + "\n"


def text_of(found: IntervalEstimate, digits: int) -> str:
    return f"{found.value:.{digits}f} [{found.low:.{digits}f}, {found.high:.{digits}f}]"


if __name__ == "__main__":
    unknown = set(sys.argv[1:]) - set(ALGORITHMS)
    if unknown:
        sys.exit(f"unknown algorithm: {', '.join(sorted(unknown))}; available: {', '.join(ALGORITHMS)}")
    sys.exit(run(sys.argv[1:] or ALGORITHMS))
