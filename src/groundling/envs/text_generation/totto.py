"""ToTTo: tables with some cells highlighted, to be told in one sentence (Parikh et al. 2020, arXiv 2004.14373)."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

from groundling.envs.text_generation.pools import Sample, Split, pools
from groundling.envs.text_generation.sources import HUB_NAMES, PARQUET_BRANCH, DatasetPool, Row, Source
from groundling.errors import ConfigError
from groundling.registry import unknown

Cell = dict[str, Any]
Table = Sequence[Sequence[Cell]]
"""Rows of cells: ``value``, ``is_header``, ``column_span``, ``row_span``."""

_TABLE_COLUMNS = ("table_page_title", "table_section_title", "table", "highlighted_cells")
"""What PARENT and others know of a sample as its ``raw_table``."""
_REPRESENTATIONS = ("subtable", "full_table")


@pools.register("totto")
@dataclass(kw_only=True)
class Totto(DatasetPool):
    """Tables as text: first the table alone, then again with the titles of its page and section.

    Args:
        representation: ``subtable``, the highlighted cells with their headers; or ``full_table``, all cells.
    """

    representation: str = "subtable"

    def __post_init__(self) -> None:
        if self.representation not in _REPRESENTATIONS:
            raise ConfigError(unknown("representation", self.representation, _REPRESENTATIONS))

    def source(self, split: Split) -> Source:
        """See `DatasetPool`."""
        name = HUB_NAMES[split]
        return Source("GEM/totto", PARQUET_BRANCH, f"totto/{name}/*.parquet", "totto", name)

    def samples(self, rows: Iterable[Row], split: Split) -> Iterator[Sample]:
        """See `DatasetPool`."""
        for index, row in enumerate(rows):
            table, highlighted = row["table"], [tuple(place) for place in row["highlighted_cells"]]
            linearised = full_table(table, highlighted)
            if self.representation == "subtable":
                linearised = subtable(table, highlighted)
            titles = _tagged("page_title", row["table_page_title"]) + " "
            if row["table_section_title"]:
                titles += _tagged("section_title", row["table_section_title"]) + " "
            references = row["references"] or [row["target"]]
            yield Sample(
                f"{split}_{index}",
                f"{linearised} {titles}{linearised}",
                ("",) if split == "test" else tuple(references),  # the test sentences are withheld
                {"raw_table": {column: row[column] for column in _TABLE_COLUMNS}},
            )


def subtable(table: Table, highlighted: Sequence[tuple[int, int]]) -> str:
    """The highlighted cells, each with its headers, in the tags of the ToTTo paper's baselines.

    Args:
        table: The whole table.
        highlighted: ``(row, cell)`` of each highlighted cell, counted as the rows list them.
    """
    columns, headers = _columns(table), _headers(table)
    cells = []
    for row, place in highlighted:
        cell, (first, last) = table[row][place], columns[row][place]
        above = [h for h in headers if h.row < row and h.first < last and first < h.last]
        beside = [h for h in headers if h.row == row and h.last <= first]
        named = [_tagged("col_header", header.value) for header in above]
        named += [_tagged("row_header", header.value) for header in beside]
        cells.append(_tagged("cell", " ".join([cell["value"], *named])))
    return _tagged("table", " ".join(cells))


def full_table(table: Table, highlighted: Sequence[tuple[int, int]]) -> str:
    """All cells, row by row, the highlighted ones in a tag of their own; arguments as those of `subtable`."""
    chosen = set(highlighted)
    rows = (
        " ".join(
            _tagged("highlighted_cell" if (row, place) in chosen else "cell", cell["value"])
            for place, cell in enumerate(cells)
        )
        for row, cells in enumerate(table)
    )
    return _tagged("table", " ".join(_tagged("row", text) for text in rows))


@dataclass(frozen=True)
class _Header:
    row: int
    first: int
    last: int
    """One past its last column."""
    value: str


def _headers(table: Table) -> list[_Header]:
    return [
        _Header(row, first, last, cell["value"])
        for row, (cells, columns) in enumerate(zip(table, _columns(table), strict=True))
        for cell, (first, last) in zip(cells, columns, strict=True)
        if cell["is_header"]
    ]


def _columns(table: Table) -> list[list[tuple[int, int]]]:
    """For each cell its first column and one past its last.

    Cells that span several rows are not followed into the next ones, as in the paper's baselines: models were trained
    on that form.
    """
    return [list(pairwise(accumulate((cell["column_span"] for cell in cells), initial=0))) for cells in table]


def _tagged(tag: str, text: str) -> str:
    return f"<{tag}> {text} </{tag}>"
