"""Results of a study's runs: read from a run's folder, or from results of another machine (``--add``)."""

import csv
import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Self

from omegaconf import OmegaConf
from pydantic import BaseModel, ConfigDict, StringConstraints, TypeAdapter, ValidationError, model_validator
from pydantic.dataclasses import dataclass

from groundling.config.compose import recorded
from groundling.config.facts import has_fact, shareable
from groundling.envs.seeds import SCHEME
from groundling.errors import ConfigError, GroundlingError
from groundling.fields import Ge, Le, NoEffectOnResults, flat
from groundling.io.documents import read_object
from groundling.io.files import write_atomically
from groundling.io.row_files import open_csv
from groundling.studies.definition import Study
from groundling.studies.run import StudyJob
from groundling.training.tracking import read_metrics

FIRST = ("first_named", "first_none", "first_precision", "first_chance")  # of the first interaction
CURVES, EVALUATIONS, SUMMARY = "curves.csv", "evaluations.csv", "summary.json"
_ARMS = "arms"
_LARGEST = 2.0**53
_ROUNDING = 1e-5  # tolerance for figures of CSV files, which have six digits

Name = Annotated[str, StringConstraints(pattern=r"^\w[\w .,:/()+-]*$")]  # no markup and no formula
Count = Annotated[int, Ge(0), Le(_LARGEST)]
Share = Annotated[float, Ge(-_ROUNDING), Le(1 + _ROUNDING)]


@dataclass(frozen=True)
class Score:
    """Success of one run's agent in one suite and family of tasks."""

    arm: Name
    seed: Count
    agent: Name  # trained, zero-shot, random or expert
    suite: Name
    task: Name  # a family of tasks, or all
    episodes: Annotated[int, Ge(1), Le(_LARGEST)]
    success: Share
    low: Share  # lower end of the 95 % Wilson interval over the episodes
    high: Share
    first_named: Share | None  # share of episodes whose first interaction is with the named thing, if reported
    first_none: Share | None  # share of the episodes without an interaction
    first_precision: Share | None  # the same among episodes with an interaction; None without any
    first_chance: Share | None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if any(low > high + _ROUNDING for low, high in pairwise((self.low, self.success, self.high))):
            raise ValueError(
                f"success is {self.success} [{self.low}, {self.high}], expected a share within its interval"
            )
        if any("//" in name for name in (self.arm, self.agent, self.suite, self.task)):
            raise ValueError("expected names without addresses")
        return self


class _Summary(BaseModel):
    """Entries of ``summary.json`` that `read_results` needs."""

    model_config = ConfigDict(strict=True)

    study: str
    episodes: int
    episode_seeds: str | None = None  # the scheme of the episodes' seeds; None before schemes were recorded
    unfinished: list[str]
    suites: dict[str, list[str]]  # by arm, the requested suites
    tested: dict[str, list[str]]  # by arm, the suites that suit it


@dataclasses.dataclass(frozen=True)
class RunResult:
    """Result of a job that is trained, or needs no training."""

    job: StudyJob
    rows: Sequence[Mapping[str, Any]]  # training metrics, one row for each update; empty for an untrained agent
    scores: Sequence[Score]
    is_complete: bool  # true if all its evaluations are present


def result_of(job: StudyJob) -> RunResult | None:
    """Read the result in the job's folder; None before it is trained."""
    if not job.is_trained():
        return None
    evaluations = job.evaluations()
    rows = read_metrics(job.run_dir) if job.agent == "trained" else ()
    scores = [
        score
        for suite, evaluation in evaluations.items()
        if evaluation is not None
        for score in _scores(job, suite, evaluation)
    ]
    return RunResult(job, rows, scores, all(evaluations.values()))


def _scores(job: StudyJob, suite: str, evaluation: Mapping[str, Any]) -> Iterator[Score]:
    for agent, summary in evaluation["agents"].items():
        for task, one in {"all": summary, **evaluation["tasks"][agent]}.items():
            figures = one["figures"]
            success = (figures["success"][name] for name in ("value", "low", "high"))
            first = (figures.get(name, {}).get("value") for name in FIRST)
            yield Score(job.arm, job.seed, agent, suite, shareable(task), one["episodes"], *success, *first)


def write_arms(output: Path, jobs: Sequence[StudyJob]) -> None:
    """Write ``arms/ARM.yaml`` into ``output``: each arm's settings, without seeds."""
    (output / _ARMS).mkdir(exist_ok=True)
    for job in {job.arm: job for job in jobs}.values():
        settings = OmegaConf.to_yaml(OmegaConf.create(_settings(job)))
        write_atomically(output / _ARMS / f"{job.arm}.yaml", settings)


def _settings(job: StudyJob) -> dict[str, Any]:
    """Settings of the job's arm, as they may be shared."""
    settings: dict[str, Any] = shareable(job.arm_config.model_dump())
    return settings


def read_results(
    folder: Path, study: Study, jobs: Sequence[StudyJob], report: Callable[[str], None]
) -> dict[str, RunResult]:
    """Read results that another machine wrote, for the jobs that they answer completely, by the job's name.

    ``folder`` is an ``--output`` of the same study, whose figures have six digits; ``report`` is called with each
    result that is not used. Raises `ConfigError` if the study or an arm's settings differ, or a file cannot be read.
    """
    summary, rows, scores = _read(folder)
    if (summary.study, summary.episodes) != (study.name, study.episodes):
        raise ConfigError(
            f"{folder} holds results of {summary.study!r:.80} with {summary.episodes!r:.20} episodes, and not of "
            f"{study.name} with {study.episodes}"
        )
    if summary.episode_seeds != SCHEME:
        raise ConfigError(
            f"{folder} was tested in other held-out episodes: its episode seeds are {summary.episode_seeds!r:.40}, "
            f"here {SCHEME!r} (null: even and odd seeds, of Groundling before 28 November 2026); run the study again"
        )
    results = {}
    for job in jobs:
        run = job.arm, job.seed
        own_scores = [s for s in scores if (s.arm, s.seed) == run and s.suite in job.suites]
        own_rows = [row for row in rows if (row["arm"], row["seed"]) == run]
        if not own_scores or (job.agent == "trained" and not own_rows) or job.name in summary.unfinished:
            continue
        _check_settings(job, folder)
        if missing := sorted(set(job.suites) - set(summary.suites.get(job.arm, ()))):
            report(f"{job.name} of {folder} is not taken over: it was not tested in {', '.join(missing)}")
            continue
        scored = {s.suite for s in own_scores if (s.agent, s.task) == (job.agent, "all")}
        if missing := sorted(set(job.suites) & set(summary.tested.get(job.arm, ())) - scored):
            report(f"{job.name} of {folder} is not taken over: {EVALUATIONS} lacks its {', '.join(missing)}")
            continue
        results[job.name] = RunResult(job, own_rows, own_scores, is_complete=True)
    return results


def _read(folder: Path) -> tuple[_Summary, list[dict[str, Any]], list[Score]]:
    """Read a results folder; raise `ConfigError` where a file is not in this version's format."""
    try:
        summary = _Summary.model_validate(read_object(folder / SUMMARY))
        rows = [_row(row) for row in _cells(folder / CURVES)]
        scores = [_score(row) for row in _cells(folder / EVALUATIONS)]
        keys = [(score.arm, score.seed, score.agent, score.suite, score.task) for score in scores]
        if len(set(keys)) < len(keys):
            twice = next(key for key in keys if keys.count(key) > 1)
            raise ValueError(f"{EVALUATIONS} has {twice} twice")
        return summary, rows, scores
    except (OSError, ValueError, KeyError, TypeError, AttributeError, csv.Error, GroundlingError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(
            f"{folder} holds no results of a study that this version can read ({reason:.300})"
        ) from error


def _cells(path: Path) -> Iterator[dict[str, str | None]]:
    """Rows of a CSV file; an empty cell is None."""
    with open_csv(path) as lines:
        for number, row in enumerate(lines, start=1):
            if None in row:
                raise ValueError(f"row {number} of {path} has more cells than columns")
            yield {name: cell or None for name, cell in row.items()}


def _score(cells: Mapping[str, str | None]) -> Score:
    try:
        return TypeAdapter(Score).validate_python(cells)
    except ValidationError as error:
        problem = error.errors()[0]
        name = "".join(map(str, problem["loc"])) or "a row"
        value = f" is {problem['input']!r:.40}" if problem["loc"] else ""
        raise ValueError(f"{EVALUATIONS}: {name}{value}: {problem['msg']}") from error


def _row(cells: Mapping[str, str | None]) -> dict[str, Any]:
    """A row of ``curves.csv`` as in a run's ``metrics.jsonl``, without missing values."""
    row: dict[str, Any] = {"arm": TypeAdapter(Name).validate_python(cells["arm"])}
    for name, cell in cells.items():
        if name == "arm" or (cell is None and name not in ("seed", "step")):
            continue
        is_count = name in ("seed", "step", "episodes")
        value = int(cell or "") if is_count else float(cell or "")
        if math.isnan(value) or abs(value) > _LARGEST or (is_count and value < 0):
            raise ValueError(f"{CURVES}: {name} is {cell!r:.20}, expected a number")
        row[name] = value
    return row


def _check_settings(job: StudyJob, folder: Path) -> None:
    """Raise `ConfigError` if the results are of an arm with other settings."""
    path = folder / _ARMS / f"{job.arm}.yaml"
    if not path.is_file():
        raise ConfigError(f"{folder} does not say with which settings {job.arm} was run: there is no {path}")
    settings = _settings(job)
    written, wanted = flat(shareable(recorded(path))), flat(settings)
    different = [
        f"{key}={written.get(key)!r:.80} (here {wanted.get(key)!r:.80})"
        for key in sorted({*written, *wanted})
        if written.get(key) != wanted.get(key) and not has_fact(NoEffectOnResults, key, settings)
    ]
    if different:
        raise ConfigError(
            f"{folder} has {job.arm} with {', '.join(different)}: results of other settings are not taken over"
        )
