"""How an episode is shown: moments with sentences, pictures and the actions' probabilities, for reports and `watch`."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from rich.text import Text


@dataclass(frozen=True)
class Summary:
    """What an episode came to: a line, and a table below it."""

    title: str
    header: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()


@dataclass(frozen=True)
class Moment:
    """What stands before an agent as it chooses an action, or what an episode ends in."""

    lines: Sequence[str]
    """What is told of it."""
    draw: Callable[[], np.ndarray | None] = lambda: None
    """Draws it: uint8 ``(height, width, 3)``; None in a world without pictures."""
    action: str | None = None
    """What is chosen; None at the end."""
    probabilities: Mapping[str, float] | None = None
    """Of the actions; None of an agent that has none."""
    mark: Literal["", "named", "other"] = ""
    """Whether the thing that the mission names, or another one, is first dealt with here."""
    screen: Text | None = None
    """How a terminal shows it; None: by its lines."""
    is_news: bool = True
    """Whether it is told where there is no terminal to watch."""
    summary: Summary | None = None
    """Of an episode's last moment."""


@dataclass(frozen=True)
class ShownEpisode:
    """An episode as a report shows it."""

    title: Sequence[tuple[str, bool]]
    """In parts, each with whether it names what is to be dealt with first."""
    moments: Sequence[Moment]
    """Those that are shown."""
    success: bool | None = None
    """None in a world without success."""
    notes: Sequence[str] = ()
    left_out: int = 0
    """Steps after the moments that are shown."""
    prompt: str | None = None
    """The first one, as a model read it."""
    pixels: int = 256
    """Of a picture's longer side, so that it can be read."""
    table: Summary | None = None
    """Below the pictures."""
