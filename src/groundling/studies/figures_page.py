"""The results of a study that asks for all figures of one suite: CSVs, figures, and a README with tables."""

import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from groundling.errors import RunError
from groundling.evaluation.tables import (
    estimate_cell,
    in_markdown,
    markdown_table,
    write_csv,
    write_curves,
)
from groundling.intervals import IntervalEstimate, estimate
from groundling.io.files import write_atomically
from groundling.io.locks import remove_partial_files
from groundling.io.redaction import shareable
from groundling.reports import plots
from groundling.studies.definition import Study
from groundling.studies.head import StudyHead
from groundling.studies.results import SUMMARY
from groundling.studies.run import Job
from groundling.training.tracking import read_metrics
from groundling.worlds import World


@dataclass(frozen=True)
class Line:
    """A figure of an arm: the mean over seeds of the means over held-out episodes, with its interval."""

    arm: str
    figure: str
    estimate: IntervalEstimate
    of_seeds: tuple[float, ...]
    """Each seed's mean."""


def write_study_by_figures(
    study: Study, jobs: Sequence[Job], world: type[World], output: Path, command: Sequence[str]
) -> None:
    """Write what the finished ``jobs`` found into ``output``.

    ``curves.csv`` (one row per update), ``episodes.csv`` (one per held-out episode), ``summary.csv`` and
    ``summary.json`` (per arm and figure), ``training`` and ``held-out`` as SVG and PNG, and ``README.md``. Of several
    suites, they tell of the first.

    Args:
        study: What was asked.
        jobs: Those that are trained and evaluated, and those that are not; the first suite of all is the same.
        world: The kind of world they are of.
        output: The folder.
        command: The words after ``groundling`` that made it.

    Raises:
        RunError: no run is finished.
    """
    suite = jobs[0].suites[0]
    evaluations = [(job, job.evaluations().get(suite)) for job in jobs if job.is_trained()]
    finished = {job.name: (job, evaluation) for job, evaluation in evaluations if evaluation is not None}
    if not finished:
        raise RunError(f"no run of {study.name} is finished yet: run the same command again")
    metrics = {
        name: read_metrics(job.run_dir) for name, (job, _) in finished.items() if job.agent == "trained"
    }
    lines = list(_lines(list(finished.values())))
    steps = {
        job.arm: job.config.training.steps
        if job.config.training.epochs is None
        else metrics[name][-1]["step"]
        for name, (job, _) in finished.items()
        if job.agent == "trained"
    }
    missing = [job.name for job in jobs if job.name not in finished]
    head = StudyHead(study, command, missing, {world.presentation.unit: steps})
    output.mkdir(parents=True, exist_ok=True)
    remove_partial_files(output)
    (output / SUMMARY).unlink(missing_ok=True)  # written again when the files that it describes are complete
    arms = {job.name: job.arm for job, _ in finished.values()}
    runs = [(job.arm, job.seed, metrics.get(name, ())) for name, (job, _) in finished.items()]
    write_curves(output / "curves.csv", runs, world.presentation.curves)
    write_csv(output / "episodes.csv", *_episodes([job for job, _ in finished.values()], suite))
    table = ((line.arm, line.figure, len(line.of_seeds), *astuple(line.estimate)) for line in lines)
    write_csv(output / "summary.csv", ["arm", "figure", "seeds", "mean", "low", "high"], table)
    figures = _draw(study, world, metrics, arms, lines, output)
    text = _readme(head, world, suite, steps, lines, figures)
    write_atomically(output / "README.md", shareable(text))
    head.write_summary(output, [asdict(line) for line in lines])


def _lines(finished: Sequence[tuple[Job, Mapping[str, Any]]]) -> Iterable[Line]:
    for arm in dict.fromkeys(job.arm for job, _ in finished):
        figures = [
            evaluation["agents"][job.agent]["figures"] for job, evaluation in finished if job.arm == arm
        ]
        for name in dict.fromkeys(name for seed_figures in figures for name in seed_figures):
            values = [seed_figures.get(name, {}).get("value") for seed_figures in figures]
            if None not in values:  # every seed has it
                means = np.array(values)
                mean = estimate(means, lambda scores: scores.mean(-1))
                yield Line(arm, name, mean, tuple(means.tolist()))


def _episodes(jobs: Sequence[Job], suite: str) -> tuple[list[str], list[list[str]]]:
    """Header and rows of all runs' held-out episodes, of the agent itself, as `shareable`; a missing cell is empty."""
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
    metrics: Mapping[str, list[dict[str, Any]]],
    arms: Mapping[str, str],
    lines: Sequence[Line],
    output: Path,
) -> list[str]:
    """Draw what there is to draw; returns the figures' names."""
    drawn = []
    curves = {
        arm: [rows for name, rows in metrics.items() if arms[name] == arm]
        for arm in study.arms
        if arm in {arms[name] for name in metrics}
    }
    labels = {
        column: label
        for column, label in world.presentation.curves.items()
        if label is not None and any(row.get(column) is not None for rows in metrics.values() for row in rows)
    }
    if labels:
        levels = {
            label: {
                line.arm: line.estimate.value
                for line in lines
                if line.figure == label and line.arm not in curves
            }
            for label in labels.values()
        }
        plots.save(plots.draw_curves(curves, labels, levels), output / "training")
        drawn.append("training")
    if lines:
        by_figure = {
            name: {line.arm: line.estimate for line in lines if line.figure == name}
            for name in dict.fromkeys(line.figure for line in lines)
        }
        plots.save(plots.draw_figures(by_figure), output / "held-out")
        drawn.append("held-out")
    return drawn


def _readme(
    head: StudyHead,
    world: type[World],
    suite: str,
    steps: Mapping[str, int],
    lines: Sequence[Line],
    figures: Sequence[str],
) -> str:
    study, episodes = head.study, world.presentation.episodes
    arms = list(dict.fromkeys(line.arm for line in lines))
    cells = {(line.figure, line.arm): line.estimate for line in lines}
    rows = [
        [figure.replace("_", " "), *(estimate_cell(cells.get((figure, arm)), ".4g") for arm in arms)]
        for figure in dict.fromkeys(line.figure for line in lines)
    ]
    trained = ", ".join(f"{arm} {count:,}" for arm, count in steps.items())
    text = head.markdown(
        f"Seeds: {', '.join(map(str, study.seeds))}; {study.episodes} held-out {episodes} for each run; "
        f"{world.presentation.unit} of training: {trained}. Means over seeds of the means over {episodes}, with a "
        "bootstrap 95 % interval over seeds: with few seeds it reaches at most from the lowest to the highest, and "
        "shows the spread of these seeds, not what another seed would do. `episodes.csv` has every episode, "
        "`curves.csv` every update."
    )
    text += [
        f"## Held-out {episodes}",
        *([f"Of `{suite}`: {world.suites[suite]}."] if len(world.suites) > 1 else []),
        markdown_table(["", *(f"{arm}: {study.arms[arm].about}" for arm in arms)], rows),
        *_reading(lines),
    ]
    if "held-out" in figures:
        text.append(f"![Figures of the held-out {episodes}](held-out.svg)")
    if "training" in figures:
        text += [
            f"## Training\n\n![Figures of the training {episodes} over {world.presentation.unit}](training.svg)",
            f"Smoothed means over the {episodes} that ended; the band is a bootstrap 95 % interval over seeds; dashed: "
            f"the arms that do not learn, on held-out {episodes}.",
        ]
    return "\n\n".join(text) + "\n"


def _reading(lines: Sequence[Line]) -> list[str]:
    """In which figures every seed of the first arm lies on one side of every seed of another; nothing of one seed."""
    if not lines or len(lines[0].of_seeds) < 2:
        return []
    of_first = {line.figure: line.of_seeds for line in lines if line.arm == lines[0].arm}
    findings = []
    for line in lines:
        first = of_first.get(line.figure)
        if line.arm == lines[0].arm or first is None:
            continue
        above, below = min(first) > max(line.of_seeds), max(first) < min(line.of_seeds)
        if above or below:
            figure = in_markdown(line.figure.replace("_", " "))
            findings.append(f"- {figure}: {'above' if above else 'below'} {line.arm}")
    heading = f"Where every seed of *{lines[0].arm}* lies on one side of every seed of another arm:"
    return [heading, "\n".join(findings) or "- nowhere"]
