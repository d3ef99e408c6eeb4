"""JSON Lines files with one row per update, which are appended to when a run resumes."""

import csv
import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

from groundling.errors import ConfigError, RunError
from groundling.io.documents import lines_of, parse_json
from groundling.io.files import write_atomically

BEFORE_ALL = -1  # Pass as ``update`` to also drop rows of update 0, which may be from a run with other settings
_RESTORE = "restore the file from a backup"


@dataclass(frozen=True)
class RowProblem:
    """A line that the run cannot have written at this position."""

    line: int  # Line number, from 1
    problem: str
    advice: str


def read_rows(path: Path, consecutive: bool = False) -> list[dict[str, Any]]:
    """Read rows, each with ``update`` and ``step``, if the file exists. An incomplete last line is ignored.

    Raises `RunError` for invalid or unordered rows and, if ``consecutive``, for missing or duplicate updates.
    """
    rows, problems = scan_rows(path, consecutive)
    if problems:
        first = problems[0]
        raise RunError(f"line {first.line} of {path} {first.problem}: {first.advice} (see also `groundling verify`)")
    return rows


def scan_rows(path: Path, consecutive: bool = False) -> tuple[list[dict[str, Any]], list[RowProblem]]:
    """Read rows as `read_rows` does, and return all problems instead of raising."""
    rows: list[dict[str, Any]] = []
    problems = []
    for number, line in enumerate(lines_of(path) if path.exists() else (), start=1):
        if not line.endswith(b"\n"):
            break
        row, problem = _check(line, f"{path}:{number}", rows[-1] if rows else None, consecutive)
        if problem is not None:
            problems.append(RowProblem(number, *problem))
        if row is not None:
            rows.append(row)
    return rows, problems


def _check(
    line: bytes, where: str, before: Mapping[str, Any] | None, consecutive: bool
) -> tuple[dict[str, Any] | None, tuple[str, str] | None]:
    """Parse a line; return its row or None, and its problem with advice if it cannot follow the row ``before``."""
    try:
        content = parse_json(line, where)
        row = {**content, "update": int(content["update"]), "step": int(content["step"])}
    except (ValueError, TypeError, KeyError, OverflowError):
        return None, ("is not a row of metrics", "correct or delete that line")
    update, previous = row["update"], 0 if before is None else before["update"]
    if consecutive and row == before:
        return row, (f"repeats the row of update {update}", "delete it")
    if consecutive and before is not None and update == previous:
        return row, (f"is a second, different row for update {update}", f"delete the wrong one, or {_RESTORE}")
    if consecutive and update > previous + 1:
        return row, (f"is for update {update}, but the rows after update {previous} are missing", _RESTORE)
    if before is not None and (update < previous or row["step"] < before["step"]):
        places = f"update {update}, step {row['step']}, after update {previous}, step {before['step']}"
        return row, (f"is out of order ({places})", f"delete any lines from a different run, or {_RESTORE}")
    return row, None


def digest_of(path: Path, count: int) -> str:
    """Return the SHA-256 of the first ``count`` lines of a file, in hexadecimal."""
    digest = hashlib.sha256()
    if path.exists():
        with path.open("rb") as file:
            for line in islice(file, count):
                digest.update(line)
    return digest.hexdigest()


def check_digest(path: Path, count: int, expected: str) -> None:
    """Raise `RunError` unless the first ``count`` lines of a file have the digest stored in a checkpoint."""
    lines = path.read_bytes().count(b"\n") if path.exists() else 0
    if lines < count:
        raise RunError(f"{path} has only {lines} of the {count} lines before the checkpoint: {_RESTORE}")
    if digest_of(path, count) != expected:
        raise RunError(f"the first {count} lines of {path} have changed since the checkpoint was written: {_RESTORE}")


class RowFile:
    """A file of rows, which `append` flushes to disk. A run resumes from ``update``, so later rows are dropped."""

    def __init__(self, path: Path, update: int, consecutive: bool = False) -> None:
        self.path = path
        rows = [row for row in read_rows(path, consecutive) if row["update"] <= update]
        last = rows[-1]["update"] if rows else 0
        if consecutive and last < update:
            raise RunError(f"{path} ends with update {last}, before the checkpoint of update {update}: {_RESTORE}")
        write_atomically(path, "".join(json.dumps(row) + "\n" for row in rows))
        self.last_step: int = rows[-1]["step"] if rows else 0
        self.is_empty = not rows

    def append(self, row: dict[str, Any]) -> None:
        """Write the row of one update."""
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise unwritable(self.path, error) from error


class Log(Protocol):
    """A logger called after each update."""

    def log(self, row: dict[str, Any]) -> None:
        """Log the update whose metrics are ``row``."""


class ValidationListener(Protocol):
    """A logger that also receives the metrics of a validation split."""

    def log_validation(self, figures: Mapping[str, float], update: int, step: int) -> None:
        """Log the metrics after this update and step."""


def due(every: int, last_step: int, row: Mapping[str, Any]) -> bool:
    """Return True if validation is due after the update of ``row``: after every ``every``-th update and the last."""
    return bool(row["update"] % every == 0 or row["step"] >= last_step)


def unwritable(path: Path, error: OSError) -> RunError:
    """Return the error to raise if a run's file cannot be written."""
    return RunError(
        f"could not write to {path}: {error}; free some space and run the same command again to resume from the last "
        "checkpoint"
    )


_LONGEST_VALUE = 2**31 - 1  # Maximum length of a cell; some documents exceed the csv module's default of 131,072


@contextmanager
def open_csv(path: Path, delimiter: str = ",") -> "Iterator[csv.DictReader[str]]":
    """Open a UTF-8 CSV file whose first line contains unique column names."""
    csv.field_size_limit(_LONGEST_VALUE)
    try:
        with path.open(encoding="utf-8-sig", newline="") as lines:
            rows = csv.DictReader(lines, delimiter=delimiter)
            check_columns(rows.fieldnames or (), path)
            yield rows
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        raise ConfigError(f"{path} is not UTF-8 (it has the byte {byte:#04x}): save it as UTF-8") from error


def check_columns(names: Sequence[str], where: object) -> None:
    """Raise `GroundlingError` if two columns share a name, since rows as dicts would keep only the last value."""
    if doubled := [name for name in dict.fromkeys(names) if names.count(name) > 1]:
        raise ConfigError(
            f"{where} has {names.count(doubled[0])} columns called {doubled[0]!r:.80}: give each column a unique name"
        )


def harmless_cell(text: str) -> str:
    """Return a CSV cell that no spreadsheet interprets as a formula."""
    return "'" + text if text.startswith(("=", "+", "-", "@", "\t", "\r")) else text
