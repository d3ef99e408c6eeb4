"""Results of a study: all metrics on one suite."""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple, dataclass
from typing import Any

import numpy as np

from groundling.config.facts import shareable
from groundling.errors import RunError
from groundling.evaluation.evaluate import estimate_cell, in_markdown, markdown_table
from groundling.intervals import IntervalEstimate, estimate
from groundling.reports import plots
from groundling.studies.definition import Study
from groundling.studies.page import StudyPage, curves_table
from groundling.studies.run import StudyJob
from groundling.training.tracking import read_metrics
from groundling.worlds import World

_Finished = Sequence[tuple[StudyJob, Mapping[str, Any]]]  # Jobs with their evaluations


@dataclass(frozen=True)
class FigureRow:
    """A metric of an arm: the mean over seeds of the means over held-out episodes, with its interval."""

    arm: str
    figure: str
    estimate: IntervalEstimate
    of_seeds: tuple[float, ...]  # each seed's mean


def page_of_figures(study: Study, jobs: Sequence[StudyJob], world: type[World]) -> StudyPage:
    """Create the results page for the finished jobs, with all metrics on the first suite, which all of them share."""
    suite = jobs[0].suites[0]
    evaluations = [(job, job.evaluations().get(suite)) for job in jobs if job.is_trained()]
    finished = [(job, evaluation) for job, evaluation in evaluations if evaluation is not None]
    if not finished:
        raise RunError(f"no run of {study.name} has finished yet: run the same command again")
    metrics = [(job, read_metrics(job.run_dir) if job.agent == "trained" else []) for job, _ in finished]
    steps = {
        job.arm: job.config.training.steps if job.config.training.epochs is None else rows[-1]["step"]
        for job, rows in metrics
        if job.agent == "trained"
    }
    rows = _rows(finished)
    trained = ", ".join(f"{arm} {count:,}" for arm, count in steps.items())
    pictures = _draw(study, world, metrics, rows)
    finished_names = [job.name for job, _ in finished]
    unit, episodes = world.presentation.unit, world.presentation.episodes
    return StudyPage(
        explanation=(
            f"Seeds: {', '.join(map(str, study.seeds))}; {study.episodes} held-out {episodes} per run; "
            f"{unit} of training: {trained}. Values are means over seeds of means over {episodes}, with 95% "
            "bootstrap intervals over seeds. With few seeds, an interval spans at most the range of the seeds' means: it "
            "does not predict other seeds. `episodes.csv` lists each episode, `curves.csv` each update."
        ),
        sections=_sections(study, world, suite, rows, pictures),
        tables={
            "curves": curves_table(metrics, world.presentation.curves),
            "episodes": _episodes([job for job, _ in finished], suite),
            "summary": (
                ["arm", "figure", "seeds", "mean", "low", "high"],
                [[row.arm, row.figure, len(row.of_seeds), *astuple(row.estimate)] for row in rows],
            ),
        },
        pictures=pictures,
        figures=[asdict(row) for row in rows],
        unfinished=[job.name for job in jobs if job.name not in finished_names],
        about={unit: steps},
    )


def _rows(finished: _Finished) -> list[FigureRow]:
    """Return a row for each metric that is present for every seed of an arm."""
    rows = []
    for arm in dict.fromkeys(job.arm for job, _ in finished):
        by_seed = [content["agents"][job.agent]["figures"] for job, content in finished if job.arm == arm]
        for name in dict.fromkeys(name for figures in by_seed for name in figures):
            values = [figures.get(name, {}).get("value") for figures in by_seed]
            if None not in values:
                mean = estimate(np.array(values), lambda scores: scores.mean(-1))
                rows.append(FigureRow(arm, name, mean, tuple(map(float, values))))
    return rows


def _episodes(jobs: Sequence[StudyJob], suite: str) -> tuple[list[str], list[list[str]]]:
    """Return the header and rows for the held-out episodes of each run's agent; missing cells are empty."""
    episodes: list[dict[str, str]] = []
    for job in jobs:
        with (job.run_dir / "evaluation" / f"{suite}.csv").open(encoding="utf-8", newline="") as file:
            episodes += [
                {"arm": job.arm, "run_seed": str(job.seed), **episode}
                for episode in csv.DictReader(file)
                if episode.pop("agent") == job.agent
            ]
    header = list(dict.fromkeys(column for episode in episodes for column in episode))
    return header, [[shareable(episode.get(column, "")) for column in header] for episode in episodes]


def _draw(
    study: Study,
    world: type[World],
    metrics: Sequence[tuple[StudyJob, Sequence[Mapping[str, Any]]]],
    rows: Sequence[FigureRow],
) -> dict[str, Any]:
    """Draw two plots: ``training`` (curves of the trained arms) and ``held-out`` (all metrics)."""
    drawn = {}
    curves = {
        arm: of_arm
        for arm in study.arms
        if (of_arm := [updates for job, updates in metrics if job.arm == arm and updates])
    }
    present = {name for _, updates in metrics for row in updates for name, value in row.items() if value is not None}
    labels = {
        name: label for name, label in world.presentation.curves.items() if label is not None and name in present
    }
    if labels:
        levels = {
            label: {row.arm: row.estimate.value for row in rows if row.figure == label and row.arm not in curves}
            for label in labels.values()
        }
        drawn["training"] = plots.draw_curves(curves, labels, levels)
    if rows:
        by_figure = {
            name: {row.arm: row.estimate for row in rows if row.figure == name}
            for name in dict.fromkeys(row.figure for row in rows)
        }
        drawn["held-out"] = plots.draw_figures(by_figure)
    return drawn


def _sections(
    study: Study, world: type[World], suite: str, rows: Sequence[FigureRow], pictures: Mapping[str, Any]
) -> list[str]:
    episodes = world.presentation.episodes
    arms = list(dict.fromkeys(row.arm for row in rows))
    cells = {(row.figure, row.arm): row.estimate for row in rows}
    table = [
        [figure.replace("_", " "), *(estimate_cell(cells.get((figure, arm)), ".4g") for arm in arms)]
        for figure in dict.fromkeys(row.figure for row in rows)
    ]
    text = [f"## Held-out {episodes}"]
    if len(world.suites) > 1:
        text.append(f"`{suite}`: {world.suites[suite]}.")
    text += [markdown_table(["", *(f"{arm}: {study.arms[arm].about}" for arm in arms)], table), *_separations(rows)]
    if "held-out" in pictures:
        text.append(f"![Metrics of the held-out {episodes}](held-out.svg)")
    if "training" in pictures:
        text += [
            f"## Training\n\n![Metrics of the training {episodes} over {world.presentation.unit}](training.svg)",
            f"Smoothed means over finished {episodes}. Bands: 95% bootstrap intervals over seeds. Dashed lines: untrained "
            f"arms on held-out {episodes}.",
        ]
    return text


def _separations(rows: Sequence[FigureRow]) -> list[str]:
    """List the metrics for which all seeds of the first arm are above, or all are below, all seeds of another arm."""
    if not rows or len(rows[0].of_seeds) < 2:
        return []
    first_arm = rows[0].arm
    first = {row.figure: row.of_seeds for row in rows if row.arm == first_arm}
    found = []
    for row in rows:
        if row.arm == first_arm or row.figure not in first:
            continue
        is_above = min(first[row.figure]) > max(row.of_seeds)
        if is_above or max(first[row.figure]) < min(row.of_seeds):
            figure = in_markdown(row.figure.replace("_", " "))
            found.append(f"- {figure}: {'above' if is_above else 'below'} {row.arm}")
    heading = f"Metrics in which all seeds of *{first_arm}* are above or below all seeds of another arm:"
    return [heading, "\n".join(found) or "- none"]
