"""Pairs of segments of NetHack: arrays with one row a step.

Two formats. ``motif`` is the layout of the published Motif data, ``.npy`` files that are memory-mapped::

    DIR/data/<key>.npy              message uint8 (N, 2, L, 256), blstats (N, 2, L, 27), ...
    DIR/info/<key>.npy              score, turns, ...: (N, 2)
    DIR/preference/<annotator>.npy  int8 (N,): 0 first, 1 second, 2 tie, 3 unknown
    DIR/soft_preference/<annotator>.npy   float32 (N, 3); ours, beside the original's
    DIR/annotations/<annotator>.json      how they were made; ours, too

``parquet`` holds the same and opens in Hugging Face ``datasets``: see `groundling.judges.preferences.parquet`.
"""

import shutil
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from groundling.errors import ConfigError
from groundling.io.files import new_folder
from groundling.judges.preferences import parquet
from groundling.judges.preferences.captions import caption
from groundling.judges.preferences.labels import FORMATS, Format, load_array
from groundling.judges.preferences.pairs import ANSWERS, Comparison, Pairs
from groundling.judges.preferences.segments import Segments
from groundling.registry import unknown

Arrays = Mapping[str, NDArray]
TAILS: dict[str, tuple[int, ...]] = {
    "message": (256,),
    "blstats": (27,),
    "tty_chars": (24, 80),
    "tty_colors": (24, 80),
    "rewards": (),
}
"""By data key, the shape after (N, 2, L); other keys may have any."""
_USED = ("message", "blstats", "rewards", "score")
"""Keys of the arrays that judges and reward models read; files of other arrays need not be readable."""


class MessagePairs(Pairs):
    """N pairs of segments of L steps each; a step's caption is the message that NetHack showed.

    Attributes:
        data: By key, the arrays (N, 2, L, ...); of ``motif`` memory-mapped and read-only.
    """

    world = "nethack"

    def __init__(self, folder: Path, format: Format, data: Arrays, info: Arrays) -> None:
        check(data, info, str(folder))
        super().__init__(folder, format, len(data["message"]), info)
        self.data = data

    @classmethod
    def open(cls, folder: Path) -> Self:
        """Open a dataset of either format; of ``motif`` nothing is read yet.

        Of ``motif`` arrays that are not used, such as the screens, those that are no such arrays are ignored.

        Raises:
            ConfigError: its arrays cannot be read, or do not fit together.
        """
        if any((folder / "data").glob("*.parquet")):
            return cls(folder, "parquet", *parquet.read(folder))
        data, info = _load_all(folder / "data"), _load_all(folder / "info")
        head = data["message"].shape[:3] if "message" in data else ()
        data = {key: array for key, array in data.items() if key in _USED or not _unfit(key, array, head)}
        info = {key: array for key, array in info.items() if key in _USED or not _unfit(key, array, head[:2])}
        return cls(folder, "motif", data, info)

    @classmethod
    def create(cls, folder: str | Path, data: Arrays, info: Arrays | None = None, format: Format = "motif") -> Self:
        """Write a new dataset; the folder is there as a whole or not at all.

        Args:
            folder: Where; must not exist, or be empty.
            data: By key, arrays (N, 2, L, ...); "message" must be among them. Memory-mapped ones are copied in pieces.
            info: By key, arrays (N, 2): numbers, in "motif" also texts.
            format: "motif" or "parquet".

        Raises:
            ConfigError: the folder holds something, the arrays do not fit together, or there is no such format.
        """
        folder, info = Path(folder), info or {}
        if format not in FORMATS:
            raise ConfigError(unknown("format of preference pairs", format, FORMATS))
        check(data, info, str(folder))
        with new_folder(folder) as partial:
            if format == "parquet":
                parquet.write(partial, data, info)
            else:
                for part, arrays in (("data", data), ("info", info)):
                    (partial / part).mkdir()
                    for key, array in arrays.items():
                        np.save(partial / part / f"{key}.npy", array, allow_pickle=False)
        return cls.open(folder)

    def convert(self, folder: str | Path, format: Format) -> "MessagePairs":
        """Write the same pairs and preferences into a new ``folder``; arguments and errors as of `create`.

        How the preferences were made comes along, and so do the answers that lie in the dataset's folder, so that
        `groundling annotate` goes on there with what is missing. Texts of ``info`` are left out of Parquet, with a
        warning.
        """
        texts = [key for key, array in self.info.items() if array.dtype.kind in "US" and format == "parquet"]
        if texts:
            warnings.warn(f"{folder}: left out of Parquet, which holds numbers: {', '.join(texts)}", stacklevel=2)
        info = {key: array for key, array in self.info.items() if key not in texts}
        new = MessagePairs.create(folder, self.data, info, format)
        if (self.folder / ANSWERS).is_dir():
            shutil.copytree(self.folder / ANSWERS, new.folder / ANSWERS, ignore=shutil.ignore_patterns("claims"))
        for name in self.annotators():
            account = self.read_account(name)
            if account:
                new.write_account(name, account)
            new.write_preferences(name, self.preferences(name), self.soft_preferences(name))
        return new

    @property
    def length(self) -> int:
        """L, the steps of a segment."""
        return int(self.messages.shape[2])

    @property
    def messages(self) -> NDArray[np.uint8]:
        """uint8 (N, 2, L, 256), NUL-padded."""
        return self.data["message"]

    @property
    def blstats(self) -> NDArray[np.integer] | None:
        """(N, 2, L, 27), or None."""
        return self.data.get("blstats")

    def comparisons(self, blstats: bool = False) -> list[Comparison]:
        """The two texts of each pair: see `groundling.judges.preferences.captions.caption`."""
        if blstats and self.blstats is None:
            raise ConfigError(f"{self.folder} has no blstats: annotate it by its messages alone")
        known: dict[bytes, str] = {}  # segments repeat: telling each once is several times faster
        all_messages = np.asarray(self.messages)  # indexing a memory map itself is slow
        all_states = np.asarray(self.blstats) if blstats else None

        def tell(pair: int, place: int) -> str:
            messages = all_messages[pair, place]
            state = None if all_states is None else all_states[pair, place, -1:]
            content = messages.tobytes() + (b"" if state is None else state.tobytes())
            if content not in known:
                known[content] = caption(messages, state)
            return known[content]

        return [Comparison(tell(pair, 0), tell(pair, 1)) for pair in range(len(self))]

    def segments(self) -> Segments:
        return Segments.of_messages(self.messages)

    def returns(self) -> NDArray:
        if "rewards" not in self.data:
            raise ConfigError(f"{self.folder}: {unknown('data', 'rewards', self.data)}")
        sums: NDArray = self.data["rewards"].sum(axis=2)
        return sums


def check(data: Arrays, info: Arrays, where: str) -> None:
    """Raise `ConfigError` if the arrays of a dataset do not fit together; ``where`` begins the message."""
    if "message" not in data:
        raise ConfigError(f"{where}: no message among the data ({', '.join(sorted(data)) or 'none'})")
    messages = data["message"]
    if messages.dtype != np.uint8 or messages.ndim != 4 or messages.shape[1::2] != (2, 256):
        raise ConfigError(f"{where}: message is {messages.dtype} {messages.shape}, expected uint8 (N, 2, L, 256)")
    if not messages.shape[2]:
        raise ConfigError(
            f"{where}: message has segments of no steps, its shape is {messages.shape}: expected uint8 (N, 2, L, 256) "
            "with L of 1 or more"
        )
    head = messages.shape[:3]
    for arrays, shape in ((data, head), (info, head[:2])):
        for key, array in arrays.items():
            if (problem := _unfit(key, array, shape)) is not None:
                raise ConfigError(f"{where}: {problem}")


def _unfit(key: str, array: NDArray, head: tuple[int, ...]) -> str | None:
    """Reason why an array cannot belong to a dataset, or None.

    Args:
        key: Its name.
        array: Of the data, or of the info.
        head: Its first dimensions: (N, 2, L) of the data, (N, 2) of the info.
    """
    is_info = len(head) == 2
    name = f"info {key}" if is_info else key
    expected = head if is_info else head + TAILS.get(key, array.shape[3:])
    if array.shape != expected:
        return f"{name} has shape {array.shape}, expected {expected} as of message"
    if array.dtype.kind not in ("iufUS" if is_info and key not in _USED else "iuf"):
        return f"{name} has dtype {array.dtype}, expected numbers"
    return None


def _load_all(folder: Path) -> dict[str, NDArray]:
    """By key, the arrays of a folder; the original's key is a file's name up to its first dot."""
    arrays = {}
    for path in sorted(folder.glob("*.npy")):
        key = path.name.partition(".")[0]
        try:
            arrays[key] = load_array(path)
        except ConfigError:  # a pickle of Python objects, say
            if key in _USED:
                raise
    return arrays
