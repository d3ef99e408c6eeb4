"""Run all faults in 20 minutes on one idle core: ``python -m tests.faults --output results/faults`` (`make faults`).

An interrupted run can be continued.
"""

import argparse
import csv
import json
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from tests.faults import cases
from tests.faults.cases import Bench, Case
from tests.faults.scenarios import prepare, scenarios

_SLOW = ("doors", "conversation", "thinking", "groups", "forms")
KILLS = {"train nlpo": 12} | {f"train {name}": 8 for name in _SLOW}
"""Number of kills per command; slow commands are killed less often."""
_USUAL_KILLS = 16
_FULL_DISKS = 4
_DEAD_PROCESSES = 6


def groups(bench: Bench) -> Iterator[tuple[str, Iterator[Case]]]:
    """Yield the faults of each command, with a name."""
    every = {one.name: one for one in scenarios(bench.materials)}
    for name, scenario in every.items():
        yield f"{name}: killed", cases.killed(bench, scenario, KILLS.get(name, _USUAL_KILLS))
    for name in ("train table", "train writer", "collect --episodes", "distill", "evaluate", "publish"):
        yield f"{name}: full disk", cases.full_disk(bench, every[name], _FULL_DISKS)
        yield f"{name}: read-only", cases.read_only(bench, every[name])
        yield f"{name}: two at once", cases.two_at_once(bench, every[name])
    for name in ("train table", "train drrn"):
        yield f"{name}: damaged", cases.damaged(bench, every[name])
    yield "failing envs", cases.failing_envs(bench)
    yield "dead processes", cases.dead_processes(bench, every["train scoring"], _DEAD_PROCESSES)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", type=Path, default=Path("results/faults"))
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    folder, began = Path(tempfile.mkdtemp(prefix="faults-")), time.monotonic()
    (folder / "materials").mkdir()
    prepare(folder / "materials", all_of_them=True)
    bench = Bench(folder / "cases", folder / "materials", random.Random())
    unfinished = arguments.output / "unfinished.json"  # an interrupted run continues with the next group
    kept: dict[str, list[dict[str, Any]]] = json.loads(unfinished.read_text()) if unfinished.exists() else {}
    for group, found in groups(bench):
        if group in kept:
            continue
        bench.rng.seed(f"{arguments.seed} {group}")
        rows = []
        for case in found:
            rows.append(asdict(case))
            mark = "ok" if case.problem is None else f"WRONG: {case.problem}"
            minutes = (time.monotonic() - began) / 60
            print(f"{minutes:5.1f} min  {case.fault:18s} {case.scenario:28s} {mark}", flush=True)
        kept[group] = rows
        arguments.output.mkdir(parents=True, exist_ok=True)
        unfinished.write_text(json.dumps(kept))
    done = [Case(**row) for rows in kept.values() for row in rows]
    with (arguments.output / "cases.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, [f.name for f in fields(Case)])
        writer.writeheader()
        writer.writerows(asdict(case) for case in done)
    (arguments.output / "README.md").write_text(page(done, arguments.seed), encoding="utf-8")
    unfinished.unlink()
    wrong = [case for case in done if case.problem is not None]
    if not wrong:
        shutil.rmtree(folder)
    print(f"{len(done)} cases, {len(wrong)} wrong; {arguments.output}")
    return bool(wrong)


def page(done: list[Case], seed: int) -> str:
    """Return the README, with cases, survivors, lost work and seconds to recover."""
    groups: dict[tuple[str, str], list[Case]] = {}
    for case in done:
        groups.setdefault((case.fault, case.scenario), []).append(case)
    lines = [
        "# Faults",
        "",
        f"`make faults` (seed {seed}). A case survives if repeating the command gives results that are bit-identical to",
        "those of an undisturbed run (for NetHack and online judges, identical counters), or if the command is refused with",
        "a one-line error and leaves all files unchanged. *Most lost* is the largest number of work units (updates, epochs,",
        "files or answers) that had to be repeated. *Recovery* is the longest time until the progress from before the fault",
        "was reached again (for dead ranks and launchers, until the run ended, including torchrun's start-up).",
        "",
        "| fault | command | faults | survived | most lost | recovery (s) |",
        "|---|---|--:|--:|--:|--:|",
    ]
    for (fault, scenario), group in groups.items():
        faults = sum(max(1, case.kills) for case in group)
        bad = sum(case.problem is not None for case in group)
        lost = str(max(case.lost for case in group)) if fault == "SIGKILL" else "–"
        recovery = f"{max(case.recovery for case in group):.1f}" if any(case.kills for case in group) else "–"
        lines.append(f"| {fault} | {scenario} | {faults} | {faults - bad} | {lost} | {recovery} |")
    kills = sum(case.kills for case in done)
    lines += ["", f"{kills} kills and {sum(not case.kills for case in done)} other faults.", ""]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
