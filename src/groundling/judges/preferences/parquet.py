"""Preference datasets as Parquet files, which Hugging Face's ``load_dataset`` opens.

``DIR/data/pairs.parquet`` has one row per pair. Of NetHack ``first_messages`` and ``second_messages`` are lists of L
texts, and every other array is a pair of columns of nested lists (``first_blstats``, ...). Of worlds in words
``first_context`` and ``first_outcome`` are texts and ``first_captions`` a list of texts of any length, and so for the
second. Every figure is a pair of columns of numbers (``first_info_score``, ...).

``DIR/preference/<annotator>.parquet`` has the same number of rows: ``preference`` and the probabilities ``first``,
``second`` and ``tie``. ``DIR/README.md`` names them all as configurations.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from groundling.errors import ConfigError
from groundling.io.documents import read_parquet
from groundling.io.files import replace_file
from groundling.judges.preferences.segments import TextSegment
from groundling.registry import unknown

_TEXTS = ("context", "captions", "outcome")
_PLACES = ("first", "second")
_WIDTH = 256
_CARD = """---
configs:
- config_name: pairs
  default: true
  data_files: data/*.parquet
{annotators}---
# Preference pairs

Pairs of segments, written by Groundling. `datasets.load_dataset(FOLDER)` gives the pairs, one row each;
`datasets.load_dataset(FOLDER, "preference-NAME")` what the annotator NAME said about the same rows: 0 the first, 1 the
second, 2 a tie, 3 unknown; and its probabilities, where it gave any.
"""


def holds_texts(folder: Path) -> bool:
    """Whether a dataset's captions are texts, and not NetHack's messages.

    Raises:
        ConfigError: pyarrow is not installed, or its file cannot be read.
    """
    pa, pq = _pyarrow()
    try:
        return "first_captions" in pq.read_schema(min((folder / "data").glob("*.parquet"))).names
    except (pa.ArrowException, OSError, ValueError) as error:
        raise ConfigError(f"{folder / 'data'} cannot be read as Parquet ({error})") from error


def _read_table(folder: Path) -> Any:
    pa, _ = _pyarrow()
    try:
        return pa.concat_tables([read_parquet(path) for path in sorted((folder / "data").glob("*.parquet"))])
    except pa.ArrowException as error:
        raise ConfigError(f"{folder / 'data'} cannot be read as Parquet ({error})") from error


def read_texts(folder: Path) -> tuple[list[tuple[TextSegment, TextSegment]], dict[str, NDArray]]:
    """The segments of a dataset of texts, and the info (N, 2) by key.

    Raises:
        ConfigError: pyarrow is not installed, or the files are not such a dataset.
    """
    table = _read_table(folder)
    where = f"{folder}: column"
    try:
        sides = [
            [
                TextSegment(*row)
                for row in zip(*(table.column(f"{place}_{key}").to_pylist() for key in _TEXTS), strict=True)
            ]
            for place in _PLACES
        ]
        keys = [name.removeprefix("first_info_") for name in table.column_names if "first_info_" in name]
        columns = {key: [table.column(f"{place}_info_{key}").combine_chunks() for place in _PLACES] for key in keys}
    except KeyError as error:
        raise ConfigError(f"{folder}: {error.args[0]}") from error
    for one in (segment for side in sides for segment in side):
        captions = one.captions if isinstance(one.captions, list) else []
        if not captions or not all(isinstance(x, str) for x in (one.context, one.outcome, *captions)):
            raise ConfigError(f"{folder}: a segment {one!r:.80}: expected texts, and at least one caption")
    info = {
        key: _pair([_numbers(column, f"{where} info_{key}") for column in both], f"{where} info_{key}")
        for key, both in columns.items()
    }
    return list(zip(*sides, strict=True)), info


def write_texts(folder: Path, pairs: Sequence[tuple[TextSegment, TextSegment]], info: Mapping[str, NDArray]) -> None:
    """Write pairs of segments and figures (N, 2) into an empty folder.

    Raises:
        ConfigError: pyarrow is not installed.
    """
    pa, _ = _pyarrow()
    columns = {}
    for number, place in enumerate(_PLACES):
        segments = [pair[number] for pair in pairs]
        columns[f"{place}_context"] = pa.array([one.context for one in segments], pa.string())
        columns[f"{place}_captions"] = pa.array([one.captions for one in segments], pa.list_(pa.string()))
        columns[f"{place}_outcome"] = pa.array([one.outcome for one in segments], pa.string())
        for key, array in info.items():
            columns[f"{place}_info_{key}"] = _nested(array[:, number])
    _write_data(folder, columns)


def _write_data(folder: Path, columns: Mapping[str, Any]) -> None:
    pa, pq = _pyarrow()
    (folder / "data").mkdir()
    pq.write_table(pa.table(columns), folder / "data" / "pairs.parquet", compression="zstd")
    _write_card(folder)


def read(folder: Path) -> tuple[dict[str, NDArray], dict[str, NDArray]]:
    """The arrays of a dataset: by key the data (N, 2, L, ...) and the info (N, 2).

    Raises:
        ConfigError: pyarrow is not installed, or the files are not such a dataset.
    """
    table = _read_table(folder)
    data: dict[str, NDArray] = {}
    info: dict[str, NDArray] = {}
    for name in table.column_names:
        place, _, key = name.partition("_")
        if place != "first":
            continue
        if f"second_{key}" not in table.column_names:
            raise ConfigError(f"{folder}: a column {name}, but no second_{key}")
        columns = [table.column(f"{place}_{key}").combine_chunks() for place in _PLACES]
        where = f"{folder}: column {key}"
        if key == "messages":
            data["message"] = _pair([_encode(column, where) for column in columns], where)
        elif key.startswith("info_"):
            info[key.removeprefix("info_")] = _pair([_numbers(c, where) for c in columns], where)
        else:
            data[key] = _pair([_numbers(column, where) for column in columns], where)
    return data, info


def write(folder: Path, data: Mapping[str, NDArray], info: Mapping[str, NDArray]) -> None:
    """Write arrays that `groundling.judges.preferences.messages.check` found right into an empty folder.

    Raises:
        ConfigError: pyarrow is not installed.
    """
    columns = {}
    for number, place in enumerate(_PLACES):
        columns[f"{place}_messages"] = _decode(data["message"][:, number])
        for key, array in data.items():
            if key != "message":
                columns[f"{place}_{key}"] = _nested(array[:, number])
        for key, array in info.items():
            columns[f"{place}_info_{key}"] = _nested(array[:, number])
    _write_data(folder, columns)


def read_preferences(folder: Path, name: str) -> tuple[NDArray, NDArray[np.float32] | None]:
    """An annotator's labels, (N,), of whatever type of number, and probabilities, float32 (N, 3) or None.

    Raises:
        ConfigError: pyarrow is not installed, or the file does not hold them.
    """
    _pyarrow()
    path = folder / "preference" / f"{name}.parquet"
    table = read_parquet(path)

    def figures(column: str) -> NDArray:
        if column not in table.column_names:
            raise ConfigError(f"{path}: {unknown('column', column, table.column_names)}")
        array: NDArray = table.column(column).to_numpy()
        if array.dtype.kind not in "iuf":
            raise ConfigError(f"{path}: column {column} has dtype {array.dtype}, expected numbers")
        return array

    labels = figures("preference")
    if "tie" not in table.column_names:
        return labels, None
    return labels, np.stack([figures(name).astype(np.float32) for name in (*_PLACES, "tie")], axis=1)


def write_preferences(folder: Path, name: str, labels: NDArray[np.int8], soft: NDArray[np.float32] | None) -> None:
    """Write beside and rename; then name the annotator in the dataset's card."""
    pa, pq = _pyarrow()
    columns: dict[str, Any] = {"preference": pa.array(labels)}
    if soft is not None:
        columns |= {verdict: pa.array(soft[:, i]) for i, verdict in enumerate((*_PLACES, "tie"))}
    path = folder / "preference" / f"{name}.parquet"
    path.parent.mkdir(exist_ok=True)
    replace_file(path, lambda partial: pq.write_table(pa.table(columns), partial, compression="zstd"))
    _write_card(folder)


def _write_card(folder: Path) -> None:
    names = sorted(path.stem for path in (folder / "preference").glob("[!.]*.parquet"))
    annotators = "".join(
        f"- config_name: preference-{name}\n  data_files: preference/{name}.parquet\n" for name in names
    )
    text = _CARD.format(annotators=annotators)
    replace_file(folder / "README.md", lambda partial: partial.write_text(text, encoding="utf-8"))


def _decode(messages: NDArray[np.uint8]) -> Any:
    """uint8 (N, L, 256) as a column of lists of L texts; Latin-1 keeps every byte, only padding is cut off."""
    pa, _ = _pyarrow()
    texts = [row.tobytes().rstrip(b"\0").decode("latin-1") for row in messages.reshape(-1, _WIDTH)]
    return _lists(pa.array(texts, pa.string()), messages.shape[1:2])


def _encode(column: Any, where: str) -> NDArray[np.uint8]:
    """The inverse of `_decode`."""
    texts, shape = _flat(column, where)
    encoded = []
    for text in texts.to_pylist():
        try:
            line = text.encode("latin-1")
        except (UnicodeEncodeError, AttributeError):
            raise ConfigError(f"{where}: {text!r} is no text of NetHack's one-byte characters") from None
        if len(line) > _WIDTH:
            raise ConfigError(f"{where}: {text!r} is longer than {_WIDTH} characters")
        encoded.append(line.ljust(_WIDTH, b"\0"))
    return np.frombuffer(b"".join(encoded), np.uint8).reshape(*shape, _WIDTH)


def _nested(array: NDArray) -> Any:
    """Numbers (N, ...) as a column of nested lists."""
    pa, _ = _pyarrow()
    flat = np.ascontiguousarray(array, array.dtype.newbyteorder("=")).reshape(-1)
    return _lists(pa.array(flat), array.shape[1:])


def _lists(values: Any, shape: tuple[int, ...]) -> Any:
    """A flat column as one of nested lists of this shape."""
    pa, _ = _pyarrow()
    for size in reversed(shape):
        offsets = np.arange(0, len(values) + 1, max(size, 1), dtype=np.int64)
        values = pa.LargeListArray.from_arrays(offsets, values)
    return values


def _numbers(column: Any, where: str) -> NDArray:
    """The inverse of `_nested`."""
    values, shape = _flat(column, where)
    if values.null_count:
        raise ConfigError(f"{where}: rows without a value")
    array: NDArray = values.to_numpy(zero_copy_only=False)
    if array.dtype.kind not in "iufb":
        raise ConfigError(f"{where}: has dtype {array.dtype}, expected numbers")
    return array.reshape(shape)


def _pair(both: Sequence[NDArray], where: str) -> NDArray:
    """What the first and the second segments have, (N, ...) each, as (N, 2, ...)."""
    first, second = both
    if first.shape != second.shape:
        raise ConfigError(f"{where}: {first.shape} of the first segments, and {second.shape} of the second")
    return np.stack(both, axis=1)


def _flat(column: Any, where: str) -> tuple[Any, tuple[int, ...]]:
    """The values in a column of nested lists, and their shape (N, ...)."""
    pa, _ = _pyarrow()
    import pyarrow.compute as pc

    shape = [len(column)]
    while (
        pa.types.is_list(column.type)
        or pa.types.is_large_list(column.type)
        or pa.types.is_fixed_size_list(column.type)
    ):
        lengths = pc.list_value_length(column)
        least, most = pc.min_max(lengths).as_py().values()
        if lengths.null_count or least != most:
            raise ConfigError(f"{where}: lists of {least} to {most} entries, expected one length")
        shape.append(least or 0)
        column = column.flatten()
    return column, tuple(shape)


def check_installed() -> None:
    """Raise `ConfigError` where pyarrow is not installed, before anything is played."""
    _pyarrow()


def _pyarrow() -> Any:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise ConfigError("Parquet datasets need pyarrow: pip install 'groundling[data]'") from None
    return pyarrow, pyarrow.parquet
