"""Run each cell of a study in a separate process, and keep the finished cells."""

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
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
    running: list[tuple[Sequence[Any], subprocess.Popen[str]]] = []
    while left or running:
        while left and len(running) < jobs:
            cell = left.pop(0)
            words = [sys.executable, *command, *map(str, cell)]
            running.append((cell, subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)))
        cell, process = running.pop(0)
        printed, errors = process.communicate()
        if process.returncode:
            print(f"{cell} failed: {errors.strip()[-300:]}", flush=True)
            continue
        rows.append(json.loads(printed.splitlines()[-1]))
        with kept.open("a") as file:
            file.write(json.dumps(rows[-1]) + "\n")
        (output / "README.md").write_text(table(rows))
        print(len(rows), json.dumps(rows[-1]), flush=True)
