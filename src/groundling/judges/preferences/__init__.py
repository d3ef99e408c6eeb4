"""Preference datasets: pairs of segments, their captions, labels, and stored answers."""

from pathlib import Path

from groundling.errors import ConfigError
from groundling.judges.preferences import parquet
from groundling.judges.preferences.messages import MessagePairs
from groundling.judges.preferences.pairs import Pairs
from groundling.judges.preferences.recording import TextPairs

__all__ = ["MessagePairs", "Pairs", "TextPairs", "open_pairs"]


def open_pairs(folder: str | Path) -> Pairs:
    """Open a dataset of preference pairs; arrays in Motif's format are memory-mapped."""
    folder = Path(folder)
    if not folder.is_dir():
        raise ConfigError(f"{folder} is not a folder: expected a dataset of preference pairs")
    if any((folder / "data").glob("*.parquet")):
        data, info = parquet.read(folder)
        return (TextPairs if "captions" in data else MessagePairs).of_columns(folder, data, info)
    if not any((folder / "data").glob("*.npy")):
        raise ConfigError(f"{folder} has no preference pairs: expected {folder / 'data'}/message.npy or *.parquet")
    return MessagePairs.open(folder)
