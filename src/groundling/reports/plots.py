"""The pictures of reports and studies."""

import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from groundling.intervals import IntervalEstimate, interquartile_band
from groundling.io.files import replace_file, write_atomically
from groundling.io.redaction import shareable

COLOURS = ("#2563a8", "#c2571a", "#2f7d4f", "#8a3f8f", "#7a6a12", "#2b7f8c", "#b0416a")
_LEVEL_COLOURS = {"zero-shot": "#c2571a", "random": "#888888", "chance": "#555"}
_OTHER_LEVELS = "#2f7d4f"
"""Of agents that a world has of its own."""
Rows = Sequence[Mapping[str, Any]]
_STRETCHES = 1000
"""Of a long curve, where it is drawn small."""


def learning_curve(
    groups: Mapping[str, Sequence[Rows]],
    key: str,
    label: str,
    levels: Mapping[str, float] | None = None,
    steps: str = "env steps",
    width: float = 7.2,
    is_share: bool = False,
) -> str:
    """`draw_learning_curve` as SVG text."""
    return _svg(draw_learning_curve(groups, key, label, levels, steps, width, is_share))


def draw_curves(
    groups: Mapping[str, Sequence[Rows]],
    keys: Mapping[str, str],
    levels: Mapping[str, Mapping[str, float]],
) -> Any:
    """A figure of several metrics over steps, side by side: per group the centre of its runs, with a band.

    Args:
        groups: By name, the metrics of each run.
        keys: By metric, what it is called.
        levels: By what a metric is called, by name, a level that is drawn as a horizontal line.
    """
    columns = 3
    lines = math.ceil(len(keys) / columns)
    figure, grid = _figure(9.0, 0.4 + 2.2 * lines, lines, columns)
    for axes, (key, label) in zip(np.ravel(grid), keys.items(), strict=False):
        for place, (name, runs) in enumerate(groups.items()):
            _draw_group(axes, place, name, runs, key)
        for name, level in levels.get(label, {}).items():
            colour = _LEVEL_COLOURS.get(name, _OTHER_LEVELS)
            axes.axhline(level, color=colour, linestyle="--", linewidth=1.2, label=name)
        axes.set_title(label.replace("_", " "), fontsize=9, loc="left")
        axes.tick_params(labelsize=7)
    for axes in np.ravel(grid)[len(keys) :]:
        axes.axis("off")
    handles: dict[str, Any] = {}
    for axes in np.ravel(grid):  # one that has not all metrics is not in the first panel
        for handle, name in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(name, handle)
    figure.legend(handles.values(), handles, frameon=False, ncols=6, loc="outside upper center", fontsize=8)
    return figure


def draw_figures(figures: Mapping[str, Mapping[str, IntervalEstimate]]) -> Any:
    """A figure of figures that have no common scale: for each a panel with one line, mean and interval, by name."""
    columns = 4
    lines = math.ceil(len(figures) / columns)
    names = list(dict.fromkeys(name for estimates in figures.values() for name in estimates))
    figure, grid = _figure(9.0, lines * (0.6 + 0.22 * len(names)), lines, columns)
    for number, (axes, (label, estimates)) in enumerate(zip(np.ravel(grid), figures.items(), strict=False)):
        for place, (colour, name) in enumerate(zip(_cycle(COLOURS), names, strict=False)):
            if name in estimates:
                e = estimates[name]
                errors = [[e.value - e.low], [e.high - e.value]]
                axes.errorbar([e.value], [place], xerr=errors, fmt="o", markersize=4, color=colour)
        axes.set_title(label.replace("_", " "), fontsize=9, loc="left")
        axes.set_ylim(len(names) - 0.5, -0.5)
        axes.set_yticks(range(len(names)), shareable(names) if number % columns == 0 else [])
        axes.tick_params(labelsize=8)
    for axes in np.ravel(grid)[len(figures) :]:
        axes.axis("off")
    return figure


def draw_learning_curve(
    groups: Mapping[str, Sequence[Rows]],
    key: str,
    label: str,
    levels: Mapping[str, float] | None = None,
    steps: str = "env steps",
    width: float = 7.2,
    is_share: bool = False,
) -> Any:
    """A figure over steps: per group its runs' interquartile mean, with a band where there are several.

    Args:
        groups: By name, the metrics of each run.
        key: The metric.
        label: What the y axis is called.
        levels: By name, such as an agent's, what is drawn as a horizontal line.
        steps: What the x axis is called.
        width: In inches.
        is_share: Whether the y axis goes from 0 to 1.
    """
    figure, axes = _figure(width, 3.4)
    for place, (name, runs) in enumerate(groups.items()):
        _draw_group(axes, place, name, runs, key)
    for name, level in (levels or {}).items():
        colour = _LEVEL_COLOURS.get(name, _OTHER_LEVELS)
        axes.axhline(level, color=colour, linestyle="--", linewidth=1.2, label=name)
    axes.set_xlabel(steps)
    axes.set_ylabel(label)
    if is_share:
        axes.set_ylim(-0.02, 1.04)
    if axes.get_legend_handles_labels()[1]:
        axes.legend(frameon=False, ncols=4 if width > 6 else 3, loc="lower center", bbox_to_anchor=(0.5, 1.0))
    return figure


def _draw_group(axes: Any, place: int, name: str, runs: Sequence[Rows], key: str) -> None:
    """Draw the centre of some runs' curves, with a band where there are several; ``place`` is theirs among others."""
    # A colour that comes again is drawn in another way.
    colour, style = COLOURS[place % len(COLOURS)], "-" if place < len(COLOURS) else "-."
    curves = [curve for curve in (_curve(rows, key) for rows in runs) if len(curve[0])]
    if not curves:
        return
    steps, values = _on_one_grid(curves)  # (points,), (runs, points)
    if len(curves) == 1:
        axes.plot(*curves[0][:2], color=colour, alpha=0.25, linewidth=1)
        centre = values[0]
    else:
        centre, low, high = interquartile_band(values)
        axes.fill_between(steps, low, high, color=colour, alpha=0.2, linewidth=0)
    axes.plot(steps, centre, style, color=colour, linewidth=2, label=name)


def draw_estimates(
    panels: Mapping[str, Mapping[str, Mapping[str, IntervalEstimate]]],
    levels: Mapping[str, Mapping[str, float]],
    label: str,
) -> Any:
    """A figure of figures with intervals: side by side panels, one line for each row, one mark for each series.

    Args:
        panels: By the panel's title, by series, by row: an estimate. All panels show all rows. If there is one row in
            all, the panels become the rows of a single one.
        levels: By name, such as an agent's, by row: what is drawn as a stroke in every panel.
        label: What the x axis is called; it goes from 0 to 1.
    """
    every = [series for panel in panels.values() for series in panel.values()]
    rows = list(dict.fromkeys(row for series in every for row in series))
    names = list(dict.fromkeys(name for panel in panels.values() for name in panel))
    if len(rows) == 1 and len(panels) > 1:
        return draw_estimates(*_turned(panels, rows[0], names, levels), label)
    columns = min(5, len(panels))
    lines = math.ceil(len(panels) / columns)
    width = 2.2 + 1.6 * columns if len(panels) > 1 else 6.0
    figure, grid = _figure(width, lines * (0.5 + 0.1 * len(rows) * (1 + len(names))) + 0.5, lines, columns)
    handles: dict[str, Any] = {}
    for number, (axes, (title, panel)) in enumerate(zip(np.ravel(grid), panels.items(), strict=False)):
        for place, (colour, name) in enumerate(zip(_cycle(COLOURS), names, strict=False)):
            estimates = panel.get(name, {})
            y = [rows.index(row) + 0.22 * (place - (len(names) - 1) / 2) for row in estimates]
            x = np.array([[e.value, e.low, e.high] for e in estimates.values()]).reshape(-1, 3)
            errors = np.abs(x[:, 1:] - x[:, :1]).T
            style = {"fmt": "o", "markersize": 4, "elinewidth": 1.2, "color": colour}
            bars = axes.errorbar(
                x[:, 0], y, xerr=errors, markerfacecolor=colour if place == 0 else "white", **style
            )
            if estimates:
                handles.setdefault(name, bars)
        for name, by_row in levels.items():
            y = [rows.index(row) for row in by_row if row in rows]
            x = np.array([by_row[row] for row in by_row if row in rows])
            colour = _LEVEL_COLOURS.get(name, _OTHER_LEVELS)
            handles.setdefault(name, axes.scatter(x, y, marker="|", s=90, color=colour, linewidth=1.2))
        axes.set_title(title, fontsize=9, loc="left")
        axes.set_xlim(-0.04, 1.04)
        axes.set_ylim(len(rows) - 0.4, -0.6)
        axes.set_yticks(range(len(rows)), shareable(rows) if number % columns == 0 else [])
        axes.tick_params(labelsize=8)
        axes.set_xlabel(label, fontsize=8)
    for axes in np.ravel(grid)[len(panels) :]:
        axes.axis("off")
    figure.legend(handles.values(), handles, frameon=False, ncols=4, loc="outside upper center", fontsize=8)
    return figure


def _turned(
    panels: Mapping[str, Mapping[str, Mapping[str, IntervalEstimate]]],
    row: str,
    names: Sequence[str],
    levels: Mapping[str, Mapping[str, float]],
) -> tuple[dict[str, dict[str, dict[str, IntervalEstimate]]], dict[str, dict[str, float]]]:
    """Panels of a single ``row`` as one panel of that title, with a row for each; and their levels."""
    series = {
        name: {title: panel[name][row] for title, panel in panels.items() if row in panel.get(name, {})}
        for name in names
    }
    return {row: series}, {
        name: dict.fromkeys(panels, by_row[row]) for name, by_row in levels.items() if row in by_row
    }


def save(figure: Any, path: Path) -> list[Path]:
    """Write ``figure`` as ``path`` with the suffixes ``.svg`` and ``.png``; the same figure gives the same SVG."""
    vector, pixels = path.with_suffix(".svg"), path.with_suffix(".png")
    write_atomically(vector, _svg(figure))  # which cleans the texts, for the PNG as well
    options = {"format": "png", "dpi": 150, "metadata": {"Software": None}}
    replace_file(pixels, lambda partial: figure.savefig(partial, **options))
    return [vector, pixels]


def small_multiples(groups: Mapping[str, Sequence[Rows]], keys: Sequence[str]) -> str:
    """One small figure for each of the ``keys`` that the runs have, as SVG; "" if they have none."""
    present = [
        k for k in keys if any(row.get(k) is not None for runs in groups.values() for r in runs for row in r)
    ]
    if not present:
        return ""
    columns = 3
    lines = math.ceil(len(present) / columns)
    figure, grid = _figure(7.2, 1.9 * lines, lines, columns)
    for axes, key in zip(np.ravel(grid), present, strict=False):
        for colour, runs in zip(_cycle(COLOURS), groups.values(), strict=False):
            for rows in runs:
                axes.plot(*thinned(*_points(rows, key)), color=colour, linewidth=1)
        axes.set_title(key.replace("_", " "), fontsize=9, loc="left")
        axes.tick_params(labelsize=7)
    for axes in np.ravel(grid)[len(present) :]:
        axes.axis("off")
    return _svg(figure)


def probe_multiples(rows: Rows, right: Mapping[str, Sequence[str]]) -> str:
    """One small figure for each probe: the probability of each action over env steps, the right ones thick.

    Args:
        rows: A run's ``probes.jsonl``.
        right: By probe, the actions that are right there.
    """
    titles = list(dict.fromkeys(title for row in rows for title in row["probabilities"]))
    actions = list(
        dict.fromkeys(
            a for row in rows for probabilities in row["probabilities"].values() for a in probabilities
        )
    )
    columns = 3
    lines = math.ceil(len(titles) / columns)
    figure, grid = _figure(7.2, 0.5 + 1.7 * lines, lines, columns)
    for axes, title in zip(np.ravel(grid), titles, strict=False):
        points = [(row["step"], row["probabilities"][title]) for row in rows if title in row["probabilities"]]
        for colour, action in zip(_cycle(COLOURS), actions, strict=False):
            values = [p if (p := of.get(action)) is not None else math.nan for _, of in points]
            is_right = action in right.get(title, ())
            axes.plot(
                [step for step, _ in points],
                values,
                color=colour,
                label=action,
                linewidth=2.4 if is_right else 0.9,
                zorder=3 if is_right else 2,
            )
        axes.set_title(title, fontsize=8.5, loc="left")
        axes.set_ylim(-0.03, 1.03)
        axes.set_yticks([0, 0.5, 1])
        axes.tick_params(labelsize=7)
    for axes in np.ravel(grid)[len(titles) :]:
        axes.axis("off")
    handles, labels = np.ravel(grid)[0].get_legend_handles_labels()
    legend = figure.legend(handles, labels, frameon=False, ncols=6, loc="outside upper center", fontsize=8)
    for line in legend.get_lines():
        line.set_linewidth(2)
    return _svg(figure)


def _figure(width: float, height: float, rows: int = 1, columns: int = 1) -> tuple[Any, Any]:
    from matplotlib.figure import Figure  # no pyplot: it keeps global state and looks for a display

    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=True)
    for a in np.ravel(axes):
        a.spines[["top", "right"]].set_visible(False)
        a.grid(alpha=0.25, linewidth=0.6)
        a.xaxis.set_major_formatter(lambda x, _: _short(x))
    return figure, axes


def _short(number: float) -> str:
    """Of an axis: 500, 20k, 1.5M."""
    for size, unit in ((1e6, "M"), (1e3, "k")):
        if abs(number) >= size:
            return f"{number / size:g}{unit}"
    return f"{number:g}"


def _clean_texts(figure: Any) -> None:
    """Show names as they are, without mathematics between two dollar signs, and as `shareable`."""
    from matplotlib.text import Text

    for text in figure.findobj(Text):
        text.set_parse_math(False)
        text.set_text(shareable(text.get_text()))


def _svg(figure: Any) -> str:
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    _clean_texts(figure)
    text = io.StringIO()
    figure.set_dpi(72)  # of every SVG
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "groundling"}):
        # `Figure.savefig` would draw everything twice, only to lay it out.
        FigureCanvasSVG(figure).print_svg(text, metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    return text.getvalue()[text.getvalue().index("<svg") :]


def _points(rows: Rows, key: str) -> tuple[np.ndarray, np.ndarray]:
    """A metric's steps and values, each ``(points,)``."""
    values = np.array([row.get(key) for row in rows], dtype=float)  # NaN where there is none
    steps, present = np.array([row["step"] for row in rows], dtype=float), ~np.isnan(values)
    return steps[present], values[present]


Curve = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Steps, values and weights, each ``(points,)``."""


def _curve(rows: Rows, key: str) -> Curve:
    """A metric's values; each weighs as many episodes as it is a mean of, or 1.

    A metric that an update has in which no episode ended is no mean over episodes.
    """
    steps, values = _points(rows, key)
    present = [row.get(key) is not None for row in rows]
    ended = np.diff([row.get("episodes", 0) for row in rows], prepend=0).astype(float)[
        np.array(present, dtype=bool)
    ]
    return steps, values, ended if (ended > 0).all() else np.ones_like(ended)


def thinned(steps: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A long curve's lowest and highest value in each of some hundred stretches, in their order: as it looks, small."""
    size = len(values) // _STRETCHES
    if size < 4:
        return steps, values
    count = len(values) // size * size
    table = values[:count].reshape(-1, size)
    places = np.stack([table.argmin(1), table.argmax(1)], axis=1)
    kept = np.sort(places, axis=1) + np.arange(0, count, size)[:, None]
    order = np.unique(np.concatenate([[0], kept.ravel(), np.arange(count, len(values)), [len(values) - 1]]))
    return steps[order], values[order]


def smooth_curve(rows: Rows, key: str) -> tuple[np.ndarray, np.ndarray]:
    """Steps and the values of a metric as they are drawn, each ``(points,)``; see `smooth`."""
    steps, values, weights = _curve(rows, key)
    return steps, smooth(values, weights)


def _on_one_grid(curves: Sequence[Curve]) -> tuple[np.ndarray, np.ndarray]:
    """Steps ``(points,)`` that all runs reached and their smoothed values there ``(runs, points)``, interpolated."""
    steps = curves[0][0][curves[0][0] <= min(s[-1] for s, _, _ in curves)]
    return steps, np.stack([np.interp(steps, s, smooth(values, weights)) for s, values, weights in curves])


def smooth(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """A centred moving mean over about a twentieth of the curve, shorter at its ends.

    It weighs episodes alike, not updates: the few that end in the first updates are the short ones, which succeed.
    """
    places, half = np.arange(len(values)), max(1, len(values) // 40)
    first, last = np.maximum(places - half, 0), np.minimum(places + half + 1, len(values))
    # Differences of running sums: of 100,000 updates the windows themselves would be read 5,000 times over.
    weighted, total = (np.concatenate([[0.0], np.cumsum(sums)]) for sums in (values * weights, weights))
    return (weighted[last] - weighted[first]) / (total[last] - total[first])


def _cycle(colours: Sequence[str]) -> Any:
    return (colours[i % len(colours)] for i in range(1_000_000))
