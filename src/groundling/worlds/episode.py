"""Records of episodes and generated texts, and summaries of their metrics, for all worlds."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from rich.text import Text

from groundling.intervals import estimate, wilson_interval
from groundling.io.documents import read_bundled

SHARES = frozenset(
    {"success", "shown_success", "first_named", "first_other", "first_none", "first_precision", "thought_retrieval"}
)  # 0 or 1 per episode


@dataclass(frozen=True, slots=True)
class Episode:
    """A finished episode or a generated text."""

    figures: Mapping[str, float]
    """Metrics by name, such as ``return``, ``length`` and ``success``, with the main one first; undefined metrics are
    omitted. During training, ``return`` is the sum of the world's own rewards, or a text's reward."""
    number: int = 0  # Index among the held-out episodes
    about: Mapping[str, str | int] = field(default_factory=dict)  # Seed, task and mission, or a text's sample id
    record: Any = None  # World-specific data for replaying the episode
    prediction: Mapping[str, Any] | None = None  # A text and its scores, as a row of ``predictions/``
    turn: Any = None  # A random turn of the episode, if the policy generates turns

    @property
    def episode_return(self) -> float:
        return self.figures["return"]

    @property
    def length(self) -> int:
        return int(self.figures["length"])

    @property
    def success(self) -> bool | None:
        """True if the episode succeeded; None if the world does not define success."""
        success = self.figures.get("success")
        return None if success is None else bool(success)


_OWN_COLUMNS = ("return", "length", "success")


def summarise(episodes: Sequence[Episode]) -> dict[str, float | int | None]:
    """Return the training metrics of the episodes that ended during an update; each is None if no episode ended."""
    summary: dict[str, float | int | None] = {}
    for mean, prefix, values in (
        ("return_mean", "return", np.array([e.episode_return for e in episodes])),
        ("success_rate", "", np.array([e.success for e in episodes if e.success is not None])),
        ("episode_length", "episode_length", np.array([e.length for e in episodes])),
    ):
        summary[mean] = float(values.mean()) if len(values) else None
        for name in ("std", "min", "max") if prefix else ():
            summary[f"{prefix}_{name}"] = getattr(values, name)().item() if len(values) else None
    others = sorted({name for e in episodes for name in e.figures if name not in _OWN_COLUMNS})
    return summary | {
        name: float(np.mean([e.figures[name] for e in episodes if name in e.figures])) for name in others
    }


@dataclass(frozen=True, slots=True)
class Figure:
    value: float
    low: float | None  # None if there is no interval
    high: float | None
    episodes: int  # number of episodes

    def text(self) -> str:
        """Format as ``0.870 0.827–0.903``; a line can break only before the interval."""
        if self.low is None or self.high is None or self.low == self.high:
            return number(self.value)
        width = self.high - self.low
        return f"{number(self.value, width)} {number(self.low, width)}–{number(self.high, width)}"


def number(value: float, width: float = 0.0) -> str:
    """Format a number for a table, with three decimals below 10 and four significant digits otherwise. Numbers below
    0.001 have three decimals only if the ``width`` of their interval is at least 0.001.
    """
    if value == 0 or (abs(value) < 10 and max(abs(value), width) >= 0.001):
        return f"{value:z.3f}"
    return f"{value:.4g}"


@dataclass(frozen=True)
class Played:
    episodes: Sequence[Episode]  # ordered by number
    whole: Mapping[str, float] = field(default_factory=dict)  # corpus-level metrics, such as BLEU

    def figures(self) -> dict[str, Figure]:
        """Return each metric's mean over the episodes that have it, with a 95% interval (Wilson's for proportions,
        otherwise a bootstrap over episodes). A metric in `whole` has an interval only if it equals that mean.
        """
        names = dict.fromkeys([*(name for e in self.episodes for name in e.figures), *self.whole])
        return {name: self._figure(name) for name in names}

    def families(self) -> dict[str, "Played"]:
        """Return the episodes by task family; the mapping is empty if the world has no task families."""
        tasks = sorted({str(e.about["task"]) for e in self.episodes if "task" in e.about})
        return {task: Played([e for e in self.episodes if e.about.get("task") == task]) for task in tasks}

    def difference(self, other: "Played") -> tuple[str, Figure] | None:
        """Return the main metric's name and its mean paired difference with a bootstrap 95% interval, or None if there
        are no pairs.
        """
        name = next((name for e in self.episodes for name in e.figures), None)
        if name is None:
            return None
        theirs = {e.number: e.figures[name] for e in other.episodes if name in e.figures}
        differences = [
            e.figures[name] - theirs[e.number] for e in self.episodes if name in e.figures and e.number in theirs
        ]
        if not differences:
            return None
        mean = estimate(np.array(differences), lambda scores: scores.mean(-1))
        return name, Figure(mean.value, mean.low, mean.high, len(differences))

    def _figure(self, name: str) -> Figure:
        values = np.array([e.figures[name] for e in self.episodes if name in e.figures])
        count = len(values)
        whole = self.whole.get(name)
        if whole is not None and not (count and np.isclose(values.mean(), whole)):
            return Figure(whole, None, None, len(self.episodes))
        if name in SHARES:
            low, high = wilson_interval(int(values.sum()), count)
            return Figure(float(values.mean()), low, high, count)
        mean = estimate(values, lambda scores: scores.mean(-1))
        return Figure(mean.value, mean.low, mean.high, count)


@dataclass(frozen=True)
class Summary:
    title: str
    header: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()


@dataclass(frozen=True)
class Frame:
    """One step of an episode, at which the agent chooses an action, or the end of the episode."""

    lines: Sequence[str]  # The observation as text
    draw: Callable[[], np.ndarray | None] = lambda: None
    """Renders the step as uint8 ``(height, width, 3)``; returns None if the world has no pictures."""
    action: str | None = None  # The chosen action; None at the end
    probabilities: Mapping[str, float] | None = None  # Action probabilities; None if the agent has none
    prompt: str | None = None  # The prompt that the model read, if it was kept
    mark: Literal["", "named", "other"] = ""  # Object of the first interaction: the goal's or another; "" before
    screen: Text | None = None  # Terminal view; if None, the lines are shown
    is_notable: bool = True  # Print the lines when the output is not a terminal
    summary: Summary | None = None  # Outcome, at the end of an episode


@dataclass(frozen=True)
class EpisodeView:
    title: Sequence[tuple[str, bool]]  # parts of the title, each with True if it names the object to interact with
    frames: Sequence[Frame]
    success: bool | None = None  # None if the world does not define success
    notes: Sequence[str] = ()
    left_out: int = 0  # number of steps after the last frame
    prompt: str | None = None  # the model's first prompt
    pixels: int = 256  # length of a picture's longer side
    table: Summary | None = None  # table below the pictures


@dataclass(frozen=True)
class ShareCurve:
    """A proportion of the training episodes that is plotted next to the success rate."""

    column: str  # column of ``metrics.jsonl`` and name of the metric in evaluations
    label: str
    chance: str  # column with the proportion expected by chance
    about: str  # explanation in the report


@dataclass(frozen=True)
class ReportTable:
    title: str
    header: Sequence[Sequence[tuple[str, int]]]  # rows of cells, each with the number of columns it spans
    rows: Sequence[Sequence[str]]
    note: str
    suite: str | None = None  # suite whose metrics precede the table; None if it compares several suites


@dataclass(frozen=True)
class ProbeHistory:
    """A policy's action probabilities in fixed situations over the course of training."""

    rows: Sequence[Mapping[str, Any]]  # ``update``, ``step``, and ``probabilities`` by situation and action
    right: Mapping[str, Sequence[str]]  # the right actions by situation


@dataclass(frozen=True)
class Presentation:
    """Names and curves for a kind of world in reports and studies."""

    unit: str = "env steps"  # term for training steps
    episodes: str = "episodes"  # term for episodes
    study: Literal["success", "figures"] = "figures"  # success rates by suite, or all metrics of one suite
    curves: Mapping[str, str | None] = field(default_factory=lambda: {"return_mean": "return", "episode_length": None})
    """Columns of ``metrics.jsonl`` that a study keeps, with their plot labels; None if a column is not plotted."""
    first_figures: Sequence[str] = ()  # columns of ``metrics.jsonl`` that reports plot first
    share: ShareCurve | None = None
    meanings: Mapping[str, str] = field(default_factory=dict)  # explanations of evaluation metrics


PRESENTATIONS = {
    world: Presentation(**{**fields, "share": ShareCurve(**fields["share"]) if "share" in fields else None})
    for world, fields in read_bundled(Path(__file__).with_name("presentation.yaml")).items()
}
