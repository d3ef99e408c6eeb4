"""Measure the time and peak memory of the demos' commands, which `make` runs.

    python benchmarks/demos.py                       # all demos in full; results/demos/README.md
    python benchmarks/demos.py --short demo-motif    # only the first updates; memory without times

Memory is the sum of the proportional set sizes of all processes, sampled every half second. Measure times on an idle
machine. A new row replaces the earlier row of the same demo.
"""

import argparse
import json
import os
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
from machine import machine

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "results" / "demos"
SHORT = {  # by demo: arguments appended to its commands with --short
    "demo": {"train": "training.steps=2560", "evaluate": "--episodes 16"},
    "demo-writing": {"train": "training.steps=1000", "evaluate": "--episodes 16"},
    "demo-motif": {"study": "training.steps=20480 episodes=4"},
    "demo-smollm2": {
        "train": "training.steps=1024 algorithm.args.value_warmup=0 cloning.episodes=20 cloning.epochs=1",
        "evaluate": "--episodes 8",
    },
}


def commands_of(demo: str, runs: Path, is_short: bool) -> list[str]:
    """Return the command lines of a target of the Makefile, in which ``runs`` replaces the folder ``runs``."""
    words = ["make", "--no-print-directory", "-n", "-o", ".venv/.installed", demo]
    lines = subprocess.run(words, cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines()
    commands = []
    for line in lines:
        added = [extra for name, extra in SHORT[demo].items() if is_short and f"groundling {name} " in line]
        commands.append(" ".join([line.replace("runs/", f"{runs}/"), *added]))
    return commands


def measure(command: str) -> tuple[float, float]:
    """Run a command, and return its time in seconds and its peak memory in MiB."""
    started, peak = time.monotonic(), 0.0
    process = subprocess.Popen(command, shell=True, cwd=ROOT, stdout=subprocess.DEVNULL, env=_ENVIRONMENT)
    while process.poll() is None:
        memory = 0
        for one in (psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)):
            try:
                memory += one.memory_full_info().pss
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue  # the process has ended
        peak = max(peak, memory / 2**20)
        time.sleep(0.5)
    if process.returncode:
        raise SystemExit(f"exit status {process.returncode}: {command}")
    return time.monotonic() - started, peak


_ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("demos", nargs="*", default=list(SHORT))
    parser.add_argument("--short", action="store_true", help="run only the first updates, and do not report times")
    arguments = parser.parse_args()
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / "demos.json"
    rows: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    for demo in arguments.demos:
        with tempfile.TemporaryDirectory() as runs:
            measured = [measure(command) for command in commands_of(demo, Path(runs), arguments.short)]
        minutes = None if arguments.short else sum(seconds for seconds, _ in measured) / 60
        rows[demo] = {"minutes": minutes, "peak_mib": max(memory for _, memory in measured), "machine": machine()}
        path.write_text(json.dumps(rows, indent=1) + "\n")
        (RESULTS / "README.md").write_text(_page(rows))
        print(demo, rows[demo])


def _page(rows: dict[str, Any]) -> str:
    table = [
        f"| `make {demo}` | {'–' if row['minutes'] is None else format(row['minutes'], '.1f')} | "
        f"{row['peak_mib']:,.0f} | {row['machine']['processor']} |"
        for demo, row in rows.items()
    ]
    return "\n".join(
        [
            "# Time and memory of the demos",
            "",
            "`python benchmarks/demos.py` writes this page. Memory is the peak of the sum over all processes of their",
            "proportional set sizes. Rows without minutes come from `--short`, which runs only the first updates on a",
            "machine with other work. `demos.json` describes the machine.",
            "",
            "| demo | minutes | peak memory, MiB | processor |",
            "|---|---|---|---|",
            *table,
            "",
        ]
    )


if __name__ == "__main__":
    main()
