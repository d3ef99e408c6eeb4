"""Plots for reports and studies."""

import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from groundling.config.facts import shareable
from groundling.intervals import IntervalEstimate, interquartile_band
from groundling.io.files import replace_file, write_atomically

Rows = Sequence[Mapping[str, Any]]  # metrics of a run, one row per update
Curve = tuple[np.ndarray, np.ndarray, np.ndarray]  # steps, values and weights, each (points,)
Levels = Mapping[str, float]  # values drawn as horizontal lines, by label
Panel = Mapping[str, Mapping[str, IntervalEstimate]]  # estimates by series and row

COLOURS = ("#2563a8", "#c2571a", "#2f7d4f", "#8a3f8f", "#7a6a12", "#2b7f8c", "#b0416a")
_LEVEL_COLOURS = {"zero-shot": "#c2571a", "random": "#888888", "chance": "#555"}
_OTHER_LEVELS = "#2f7d4f"
_BINS = 1000  # number of bins for a long curve in a small plot


def draw_learning_curve(
    groups: Mapping[str, Sequence[Rows]],
    key: str,
    label: str,
    levels: Levels | None = None,
    steps: str = "env steps",
    width: float = 7.2,
    is_share: bool = False,
) -> Any:
    """Draw a metric over steps: the interquartile mean of each group's runs, with a band if there are several.

    ``groups`` maps names to the metrics of their runs; ``levels`` are horizontal lines; ``width`` is in inches.
    """
    figure, (axes,) = _grid(1, 1, width, 3.4)
    for place, (name, runs) in enumerate(groups.items()):
        _draw_group(axes, place, name, runs, key)
    _draw_levels(axes, levels or {})
    axes.set_xlabel(steps)
    axes.set_ylabel(label)
    if is_share:
        axes.set_ylim(-0.02, 1.04)
    if axes.get_legend_handles_labels()[1]:
        axes.legend(frameon=False, ncols=4 if width > 6 else 3, loc="lower center", bbox_to_anchor=(0.5, 1.0))
    return figure


def draw_curves(groups: Mapping[str, Sequence[Rows]], keys: Mapping[str, str], levels: Mapping[str, Levels]) -> Any:
    """Draw several metrics as `draw_learning_curve` does, in one panel each; ``keys`` maps metrics to labels."""
    figure, panels = _grid(len(keys), 3, 9.0, 2.2, 0.4)
    for axes, (key, label) in zip(panels, keys.items(), strict=True):
        for place, (name, runs) in enumerate(groups.items()):
            _draw_group(axes, place, name, runs, key)
        _draw_levels(axes, levels.get(label, {}))
        _title(axes, label.replace("_", " "))
    handles: dict[str, Any] = {}
    for axes in panels:  # groups without a panel's metric are missing from that panel
        for handle, name in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(name, handle)
    _legend(figure, handles, 6)
    return figure


def draw_figures(figures: Mapping[str, Mapping[str, IntervalEstimate]]) -> Any:
    """Draw metrics that have no common scale: one panel per label, and one row with mean and interval per name."""
    columns = 4
    names = list(dict.fromkeys(name for estimates in figures.values() for name in estimates))
    figure, panels = _grid(len(figures), columns, 9.0, 0.6 + 0.22 * len(names))
    for number, (axes, (label, estimates)) in enumerate(zip(panels, figures.items(), strict=True)):
        for place, name in enumerate(names):
            if (e := estimates.get(name)) is not None:
                errors = [[e.value - e.low], [e.high - e.value]]
                axes.errorbar([e.value], [place], xerr=errors, fmt="o", markersize=4, color=_colour(place))
        _title(axes, label.replace("_", " "), 8)
        _name_rows(axes, names if number % columns == 0 else [], len(names), 0.5)
    return figure


def draw_estimates(panels: Mapping[str, Panel], levels: Mapping[str, Levels], label: str) -> Any:
    """Draw shares with intervals: one panel per title, one line per row, one marker per series.

    All panels show all rows. ``levels``, by name and row, are drawn as ticks in every panel.
    """
    every = [series for panel in panels.values() for series in panel.values()]
    rows = list(dict.fromkeys(row for series in every for row in series))
    names = list(dict.fromkeys(name for panel in panels.values() for name in panel))
    columns = min(5, len(panels))
    width = 2.2 + 1.6 * columns if len(panels) > 1 else 6.0
    height = 0.5 + 0.1 * len(rows) * (1 + len(names))
    figure, grid = _grid(len(panels), columns, width, height, 0.5)
    handles: dict[str, Any] = {}
    for number, (axes, (title, panel)) in enumerate(zip(grid, panels.items(), strict=True)):
        for place, name in enumerate(names):
            estimates = panel.get(name, {})
            y = [rows.index(row) + 0.22 * (place - (len(names) - 1) / 2) for row in estimates]
            x = np.array([[e.value, e.low, e.high] for e in estimates.values()]).reshape(-1, 3)
            errors, colour = np.abs(x[:, 1:] - x[:, :1]).T, _colour(place)
            style = {"fmt": "o", "markersize": 4, "elinewidth": 1.2, "color": colour}
            face = colour if place == 0 else "white"
            bars = axes.errorbar(x[:, 0], y, xerr=errors, markerfacecolor=face, **style)
            if estimates:
                handles.setdefault(name, bars)
        for name, by_row in levels.items():
            y = [rows.index(row) for row in by_row if row in rows]
            x = np.array([by_row[row] for row in by_row if row in rows])
            colour = _LEVEL_COLOURS.get(name, _OTHER_LEVELS)
            handles.setdefault(name, axes.scatter(x, y, marker="|", s=90, color=colour, linewidth=1.2))
        _title(axes, title, 8)
        axes.set_xlim(-0.04, 1.04)
        _name_rows(axes, rows if number % columns == 0 else [], len(rows), 0.6)
        axes.set_xlabel(label, fontsize=8)
    _legend(figure, handles, 4)
    return figure


def small_multiples(groups: Mapping[str, Sequence[Rows]], keys: Sequence[str]) -> str:
    """Draw a small plot for each of the ``keys`` that the runs have; return the SVG, or "" if they have none."""
    every = [row for runs in groups.values() for rows in runs for row in rows]
    present = [key for key in keys if any(row.get(key) is not None for row in every)]
    if not present:
        return ""
    figure, panels = _grid(len(present), 3, 7.2, 1.9)
    for axes, key in zip(panels, present, strict=True):
        for place, runs in enumerate(groups.values()):
            for rows in runs:
                axes.plot(*thinned(*points(rows, key)), color=_colour(place), linewidth=1)
        _title(axes, key.replace("_", " "))
    return svg(figure)


def probe_multiples(rows: Rows, right: Mapping[str, Sequence[str]]) -> str:
    """Draw a small plot per probe in ``probes.jsonl``: action probabilities over steps, the ``right`` ones in bold."""
    titles = list(dict.fromkeys(title for row in rows for title in row["probabilities"]))
    actions = list(dict.fromkeys(a for row in rows for of_title in row["probabilities"].values() for a in of_title))
    figure, panels = _grid(len(titles), 3, 7.2, 1.7, 0.5)
    for axes, title in zip(panels, titles, strict=True):
        points = [(row["step"], row["probabilities"][title]) for row in rows if title in row["probabilities"]]
        for place, action in enumerate(actions):
            values = [math.nan if (p := of.get(action)) is None else p for _, of in points]
            is_right = action in right.get(title, ())
            axes.plot(
                [step for step, _ in points],
                values,
                color=_colour(place),
                label=action,
                linewidth=2.4 if is_right else 0.9,
                zorder=3 if is_right else 2,
            )
        _title(axes, title, size=8.5)
        axes.set_ylim(-0.03, 1.03)
        axes.set_yticks([0, 0.5, 1])
    handles, labels = panels[0].get_legend_handles_labels()
    for line in _legend(figure, dict(zip(labels, handles, strict=True)), 6).get_lines():
        line.set_linewidth(2)
    return svg(figure)


def svg(figure: Any) -> str:
    """Return a figure as SVG with redacted text; dollar signs do not start math mode."""
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.text import Text

    for text in figure.findobj(Text):
        text.set_parse_math(False)
        text.set_text(shareable(text.get_text()))
    drawn = io.StringIO()
    figure.set_dpi(72)  # the resolution of every SVG
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "groundling"}):
        # `Figure.savefig` would draw everything twice to compute the layout.
        metadata = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        FigureCanvasSVG(figure).print_svg(drawn, metadata=metadata)
    return drawn.getvalue()[drawn.getvalue().index("<svg") :]


def save(figure: Any, path: Path) -> list[Path]:
    """Write ``figure`` as ``path`` with the suffixes ``.svg`` and ``.png``; identical figures yield identical SVGs."""
    vector, pixels = path.with_suffix(".svg"), path.with_suffix(".png")
    write_atomically(vector, svg(figure))  # this also redacts the text of the PNG
    options = {"format": "png", "dpi": 150, "metadata": {"Software": None}}
    replace_file(pixels, lambda partial: figure.savefig(partial, **options))
    return [vector, pixels]


def smooth_curve(rows: Rows, key: str) -> tuple[np.ndarray, np.ndarray]:
    """Return steps and smoothed values of a metric, each ``(points,)``; see `smooth`."""
    steps, values, weights = _curve(rows, key)
    return steps, smooth(values, weights)


def smooth(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return a centred moving mean over about a twentieth of the curve, with a shorter window at the ends.

    Updates are weighted by their number of ended episodes: the few that end first are short and mostly successful.
    """
    places, half = np.arange(len(values)), max(1, len(values) // 40)
    first, last = np.maximum(places - half, 0), np.minimum(places + half + 1, len(values))
    # Use running sums: with 100,000 updates, moving windows would read each value 5,000 times.
    weighted, total = (np.concatenate([[0.0], np.cumsum(sums)]) for sums in (values * weights, weights))
    return (weighted[last] - weighted[first]) / (total[last] - total[first])


def thinned(steps: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Reduce a long curve to the lowest and highest points of about a thousand bins, in order."""
    size = len(values) // _BINS
    if size < 4:
        return steps, values
    count = len(values) // size * size
    table = values[:count].reshape(-1, size)
    places = np.stack([table.argmin(1), table.argmax(1)], axis=1)
    kept = np.sort(places, axis=1) + np.arange(0, count, size)[:, None]
    order = np.unique(np.concatenate([[0], kept.ravel(), np.arange(count, len(values)), [len(values) - 1]]))
    return steps[order], values[order]


def points(rows: Rows, key: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the steps at which a metric is present and its values there, each ``(points,)``."""
    values = np.array([row.get(key) for row in rows], dtype=float)  # NaN where it is missing
    steps, present = np.array([row["step"] for row in rows], dtype=float), ~np.isnan(values)
    return steps[present], values[present]


def _curve(rows: Rows, key: str) -> Curve:
    """Return a metric's curve, weighted by ended episodes, or uniformly if any update with a value has none."""
    steps, values = points(rows, key)
    present = np.array([row.get(key) is not None for row in rows], dtype=bool)
    ended = np.diff([row.get("episodes", 0) for row in rows], prepend=0).astype(float)[present]
    return steps, values, ended if (ended > 0).all() else np.ones_like(ended)


def _draw_group(axes: Any, place: int, name: str, runs: Sequence[Rows], key: str) -> None:
    """Draw the centre of the runs' curves, with a band if there are several; ``place`` selects colour and style."""
    style = "-" if place < len(COLOURS) else "-."
    curves = [curve for curve in (_curve(rows, key) for rows in runs) if len(curve[0])]
    if not curves:
        return
    # Steps that all runs reached, (points,), and the smoothed values interpolated there, (runs, points)
    steps = curves[0][0][curves[0][0] <= min(steps[-1] for steps, _, _ in curves)]
    values = np.stack([np.interp(steps, s, smooth(values, weights)) for s, values, weights in curves])
    if len(curves) == 1:
        axes.plot(*curves[0][:2], color=_colour(place), alpha=0.25, linewidth=1)
        centre = values[0]
    else:
        centre, low, high = interquartile_band(values)
        axes.fill_between(steps, low, high, color=_colour(place), alpha=0.2, linewidth=0)
    axes.plot(steps, centre, style, color=_colour(place), linewidth=2, label=name)


def _draw_levels(axes: Any, levels: Levels) -> None:
    for name, level in levels.items():
        colour = _LEVEL_COLOURS.get(name, _OTHER_LEVELS)
        axes.axhline(level, color=colour, linestyle="--", linewidth=1.2, label=name)


def _colour(place: int) -> str:
    return COLOURS[place % len(COLOURS)]


def _grid(count: int, columns: int, width: float, height: float, extra: float = 0) -> tuple[Any, list[Any]]:
    """Create a figure with ``count`` panels; it is ``height`` inches per row plus ``extra`` inches high."""
    from matplotlib.figure import Figure  # no pyplot: it keeps global state and looks for a display

    lines = math.ceil(count / columns)
    figure = Figure(figsize=(width, extra + height * lines), layout="constrained")
    panels = list(np.ravel(figure.subplots(lines, columns, squeeze=False)))
    for axes in panels:
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25, linewidth=0.6)
        axes.xaxis.set_major_formatter(lambda x, _: _short(x))
    for axes in panels[count:]:
        axes.axis("off")
    return figure, panels[:count]


def _title(axes: Any, title: str, ticks: int = 7, size: float = 9) -> None:
    axes.set_title(title, fontsize=size, loc="left")
    axes.tick_params(labelsize=ticks)


def _name_rows(axes: Any, names: Sequence[str], count: int, margin: float) -> None:
    """Arrange ``count`` rows from top to bottom and label them with ``names``."""
    axes.set_ylim(count - 1 + margin, -margin)
    axes.set_yticks(range(count), shareable(list(names)))


def _legend(figure: Any, handles: Mapping[str, Any], columns: int) -> Any:
    place = {"frameon": False, "ncols": columns, "loc": "outside upper center", "fontsize": 8}
    return figure.legend(handles.values(), handles, **place)


def _short(number: float) -> str:
    """Format a number on an axis: 500, 20k, 1.5M."""
    for size, unit in ((1e6, "M"), (1e3, "k")):
        if abs(number) >= size:
            return f"{number / size:g}{unit}"
    return f"{number:g}"
