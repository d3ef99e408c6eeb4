"""Opening a preference dataset, whatever its world and format."""

from pathlib import Path

from groundling.errors import ConfigError
from groundling.judges.preferences import parquet
from groundling.judges.preferences.messages import MessagePairs
from groundling.judges.preferences.pairs import Pairs
from groundling.judges.preferences.texts import TextPairs


def open_pairs(folder: str | Path) -> Pairs:
    """Open a dataset; of Motif's arrays nothing is read yet.

    Raises:
        ConfigError: there is none, or its parts do not fit together.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise ConfigError(f"{folder} is no folder: expected a dataset of preference pairs")
    if any((folder / "data").glob("*.parquet")):
        return TextPairs.open(folder) if parquet.holds_texts(folder) else MessagePairs.open(folder)
    if not any((folder / "data").glob("*.npy")):
        raise ConfigError(f"{folder} holds no preference pairs: expected {folder / 'data'}/message.npy or *.parquet")
    return MessagePairs.open(folder)
