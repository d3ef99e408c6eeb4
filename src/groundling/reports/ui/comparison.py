"""Comparison of runs: metrics to plot, results, and settings that differ."""

import json
from collections.abc import Sequence
from typing import Any

from groundling.fields import flat
from groundling.reports.run_folder import Cell, RunFolder, figures_of, learning_figures

_ABSENT = "–"


def drawn_figures(runs: Sequence[RunFolder]) -> list[str]:
    """Return the metrics that can be drawn, the main ones first and constant ones last."""
    values: dict[str, set[float]] = {}
    for run in runs:
        for row in run.metrics:
            for name, value in row.items():
                if isinstance(value, int | float) and name not in ("step", "update"):
                    values.setdefault(name, set()).add(value)
    first = dict.fromkeys([runs[0].figure[0], *learning_figures(runs)])
    others = sorted(values.keys() - first, key=lambda name: (len(values[name]) == 1, name))
    return [*(name for name in first if name in values), *others]


def compared_figures(runs: Sequence[RunFolder], suite: str) -> list[tuple[str, list[Cell]]]:
    """Return a suite's metrics, with one row per metric and one cell for each run's trained agent."""
    by_run = []
    for run in runs:
        agents = run.evaluations.get(suite, {"agents": {}})["agents"]
        trained = {"agents": {name: one for name, one in agents.items() if name == "trained"}}
        by_run.append({name: cells[0] for name, cells in figures_of(trained)})
    names = list(dict.fromkeys(name for figures in by_run for name in figures))
    return [(name, [figures.get(name, (_ABSENT, "")) for figures in by_run]) for name in names]


def differing_settings(runs: Sequence[RunFolder]) -> list[tuple[str, list[str]]]:
    """Return the settings that differ between runs, except ``run_dir``: each key with every run's value."""
    by_run = [{key: _text(value) for key, value in flat(run.settings).items()} for run in runs]
    keys = dict.fromkeys(key for settings in by_run for key in settings if key != "run_dir")
    rows = [(key, [settings.get(key, _ABSENT) for settings in by_run]) for key in keys]
    return [(key, values) for key, values in rows if len(set(values)) > 1]


def _text(value: Any) -> str:
    if value is None:
        return _ABSENT
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
