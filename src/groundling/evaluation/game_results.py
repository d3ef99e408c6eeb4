"""What a study of NetHack's agents found: CSVs, figures, and a README with their figures in tables."""

import csv
import io
import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from groundling.configs.studies import Study
from groundling.evaluation import plots
from groundling.evaluation.study import Job
from groundling.files import write_atomically
from groundling.intervals import IntervalEstimate, estimate
from groundling.training.tracking import read_metrics

_SUITE = "held-out"
_CURVES = {
    "return_mean": "return",
    "score": "score",
    "dlvl": "depth",
    "gold": "gold",
    "xlvl": "experience_level",
    "messages": "messages",
}
"""Of `metrics.jsonl`, what is drawn over frames, and what it is called."""


@dataclass(frozen=True)
class Line:
    """A figure of an arm: the mean over seeds of the means over held-out episodes, with its interval."""

    arm: str
    figure: str
    estimate: IntervalEstimate
    of_seeds: tuple[float, ...]
    """Each seed's mean."""


def write_game_results(study: Study, jobs: Sequence[Job], output: Path, command: Sequence[str]) -> None:
    """Write what the finished ``jobs`` found into ``output``.

    ``curves.csv`` (one row per update), ``episodes.csv`` (one per held-out episode), ``summary.csv`` and
    ``summary.json`` (per arm and figure), ``training`` and ``held-out`` as SVG and PNG, and ``README.md``.

    Args:
        study: What was asked.
        jobs: Those that are trained and evaluated, and those that are not.
        output: The folder.
        command: The words after ``groundling`` that made it.
    """
    evaluations = [(job, job.evaluations().get(_SUITE)) for job in jobs if job.is_trained()]
    finished = {job.name: (job, evaluation) for job, evaluation in evaluations if evaluation is not None}
    metrics = {
        name: read_metrics(job.run_dir) for name, (job, _) in finished.items() if job.agent == "trained"
    }
    lines = list(_lines(list(finished.values())))
    about = {
        "study": study.name,
        "command": shlex.join(["groundling", *command]),
        "seeds": study.seeds,
        "episodes": study.episodes,
        "frames": {
            job.arm: job.config.training.steps for job, _ in finished.values() if job.agent == "trained"
        },
        "unfinished": [job.name for job in jobs if job.name not in finished],
    }
    output.mkdir(parents=True, exist_ok=True)
    arms = {job.name: job.arm for job, _ in finished.values()}
    keys = [
        "seconds",
        "episodes",
        "return_mean",
        "score",
        "dlvl",
        "gold",
        "xlvl",
        "episode_length",
        "messages",
    ]
    keys.append("intrinsic_return")
    curves = (
        [arms[name], finished[name][0].seed, row["step"], *(row.get(key) for key in keys)]
        for name, rows in metrics.items()
        for row in rows
    )
    _csv(output / "curves.csv", ["arm", "seed", "step", *keys], curves)
    _csv(output / "episodes.csv", *_episodes([job for job, _ in finished.values()]))
    table = ((line.arm, line.figure, len(line.of_seeds), *astuple(line.estimate)) for line in lines)
    _csv(output / "summary.csv", ["arm", "figure", "seeds", "mean", "low", "high"], table)
    summary = about | {"figures": [asdict(line) for line in lines]}
    write_atomically(output / "summary.json", json.dumps(summary, indent=1) + "\n")
    _draw(study, metrics, arms, lines, output)
    write_atomically(output / "README.md", _readme(study, about, lines))


def _lines(finished: Sequence[tuple[Job, Mapping[str, Any]]]) -> Iterable[Line]:
    for arm in dict.fromkeys(job.arm for job, _ in finished):
        figures = [
            evaluation["agents"][job.agent]["figures"] for job, evaluation in finished if job.arm == arm
        ]
        for name in dict.fromkeys(name for seed_figures in figures for name in seed_figures):
            if all(name in seed_figures for seed_figures in figures):
                means = np.array([seed_figures[name]["value"] for seed_figures in figures])
                mean = estimate(means, lambda scores: scores.mean(-1))
                yield Line(arm, name, mean, tuple(means.tolist()))


def _episodes(jobs: Sequence[Job]) -> tuple[list[str], list[list[str]]]:
    """Header and rows of all runs' held-out episodes, those of the agent itself."""
    header: list[str] = []
    rows = []
    for job in jobs:
        with (job.run_dir / "evaluation" / f"{_SUITE}.csv").open(encoding="utf-8", newline="") as file:
            columns, *episodes = csv.reader(file)
        header = ["arm", "run_seed", *columns[1:]]
        rows += [[job.arm, str(job.seed), *row[1:]] for row in episodes if row[0] == job.agent]
    return header, rows


def _draw(
    study: Study,
    metrics: Mapping[str, list[dict[str, Any]]],
    arms: Mapping[str, str],
    lines: Sequence[Line],
    output: Path,
) -> None:
    curves = {
        arm: [rows for name, rows in metrics.items() if arms[name] == arm]
        for arm in study.arms
        if arm in {arms[name] for name in metrics}
    }
    if curves:
        levels = {
            label: {
                line.arm: line.estimate.value
                for line in lines
                if line.figure == label and line.arm not in curves
            }
            for label in _CURVES.values()
        }
        plots.save(plots.draw_curves(curves, _CURVES, levels), output / "training")
    if lines:
        by_figure = {
            name: {line.arm: line.estimate for line in lines if line.figure == name}
            for name in dict.fromkeys(line.figure for line in lines)
        }
        plots.save(plots.draw_figures(by_figure), output / "held-out")


def _readme(study: Study, about: Mapping[str, Any], lines: Sequence[Line]) -> str:
    arms = list(dict.fromkeys(line.arm for line in lines))
    cells = {(line.figure, line.arm): line.estimate for line in lines}
    rows = [
        [figure.replace("_", " "), *(_told(cells.get((figure, arm))) for arm in arms)]
        for figure in dict.fromkeys(line.figure for line in lines)
    ]
    frames = ", ".join(f"{arm} {count:,}" for arm, count in about["frames"].items())
    text = [
        f"# {study.title or study.name}",
        "Made by",
        f"```\n{about['command']}\n```",
        f"Seeds: {', '.join(map(str, study.seeds))}; {study.episodes} held-out episodes for each run; frames of "
        f"training: {frames}. Means over seeds of the means over episodes, with a bootstrap 95 % interval over seeds: "
        "of few seeds it reaches from the lowest to the highest at most and tells their spread, not what another seed "
        "would do. "
        "`episodes.csv` has every episode, `curves.csv` every update.",
    ]
    if about["unfinished"]:
        text.append(f"**Unfinished or failed, and so not in here: {', '.join(about['unfinished'])}.**")
    text += [
        "## Held-out episodes",
        _table(["", *(f"{arm}: {study.arms[arm].about}" for arm in arms)], rows),
        *_reading(lines),
        "![Figures of the held-out episodes](held-out.svg)",
        "## Training\n\n![Figures of the training episodes over frames](training.svg)",
        "Smoothed means over the episodes that ended; the band is a bootstrap 95 % interval over seeds; dashed: "
        "the arms that do not learn, on held-out episodes.",
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
            findings.append(f"- {line.figure.replace('_', ' ')}: {'above' if above else 'below'} {line.arm}")
    heading = f"Where every seed of *{lines[0].arm}* lies on one side of every seed of another arm:"
    return [heading, "\n".join(findings) or "- nowhere"]


def _csv(path: Path, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows([f"{x:.6g}" if isinstance(x, float) else x for x in row] for row in rows)
    write_atomically(path, text.getvalue())


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def _told(interval: IntervalEstimate | None) -> str:
    return interval.text(".4g") if interval else ""
