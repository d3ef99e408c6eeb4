"""Preference pairs as ``.npy`` files in the layout of Motif's published data.

::

    DIR/data/<key>.npy                    message uint8 (N, 2, L, 256), blstats (N, 2, L, 27), ...; memory-mapped
    DIR/info/<key>.npy                    score, turns, ...: (N, 2)
    DIR/preference/<annotator>.npy        int8 (N,): 0 first, 1 second, 2 tie, 3 unknown
    DIR/soft_preference/<annotator>.npy   float32 (N, 3); added by Groundling
"""

from collections.abc import Collection, Mapping
from pathlib import Path
from tokenize import TokenError

import numpy as np
from numpy.typing import NDArray

from groundling.errors import ConfigError
from groundling.io.files import replace_file

SUFFIX = ".npy"


def read(folder: Path, needed: Collection[str]) -> dict[str, NDArray]:
    """Return a folder's arrays by key, memory-mapped and read-only; skip unreadable ones unless ``needed``."""
    arrays = {}
    for path in sorted(folder.glob(f"*{SUFFIX}")):
        key = path.name.partition(".")[0]  # as in Motif
        try:
            arrays[key] = _load(path)
        except ConfigError:  # e.g. a pickle of Python objects
            if key in needed:
                raise
    return arrays


def write(folder: Path, data: Mapping[str, NDArray], info: Mapping[str, NDArray]) -> None:
    """Write arrays into an empty folder."""
    for part, arrays in (("data", data), ("info", info)):
        (folder / part).mkdir()
        for key, array in arrays.items():
            np.save(folder / part / f"{key}{SUFFIX}", array, allow_pickle=False)


def read_labels(folder: Path, name: str) -> tuple[NDArray, NDArray | None]:
    """Return an annotator's labels and probabilities, unchecked."""
    soft = folder / "soft_preference" / f"{name}{SUFFIX}"
    return _load(folder / "preference" / f"{name}{SUFFIX}"), _load(soft) if soft.exists() else None


def write_labels(folder: Path, name: str, labels: NDArray[np.int8], soft: NDArray[np.float32] | None) -> None:
    """Replace an annotator's labels and probabilities."""
    # Old labels are deleted first, because they do not match the new probabilities.
    paths = [folder / part / f"{name}{SUFFIX}" for part in ("preference", "soft_preference")]
    for path in paths:
        path.unlink(missing_ok=True)
    if soft is not None:
        _save(paths[1], soft)
    _save(paths[0], labels)


def _load(path: Path) -> NDArray:
    try:
        array: NDArray = np.lib.format.open_memmap(path, mode="r")
    except (ValueError, EOFError, TypeError, OverflowError, SyntaxError, TokenError) as error:
        raise ConfigError(f"{path} is not a readable array ({error})") from error
    if not array.size and any(array.shape[:1]):  # a header of a few bytes may declare any number of empty rows
        raise ConfigError(
            f"{path} has {array.shape[0]:,} rows without values (shape {array.shape}): expected at least 1 per row"
        )
    return array


def _save(path: Path, array: NDArray) -> None:
    path.parent.mkdir(exist_ok=True)

    def write(partial: Path) -> None:
        with partial.open("wb") as file:  # given a path, numpy would append .npy
            np.save(file, array, allow_pickle=False)

    replace_file(path, write)
