"""Controls that test whether an agent reads its goal, by its success on the same episodes with and without them."""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from groundling.errors import RunError
from groundling.io.terminal import make_console
from groundling.worlds.episode import Episode, Figure, Played

_FIGURES = {"success": "", "shown_success": ", goal shown"}  # with labels for the table


@dataclass(frozen=True)
class ControlResults:
    """Results of an agent and its baselines with the original goal and under each control."""

    agent: str
    played: Mapping[str, Mapping[str, Played]]
    """Episodes by suite, the one without a control first, and by agent."""

    @property
    def differences(self) -> dict[str, Figure]:
        """Success without a control minus success under each control, paired by episode, with 95% intervals."""
        original, *controls = self.played
        pairs = {name: self._difference(original, self.agent, name, self.agent) for name in controls}
        return {name: figure for name, figure in pairs.items() if figure is not None}

    @property
    def verdict(self) -> str:
        """A one-sentence conclusion from the differences, based on the first control."""
        if not self.differences:
            return "no episode was played both with and without a control, so there is nothing to compare"
        original, (suite, fall) = next(iter(self.played)), next(iter(self.differences.items()))
        if fall.episodes < 2:
            return "a single episode does not show whether the agent reads its goal: raise --episodes"
        above = self._difference(original, self.agent, original, "random") if self.agent != "random" else None
        if above is not None and not _is_positive(above):
            return "without a control, the agent does not succeed more often than random play: train it first"
        if not _is_positive(fall):
            return f"no evidence that the agent reads its goal: under {suite}, success falls by only {_in_words(fall)}"
        rest = self._difference(suite, self.agent, suite, "random")
        in_part = (
            f", but it still exceeds that of random play by {_in_words(rest)}" if rest and _is_positive(rest) else ""
        )
        return (
            f"the agent reads its goal{' only in part' * bool(in_part)}: under {suite}, success falls by "
            f"{_in_words(fall)}{in_part}"
        )

    def print(self) -> None:
        """Print success by suite and agent, the agent's paired differences, and the verdict."""
        from rich import box
        from rich.table import Table

        caption = f"success with 95% intervals; paired differences of {self.agent}"
        table = Table(title="Does the agent read its goal?", box=box.SIMPLE, show_edge=False, caption=caption)
        agents, differences = list(next(iter(self.played.values()))), self.differences
        for name in ("goal", *agents, "original − control"):
            table.add_column(name, justify="left" if name == "goal" else "right")
        for suite, players in self.played.items():
            figures = {name: one.figures() for name, one in players.items()}
            for figure in (name for name in _FIGURES if any(name in one for one in figures.values())):
                cells = [figures[name][figure].text() if figure in figures.get(name, {}) else "–" for name in agents]
                compared = suite in differences and figure == "success"
                label = ("original" if suite == next(iter(self.played)) else suite) + _FIGURES[figure]
                table.add_row(label, *cells, differences[suite].text() if compared else "")
        console = make_console()
        console.print(table)
        console.print(self.verdict, soft_wrap=True)

    def _difference(self, suite: str, agent: str, other_suite: str, other_agent: str) -> Figure | None:
        one, other = self.played[suite].get(agent), self.played[other_suite].get(other_agent)
        difference = one.difference(other) if one is not None and other is not None else None
        return None if difference is None else difference[1]


def _in_words(figure: Figure) -> str:
    value, *interval = figure.text().split(" ", 1)
    return f"{value} ({interval[0]})" if interval else value


def _is_positive(figure: Figure) -> bool:
    return figure.low is not None and figure.low > 0


def read_controls(folder: Path, suffix: str, agent: str, suites: Sequence[str]) -> ControlResults:
    """Read the results of suites, the one without a control first; raise `RunError` if they are corrupt."""
    return ControlResults(agent, {suite: _read(folder / "evaluation" / f"{suite}{suffix}.csv") for suite in suites})


def _read(path: Path) -> dict[str, Played]:
    episodes: dict[str, list[Episode]] = {}
    try:
        with path.open(newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                figures = {name: float(row[name]) for name in _FIGURES if row.get(name)}
                episodes.setdefault(row["agent"], []).append(Episode(figures, int(row["episode"])))
    except (OSError, ValueError, KeyError, TypeError, csv.Error) as error:
        raise RunError(f"{path} cannot be read ({error!r}): run `groundling evaluate` again") from error
    return {name: Played(one) for name, one in episodes.items()}
