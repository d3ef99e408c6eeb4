"""`groundling report`: one self-contained HTML page about one run or several."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
from markupsafe import Markup

from groundling.errors import GroundlingError, RunError
from groundling.io.files import write_atomically
from groundling.io.redaction import shareable
from groundling.registry import import_words
from groundling.reports import plots
from groundling.reports.run_folder import (
    ShownRun,
    by_suite,
    episodes_of,
    figures_of,
    learning_figures,
    picture_of,
    read_run,
    settings_of,
    usual_suite,
)

_MAX_TEXTS = 8


def write_report(run_dirs: Sequence[Path], output: Path) -> Path:
    """Write the page about these runs; runs of one name are drawn as one curve with its interval.

    Raises:
        ConfigError: one of them is not a run's folder.
        RunError: none of them has finished an update.
    """
    runs = [read_run(run_dir) for run_dir in run_dirs]
    if not any(run.metrics for run in runs):
        raise RunError(
            f"{', '.join(map(str, run_dirs))}: no update is finished yet, so there is nothing to report"
        )
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("groundling.reports", "."),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=_finalize,
    )
    environment.globals.update(figures=figures_of, by_suite=by_suite, picture=picture_of)
    try:
        page = environment.get_template("report.html.j2").render(**_context(runs))
    except GroundlingError:
        raise
    except (
        ArithmeticError,
        LookupError,
        TypeError,
        ValueError,
        AttributeError,
        jinja2.TemplateError,
    ) as error:
        raise RunError(
            f"{', '.join(map(str, run_dirs))}: what metrics.jsonl, evaluation/ or samples/ hold cannot be shown "
            f"({error!r:.200}): check them with `groundling verify`, or run `groundling evaluate` again"
        ) from error
    output.parent.mkdir(parents=True, exist_ok=True)
    # A folder's name that is not UTF-8 has halves of surrogate pairs.
    write_atomically(output, page.encode("utf-8", "replace").decode())
    return output


def _finalize(value: Any) -> Any:
    """Every expression of the template as it may be shared; `|e` exempts what a model reads or writes, and settings."""
    return value if isinstance(value, Markup) else shareable(value)


def _context(runs: Sequence[ShownRun]) -> dict[str, Any]:
    """What the page's template is given."""
    groups: dict[str, list[Any]] = {}
    for run in runs:
        groups.setdefault(run.config.name, []).append(run.metrics)
    first = runs[0]
    return {
        "title": " · ".join(map(shareable, groups)),
        "runs": runs,
        "figure": first.figure[0],
        "main_plots": _main_plots(runs),
        "beside": next(
            (share.about for run in runs if (share := run.world.presentation.share) is not None), None
        ),
        "learning_plots": plots.small_multiples(groups, learning_figures(runs)),
        "validation_plots": [
            (run, plots.small_multiples({run.config.name: [run.validations]}, list(run.validations[0])[3:]))
            for run in runs
            if run.validations
        ],
        "texts": [(run, name, rows[:_MAX_TEXTS]) for run in runs for name, rows in run.texts.items()],
        "meanwhile": [(run, _spread(run.meanwhile)) for run in runs if run.meanwhile],
        "probe_plots": [
            (run, plots.probe_multiples(run.probed.rows, run.probed.right))
            for run in runs
            if run.probed is not None
        ],
        "episodes": [(run, episodes_of(run)) for run in runs if run.samples],
        "comparisons": [(run, table) for run in runs for table in run.tables if table.suite is None],
        "again": shlex.join(
            [
                "groundling",
                "train",
                f"{first.run_dir.name}/config.yaml",
                *import_words(first.config.imports),
                "run_dir=NEW",
            ]
        ),
        "configs": [(run.run_dir.name, settings_of(run)) for run in runs],
    }


def _spread(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The first text of some updates, from the first to the last that there are texts of."""
    firsts = list({row["update"]: row for row in reversed(rows)}.values())[::-1]
    places = np.linspace(0, len(firsts) - 1, min(_MAX_TEXTS, len(firsts))).round().astype(int)
    return [firsts[place] for place in places]


def _main_plots(runs: Sequence[ShownRun]) -> list[tuple[str, str, str | None]]:
    """By task, the learning curves of its runs, and what its world has beside them; those of one name are one curve."""
    drawn = []
    for task in dict.fromkeys(run.task for run in runs):
        task_runs = [run for run in runs if run.task == task]
        groups: dict[str, list[Any]] = {}
        for run in task_runs:
            groups.setdefault(run.config.name, []).append(run.metrics)
        key, label = task_runs[0].figure
        alone = len(groups) == 1 and key == "success_rate"
        levels = _levels(task_runs[0], "success") if alone else {}
        second = _plot_beside(task_runs, groups, alone)
        steps, width = task_runs[0].world.presentation.unit, 7.2 if second is None else 4.8
        plot = plots.learning_curve(groups, key, label, levels, steps, width, key == "success_rate")
        drawn.append((task, plot, second))
    return drawn


def _plot_beside(runs: Sequence[ShownRun], groups: Mapping[str, Sequence[Any]], alone: bool) -> str | None:
    """What the runs' world has beside the success rate, over steps; None where no run tells."""
    share, rows = runs[0].world.presentation.share, [row for run in runs for row in run.metrics]
    if share is None or all(row.get(share.column) is None for row in rows):
        return None
    chances = [row[share.chance] for row in rows if row.get(share.chance) is not None]
    levels = {"chance": float(np.mean(chances))} if chances else {}
    levels |= _levels(runs[0], share.column) if alone else {}
    return plots.learning_curve(groups, share.column, share.label, levels, width=4.8, is_share=True)


def _levels(run: ShownRun, figure: str) -> dict[str, float]:
    """A figure of the held-out evaluation's baselines, of those that have it; of another world than the run's none."""
    evaluation = run.evaluations.get(usual_suite(run.world), {})
    if any(word.lstrip("+~").startswith("world") for word in evaluation.get("overrides", [])):
        return {}
    agents = evaluation.get("agents", {})
    values = {name: agent["figures"].get(figure) for name, agent in agents.items() if name != "trained"}
    return {name: value["value"] for name, value in values.items() if value is not None}
