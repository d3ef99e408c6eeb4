"""The results of a study that asks how often agents succeed, suite by suite: CSVs, figures, and a README."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, astuple
from pathlib import Path
from typing import Any

from groundling.envs.seeds import SCHEME
from groundling.errors import RunError
from groundling.evaluation.tables import write_csv, write_curves
from groundling.intervals import IntervalEstimate
from groundling.io.files import write_atomically
from groundling.io.locks import remove_partial_files
from groundling.io.redaction import shareable
from groundling.reports import plots
from groundling.studies.arms import Line, agents_of, by_suite, sum_up
from groundling.studies.definition import Study
from groundling.studies.head import StudyHead
from groundling.studies.page import page
from groundling.studies.results import (
    CURVES,
    EVALUATIONS,
    SUMMARY,
    RunResult,
    Score,
    result_of,
    write_arms,
)
from groundling.studies.run import Job
from groundling.worlds import World

_FIRST_CURVE = ("first_named", "first_other", "first_none", "first_precision", "first_chance")
"""Columns of worlds that tell which thing the agent first deals with."""


def write_study_by_success(
    study: Study,
    jobs: Sequence[Job],
    world: type[World],
    output: Path,
    command: Sequence[str],
    elsewhere: Mapping[str, RunResult],
) -> None:
    """Write what the finished ``jobs`` found into ``output``.

    ``arms/`` (the settings of each arm), ``curves.csv`` (one row per update), ``evaluations.csv`` (per run, agent,
    suite and family of tasks), ``summary.csv`` and ``summary.json`` (interquartile means over seeds with bootstrap
    intervals), the figures ``success``, ``first`` (of worlds that tell which thing is first dealt with),
    ``generalisation`` and ``cloning`` as SVG and PNG, and ``README.md``.

    Args:
        study: What was asked.
        jobs: The runs that were asked for.
        world: The kind of world they are of.
        output: The folder.
        command: The words after ``groundling`` that made it.
        elsewhere: By a job's name, what results of another machine tell of it (`read_results`).

    Raises:
        RunError: no run is finished.
    """
    by_job = {job.name: elsewhere.get(job.name) or result_of(job) for job in jobs}
    results = [one for one in by_job.values() if one is not None]
    if not results:
        raise RunError(f"no run of {study.name} is finished yet: run the same command again")
    scores = [score for one in results for score in one.scores]
    tested = {score.suite for score in scores}
    usual = next((suite for suite in world.suites if suite in tested), next(iter(world.suites)))
    lines = sum_up(results, study, usual, world.suite_groups.get("controls", ()))
    output.mkdir(parents=True, exist_ok=True)
    remove_partial_files(output)
    (output / SUMMARY).unlink(missing_ok=True)  # written again when the files that it describes are complete
    write_arms(output, [one.job for one in results])
    runs = [(one.job.arm, one.job.seed, one.rows) for one in results]
    columns = [
        *world.presentation.curves,
        *(_FIRST_CURVE if _tells_first(one.rows for one in results) else ()),
    ]
    write_curves(output / CURVES, runs, columns)
    write_csv(output / EVALUATIONS, list(Score.__annotations__), (astuple(score) for score in scores))
    write_csv(
        output / "summary.csv",
        [*(name for name in Line.__annotations__ if name != "estimate"), *IntervalEstimate.__annotations__],
        ((*astuple(line)[:-1], *astuple(line.estimate)) for line in lines),
    )
    missing = [name for name, one in by_job.items() if one is None or not one.is_whole]
    tested_by_arm = {
        job.arm: list(dict.fromkeys(s.suite for s in scores if s.arm == job.arm)) for job in jobs
    }
    suites = {job.arm: job.suites for job in jobs}
    about = {"suites": suites, "tested": tested_by_arm, "episode_seeds": SCHEME}
    head = StudyHead(study, command, missing, about)
    figures = _draw(study, results, lines, world.presentation.unit, usual, output)
    agents = {one.job.arm: one.job.agent for one in results}
    text = page(head, lines, scores, agents, usual, figures)
    write_atomically(output / "README.md", shareable(text))
    head.write_summary(output, [asdict(line) for line in lines])


def _tells_first(runs: Iterable[Sequence[Mapping[str, Any]]]) -> bool:
    return any(row.get("first_precision") is not None for rows in runs for row in rows)


def _draw(
    study: Study,
    results: Sequence[RunResult],
    lines: Sequence[Line],
    unit: str,
    usual: str,
    output: Path,
) -> dict[str, str]:
    """Draw what there is to draw, over steps in their ``unit``; by the figure's name, what it shows.

    Arms without training are lines in the figures of the others.
    """
    untrained = {
        arm: {suite: one.value for suite, one in by_suite(lines, arm, agents[0]).items()}
        for arm in study.arms
        if (agents := agents_of(lines, arm)) and "trained" not in agents
    }
    drawn: dict[str, str] = {}
    learners = {line.arm for line in lines if line.measure == "area"}
    curves = {
        arm: [one.rows for one in results if one.job.arm == arm] for arm in study.arms if arm in learners
    }
    if curves:
        levels = {arm: suites[usual] for arm, suites in untrained.items() if usual in suites}
        figure = plots.draw_learning_curve(
            curves, "success_rate", "success rate", levels, steps=unit, is_share=True
        )
        plots.save(figure, output / "success")
        drawn["success"] = f"Success in training over {unit}, interquartile mean of the seeds (smoothed)"
    chances = [
        row["first_chance"] for one in results for row in one.rows if row.get("first_chance") is not None
    ]
    if (
        _tells_first(one.rows for one in results) and min(chances) < 1
    ):  # elsewhere there is one thing to deal with
        chance = sum(chances) / len(chances)
        label = "first thing is the named one"
        figure = plots.draw_learning_curve(
            curves, "first_precision", label, {"chance": chance}, unit, is_share=True
        )
        plots.save(figure, output / "first")
        drawn["first"] = "Of the first things dealt with in training, the share that is the named one"
    panels: dict[str, dict[str, dict[str, IntervalEstimate]]] = {
        arm: {
            a: by_suite(lines, arm, a)
            for a in ("trained", "clone", "zero-shot")
            if a in agents_of(lines, arm)
        }
        for arm in study.arms
        if "trained" in agents_of(lines, arm)
    }
    if panels:
        plots.save(plots.draw_estimates(panels, untrained, "success rate"), output / "generalisation")
        drawn["generalisation"] = "Success on held-out episodes of each test, trained and before (zero-shot)"
    if compared := _compared(study, panels):
        series = {arm: panels[arm]["trained"] for arm in compared}
        plots.save(plots.draw_estimates({"": series}, {}, "success rate"), output / "cloning")
        drawn["cloning"] = "Online reinforcement learning beside cloning"
    return drawn


def _compared(study: Study, there: Collection[str]) -> list[str]:
    """The arms that are clones, and before them the arms that were cloned."""
    clones = [name for name, arm in study.arms.items() if arm.data is not None and name in there]
    cloned = {study.arms[name].data for name in clones}
    return [name for name in study.arms if name in cloned and name in there] + clones
