"""What was watched, as a GIF."""

import textwrap
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from groundling.envs.nethack.glyphs import font
from groundling.errors import RunError
from groundling.worlds.display import Frame

_MOST_MOMENTS = 400
"""Of longer watching only every second, third, … moment is kept."""
_SIDE, _MARGIN, _LINE, _FONT = 256, 12, 18, 13
_WIDTH = 460
"""Of what is told beside a picture, in pixels."""
_INK, _SOFT, _ACCENT, _PAPER = "#1d2430", "#a9bdd6", "#2563a8", "#ffffff"


class Film:
    """Frames for a GIF: when there are too many, every other one is dropped, now and from then on."""

    def __init__(self) -> None:
        self._every, self._seen = 1, 0
        self._pictures: list[Image.Image] = []

    def take(self, moment: Frame) -> None:
        """Take up what is shown now; an episode's last moment stays."""
        if moment.summary is not None or self._seen % self._every == 0:
            self._pictures.append(draw(moment))
        self._seen += 1
        if len(self._pictures) > _MOST_MOMENTS:
            self._pictures, self._every = self._pictures[::2], 2 * self._every

    def save(self, path: Path, seconds_per_moment: float = 0.25) -> None:
        """Write a GIF that plays without end.

        Raises:
            RunError: nothing was watched, or the file cannot be written.
        """
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
                duration=round(1000 * seconds_per_moment),
                loop=0,
            )
        except OSError as error:
            raise RunError(f"cannot write {path}: {error}; name another file") from error


def draw(moment: Frame) -> Image.Image:
    """A moment as a picture: what it looks like, and beside it what is told and how likely each action is.

    A world whose pictures tell everything, as NetHack's terminal, has these alone.
    """
    drawn = moment.draw()
    picture = None if drawn is None else Image.fromarray(drawn)
    if picture is not None and moment.screen is not None:
        return picture
    left = 0
    if picture is not None:
        picture.thumbnail((_SIDE, _SIDE))
        left = _SIDE + _MARGIN
    lines = [part for line in moment.lines for part in _wrapped(line)]
    rows = len(lines) + len(moment.probabilities or {}) + 1
    height = max(2 * _MARGIN + rows * _LINE, _SIDE if picture is not None else 0)
    page = Image.new("RGB", (left + _WIDTH, height), _PAPER)
    if picture is not None:
        page.paste(picture)
    pen, face, y = ImageDraw.Draw(page), ImageFont.load_default(_FONT), _MARGIN
    for line in lines:
        pen.text((left + _MARGIN, y), line, fill=_INK, font=font(_FONT))
        y += _LINE
    y += _LINE // 2
    for action, probability in (moment.probabilities or {}).items():
        color = _ACCENT if action == moment.action else _SOFT
        pen.rectangle((left + 180, y + 3, left + 180 + 200 * probability, y + 13), fill=color)
        pen.text((left + _MARGIN, y), action, fill=_INK, font=face)
        pen.text((left + 390, y), f"{probability:.2f}", fill=_INK, font=face)
        y += _LINE
    return page


def _wrapped(line: str) -> list[str]:
    """Lines of at most the page's width, with their indentation and inner spaces."""
    most = int((_WIDTH - 2 * _MARGIN) / font(_FONT).getlength("M"))
    return [
        part
        for one in line.expandtabs().splitlines() or [""]
        for part in textwrap.wrap(one, most, drop_whitespace=False) or [""]
    ]
