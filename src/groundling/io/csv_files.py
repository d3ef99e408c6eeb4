"""CSV files from outside, and cells that no spreadsheet evaluates."""

import csv
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from groundling.errors import GroundlingError

_LONGEST_VALUE = 2**31 - 1  # Characters of a cell; the csv module's own limit is 131,072, and documents are longer


@contextmanager
def open_csv(path: Path, delimiter: str = ",") -> "Iterator[csv.DictReader[str]]":
    """Open a CSV file in UTF-8 whose first line names the columns, each once."""
    csv.field_size_limit(_LONGEST_VALUE)
    try:
        with path.open(encoding="utf-8-sig", newline="") as lines:
            rows = csv.DictReader(lines, delimiter=delimiter)
            check_columns(rows.fieldnames or (), path)
            yield rows
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        raise GroundlingError(f"{path} is not UTF-8 (it has a byte {byte:#04x}): save it as UTF-8") from error


def check_columns(names: Sequence[str], where: object) -> None:
    """Raise `GroundlingError` if two columns have one name, since rows by name would drop the first one's values."""
    if doubled := [name for name in dict.fromkeys(names) if names.count(name) > 1]:
        raise GroundlingError(
            f"{where} has {names.count(doubled[0])} columns called {doubled[0]!r:.80}: give each column its own name"
        )


def harmless_cell(text: str) -> str:
    """Return a CSV cell that no spreadsheet takes for a formula."""
    return "'" + text if text.startswith(("=", "+", "-", "@", "\t", "\r")) else text
