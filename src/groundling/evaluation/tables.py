"""Results as CSV, Markdown, and tables of the terminal."""

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
_AFTER_BRACKETS = re.compile(r"\](?=[(\[:])")  # of links and pictures; those of intervals do not match
_BACKTICKS = re.compile("`+")


def write_csv(path: Path, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    write_atomically(path, csv_text(header, rows))


def csv_text(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return CSV with floats of six digits, empty cells for None, and texts that no spreadsheet takes for formulas."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([_csv_cell(x) for x in header])
    writer.writerows([_csv_cell(x) for x in row] for row in rows)
    return text.getvalue()


def figures_table(title: str, figures: Mapping[str, Mapping[str, Figure]]) -> "Table":
    """Make a table with a row for each figure and a column for each agent, with intervals."""
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
    if not isinstance(value, str) or _NUMBER.fullmatch(value):  # a number read from another CSV file
        return value
    # Spreadsheets also end a row at \r, and the csv module quotes \n only.
    return harmless_cell(value).replace("\r", "\n")


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown; its cells are escaped by `in_markdown`."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(map(in_markdown, cells)) + " |" for cells in lines)


def in_markdown(text: str) -> str:
    """Escape a name of unknown origin for Markdown: one line; no HTML, code, cell ends, links (but bare addresses)."""
    return _AFTER_BRACKETS.sub("&#93;", _on_one_line(text).translate(_MARKUP))


def as_code(text: str) -> str:
    """Return a name of unknown origin as code in Markdown; not for cells of tables, which a ``|`` in code ends."""
    line = _on_one_line(text)
    # The fence is longer than any in the text; renderers strip the spaces.
    fence = "`" * (max(map(len, _BACKTICKS.findall(line)), default=0) + 1)
    return f"{fence} {line} {fence}" if len(fence) > 1 or not line.strip() else f"{fence}{line}{fence}"


def _on_one_line(text: str) -> str:
    return plain(" ".join(text.splitlines()))


def estimate_cell(estimate: IntervalEstimate | None, spec: str) -> str:
    return estimate.text(spec) if estimate else ""
