"""Train GLAM's baselines (DRRN and BabyAI's symbolic agent) to go to the red ball, on one core each.

    python benchmarks/baselines.py            # takes half an hour; run again to resume

Results: baselines.csv (one row per update), baselines.json (300 held-out episodes) and baselines.svg.
"""

import csv
import json
import sys
from pathlib import Path

from groundling.cli.main import main
from groundling.reports.plots import draw_learning_curve, svg
from groundling.training.tracking import read_metrics

RESULTS = Path(__file__).parent / "results"
RUNS = Path("runs/baselines")
ENV = "world.env=BabyAI-GoToRedBallNoDists-v0"
AGENTS = {
    "symbolic": [
        "glam/symbolic",
        ENV,
        "training.steps=200000",
        "algorithm.args.learning_rate=3e-4",
        "algorithm.args.value_coefficient=0.5",
        "training.checkpoint_every=10",
    ],
    "drrn": [
        "glam/drrn",
        ENV,
        "world.history=1",
        "training.steps=150000",
        "world.num_steps=10",
        "reward.env.args.scale=1",
        "algorithm.args.learning_rate=1e-3",
        "algorithm.args.steps_per_gradient=16",
        "policy.args.temperature=0.1",
    ],
}
"""Experiments and overrides by name; the original's settings are intended for 1.5 million steps."""


def run() -> int:
    """Train the missing runs, evaluate, and write results; return the first failed command's exit status, or 0."""
    figures, curves = {}, {}
    for name, settings in AGENTS.items():
        run_dir = RUNS / name
        train = ["train", *settings, f"name={name}", f"run_dir={run_dir}"]
        if status := main(train) or main(["evaluate", str(run_dir), "--episodes", "300"]):
            return status
        agents = json.loads((run_dir / "evaluation" / "held-out.json").read_text())["agents"]
        figures[name] = {agent: agents[agent] for agent in ("trained", "random", "expert")}
        curves[name] = read_metrics(run_dir)
    with (RESULTS / "baselines.csv").open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["agent", "step", "episodes", "success_rate", "return_mean"])
        for name, rows in curves.items():
            writer.writerows(
                [name, row["step"], row["episodes"], row["success_rate"], row["return_mean"]] for row in rows
            )
    (RESULTS / "baselines.json").write_text(json.dumps(figures, indent=1) + "\n")
    plot = svg(draw_learning_curve({name: [rows] for name, rows in curves.items()}, "success_rate", "success rate"))
    (RESULTS / "baselines.svg").write_text(plot)
    return 0


if __name__ == "__main__":
    sys.exit(run())
