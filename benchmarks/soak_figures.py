"""Write the figure and tables of a soak test from `soak.csv` and `soak.json`, which `benchmarks/soak.py` writes.

python benchmarks/soak_figures.py results/soak     # rewrite them
"""

import csv
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np

matplotlib.use("Agg")
import matplotlib.pyplot as plt

LIMIT = 2.0
"""The maximum growth in per cent from the end of the warm-up to the end."""
WARM_UP = 1 / 6
BLOCKS = 10
STUDENT = 2.306
"""Student's t at 97.5% with BLOCKS - 2 degrees of freedom."""
COMMANDS = ("text", "writer", "nethack", "annotate")
FIGURES = {"rss_kib": "resident memory", "pss_kib": "proportional memory", "fds": "descriptors"}
Columns = dict[str, np.ndarray]


@dataclass(frozen=True)
class Growth:
    """A linear fit to a figure after the warm-up.

    Attributes:
        start: Value at the end of the warm-up.
        percent: Growth up to the end, in per cent of ``start``; ``low`` and ``high`` bound its 95% interval.
        per_hour: Growth per hour, in per cent of ``start``.
    """

    start: float
    percent: float
    low: float
    high: float
    per_hour: float

    @property
    def holds(self) -> str:
        return "yes" if self.high <= LIMIT else "**no**" if self.low > LIMIT else "undecided"


def growth(hours: np.ndarray, values: np.ndarray) -> Growth:
    """Fit the line to the means of BLOCKS equal blocks, because neighbouring samples are correlated.

    Args:
        hours: float (N,), since the start, increasing.
        values: float (N,).
    """
    warm = hours >= hours[-1] * WARM_UP
    hours, values = hours[warm], values[warm]
    x = np.array([block.mean() for block in np.array_split(hours, BLOCKS)])
    y = np.array([block.mean() for block in np.array_split(values, BLOCKS)])
    slope, offset = np.polyfit(x, y, 1)
    spread = float(((x - x.mean()) ** 2).sum())
    error = float(np.sqrt(((y - slope * x - offset) ** 2).sum() / (BLOCKS - 2) / spread))
    start = float(slope * hours[0] + offset)
    scale = 100 / start
    span = scale * float(hours[-1] - hours[0])
    low, high = (slope - STUDENT * error) * span, (slope + STUDENT * error) * span
    return Growth(start, float(slope) * span, low, high, float(slope) * scale)


def read(path: Path) -> dict[str, Columns]:
    """Return the columns of each command, including ``hours``."""
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    commands: dict[str, Columns] = {}
    for name in COMMANDS:
        own = [row for row in rows if row["command"] == name]
        columns = {key: np.array([float(row[key]) for row in own]) for key in own[0] if key != "command"}
        commands[name] = columns | {"hours": columns["seconds"] / 3600}
    return commands


def draw(commands: dict[str, Columns], path: Path) -> None:
    """Plot the memory, descriptors and progress of the commands; dotted lines mark killed workers."""
    figure, axes = plt.subplots(3, len(commands), figsize=(11, 6), sharex=True, layout="constrained")
    for column, (name, own) in enumerate(commands.items()):
        memory, descriptors, progress = axes[:, column]
        memory.plot(own["hours"], own["rss_kib"] / 1024, label="resident")
        memory.plot(own["hours"], own["pss_kib"] / 1024, label="proportional")
        descriptors.plot(own["hours"], own["fds"], label="descriptors")
        descriptors.plot(own["hours"], own["processes"], label="processes")
        progress.plot(own["hours"], own["progress"])
        for axis in (memory, descriptors):
            axis.set_ylim(bottom=0)
            axis.axvspan(0, own["hours"][-1] * WARM_UP, color="0.93")
            for kill in own["hours"][1:][np.diff(own["kills"]) > 0]:
                axis.axvline(kill, color="0.6", linewidth=0.6, linestyle=":")
        memory.set_title(name)
        progress.set_xlabel("hours")
        progress.set_ylim(bottom=0)
    for axis, label in zip(axes[:, 0], ("MiB, all processes", "count", "updates, answers"), strict=True):
        axis.set_ylabel(label)
    axes[0, 0].legend(fontsize=8, loc="lower right")
    axes[1, 0].legend(fontsize=8, loc="center right")
    figure.savefig(path, dpi=80)
    plt.close(figure)


def table(commands: dict[str, Columns]) -> list[str]:
    """Return a Markdown table with the growth of each figure of each command."""
    lines = [
        "| command | metric | after the warm-up | growth until the end | per hour | at most 2% |",
        "|---|---|---|---|---|---|",
    ]
    for name, own in commands.items():
        for figure, label in FIGURES.items():
            line = growth(own["hours"], own[figure])
            start = f"{line.start:.1f}" if figure == "fds" else f"{line.start / 1024:.0f} MiB"
            lines.append(
                f"| {name} | {label} | {start} | {line.percent:+.2f}% [{line.low:+.2f}, {line.high:+.2f}] | "
                f"{line.per_hour:+.2f}% | {line.holds} |"
            )
    return lines


def events(commands: dict[str, Columns], ended: dict[str, dict[str, int]]) -> list[str]:
    """Return a Markdown table with the progress, kills and exit status of each command."""
    lines = [
        "| command | updates or answers | workers killed | lost envs or workers | descriptors after the warm-up, minimum "
        "and maximum | zombies, maximum | exit status | processes left |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, own in commands.items():
        warm = own["hours"] >= own["hours"][-1] * WARM_UP
        fds, end = own["fds"][warm], ended[name]
        lines.append(
            f"| {name} | {own['progress'][-1]:,.0f} | {own['kills'][-1]:.0f} | {own['lost'][-1]:.0f} | "
            f"{fds.min():.0f}, {fds.max():.0f} | {own['zombies'].max():.0f} | {end['status']} | {end['left']} |"
        )
    return lines


def write(folder: Path) -> None:
    """Write `soak.png` and `README.md` next to `soak.csv` and `soak.json`."""
    commands = read(folder / "soak.csv")
    run: dict[str, Any] = json.loads((folder / "soak.json").read_text(encoding="utf-8"))
    draw(commands, folder / "soak.png")
    machine = run["machine"]
    paragraphs: Sequence[str] = [
        "# Soak test: four commands in parallel while workers are killed",
        f"`python benchmarks/soak.py --hours {run['hours']:g} --seed {run['seed']}` on {len(machine['cores'])} cores "
        f"({machine['processor']}; torch {machine['torch']}). **The test ran for {run['hours']:g} hours.** Every "
        f"{run['kill_seconds']:g} s one of the four env workers, chosen at random, received SIGKILL.",
        "![memory, descriptors and progress](soak.png)",
        "The table shows the growth of each command's process tree from the end of the warm-up (the first sixth of the "
        f"time, shown in grey) to the end, estimated by a linear fit to the means of {BLOCKS} blocks, with its 95% "
        f"interval. *At most {LIMIT:g}%* is *yes* or *no* if this holds for the whole interval, and *undecided* otherwise.",
        "\n".join(table(commands)),
        "Proportional memory also depends on the pages shared with other processes. *Lost* counts envs in the text world "
        "(four per worker) and workers in NetHack. Zombies and descriptors are sampled. *Processes left* counts the "
        "processes of a command that still exist one second after it was terminated with SIGTERM.",
        "\n".join(events(commands, run["ended"])),
    ]
    notes = folder / "notes.md"
    text = "\n\n".join([*paragraphs, *([notes.read_text(encoding="utf-8").strip()] if notes.exists() else [])])
    (folder / "README.md").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
