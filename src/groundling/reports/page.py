"""`groundling report`: one self-contained HTML page about one or more runs."""

import shlex
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
from markupsafe import Markup
from PIL import Image, ImageDraw, ImageFont

from groundling.config.facts import shareable
from groundling.envs.nethack.rendering import font
from groundling.errors import GroundlingError, RunError
from groundling.io.files import write_atomically
from groundling.registry import import_words
from groundling.reports import plots
from groundling.reports.run_folder import RunFolder, figures_of, learning_figures, picture_of, read_run, usual_suite
from groundling.worlds.episode import Frame

_MAX_TEXTS = 8
DAMAGED = (OSError, ArithmeticError, LookupError, TypeError, ValueError, AttributeError, jinja2.TemplateError)
"""Exceptions that reading or showing a damaged file may raise."""


def write_report(run_dirs: Sequence[Path], output: Path) -> Path:
    """Write a report about these runs; runs with the same name are drawn as one curve with an interval."""
    runs = [read_run(run_dir) for run_dir in run_dirs]
    if not any(run.metrics for run in runs):
        raise RunError(f"{', '.join(map(str, run_dirs))}: no update has finished yet, so there is nothing to report")
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("groundling.reports", "."),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=_finalize,
    )
    environment.globals.update(figures=figures_of, picture=picture_of)
    try:
        page = environment.get_template("report.html.j2").render(**_context(runs))
    except GroundlingError:
        raise
    except DAMAGED as error:
        raise RunError(
            f"{', '.join(map(str, run_dirs))}: the content of metrics.jsonl, evaluation/ or samples/ cannot be shown "
            f"({error!r:.200}): check these files with `groundling verify`, or run `groundling evaluate` again"
        ) from error
    output.parent.mkdir(parents=True, exist_ok=True)
    # A folder's name may contain lone surrogates, which UTF-8 cannot encode.
    write_atomically(output, page.encode("utf-8", "replace").decode())
    return output


def _finalize(value: Any) -> Any:
    """Redact the value of a template expression; `|e` exempts settings and text that a model reads or writes."""
    return value if isinstance(value, Markup) else shareable(value)


def _context(runs: Sequence[RunFolder]) -> dict[str, Any]:
    groups, first = _groups(runs), runs[0]
    again = ["train", f"{first.run_dir.name}/config.yaml", *import_words(first.config.imports), "run_dir=NEW"]
    return {
        "title": " · ".join(map(shareable, groups)),
        "runs": runs,
        "figure": first.figure[0],
        "main_plots": _main_plots(runs),
        "share_about": next(
            (share.about for run in runs if (share := run.world.presentation.share) is not None), None
        ),
        "learning_plots": plots.small_multiples(groups, learning_figures(runs)),
        "validation_plots": [
            (run, plots.small_multiples({run.config.name: [run.validations]}, list(run.validations[0])[3:]))
            for run in runs
            if run.validations
        ],
        "texts": [(run, name, rows[:_MAX_TEXTS]) for run in runs for name, rows in run.texts.items()],
        "train_texts": [(run, _spread(run.train_texts)) for run in runs if run.train_texts],
        "probe_plots": [
            (run, plots.probe_multiples(run.probed.rows, run.probed.right)) for run in runs if run.probed is not None
        ],
        "episodes": [(run, run.episodes()) for run in runs if run.samples],
        "comparisons": [(run, table) for run in runs for table in run.tables if table.suite is None],
        "again": shlex.join(["groundling", *again]),
        "configs": [(run.run_dir.name, run.settings_text) for run in runs],
    }


def _groups(runs: Sequence[RunFolder]) -> dict[str, list[plots.Rows]]:
    groups: dict[str, list[plots.Rows]] = {}
    for run in runs:
        groups.setdefault(run.config.name, []).append(run.metrics)
    return groups


def _spread(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the first text of each of several evenly spaced updates that have texts."""
    firsts = list({row["update"]: row for row in reversed(rows)}.values())[::-1]
    places = np.linspace(0, len(firsts) - 1, min(_MAX_TEXTS, len(firsts))).round().astype(int)
    return [firsts[place] for place in places]


def _main_plots(runs: Sequence[RunFolder]) -> list[tuple[str, str, str | None]]:
    """Return each task with its learning curves and its world's second plot; runs with the same name share a curve."""
    drawn = []
    for task in dict.fromkeys(run.task for run in runs):
        of_task = [run for run in runs if run.task == task]
        groups = _groups(of_task)
        key, label = of_task[0].figure
        is_single = len(groups) == 1 and key == "success_rate"
        levels = _levels(of_task[0], "success") if is_single else {}
        second = _second_plot(of_task, groups, is_single)
        width = 7.2 if second is None else 4.8
        unit = of_task[0].world.presentation.unit
        is_share = key == "success_rate"
        plot = plots.svg(plots.draw_learning_curve(groups, key, label, levels, unit, width, is_share))
        drawn.append((task, plot, second))
    return drawn


def _second_plot(runs: Sequence[RunFolder], groups: Mapping[str, Sequence[plots.Rows]], is_single: bool) -> str | None:
    """Draw the share that the world plots next to the success rate, or return None if no run recorded it."""
    share, rows = runs[0].world.presentation.share, [row for run in runs for row in run.metrics]
    if share is None or all(row.get(share.column) is None for row in rows):
        return None
    chances = [row[share.chance] for row in rows if row.get(share.chance) is not None]
    levels = {"chance": float(np.mean(chances))} if chances else {}
    levels |= _levels(runs[0], share.column) if is_single else {}
    curve = plots.draw_learning_curve(groups, share.column, share.label, levels, width=4.8, is_share=True)
    return plots.svg(curve)


def _levels(run: RunFolder, figure: str) -> dict[str, float]:
    """Return a metric's held-out value for each baseline, or nothing if they were evaluated in a different world."""
    evaluation = run.evaluations.get(usual_suite(run.world), {})
    if any(word.lstrip("+~").startswith("world") for word in evaluation.get("overrides", [])):
        return {}
    agents = evaluation.get("agents", {})
    values = {name: agent["figures"].get(figure) for name, agent in agents.items() if name != "trained"}
    return {name: value["value"] for name, value in values.items() if value is not None}


_MAX_FRAMES = 400  # longer recordings keep only every second, fourth, … frame
_SIDE, _MARGIN, _LINE, _FONT = 256, 12, 18, 13
_WIDTH = 460  # text width in pixels
_INK, _SOFT, _ACCENT, _PAPER = "#1d2430", "#a9bdd6", "#2563a8", "#ffffff"


class GifWriter:
    """Collects frames for a GIF. If there are too many, it drops every second one and halves the rate of new ones."""

    def __init__(self) -> None:
        self._every, self._seen = 1, 0
        self._pictures: list[Image.Image] = []

    def add(self, frame: Frame) -> None:
        """Add a frame, unless it is skipped to limit the number of frames; an episode's last frame is always added."""
        if frame.summary is not None or self._seen % self._every == 0:
            self._pictures.append(draw(frame))
        self._seen += 1
        if len(self._pictures) > _MAX_FRAMES:
            self._pictures, self._every = self._pictures[::2], 2 * self._every

    def save(self, path: Path, seconds_per_frame: float = 0.25) -> None:
        """Write a GIF that loops."""
        if not self._pictures:
            raise RunError(f"there is nothing to write to {path}: no frames were recorded")
        size = tuple(max(picture.size[side] for picture in self._pictures) for side in (0, 1))
        frames = []
        for picture in self._pictures:
            frame = Image.new("RGB", size, _PAPER)  # type: ignore[arg-type]
            frame.paste(picture)
            frames.append(frame.quantize(64))
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            frames[0].save(
                path,
                format="GIF",
                save_all=True,
                append_images=frames[1:],
                duration=round(1000 * seconds_per_frame),
                loop=0,
            )
        except OSError as error:
            raise RunError(f"cannot write {path}: {error}; choose a different file") from error


def draw(frame: Frame) -> Image.Image:
    """Draw a frame's picture, text and action probabilities; if it is a terminal screen, draw only the picture."""
    drawn = frame.draw()
    picture = None if drawn is None else Image.fromarray(drawn)
    if picture is not None and frame.screen is not None:
        return picture
    left = 0
    if picture is not None:
        picture.thumbnail((_SIDE, _SIDE))
        left = _SIDE + _MARGIN
    lines = [part for line in frame.lines for part in _wrapped(line)]
    rows = len(lines) + len(frame.probabilities or {}) + 1
    height = max(2 * _MARGIN + rows * _LINE, _SIDE if picture is not None else 0)
    page = Image.new("RGB", (left + _WIDTH, height), _PAPER)
    if picture is not None:
        page.paste(picture)
    pen, face, y = ImageDraw.Draw(page), ImageFont.load_default(_FONT), _MARGIN
    for line in lines:
        pen.text((left + _MARGIN, y), line, fill=_INK, font=font(_FONT))
        y += _LINE
    y += _LINE // 2
    for action, probability in (frame.probabilities or {}).items():
        color = _ACCENT if action == frame.action else _SOFT
        pen.rectangle((left + 180, y + 3, left + 180 + 200 * probability, y + 13), fill=color)
        pen.text((left + _MARGIN, y), action, fill=_INK, font=face)
        pen.text((left + 390, y), f"{probability:.2f}", fill=_INK, font=face)
        y += _LINE
    return page


def _wrapped(line: str) -> list[str]:
    """Wrap a line to the page width, preserving indentation and inner spaces."""
    most = int((_WIDTH - 2 * _MARGIN) / font(_FONT).getlength("M"))
    return [
        part
        for one in line.expandtabs().splitlines() or [""]
        for part in textwrap.wrap(one, most, drop_whitespace=False) or [""]
    ]
