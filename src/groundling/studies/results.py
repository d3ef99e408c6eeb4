"""What each run of a study came to: read from its folder, or from results that were written on another machine."""

import csv
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from groundling.config.compose import recorded
from groundling.config.flat import flat
from groundling.envs.seeds import SCHEME
from groundling.errors import ConfigError, GroundlingError
from groundling.io.csv_files import open_csv
from groundling.io.documents import read_object
from groundling.io.files import write_atomically
from groundling.io.redaction import shareable
from groundling.studies.definition import Study
from groundling.studies.run import Job
from groundling.training.folder import changes_no_result
from groundling.training.tracking import read_metrics

FIRST = ("first_named", "first_none", "first_precision", "first_chance")
"""What is summed up of the thing that an agent first deals with, in worlds that tell."""
CURVES, EVALUATIONS, SUMMARY = "curves.csv", "evaluations.csv", "summary.json"
_ARMS = "arms"
_NAMES = ("arm", "agent", "suite", "task")
_NAME = re.compile(r"(?!.*//)\w[\w .,:/()+-]*")
"""How arms and suites, agents, envs and families of tasks are called: no markup, no formula and no address."""
_COUNTS = ("seed", "episodes", "step")
_LARGEST = 2.0**53
"""A count or figure beyond it is none of a run's."""
_ROUNDING = 1e-5
"""The CSV files have six digits."""
_ALWAYS = ("seed", "step", "success", "low", "high")


@dataclass(frozen=True)
class Score:
    """How often one run's agent succeeded."""

    arm: str
    seed: int
    agent: str
    """trained, zero-shot, random or expert."""
    suite: str
    task: str
    """A family of tasks, or all."""
    episodes: int
    success: float
    low: float
    """Lower end of the 95 % Wilson interval over the episodes."""
    high: float
    first_named: float | None
    """Share of the episodes in which the named thing is the first that the agent deals with; None: the world does not
    tell."""
    first_none: float | None
    """Share of the episodes in which it deals with nothing."""
    first_precision: float | None
    """Share of the others in which the named thing is the first; None also if there are no others."""
    first_chance: float | None


@dataclass(frozen=True)
class RunResult:
    """A job that is trained, or needs no training, and what is known of it."""

    job: Job
    rows: Sequence[Mapping[str, Any]]
    """One for each update; empty where the agent is not trained."""
    scores: Sequence[Score]
    is_whole: bool
    """Whether all its evaluations are there."""


def result_of(job: Job) -> RunResult | None:
    """What the job's folder tells; None before it is trained."""
    if not job.is_trained():
        return None
    rows = read_metrics(job.run_dir) if job.agent == "trained" else ()
    return RunResult(job, rows, _scores(job), all(job.evaluations().values()))


def _scores(job: Job) -> list[Score]:
    scores = []
    for suite, evaluation in job.evaluations().items():
        for agent, summary in (evaluation or {"agents": {}})["agents"].items():
            for task, one in {"all": summary, **(evaluation or {})["tasks"][agent]}.items():
                figures = one["figures"]
                success = (figures["success"][name] for name in ("value", "low", "high"))
                first = (figures.get(name, {}).get("value") for name in FIRST)
                scores.append(
                    Score(job.arm, job.seed, agent, suite, shareable(task), one["episodes"], *success, *first)
                )
    return scores


def write_arms(output: Path, jobs: Sequence[Job]) -> None:
    """Write ``arms/ARM.yaml`` into the folder ``output``: all that each arm was run with, but for its seeds."""
    (output / _ARMS).mkdir(exist_ok=True)
    for job in {job.arm: job for job in jobs}.values():
        write_atomically(
            output / _ARMS / f"{job.arm}.yaml", OmegaConf.to_yaml(OmegaConf.create(_settings(job)))
        )


def _settings(job: Job) -> dict[str, Any]:
    """An arm's configuration, as it may be given away."""
    settings: dict[str, Any] = shareable(asdict(job.arm_config))
    return settings


def read_results(
    folder: Path, study: Study, jobs: Sequence[Job], tell: Callable[[str], None]
) -> dict[str, RunResult]:
    """Those of the ``jobs`` of which results that another machine wrote tell all that is asked.

    Args:
        folder: An ``--output`` of the same study. Its figures have six digits.
        study: What is asked.
        jobs: Its runs.
        tell: Is told what of the folder is not taken over.

    Returns:
        The results by the job's name.

    Raises:
        ConfigError: the folder is another study's, an arm had other settings, or a file is not as this version writes
            it.
    """
    there = _read_files(folder)
    if (there.study, there.episodes) != (study.name, study.episodes):
        raise ConfigError(
            f"{folder} holds results of {there.study!r:.80} with {there.episodes!r:.20} episodes, and not of "
            f"{study.name} with {study.episodes}"
        )
    if there.episode_seeds != SCHEME:
        raise ConfigError(
            f"{folder} was tested in other held-out episodes: its episode seeds are {there.episode_seeds!r:.40}, here "
            f"{SCHEME!r} (null: even and odd seeds, of Groundling before 28 November 2026); run the study again"
        )
    results = {}
    for job in jobs:
        run = job.arm, job.seed
        scores = [
            score for score in there.scores if (score.arm, score.seed) == run and score.suite in job.suites
        ]
        rows = [row for row in there.rows if (row["arm"], row["seed"]) == run]
        if not scores or (job.agent == "trained" and not rows) or job.name in there.unfinished:
            continue
        _check_settings(job, folder)
        if lacking := sorted(set(job.suites) - set(there.suites.get(job.arm, ()))):
            tell(f"{job.name} of {folder} is not taken over: it was not tested in {', '.join(lacking)}")
            continue
        scored = {score.suite for score in scores if (score.agent, score.task) == (job.agent, "all")}
        if lacking := sorted(set(job.suites) & set(there.tested.get(job.arm, ())) - scored):
            tell(f"{job.name} of {folder} is not taken over: {EVALUATIONS} lacks its {', '.join(lacking)}")
            continue
        results[job.name] = RunResult(job, rows, scores, is_whole=True)
    return results


@dataclass(frozen=True)
class _Files:
    """What the files of a results' folder say."""

    study: str
    episodes: int
    episode_seeds: str | None
    """The scheme of the episodes' seeds; None before it was written."""
    unfinished: Sequence[str]
    suites: Mapping[str, Sequence[str]]
    """By arm, those that were asked for."""
    tested: Mapping[str, Sequence[str]]
    """By arm, those of them that suit it."""
    rows: Sequence[Mapping[str, Any]]
    scores: Sequence[Score]


def _read_files(folder: Path) -> _Files:
    """Raises `ConfigError` where a file is not as this version writes it."""
    try:
        summary = read_object(folder / SUMMARY)
        study, episodes = summary["study"], summary["episodes"]
        unfinished = _names(summary["unfinished"])
        suites, tested = (
            {arm: _names(names) for arm, names in summary[key].items()} for key in ("suites", "tested")
        )
        rows = [_row(row) for row in _read(folder / CURVES)]
        scores = [_score(row) for row in _read(folder / EVALUATIONS)]
        keys = [(score.arm, score.seed, score.agent, score.suite, score.task) for score in scores]
        if len(set(keys)) < len(keys):
            twice = next(key for key in keys if keys.count(key) > 1)
            raise ValueError(f"{EVALUATIONS} has {twice} twice")
        episode_seeds = summary.get("episode_seeds")
        return _Files(study, episodes, episode_seeds, unfinished, suites, tested, rows, scores)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, csv.Error, GroundlingError) as error:
        raise ConfigError(
            f"{folder} holds no results of a study that this version can read ({error!r:.200})"
        ) from error


def _check_settings(job: Job, folder: Path) -> None:
    """Raise `ConfigError` if the results are of an arm with other settings."""
    path = folder / _ARMS / f"{job.arm}.yaml"
    if not path.is_file():
        raise ConfigError(f"{folder} does not say with which settings {job.arm} was run: there is no {path}")
    there, wanted = flat(shareable(recorded(path))), flat(_settings(job))
    different = [
        f"{key}={there.get(key)!r:.80} (here {wanted.get(key)!r:.80})"
        for key in sorted({*there, *wanted})
        if there.get(key) != wanted.get(key) and not changes_no_result(key)
    ]
    if different:
        raise ConfigError(
            f"{folder} has {job.arm} with {', '.join(different)}: results of other settings are not taken over"
        )


def _names(value: Any) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise ValueError(f"{value!r:.80} is no list of names")
    return value


def _row(row: Mapping[str, Any]) -> dict[str, Any]:
    """Of ``curves.csv``: as of a run's ``metrics.jsonl``, in which what an update has not is left out."""
    present = {name: value for name, value in row.items() if value is not None}
    return present | {name: row[name] for name in ("arm", "seed", "step")}


def _score(row: Mapping[str, Any]) -> Score:
    """Of a row of ``evaluations.csv``."""
    score = Score(**row)
    if not score.episodes:
        raise ValueError(f"{score.arm} with seed {score.seed} was tested in 0 episodes")
    if any(
        before > after + _ROUNDING for before, after in pairwise((0, score.low, score.success, score.high, 1))
    ):
        raise ValueError(
            f"{score.arm} with seed {score.seed} has a success of {score.success} [{score.low}, {score.high}], "
            "expected a share from 0 to 1 within its interval"
        )
    return score


def _read(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of a CSV file of results; an empty cell is None.

    Raises:
        ValueError: a cell is neither empty nor of its column's kind, or a name is none.
    """
    with open_csv(path) as lines:
        for number, row in enumerate(lines, start=1):
            if None in row:
                raise ValueError(f"row {number} of {path} has more cells than columns")
            yield {name: _value(name, cell or "", f"row {number} of {path}") for name, cell in row.items()}


def _value(name: str, cell: str, where: str) -> Any:
    if name in _NAMES:
        if not _NAME.fullmatch(cell):
            raise ValueError(
                f"{where}: {name} is {cell!r:.40}, expected letters, digits, spaces and _.,:/()+-"
            )
        return cell
    if not cell and name not in _ALWAYS:
        return None
    value = int(cell) if name in _COUNTS else float(cell)
    if abs(value) > _LARGEST or (name in _COUNTS and value < 0) or math.isnan(value):
        raise ValueError(f"{where}: {name} is {cell!r:.20}, expected a number")
    return value
