"""Screens of NetHack as text and pictures, and nle's terminal recordings (``nle.PID.EPISODE.ttyrec3.bz2``)."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from groundling.envs.nethack.observation import COLOURS, PALETTE, TERMINAL_SHAPE, font
from groundling.errors import RunError

_FONT_SIZE = 14  # points
_READ_AT_ONCE = 256  # screens


@dataclass(frozen=True, slots=True)
class Screen:
    chars: np.ndarray  # uint8 ``(24, 80)``
    colours: np.ndarray  # uint8 ``(24, 80)``, below 16
    cursor: tuple[int, int] | None = None  # row and column

    @classmethod
    def of(cls, observation: Mapping[str, np.ndarray]) -> "Screen":
        """Copy the screen of an observation with the keys ``tty_chars``, ``tty_colors`` and maybe ``tty_cursor``."""
        cursor = observation.get("tty_cursor")
        return cls(
            observation["tty_chars"].copy(),
            observation["tty_colors"].astype(np.uint8) % COLOURS,
            None if cursor is None else (int(cursor[0]), int(cursor[1])),
        )

    def text(self) -> str:
        printable = np.where(self.chars < 32, 32, self.chars).astype(np.uint8)
        return "\n".join(line.tobytes().decode("cp437").rstrip() for line in printable)

    def image(self) -> Image.Image:
        width, height = _cell_size()
        picture = Image.new("RGB", (self.chars.shape[1] * width, self.chars.shape[0] * height))
        rows, columns = np.nonzero(self.chars > 32)
        for row, column in zip(rows.tolist(), columns.tolist(), strict=True):
            cell = _cell(int(self.chars[row, column]), int(self.colours[row, column]))
            picture.paste(cell, (column * width, row * height))
        if self.cursor is not None:
            y, x = self.cursor[0] * height, self.cursor[1] * width
            ImageDraw.Draw(picture).rectangle((x, y, x + width - 1, y + height - 1), outline=(255, 255, 255))
        return picture


def read_ttyrec(path: Path) -> Iterator[Screen]:
    """Read the screens of one of nle's recordings, one for each key.

    An incomplete recording, as of a killed process, is read up to its end.

    Raises:
        RunError: The file is missing, or has no screens.
    """
    from nle.dataset import Converter
    from nle.nethack import TTYREC_VERSION

    if not path.is_file():
        raise RunError(f"{path} is no file: give it one of nle's recordings, nle.PID.EPISODE.ttyrec3.bz2")
    converter = Converter(*TERMINAL_SHAPE, TTYREC_VERSION)
    converter.load_ttyrec(str(path))
    chars = np.zeros((_READ_AT_ONCE, *TERMINAL_SHAPE), dtype=np.uint8)
    colours = np.zeros((_READ_AT_ONCE, *TERMINAL_SHAPE), dtype=np.int8)
    cursors = np.zeros((_READ_AT_ONCE, 2), dtype=np.int16)
    rest = [np.zeros(_READ_AT_ONCE, dtype=t) for t in (np.int64, np.uint8, np.int32)]
    total = remaining = 0
    while not remaining:
        remaining = converter.convert(chars, colours, cursors, *rest)
        total += _READ_AT_ONCE - remaining
        if not total:
            raise RunError(f"{path} holds no screens: it is no recording of nle's, or was broken off at once")
        for i in range(_READ_AT_ONCE - remaining):
            yield Screen.of({"tty_chars": chars[i], "tty_colors": colours[i], "tty_cursor": cursors[i]})


@cache
def _cell_size() -> tuple[int, int]:
    face = font(_FONT_SIZE)
    return round(face.getlength("M")), sum(face.getmetrics())


@cache
def _cell(code: int, colour: int) -> Image.Image:
    cell = Image.new("RGB", _cell_size())
    red, green, blue = PALETTE[colour].tolist()
    ImageDraw.Draw(cell).text((0, 0), bytes([code]).decode("cp437"), fill=(red, green, blue), font=font(_FONT_SIZE))
    return cell
