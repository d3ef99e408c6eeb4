"""How episodes are shown in reports and by `watch`, and what else a world has its runs' reports tell."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

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
    prompt: str | None = None
    """What a model read before it chose; None: it is not kept."""
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


@dataclass(frozen=True)
class ShareBeside:
    """A share of the training episodes that is drawn beside the success rate, where a run's metrics have it."""

    column: str
    """Of ``metrics.jsonl``, and the figure of evaluations."""
    label: str
    """What it is called."""
    chance: str
    """The column that tells what it would be by chance."""
    about: str
    """What it tells."""


@dataclass(frozen=True)
class ReportTable:
    """A table of what evaluations found beside their figures."""

    title: str
    header: Sequence[Sequence[tuple[str, int]]]
    """Lines of cells, each with how many columns it is above."""
    rows: Sequence[Sequence[str]]
    note: str
    suite: str | None = None
    """Below whose figures it stands; None: it compares several, and stands by itself."""


@dataclass(frozen=True)
class Probed:
    """What a policy thought of fixed situations as it learnt."""

    rows: Sequence[Mapping[str, Any]]
    """``update``, ``step``, and ``probabilities`` by situation and action."""
    right: Mapping[str, Sequence[str]]
    """By situation, the actions that are right there."""
