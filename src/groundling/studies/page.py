"""Results of a study: the scores of its runs, summaries over seeds, and a folder of CSV files, plots and a README."""

import json
import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import OmegaConf

from groundling.config.facts import shareable
from groundling.config.schema import Config
from groundling.errors import ConfigError
from groundling.evaluation.evaluate import write_csv
from groundling.intervals import IntervalEstimate, area_under_curve, estimate
from groundling.io.files import is_unused, remove_partial_files, write_atomically
from groundling.reports import plots
from groundling.studies.definition import Study
from groundling.studies.run import StudyJob
from groundling.training.tracking import read_metrics

FIRST = ("first_named", "first_none", "first_precision", "first_chance")  # Measures of an episode's first interaction
_SUMMARY, _ARMS = "summary.json", "arms"


@dataclass(frozen=True)
class Score:
    """Success of one run's agent on one suite and task family."""

    arm: str
    seed: int
    agent: str  # trained, zero-shot, random or expert
    suite: str
    task: str  # a family of tasks, or all
    episodes: int
    success: float
    low: float  # lower end of the 95% Wilson interval over the episodes
    high: float
    first_named: float | None  # share of episodes whose first interaction is with the named object, if reported
    first_none: float | None  # share of episodes without an interaction
    first_precision: float | None  # first_named among the episodes with an interaction; None if no episode has one
    first_chance: float | None


@dataclass(frozen=True)
class RunResult:
    """The result of a job whose training is finished or not needed."""

    job: StudyJob
    rows: Sequence[Mapping[str, Any]]  # training metrics, one row per update; empty for an untrained agent
    scores: Sequence[Score]
    is_complete: bool  # true if all of the job's evaluations are present


def result_of(job: StudyJob) -> RunResult | None:
    """Read the result from the job's folder; return None if its training is unfinished."""
    if not job.is_trained():
        return None
    evaluations, scores = job.evaluations(), []
    for suite, evaluation in evaluations.items():
        if evaluation is None:
            continue
        for agent, summary in evaluation["agents"].items():
            for task, one in {"all": summary, **evaluation["tasks"][agent]}.items():
                figures = one["figures"]
                success = (figures["success"][name] for name in ("value", "low", "high"))
                first = (figures.get(name, {}).get("value") for name in FIRST)
                scores.append(
                    Score(job.arm, job.seed, agent, suite, shareable(task), one["episodes"], *success, *first)
                )
    rows = read_metrics(job.run_dir) if job.agent == "trained" else ()
    return RunResult(job, rows, scores, all(evaluations.values()))


SHARED = "(shared)"
"""A pseudo-suite: each seed's mean over the suites that all trained arms share, excluding controls (in which agents
that read their mission fail). Arms with their own suites do not affect which suites are shared."""

BySeed = dict[int, float]
Table = dict[tuple[str, str], dict[str, BySeed]]  # each seed's value, by (arm, agent) and by suite


@dataclass(frozen=True)
class SummaryRow:
    """A measure of an arm over its seeds."""

    arm: str
    measure: str
    """success, area (under the curve of training success), difference (of success or area from the reference arm with
    the same seed), change (of success relative to the same agent on the usual suite), or one of `FIRST`."""
    agent: str
    suite: str  # empty for the area
    seeds: int
    estimate: IntervalEstimate


def summarize(results: Sequence[RunResult], study: Study, usual: str, controls: Collection[str]) -> list[SummaryRow]:
    """Summarise a study's results; changes are relative to the suite ``usual``. `SHARED` excludes ``controls``."""
    scores = [score for one in results for score in one.scores]
    success, areas = by_arm(scores), _areas(results)
    shared = shared_suites(success, controls, [name for name, arm in study.arms.items() if arm.suites])
    first = [row for measure in FIRST for row in rows_of(measure, by_arm(scores, measure))]
    order = list(dict.fromkeys((s.arm, s.agent, s.suite) for s in scores))
    return [
        *rows_of("area", areas),
        *rows_of("success", with_shared(success, shared)),
        *rows_of("difference", differences(areas, study.reference)),
        *rows_of("difference", with_shared(differences(success, study.reference), shared)),
        *rows_of("change", changes(success, usual)),
        *sorted(first, key=lambda row: order.index((row.arm, row.agent, row.suite))),
    ]


def agents_of(rows: Sequence[SummaryRow], arm: str) -> list[str]:
    return list(dict.fromkeys(row.agent for row in rows if row.arm == arm and row.measure == "success"))


def by_suite(
    rows: Sequence[SummaryRow], arm: str, agent: str, measure: str = "success"
) -> dict[str, IntervalEstimate]:
    wanted = arm, agent, measure
    return {row.suite: row.estimate for row in rows if (row.arm, row.agent, row.measure) == wanted}


def by_arm(scores: Sequence[Score], measure: str = "success") -> Table:
    """Return a measure over all task families, where it was reported."""
    table: Table = {}
    for s in scores:
        if s.task == "all" and (value := getattr(s, measure)) is not None:
            table.setdefault((s.arm, s.agent), {}).setdefault(s.suite, {})[s.seed] = value
    return table


def shared_suites(success: Table, controls: Collection[str], apart: Collection[str]) -> list[str]:
    """Return the suites, except ``controls``, that all trained arms share, ignoring ``apart`` arms if others exist."""
    trained = {arm: set(suites) for (arm, agent), suites in success.items() if agent == "trained"}
    usual = [suites for arm, suites in trained.items() if arm not in apart] or [*trained.values()]
    return sorted(set.intersection(*usual) - set(controls)) if usual else []


def with_shared(table: Table, shared: Sequence[str]) -> Table:
    """Add `SHARED`, each seed's mean over the shared suites, for agents that have all of them."""
    # If suites and seeds were pooled, an effect in a single suite would be trimmed as an outlier.
    added: Table = {}
    for key, suites in table.items():
        added[key] = suites
        if len(shared) > 1 and set(shared) <= set(suites):
            seeds = sorted(set.intersection(*(set(suites[suite]) for suite in shared)))
            means = {seed: float(np.mean([suites[suite][seed] for suite in shared])) for seed in seeds}
            added[key] = suites | {SHARED: means}
    return added


def differences(table: Table, reference: str | None) -> Table:
    """Return trained agents' differences from the reference arm with the same seeds, on the same episodes."""
    of_reference = {} if reference is None else table.get((reference, "trained"), {})
    return {
        (arm, agent): {
            suite: difference
            for suite, by_seed in suites.items()
            if suite in of_reference and (difference := _minus(by_seed, of_reference[suite]))
        }
        for (arm, agent), suites in table.items()
        if agent == "trained" and arm != reference
    }


def changes(success: Table, usual: str) -> Table:
    """Return trained agents' success on other suites minus their success on the usual one."""
    return {
        key: {suite: _minus(by_seed, suites[usual]) for suite, by_seed in suites.items() if suite != usual}
        for key, suites in success.items()
        if key[1] == "trained" and usual in suites
    }


def rows_of(measure: str, table: Table) -> list[SummaryRow]:
    """Return a row for each suite of each agent, with the interval over its seeds."""
    return [
        SummaryRow(arm, measure, agent, suite, len(by_seed), estimate(np.array(list(by_seed.values()))))
        for (arm, agent), suites in table.items()
        for suite, by_seed in suites.items()
        if by_seed
    ]


def _minus(by_seed: BySeed, other: BySeed) -> BySeed:
    """Return the differences for the seeds that both contain."""
    return {seed: value - other[seed] for seed, value in by_seed.items() if seed in other}


def _areas(results: Sequence[RunResult]) -> Table:
    """Return the area under the curve of training success for arms that learn from their own episodes."""
    areas: Table = {}
    for one in results:
        steps, values = plots.smooth_curve(one.rows, "success_rate")
        if len(steps):
            training = one.job.config.training
            total = training.steps if training.epochs is None else one.rows[-1]["step"]
            of_arm = areas.setdefault((one.job.arm, "trained"), {"": {}})
            of_arm[""][one.job.seed] = area_under_curve(steps, values, total)
    return areas


@dataclass(frozen=True)
class StudyPage:
    """The contents of a results folder."""

    explanation: str  # first paragraph of the README: how the results are computed
    sections: Sequence[str]  # further paragraphs, in Markdown
    tables: Mapping[str, tuple[Sequence[str], Iterable[Sequence[Any]]]]  # CSV header and rows, by name
    pictures: Mapping[str, Any]  # matplotlib figures, by name without suffix
    figures: Sequence[Mapping[str, Any]]  # the metrics in summary.json
    unfinished: Sequence[str]  # names of jobs that are missing or incomplete
    about: Mapping[str, Any]  # further entries of summary.json
    arms: Mapping[str, Config] = field(default_factory=dict)  # settings of the arms, without seeds


def check_output(output: Path) -> None:
    """Raise `ConfigError` if the folder for results contains anything other than a study's results."""
    if output.is_dir() and not is_unused(output) and not any((output / name).exists() for name in (_ARMS, _SUMMARY)):
        raise ConfigError(f"{output} contains no results of a study: choose a new folder (--output)")


def write_page(study: Study, page: StudyPage, output: Path, command: Sequence[str]) -> None:
    """Write a study's results; ``summary.json``, written last, marks them as complete. ``command`` is recorded."""
    made_by = shlex.join(["groundling", *command])
    output.mkdir(parents=True, exist_ok=True)
    remove_partial_files(output)
    (output / _SUMMARY).unlink(missing_ok=True)
    for arm, config in page.arms.items():
        (output / _ARMS).mkdir(exist_ok=True)
        settings = OmegaConf.to_yaml(OmegaConf.create(shareable(config.model_dump())))
        write_atomically(output / _ARMS / f"{arm}.yaml", settings)
    for name, (header, rows) in page.tables.items():
        write_csv(output / f"{name}.csv", header, rows)
    for name, picture in page.pictures.items():
        plots.save(picture, output / name)
    head = [f"# {study.title or study.name}", "Command:", f"```\n{made_by}\n```", page.explanation]
    if study.note:
        head.append(study.note.strip())
    if page.unfinished:
        head.append(
            f"**Unfinished or failed: {', '.join(page.unfinished)}. Their results are missing or incomplete.**"
        )
    write_atomically(output / "README.md", shareable("\n\n".join([*head, *page.sections]) + "\n"))
    summary = {
        "study": study.name,
        "command": made_by,
        "seeds": study.seeds,
        "episodes": study.episodes,
        **page.about,
        "unfinished": page.unfinished,
        "figures": page.figures,
    }
    write_atomically(output / _SUMMARY, json.dumps(shareable(summary), indent=1) + "\n")


def curves_table(
    runs: Iterable[tuple[StudyJob, Iterable[Mapping[str, Any]]]], columns: Iterable[str]
) -> tuple[list[str], list[list[Any]]]:
    """Return the header and rows of ``curves.csv``: one row per update in the jobs' metrics, with these columns."""
    kept = ["step", "seconds", "episodes", *columns]
    rows = [[job.arm, job.seed, *(row.get(c) for c in kept)] for job, updates in runs for row in updates]
    return ["arm", "seed", *kept], rows
