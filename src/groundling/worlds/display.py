"""Display of a world's episodes and results: frames of an episode, tables and curves of reports."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from rich.text import Text


@dataclass(frozen=True)
class Summary:
    title: str
    header: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()


@dataclass(frozen=True)
class Frame:
    """One step of an episode as an agent chooses an action, or its end."""

    lines: Sequence[str]  # The observation in words
    draw: Callable[[], np.ndarray | None] = lambda: None
    """Draw it: uint8 ``(height, width, 3)``; None in a world without pictures."""
    action: str | None = None  # The chosen action; None at the end
    probabilities: Mapping[str, float] | None = None  # Probabilities of the actions; None of an agent without any
    prompt: str | None = None  # The prompt that a model read, if it was kept
    mark: Literal["", "named", "other"] = ""  # the first interaction is here, with the named thing or another
    screen: Text | None = None  # Terminal view; None: the lines
    is_notable: bool = True  # Print the lines where there is no terminal to watch
    summary: Summary | None = None  # Outcome, at the end of an episode


@dataclass(frozen=True)
class EpisodeView:
    title: Sequence[tuple[str, bool]]  # in parts, each with True if it names the thing to interact with
    frames: Sequence[Frame]
    success: bool | None = None  # None in a world without success
    notes: Sequence[str] = ()
    left_out: int = 0  # number of steps after the frames
    prompt: str | None = None  # the first prompt that a model read
    pixels: int = 256  # length of a picture's longer side
    table: Summary | None = None  # table below the pictures


@dataclass(frozen=True)
class ShareCurve:
    """A share of the training episodes that is drawn next to the success rate."""

    column: str  # column of ``metrics.jsonl``, and figure of evaluations
    label: str
    chance: str  # column with the share expected by chance
    about: str  # explanation in the report


@dataclass(frozen=True)
class ReportTable:
    title: str
    header: Sequence[Sequence[tuple[str, int]]]  # lines of cells, each with the number of columns it spans
    rows: Sequence[Sequence[str]]
    note: str
    suite: str | None = None  # suite whose figures it follows; None: it compares several suites


@dataclass(frozen=True)
class ProbeHistory:
    """Action probabilities of a policy in fixed situations as it learns."""

    rows: Sequence[Mapping[str, Any]]  # ``update``, ``step``, and ``probabilities`` by situation and action
    right: Mapping[str, Sequence[str]]  # the right actions by situation


@dataclass(frozen=True)
class Presentation:
    """Names and curves of a kind of world in reports and studies."""

    unit: str = "env steps"  # name of a step of training
    episodes: str = "episodes"  # name of the episodes
    study: Literal["success", "figures"] = "figures"  # success rates by suite, or all figures of one suite
    curves: Mapping[str, str | None] = field(default_factory=lambda: {"return_mean": "return", "episode_length": None})
    """Columns of ``metrics.jsonl`` that a study keeps, with their labels in its plots; None: not plotted."""
    first_figures: Sequence[str] = ()  # columns of ``metrics.jsonl`` that reports draw first
    share: ShareCurve | None = None
    meanings: Mapping[str, str] = field(default_factory=dict)  # explanations of figures of an evaluation
