"""Measure the speed-up of data-parallel training with two single-threaded processes (torchrun).

    python benchmarks/processes.py                     # the model and task of demo-easy
    python benchmarks/processes.py --quick             # smoke test: one round with few updates; writes no results

One process and two processes train the same config with the same global batch, interleaved in each round. An update
consists of collection, learning and communication, and its time is the median over all updates except the first. Times
are wall time, which includes waiting, so use an otherwise idle machine.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from machine import machine

from groundling.training.tracking import read_metrics

RESULTS = Path(__file__).parent / "results" / "processes-cpu.json"
TARGET = 1.7


def train(processes: int, updates: int, overrides: list[str]) -> list[float]:
    """Return the steps per second of each update except the first."""
    with tempfile.TemporaryDirectory() as folder:
        command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
        run = [f"run_dir={folder}/run", f"training.steps={updates * 32 * 40}", "device=cpu", *overrides]
        subprocess.run(
            [sys.executable, *command, "-m", "groundling", "train", "demo-easy", *run],
            check=True,
            stdout=subprocess.DEVNULL,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        return [row["steps_per_second"] for row in read_metrics(Path(folder) / "run")][1:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("overrides", nargs="*", help="overrides of the config")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--updates", type=int, default=7)
    parser.add_argument("--quick", action="store_true", help="run one round of 2 updates; write no results")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.rounds, arguments.updates = 1, 2
    before = machine()
    found: dict[int, list[float]] = {1: [], 2: []}
    for _ in range(arguments.rounds):
        for processes, rates in found.items():
            rates += train(processes, arguments.updates, arguments.overrides)
    medians = {processes: statistics.median(rates) for processes, rates in found.items()}
    ratio = medians[2] / medians[1]
    print(f"one process {medians[1]:.1f} steps/s, two {medians[2]:.1f}: {ratio:.2f} x (target {TARGET})")
    if not arguments.quick:
        result = {
            "machine": before,
            "command": " ".join(["python", "benchmarks/processes.py", *sys.argv[1:]]),
            "steps_per_second": {str(processes): rates for processes, rates in found.items()},
            "medians": {str(processes): median for processes, median in medians.items()},
            "ratio": ratio,
        }
        RESULTS.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
