"""Rows of figures, one for each update: files of JSON lines that go on where a run resumes and who reads them."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from groundling.documents import lines_of, parse_json
from groundling.errors import RunError
from groundling.files import write_atomically


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a file with one JSON object per update; a last line cut off by a kill is left out.

    Raises:
        RunError: another line is no row.
    """
    rows: list[dict[str, Any]] = []
    if not path.exists():
        return rows
    for number, line in enumerate(lines_of(path), start=1):
        if not line.endswith(b"\n"):
            break
        try:
            row = parse_json(line, f"{path}:{number}")
            rows.append({**row, "update": int(row["update"]), "step": int(row["step"])})
        except (ValueError, TypeError, KeyError, OverflowError) as error:
            raise RunError(
                f"line {number} of {path} is no row of metrics: mend or delete that line"
            ) from error
    return rows


class RowFile:
    """One JSON object per update, each on the disk when `append` returns.

    Args:
        path: The file.
        update: Rows of later updates, which the run will compute again, are dropped.
    """

    def __init__(self, path: Path, update: int) -> None:
        self.path = path
        rows = [row for row in read_rows(path) if row["update"] <= update]
        write_atomically(path, "".join(json.dumps(row) + "\n" for row in rows))
        self.last_step: int = rows[-1]["step"] if rows else 0
        self.is_empty = not rows

    def append(self, row: dict[str, Any]) -> None:
        """Write one update's row.

        Raises:
            RunError: the file cannot be written.
        """
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise unwritable(self.path, error) from error


class Log(Protocol):
    """Is told of every update."""

    def log(self, row: dict[str, Any]) -> None:
        """Take up what belongs to the update whose figures are ``row``."""


class ValidationListener(Protocol):
    """Is told the figures of a validation split, too."""

    def tell(self, figures: Mapping[str, float], update: int, step: int) -> None:
        """Take up the figures as they are after this update and step."""


def due(every: int, last_step: int, row: Mapping[str, Any]) -> bool:
    """Whether a validation split is measured after the update that ``row`` tells of: every so many, and the last."""
    return bool(row["update"] % every == 0 or row["step"] >= last_step)


def unwritable(path: Path, error: OSError) -> RunError:
    """What to raise where a run's file cannot be written."""
    return RunError(
        f"could not write to {path}: {error}; free some space and run the same command again to go on from the last "
        "checkpoint"
    )
