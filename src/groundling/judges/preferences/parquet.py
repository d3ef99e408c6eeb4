"""Preference pairs as Parquet files, which Hugging Face's ``load_dataset`` can read; ``README.md`` is the dataset card.

``data/pairs.parquet`` has one row per pair and, for each key, the columns ``first_KEY`` and ``second_KEY`` of strings,
lists of strings, or nested lists of numbers; keys of recorded values start with ``info_``. In the same row order,
``preference/ANNOTATOR.parquet`` has ``preference`` and optional probabilities ``first``, ``second`` and ``tie``.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from groundling.errors import ConfigError, importing, unknown
from groundling.io.documents import read_parquet
from groundling.io.files import replace_file

SUFFIX = ".parquet"
_SIDES = ("first", "second")
_VERDICTS = (*_SIDES, "tie")
_CARD = """---
configs:
- config_name: pairs
  default: true
  data_files: data/*.parquet
{annotators}---
# Preference pairs

Pairs of segments, written by Groundling. `datasets.load_dataset(FOLDER)` loads the pairs, one per row.
`datasets.load_dataset(FOLDER, "preference-NAME")` loads the labels of the annotator NAME for the same rows
(0 first, 1 second, 2 tie, 3 unknown) and the annotator's probabilities, if available.
"""
Column = NDArray | Sequence[tuple[Any, Any]]  # numbers (N, 2, ...), or N pairs of strings or of lists of strings


def read(folder: Path) -> tuple[dict[str, Column], dict[str, NDArray]]:
    """Return a dataset's data and info by key."""
    pa, _ = pyarrow_modules()
    try:
        table = pa.concat_tables(map(read_parquet, sorted((folder / "data").glob(f"*{SUFFIX}"))))
    except (pa.ArrowException, OSError, ValueError) as error:
        raise ConfigError(f"{folder / 'data'} cannot be read as Parquet ({error})") from error
    data: dict[str, Column] = {}
    info: dict[str, NDArray] = {}
    for name in table.column_names:
        side, _, key = name.partition("_")
        if side != "first":
            continue
        if f"second_{key}" not in table.column_names:
            raise ConfigError(f"{folder} has a column {name} but no second_{key}")
        columns = [table.column(f"{side}_{key}").combine_chunks() for side in _SIDES]
        if key.startswith("info_"):
            info[key.removeprefix("info_")] = _numbers(columns, f"{folder}: column {key}")
        elif any(_is_text(column.type) for column in columns):
            data[key] = list(zip(*(column.to_pylist() for column in columns), strict=True))
        else:
            data[key] = _numbers(columns, f"{folder}: column {key}")
    return data, info


def write(folder: Path, data: Mapping[str, Column], info: Mapping[str, NDArray]) -> None:
    """Write data and info into an empty folder."""
    pa, pq = pyarrow_modules()
    columns = {}
    for number, side in enumerate(_SIDES):
        for key, values in (*data.items(), *((f"info_{key}", array) for key, array in info.items())):
            if isinstance(values, np.ndarray):
                columns[f"{side}_{key}"] = _nested(values[:, number], pa)
            else:
                texts = [pair[number] for pair in values]
                lists = texts and not isinstance(texts[0], str)
                columns[f"{side}_{key}"] = pa.array(texts, pa.list_(pa.string()) if lists else pa.string())
    (folder / "data").mkdir()
    pq.write_table(pa.table(columns), folder / "data" / f"pairs{SUFFIX}", compression="zstd")
    _write_card(folder)


def read_labels(folder: Path, name: str) -> tuple[NDArray, NDArray | None]:
    """Return an annotator's labels and probabilities, unchecked."""
    pyarrow_modules()
    path = folder / "preference" / f"{name}{SUFFIX}"
    table = read_parquet(path)

    def numbers(column: str) -> NDArray:
        if column not in table.column_names:
            raise ConfigError(f"{path}: {unknown('column', column, table.column_names)}")
        array: NDArray = table.column(column).to_numpy()
        if array.dtype.kind not in "iuf":
            raise ConfigError(f"{path}: column {column} has dtype {array.dtype}, expected numbers")
        return array

    labels = numbers("preference")
    if "tie" not in table.column_names:
        return labels, None
    return labels, np.stack([numbers(verdict).astype(np.float32) for verdict in _VERDICTS], axis=1)


def write_labels(folder: Path, name: str, labels: NDArray[np.int8], soft: NDArray[np.float32] | None) -> None:
    """Replace an annotator's labels and probabilities, and list the annotator in the dataset card."""
    pa, pq = pyarrow_modules()
    columns: dict[str, Any] = {"preference": pa.array(labels)}
    if soft is not None:
        columns |= {verdict: pa.array(soft[:, i]) for i, verdict in enumerate(_VERDICTS)}
    path = folder / "preference" / f"{name}{SUFFIX}"
    path.parent.mkdir(exist_ok=True)
    replace_file(path, lambda partial: pq.write_table(pa.table(columns), partial, compression="zstd"))
    _write_card(folder)


def _write_card(folder: Path) -> None:
    names = sorted(path.stem for path in (folder / "preference").glob(f"[!.]*{SUFFIX}"))
    annotators = "".join(
        f"- config_name: preference-{name}\n  data_files: preference/{name}{SUFFIX}\n" for name in names
    )
    text = _CARD.format(annotators=annotators)
    replace_file(folder / "README.md", lambda partial: partial.write_text(text, encoding="utf-8"))


def _nested(array: NDArray, pa: Any) -> Any:
    """Convert an array ``(N, ...)`` to a column of nested lists."""
    values = pa.array(np.ascontiguousarray(array, array.dtype.newbyteorder("=")).reshape(-1))
    for size in reversed(array.shape[1:]):
        offsets = np.arange(0, len(values) + 1, max(size, 1), dtype=np.int64)
        values = pa.LargeListArray.from_arrays(offsets, values)
    return values


def _numbers(columns: Sequence[Any], where: str) -> NDArray:
    """Convert two columns of equally sized nested lists of numbers to an array ``(N, 2, ...)``."""
    import pyarrow.compute as pc

    arrays = []
    for column in columns:
        shape = [len(column)]
        while _is_list(column.type):
            lengths = pc.list_value_length(column)
            least, most = pc.min_max(lengths).as_py().values()
            if lengths.null_count or least != most:
                raise ConfigError(f"{where}: lists have {least} to {most} entries, expected equal lengths")
            shape.append(least or 0)
            column = column.flatten()
        array = column.to_numpy(zero_copy_only=False)
        if column.null_count or array.dtype.kind not in "iufb":
            raise ConfigError(
                f"{where}: {column.null_count} rows without a value, dtype {array.dtype}; expected only numbers"
            )
        arrays.append(array.reshape(shape))
    first, second = arrays
    if first.shape != second.shape:
        raise ConfigError(f"{where}: first and second segments differ in shape, {first.shape} and {second.shape}")
    return np.stack(arrays, axis=1)


def _is_text(kind: Any) -> bool:
    from pyarrow import types

    kind = kind.value_type if _is_list(kind) else kind
    return types.is_string(kind) or types.is_large_string(kind)


def _is_list(kind: Any) -> bool:
    from pyarrow import types

    return types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)


def pyarrow_modules() -> Any:
    """Return pyarrow and pyarrow.parquet; raise `ConfigError` if they are not installed."""
    with importing("pyarrow", "data"):
        import pyarrow
        import pyarrow.parquet
    return pyarrow, pyarrow.parquet
