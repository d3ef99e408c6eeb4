"""What results are written in: CSV files, tables in Markdown, and the head of a study's page."""

import csv
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from groundling.intervals import IntervalEstimate
from groundling.io.csv_files import harmless_cell
from groundling.io.files import write_atomically
from groundling.io.terminal import plain
from groundling.worlds.episode import Figure

if TYPE_CHECKING:
    from rich.table import Table

_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?|-?(inf|nan)")
_MARKUP = str.maketrans({"|": "&#124;", "<": "&lt;", "`": "&#96;"})
_AFTER_BRACKETS = re.compile(r"\](?=[(\[:])")
"""What makes a link or a picture of a text in brackets, or says where it leads; figures' intervals stay."""
_BACKTICKS = re.compile("`+")


def write_csv(path: Path, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Write a CSV file; see `csv_text`."""
    write_atomically(path, csv_text(header, rows))


def csv_text(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A CSV file's content: floats with six digits, None as an empty cell, and no text that would be a formula."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([_csv_cell(x) for x in header])
    writer.writerows([_csv_cell(x) for x in row] for row in rows)
    return text.getvalue()


def figures_table(title: str, figures: Mapping[str, Mapping[str, Figure]]) -> "Table":
    """One line for each figure, one column for each agent; intervals stand below their means in narrow terminals."""
    from rich import box
    from rich.table import Table

    table = Table(title=title, box=box.SIMPLE, show_edge=False, caption="means with 95 % intervals")
    table.add_column("")
    for name in figures:
        table.add_column(name, justify="right")
    for figure in dict.fromkeys(name for estimates in figures.values() for name in estimates):
        cells = (estimates[figure].text() if figure in estimates else "–" for estimates in figures.values())
        table.add_row(figure.replace("_", " "), *cells)
    return table


def _csv_cell(value: Any) -> Any:
    if isinstance(value, float):
        return f"{value:.6g}"
    if not isinstance(value, str) or _NUMBER.fullmatch(value):  # which was read from another CSV file
        return value
    # Spreadsheets end a row at \r, too, and the csv module quotes \n alone.
    return harmless_cell(value).replace("\r", "\n")


def write_curves(
    path: Path, runs: Iterable[tuple[str, int, Iterable[Mapping[str, Any]]]], columns: Iterable[str]
) -> None:
    """Write a study's ``curves.csv``, one row for each update of each run.

    Args:
        path: The file.
        runs: Of each its arm, its seed and the rows of its ``metrics.jsonl``.
        columns: Which of the figures are kept, beside the seconds and the episodes so far.
    """
    columns = ["seconds", "episodes", *columns]
    rows = (
        [arm, seed, row["step"], *(row.get(column) for column in columns)]
        for arm, seed, updates in runs
        for row in updates
    )
    write_csv(path, ["arm", "seed", "step", *columns], rows)


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown, with a line below its header; its cells are `in_markdown`."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(map(in_markdown, cells)) + " |" for cells in lines)


def in_markdown(text: str) -> str:
    """A name that somebody else may have given, as Markdown shows it: on one line, no HTML, code, link or cell's end.

    Of whatever is an address some that show Markdown make a link all the same, to itself.
    """
    return _AFTER_BRACKETS.sub("&#93;", _on_one_line(text).translate(_MARKUP))


def as_code(text: str) -> str:
    """Such a name as code in Markdown, letter by letter; not for a table's cell, which a ``|`` ends in code, too."""
    line = _on_one_line(text)
    # Longer than any in the text, from which spaces keep it: they are not shown.
    fence = "`" * (max(map(len, _BACKTICKS.findall(line)), default=0) + 1)
    return f"{fence} {line} {fence}" if len(fence) > 1 or not line.strip() else f"{fence}{line}{fence}"


def _on_one_line(text: str) -> str:
    return plain(" ".join(text.splitlines()))


def estimate_cell(estimate: IntervalEstimate | None, spec: str) -> str:
    """An estimate with its interval in a table's cell, in the given format; an empty cell where there is none."""
    return estimate.text(spec) if estimate else ""
