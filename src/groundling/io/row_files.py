"""Rows of figures, one for each update: files of JSON lines that go on where a run resumes and who reads them."""

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

from groundling.errors import RunError
from groundling.io.documents import lines_of, parse_json
from groundling.io.files import write_atomically

BEFORE_ALL = -1
"""An update before all rows: those of update 0 may be of other settings, where nothing has been learnt yet."""


@dataclass(frozen=True)
class RowProblem:
    """A line that a run cannot have written where it stands."""

    line: int
    """Its number, from 1."""
    problem: str
    mend: str


def read_rows(path: Path, consecutive: bool = False) -> list[dict[str, Any]]:
    """The rows of a file with JSON objects by update; a last line cut off by a kill is left out.

    Args:
        path: The file; one that is not there has no rows.
        consecutive: Whether there is one row for each update from the first (0 or 1) to the last.

    Raises:
        RunError: a line is no row, or the rows are not those that a run has written one after the other.
    """
    rows, problems = scan_rows(path, consecutive)
    if problems:
        first = problems[0]
        raise RunError(
            f"line {first.line} of {path} {first.problem}: {first.mend} (`groundling verify {path.parent}` checks all)"
        )
    return rows


def scan_rows(path: Path, consecutive: bool = False) -> tuple[list[dict[str, Any]], list[RowProblem]]:
    """As `read_rows`, with all that is wrong beside the rows that can be read."""
    rows: list[dict[str, Any]] = []
    problems = []
    for number, line in enumerate(lines_of(path) if path.exists() else (), start=1):
        if not line.endswith(b"\n"):
            break
        row = _row(line, f"{path}:{number}")
        if row is None:
            problems.append(RowProblem(number, *_NO_ROW))
            continue
        wrong = _out_of_place(row, rows[-1] if rows else None, consecutive)
        if wrong is not None:
            problems.append(RowProblem(number, *wrong))
        rows.append(row)
    return rows, problems


_COPY = "bring the file back from a copy"
_NO_ROW = "is not a row of metrics", "mend or delete that line"


def _row(line: bytes, where: str) -> dict[str, Any] | None:
    """A line as a row; None if it is not one."""
    try:
        content = parse_json(line, where)
        return {**content, "update": int(content["update"]), "step": int(content["step"])}
    except (ValueError, TypeError, KeyError, OverflowError):
        return None


class RowReader:
    """Read a growing file of consecutive rows: each call of `read_new` parses only what was appended.

    Args:
        path: The file, which may be missing.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: tuple[int, int] | None = None
        self._offset, self._number = 0, 0
        self._last: dict[str, Any] | None = None

    def read_new(self) -> tuple[bool, list[dict[str, Any]]]:
        """The rows since the last call, and whether they are those of another file, from its beginning.

        A file that was replaced or has become shorter is another one.

        Raises:
            OSError: the file cannot be read.
            RunError: as `read_rows`.
        """
        status = self.path.stat() if self.path.exists() else None
        file = None if status is None else (status.st_dev, status.st_ino)
        is_other = file != self._file or (status is not None and status.st_size < self._offset)
        if is_other:
            self._file, self._offset, self._number, self._last = file, 0, 0, None
        rows: list[dict[str, Any]] = []
        for line in lines_of(self.path, self._offset) if status is not None else ():
            if not line.endswith(b"\n"):
                break
            row = _row(line, f"{self.path}:{self._number + 1}")
            wrong = _NO_ROW if row is None else _out_of_place(row, self._last, consecutive=True)
            if wrong is not None:
                self._file = None  # it is read again from the beginning
                raise RunError(f"line {self._number + 1} of {self.path} {wrong[0]}: {wrong[1]}")
            assert row is not None
            rows.append(row)
            self._offset, self._number, self._last = self._offset + len(line), self._number + 1, row
        return is_other, rows


def _out_of_place(
    row: Mapping[str, Any], before: Mapping[str, Any] | None, consecutive: bool
) -> tuple[str, str] | None:
    """Why a row cannot follow the one before it, and how to mend that; None if it can."""
    update = row["update"]
    if before is None:
        missing = consecutive and update > 1
        return (f"begins at update {update}, and the rows before it are missing", _COPY) if missing else None
    if consecutive and row == before:
        return f"repeats the row of update {update}", "delete it"
    if consecutive and update == before["update"]:
        return f"is a second row of update {update}, with other figures", f"delete the wrong one, or {_COPY}"
    if consecutive and update > before["update"] + 1:
        missing_ones = f"{before['update'] + 1} to {update - 1}"
        return (
            f"is of update {update}, and the rows of updates {missing_ones} before it are missing",
            _COPY,
        )
    if update < before["update"] or row["step"] < before["step"]:
        places = (
            f"update {update}, step {row['step']}, after update {before['update']}, step {before['step']}"
        )
        return (
            f"is out of its place ({places})",
            f"another run's lines may stand here: delete those, or {_COPY}",
        )
    return None


def digest_of(path: Path, count: int) -> str:
    """The SHA-256 of a file's first lines, in hexadecimal; read line by line, for a long run's file is large."""
    digest = hashlib.sha256()
    if path.exists():
        with path.open("rb") as file:
            for line in islice(file, count):
                digest.update(line)
    return digest.hexdigest()


def check_digest(path: Path, count: int, expected: str) -> None:
    """Check that a file's first lines are those of which `digest_of` was kept.

    Raises:
        RunError: they are others.
    """
    lines = path.read_bytes().count(b"\n") if path.exists() else 0
    if lines < count:
        raise RunError(
            f"{path} has {lines} whole lines of the {count} that stood there when the checkpoint was written: {_COPY}"
        )
    if digest_of(path, count) != expected:
        raise RunError(
            f"the first {count} lines of {path} are not those that stood there when the checkpoint was written: {_COPY}"
        )


class RowFile:
    """One JSON object per update, each on the disk when `append` returns.

    Args:
        path: The file.
        update: Rows of later updates, which the run will compute again, are dropped.
        consecutive: As of `read_rows`; then the last row that stays must be of ``update``.

    Raises:
        RunError: as `read_rows`, or rows are missing at the end.
    """

    def __init__(self, path: Path, update: int, consecutive: bool = False) -> None:
        self.path = path
        rows = [row for row in read_rows(path, consecutive) if row["update"] <= update]
        last = rows[-1]["update"] if rows else 0
        if consecutive and last < update:
            raise RunError(
                f"{path} ends with update {last}, and the checkpoint that the run goes on from was taken after update "
                f"{update}: {_COPY}"
            )
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
