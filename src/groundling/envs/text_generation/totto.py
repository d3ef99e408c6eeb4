"""ToTTo: one sentence about highlighted cells of a table (Parikh et al. 2020, arXiv 2004.14373)."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby, pairwise
from typing import Any, ClassVar, NamedTuple

from groundling.envs.text_generation.columns import PARQUET_BRANCH, DatasetPool, DatasetSource, Row
from groundling.envs.text_generation.pools import Sample, Split, pools
from groundling.errors import ConfigError, unknown

Cell = dict[str, Any]
Table = Sequence[Sequence[Cell]]  # rows of cells: ``value``, ``is_header``, ``column_span``, ``row_span``

_TABLE_COLUMNS = (
    *("table_page_title", "table_webpage_url", "table_section_title", "table_section_text"),
    *("table", "highlighted_cells", "example_id"),
)  # those that GEM's form of the dataset has, too
_ANNOTATIONS = ("original_sentence", "sentence_after_deletion", "sentence_after_ambiguity", "final_sentence")
_WITHHELD = dict.fromkeys(_ANNOTATIONS, "none")  # Values of the original's form instead of test sentences
_REPRESENTATIONS = ("subtable", "fulltable")


@pools.register("totto")
@dataclass(kw_only=True)
class Totto(DatasetPool):
    """Tables as text: the table, then the titles of its page and section, then the table again.

    The meta data are ``raw_table``, the row in the original's columns (GEM has a row for each sentence of a training
    table, and other names), with a list of annotations and a Boolean ``overlap_subset``.

    Args:
        representation: ``subtable``: the highlighted cells with their headers; ``fulltable``: all cells with theirs.
    """

    hub: ClassVar[DatasetSource] = DatasetSource("GEM/totto", PARQUET_BRANCH, "totto/{split}/*.parquet", "totto")
    representation: str = "subtable"

    def __post_init__(self) -> None:
        if self.representation not in _REPRESENTATIONS:
            raise ConfigError(unknown("representation", self.representation, _REPRESENTATIONS))

    def samples(self, rows: Iterable[Row], split: Split) -> Iterator[Sample]:
        for index, (_, group) in enumerate(groupby(rows, key=lambda row: row["totto_id"])):
            row = _as_original(list(group), withheld=split == "test")
            linearize = subtable if self.representation == "subtable" else full_table
            linearised = linearize(row["table"], [tuple(place) for place in row["highlighted_cells"]])
            titles = _title("page_title", row["table_page_title"])
            titles += _title("section_title", row["table_section_title"])
            references = [annotation["final_sentence"] for annotation in row["sentence_annotations"]]
            yield Sample(
                f"{split}_{index}",
                linearised + titles + linearised,
                ("",) if split == "test" else tuple(references),
                {"raw_table": row},
            )


def _as_original(rows: Sequence[Row], withheld: bool) -> Row:
    annotations = [_WITHHELD] if withheld else [one for row in rows for one in row["sentence_annotations"]]
    return {
        "id": rows[0]["totto_id"],
        **{column: rows[0][column] for column in _TABLE_COLUMNS},
        "sentence_annotations": [{name: one[name] for name in _ANNOTATIONS} for one in annotations],
        "overlap_subset": str(rows[0]["overlap_subset"]) == "True",
    }


def subtable(table: Table, highlighted: Sequence[tuple[int, int]]) -> str:
    """Return the cells at ``highlighted`` (row, index) with their headers, in the tags of the paper's baselines."""
    placed = _placed(table)
    return _tagged("table", *(_cell("cell", placed, row, place) for row, place in highlighted))


def full_table(table: Table, highlighted: Sequence[tuple[int, int]]) -> str:
    """Return all cells with their headers, row by row; highlighted ones have their own tag. See `subtable`."""
    placed, chosen = _placed(table), set(highlighted)
    rows = []
    for row, cells in enumerate(placed):
        tags = ("highlighted_cell" if (row, place) in chosen else "cell" for place in range(len(cells)))
        rows.append(_tagged("row", *(_cell(tag, placed, row, place) for place, tag in enumerate(tags))))
    return _tagged("table", *rows)


class _Placed(NamedTuple):
    first: int
    last: int  # one past its last column
    is_header: bool
    value: str


def _placed(table: Table) -> list[list[_Placed]]:
    """Return the cells with their columns; as in the paper's baselines, cells of several rows count in the first."""
    columns = (list(accumulate((cell["column_span"] for cell in cells), initial=0)) for cells in table)
    return [
        [
            _Placed(first, last, cell["is_header"], cell["value"])
            for cell, (first, last) in zip(cells, pairwise(ends), strict=True)
        ]
        for cells, ends in zip(table, columns, strict=True)
    ]


def _cell(tag: str, placed: Sequence[Sequence[_Placed]], row: int, place: int) -> str:
    """Return a cell with the headers above it, row by row, and those before it in its row."""
    cell = placed[row][place]
    above = (other for cells in placed[:row] for other in cells)
    over = (other for other in above if other.first < cell.last and cell.first < other.last)
    named = [_tagged("col_header", other.value) for other in over if other.is_header]
    named += [_tagged("row_header", other.value) for other in placed[row][:place] if other.is_header]
    return _tagged(tag, cell.value, *named)


def _title(tag: str, text: str) -> str:
    return _tagged(tag, text) + " " if text else ""


def _tagged(tag: str, *parts: str) -> str:
    """Join by blanks; an empty part gives two of them."""
    return " ".join((f"<{tag}>", *parts, f"</{tag}>"))
