"""Run every path: ``python -m tests.rehearsal --output results/rehearsal`` (`make rehearsal`), about 3 minutes.

Without ``--output``, only the few paths of `make test-thorough` are run, and each path prints one line.

``--device cuda`` runs the same paths on a GPU and writes one table, named after the GPU.
"""

import argparse
import collections
import csv
import itertools
import multiprocessing
import sys
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch

from tests.rehearsal.cases import REHEARSAL, UNITS, Rehearsal, by_number, everything, for_a_further_token, rehearse

KINDS = ("to device", "to host", "wait")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, help="play every path, not a few, and write tables into this folder")
    parser.add_argument("--device", default=REHEARSAL, help="a GPU, such as cuda")
    parser.add_argument("--jobs", type=int, default=1, help="processes that share the paths")
    arguments = parser.parse_args()
    done, began = list[Rehearsal](), time.perf_counter()
    for one in _played(arguments.device, arguments.output is not None, arguments.jobs):
        done.append(one)
        problems = "; ".join(one.problems)
        print(f"{one.name}: {'WRONG: ' + problems if problems else f'{one.difference:.1e}'}", flush=True)
    wrong = sum(bool(one.problems) for one in done)
    further = for_a_further_token(done)
    if further > 0.5:  # the host checks the texts every 16 tokens
        wrong += 1
        print(f"decoding: WRONG: {further:.1f} copies and waits for each further token")
    print(f"{len(done)} paths, {wrong} wrong, {time.perf_counter() - began:.0f} s")
    if arguments.output is not None:
        if arguments.device == REHEARSAL:
            write(done, arguments.output)
        else:
            write_gpu_table(done, arguments.output, arguments.device)
    return bool(wrong)


def _played(device: str, whole: bool, jobs: int) -> Iterator[Rehearsal]:
    """Run the paths in order, in this process or in several processes."""
    if jobs == 1:
        yield from (rehearse(name, play, device) for name, play in everything(whole))
        return
    total = sum(1 for _ in everything(whole))
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        yield from pool.map(by_number, range(total), itertools.repeat(whole), itertools.repeat(device))


def write(done: list[Rehearsal], folder: Path) -> None:
    """Write tables of copies between host and device, by path and phase."""
    folder.mkdir(parents=True, exist_ok=True)
    _write_csv(folder / "copies.csv", (row for one in done for row in by_phase(one)))
    (folder / "README.md").write_text(page(done), encoding="utf-8")


def write_gpu_table(done: list[Rehearsal], folder: Path, device: str) -> None:
    """Write a table of how often a GPU made the host wait, by path and phase, compared with the rehearsal."""
    gpu = torch.cuda.get_device_name(device)
    with (folder / "copies.csv").open(newline="") as file:
        rehearsed = {
            (row["path"], row["phase"]): sum(int(row[kind]) for kind in KINDS) for row in csv.DictReader(file)
        }
    _write_csv(
        folder / f"{gpu.lower().replace(' ', '-')}.csv",
        (
            {
                "path": one.name,
                "difference": f"{one.difference:.1e}",
                "phase": phase,
                "unit": UNITS.get(phase, ""),
                "units": units,
                "waits": sum(event.phase == phase for event in one.events),
                "copies and waits in rehearsal": rehearsed.get((one.name, phase), ""),
                "device": gpu,
                "torch": torch.__version__,
            }
            for one in done
            for phase, units in (one.units or {"": 0}).items()
        ),
    )


def by_phase(one: Rehearsal) -> list[dict[str, Any]]:
    """Return the number of events of each kind per unit of each phase."""
    counts = collections.Counter((e.phase, e.kind) for e in one.events)
    return [
        {
            "path": one.name,
            "difference": f"{one.difference:.1e}",
            "phase": phase,
            "unit": UNITS[phase],
            "units": units,
            **{kind: counts[phase, kind] for kind in KINDS},
            **{f"{kind} per unit": round(counts[phase, kind] / units, 2) for kind in KINDS},
        }
        for phase, units in one.units.items()
    ]


def page(done: list[Rehearsal]) -> str:
    """Return the README of the tables."""
    shown = [row for one in done for row in by_phase(one) if _shown(one.name)]
    exact = sum(one.difference == 0 for one in done)
    rounded = max(one.difference for one in done)
    lines = [
        "# Rehearsal of an accelerator",
        "",
        "`python -m tests.rehearsal --output results/rehearsal` (`make rehearsal`), torch "
        f"{torch.__version__.split('+')[0]}. See [docs/rehearsal.md](../../docs/rehearsal.md) for its purpose and limits.",
        "",
        f"Of {len(done)} paths, {sum(bool(one.problems) for one in done)} have problems. In {exact}, all metrics and "
        f"weights are bit-identical to those on the CPU; in the others, values x differ by at most {rounded:.0e} (1 + |x|).",
        "",
        "The table counts copies to the device, copies back to the host, and synchronisations in which the host waits for "
        "the size of a result. Models have one layer. [copies.csv](copies.csv) contains all paths.",
        "",
        "Most copies during decoding are made once per batch of texts. With NLPO's mask, each additional token adds "
        f"{for_a_further_token(done):.2g} copies and waits, because the host checks every 16 tokens which texts have ended.",
        "",
        "| path | phase | per | to device | to host | waits |",
        "|---|---|---|--:|--:|--:|",
        *(
            f"| {row['path']} | {row['phase']} | {row['unit']} | "
            + " | ".join(f"{row[f'{kind} per unit']:g}" for kind in KINDS)
            + " |"
            for row in shown
        ),
        "",
    ]
    return "\n".join(lines)


def _shown(name: str) -> bool:
    return (", ppo, " in name and name.endswith(("env reward", "metric"))) or name.startswith(
        ("decoding", "stopped", "distilling", "writing: token, nlpo")
    )


def _write_csv(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    table = list(rows)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(table[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(table)


if __name__ == "__main__":
    sys.exit(main())
