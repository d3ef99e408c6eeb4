"""Episodes as GIFs."""

import textwrap
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from groundling.envs.nethack.glyphs import font
from groundling.errors import RunError
from groundling.worlds.display import Frame

_MAX_FRAMES = 400  # longer recordings keep every second, fourth, … frame
_SIDE, _MARGIN, _LINE, _FONT = 256, 12, 18, 13
_WIDTH = 460  # width of the text, in pixels
_INK, _SOFT, _ACCENT, _PAPER = "#1d2430", "#a9bdd6", "#2563a8", "#ffffff"


class GifWriter:
    """Frames of a GIF; each time there are too many, every other one is dropped, of later frames too."""

    def __init__(self) -> None:
        self._every, self._seen = 1, 0
        self._pictures: list[Image.Image] = []

    def add(self, frame: Frame) -> None:
        """Add a frame; the last of an episode is always kept."""
        if frame.summary is not None or self._seen % self._every == 0:
            self._pictures.append(draw(frame))
        self._seen += 1
        if len(self._pictures) > _MAX_FRAMES:
            self._pictures, self._every = self._pictures[::2], 2 * self._every

    def save(self, path: Path, seconds_per_frame: float = 0.25) -> None:
        """Write a GIF that loops."""
        if not self._pictures:
            raise RunError(f"there is nothing to write to {path}: no moment was watched")
        size = tuple(max(picture.size[side] for picture in self._pictures) for side in (0, 1))
        frames = []
        for picture in self._pictures:
            frame = Image.new("RGB", size, _PAPER)  # type: ignore[arg-type]
            frame.paste(picture)
            frames.append(frame.quantize(64))
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            frames[0].save(
                path,
                format="GIF",
                save_all=True,
                append_images=frames[1:],
                duration=round(1000 * seconds_per_frame),
                loop=0,
            )
        except OSError as error:
            raise RunError(f"cannot write {path}: {error}; name another file") from error


def draw(frame: Frame) -> Image.Image:
    """Draw a frame: its picture, text and action probabilities; a terminal's picture, which has all text, alone."""
    drawn = frame.draw()
    picture = None if drawn is None else Image.fromarray(drawn)
    if picture is not None and frame.screen is not None:
        return picture
    left = 0
    if picture is not None:
        picture.thumbnail((_SIDE, _SIDE))
        left = _SIDE + _MARGIN
    lines = [part for line in frame.lines for part in _wrapped(line)]
    rows = len(lines) + len(frame.probabilities or {}) + 1
    height = max(2 * _MARGIN + rows * _LINE, _SIDE if picture is not None else 0)
    page = Image.new("RGB", (left + _WIDTH, height), _PAPER)
    if picture is not None:
        page.paste(picture)
    pen, face, y = ImageDraw.Draw(page), ImageFont.load_default(_FONT), _MARGIN
    for line in lines:
        pen.text((left + _MARGIN, y), line, fill=_INK, font=font(_FONT))
        y += _LINE
    y += _LINE // 2
    for action, probability in (frame.probabilities or {}).items():
        color = _ACCENT if action == frame.action else _SOFT
        pen.rectangle((left + 180, y + 3, left + 180 + 200 * probability, y + 13), fill=color)
        pen.text((left + _MARGIN, y), action, fill=_INK, font=face)
        pen.text((left + 390, y), f"{probability:.2f}", fill=_INK, font=face)
        y += _LINE
    return page


def _wrapped(line: str) -> list[str]:
    """Wrap a line at the page's width, keeping indentation and inner spaces."""
    most = int((_WIDTH - 2 * _MARGIN) / font(_FONT).getlength("M"))
    return [
        part
        for one in line.expandtabs().splitlines() or [""]
        for part in textwrap.wrap(one, most, drop_whitespace=False) or [""]
    ]
