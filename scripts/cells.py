"""Run each cell of a study in a separate process, and keep the finished cells."""

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

Row = dict[str, Any]


def run_cells(
    command: Sequence[str],
    cells: Sequence[Sequence[Any]],
    names: Sequence[str],
    output: Path,
    table: Callable[[list[Row]], str],
    jobs: int,
) -> None:
    """Run the cells that are missing in ``output``/cells.jsonl, and write README.md after each of them.

    Args:
        command: Python's arguments, to which a cell's values are appended; the last line of output is a row as JSON.
        cells: Values of each cell.
        names: Names of these values, which are keys of a row.
        table: Function that returns the README.
        jobs: Number of cells to run in parallel.
    """
    output.mkdir(parents=True, exist_ok=True)
    kept = output / "cells.jsonl"
    rows = [json.loads(line) for line in kept.read_text().splitlines()] if kept.exists() else []
    done = {tuple(row[name] for name in names) for row in rows}
    left = [cell for cell in cells if tuple(cell) not in done]

    def run(cell: Sequence[Any]) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, *command, *map(str, cell)], capture_output=True, text=True)

    with ThreadPoolExecutor(jobs) as pool:
        running = {pool.submit(run, cell): cell for cell in left}
        for future in as_completed(running):
            ended = future.result()
            if ended.returncode:
                print(f"{running[future]} failed: {ended.stderr.strip()[-300:]}", flush=True)
                continue
            rows.append(json.loads(ended.stdout.splitlines()[-1]))
            with kept.open("a") as file:
                file.write(json.dumps(rows[-1]) + "\n")
            (output / "README.md").write_text(table(rows))
            print(len(rows), json.dumps(rows[-1]), flush=True)
