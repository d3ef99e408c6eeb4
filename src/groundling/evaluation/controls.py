"""Does the agent read its goal? Success on the same episodes with and without controls of the goal."""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from groundling.errors import RunError
from groundling.io.terminal import make_console
from groundling.worlds.episode import Episode, Figure, Played

if TYPE_CHECKING:
    from rich.table import Table

_FIGURES = ("success", "shown_success")


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
        pairs = {suite: self._difference(self.played[original], self.played[suite]) for suite in controls}
        return {suite: figure for suite, figure in pairs.items() if figure is not None}

    @property
    def verdict(self) -> str:
        """A sentence that states what the differences show, judged by the first control."""
        original, differences = next(iter(self.played.values())), self.differences
        if not differences:
            return "no episode can be compared with and without a control, so the results show nothing"
        suite, fall = next(iter(differences.items()))
        above = self._above_random(original)
        if above is not None and (above.low is None or above.low <= 0):
            return "without a control, the agent does not succeed more often than random play: train it first"
        if fall.low is None or fall.low <= 0:
            return f"no evidence that the agent reads its goal: under {suite}, success falls by only {fall.text()}"
        rest = self._above_random(self.played[suite])
        if rest is not None and rest.low is not None and rest.low > 0:
            return (
                f"the agent reads its goal only in part: under {suite}, success falls by {fall.text()}, but it still "
                f"exceeds that of random play by {rest.text()}"
            )
        return f"the agent reads its goal: under {suite}, success falls by {fall.text()}"

    def print(self) -> None:
        """Print the table and the verdict."""
        console = make_console()
        console.print(self.table())
        console.print(self.verdict)

    def table(self) -> "Table":
        """Return a table with a row for each suite: success of each agent, and the agent's paired difference."""
        from rich import box
        from rich.table import Table

        caption = f"success with 95% intervals; paired differences of {self.agent}"
        table = Table(title="Does the agent read its goal?", box=box.SIMPLE, show_edge=False, caption=caption)
        agents, differences = list(next(iter(self.played.values()))), self.differences
        for name in ("goal", *agents, "original − control"):
            table.add_column(name, justify="left" if name == "goal" else "right")
        for suite, players in self.played.items():
            figures = {name: one.figures() for name, one in players.items()}
            difference = differences[suite].text() if suite in differences else ""
            for figure in _FIGURES:
                if not any(figure in one for one in figures.values()):
                    continue
                cells = [figures[name][figure].text() if figure in figures.get(name, {}) else "–" for name in agents]
                label = suite if suite in differences else "original"
                is_true = figure == "success"
                table.add_row(label if is_true else f"{label}, goal shown", *cells, difference if is_true else "")
        return table

    def _difference(self, one: Mapping[str, Played], other: Mapping[str, Played]) -> Figure | None:
        if self.agent not in one or self.agent not in other:
            return None
        difference = one[self.agent].difference(other[self.agent])
        return None if difference is None else difference[1]

    def _above_random(self, players: Mapping[str, Played]) -> Figure | None:
        """Return the agent's success minus that of random play, paired by episode; None without random play."""
        if self.agent == "random" or "random" not in players:
            return None
        difference = players[self.agent].difference(players["random"])
        return None if difference is None else difference[1]


def read_controls(folder: Path, suffix: str, agent: str, suites: Sequence[str]) -> ControlResults:
    """Read the results of suites, the one without a control first, from ``evaluation/SUITE.csv``; raise `RunError` if
    a file is corrupt.
    """
    return ControlResults(agent, {suite: _read(folder / "evaluation" / f"{suite}{suffix}.csv") for suite in suites})


def _read(path: Path) -> dict[str, Played]:
    episodes: dict[str, list[Episode]] = {}
    try:
        with path.open(newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                figures = {name: float(row[name]) for name in _FIGURES if row.get(name)}
                episodes.setdefault(row["agent"], []).append(Episode(figures, int(row["episode"])))
    except (OSError, ValueError, KeyError, csv.Error) as error:
        raise RunError(f"{path} cannot be read ({error!r}): run `groundling evaluate` again") from error
    return {name: Played(one) for name, one in episodes.items()}
