"""Held-out episodes: one record, and one table of figures, for all worlds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from groundling.intervals import estimate, wilson_interval

SHARES = frozenset({"success", "first_named", "first_other", "first_none", "first_precision"})
"""Figures that are 0 or 1 in an episode: their means are shares, with Wilson's interval."""


@dataclass(frozen=True, slots=True)
class HeldOutEpisode:
    """An episode that an agent played on a held-out seed, or a text that it wrote to a held-out prompt."""

    number: int
    """Which of the held-out ones."""
    figures: Mapping[str, float]
    """In the order in which they are told; what this episode does not have is left out."""
    about: Mapping[str, str | int]
    """What tells it from the others: its seed, task and mission, or a text's sample."""
    record: Any
    """What its world keeps, to show it again."""


@dataclass(frozen=True, slots=True)
class Figure:
    """What a figure comes to over episodes."""

    value: float
    low: float | None
    """Lower end of the 95 % interval; None where there is none."""
    high: float | None
    episodes: int
    """Of how many."""

    def text(self) -> str:
        """``0.870 0.827–0.903``; a line may break before the interval, and nowhere else."""
        if self.low is None or self.high is None or self.low == self.high:
            return number(self.value)
        return f"{number(self.value)} {number(self.low)}–{number(self.high)}"


def number(value: float) -> str:
    """A figure in a table: three decimals below ten, else four digits."""
    if value == 0 or 0.001 <= abs(value) < 10:
        return f"{value:.3f}"
    return f"{value:.4g}"


@dataclass(frozen=True)
class Played:
    """What an agent did in a suite."""

    episodes: Sequence[HeldOutEpisode]
    whole: Mapping[str, float] = field(default_factory=dict)
    """Figures that all of them have together, such as a corpus's BLEU, in the place of means."""

    def figures(self) -> dict[str, Figure]:
        """By figure, its mean over the episodes that have it, with a 95 % interval.

        The interval of a share is Wilson's, that of another mean a bootstrap's over episodes. A figure of `whole` has
        one only where it is the mean of the episodes'.
        """
        names = dict.fromkeys([*(name for e in self.episodes for name in e.figures), *self.whole])
        return {name: self._figure(name) for name in names}

    def families(self) -> dict[str, "Played"]:
        """The episodes of each family of tasks, where they have any."""
        tasks = sorted({str(e.about["task"]) for e in self.episodes if "task" in e.about})
        return {task: Played([e for e in self.episodes if e.about.get("task") == task]) for task in tasks}

    def difference(self, other: "Played") -> tuple[str, Figure] | None:
        """The main figure's name, and its mean difference from the other agent's with a bootstrap 95 % interval.

        Paired: over the episodes that both have. None if there are none.
        """
        name = next((name for e in self.episodes for name in e.figures), None)
        if name is None:
            return None
        theirs = {e.number: e.figures[name] for e in other.episodes if name in e.figures}
        pairs = [
            (e.figures[name], theirs[e.number])
            for e in self.episodes
            if name in e.figures and e.number in theirs
        ]
        if not pairs:
            return None
        mean = estimate(np.array([one - two for one, two in pairs]), lambda scores: scores.mean(-1))
        return name, Figure(mean.value, mean.low, mean.high, len(pairs))

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
