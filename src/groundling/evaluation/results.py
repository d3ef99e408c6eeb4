"""What a study found: CSVs, figures, and a README with their figures in tables."""

import csv
import io
import json
import shlex
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from groundling.configs.studies import Study
from groundling.envs.babyai_text import CONTROLS
from groundling.errors import RunError
from groundling.evaluation import plots
from groundling.evaluation.study import Job
from groundling.files import write_atomically
from groundling.intervals import IntervalEstimate, area_under_curve, estimate, wilson_interval
from groundling.training.tracking import read_metrics

SHARED = "(shared)"
"""In place of a suite: all that suit every arm, taken together; without controls, in which who reads fails."""
_HELD_OUT = "held-out"
"""The test on episodes like those of training."""
_CURVE = ("seconds", "episodes", "success_rate", "return_mean", "episode_length", "loss")
_FIRST_CURVE = ("first_named", "first_other", "first_none", "first_precision", "first_chance")
"""Columns of worlds that tell which thing the agent first deals with."""
_FIRST = ("first_named", "first_none", "first_precision", "first_chance")
"""What a study sums up of these."""


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
class Line:
    """What an arm's runs come to."""

    arm: str
    measure: str
    """success, area (under the curve of the success in training, by steps), or one of `_FIRST`."""
    agent: str
    suite: str
    """Empty for the area."""
    seeds: int
    estimate: IntervalEstimate


def write_results(study: Study, jobs: Sequence[Job], output: Path, command: Sequence[str]) -> None:
    """Write what the finished ``jobs`` found into ``output``.

    ``curves.csv`` (one row per update), ``evaluations.csv`` (per run, agent, suite and family of tasks),
    ``summary.csv`` and ``summary.json`` (interquartile means over seeds with bootstrap intervals), the figures
    ``success``, ``first`` (of worlds that tell which thing is first dealt with), ``generalisation`` and ``cloning`` as
    SVG and PNG, and ``README.md``.

    Args:
        study: What was asked.
        jobs: The runs that were asked for.
        output: The folder.
        command: The words after ``groundling`` that made it.

    Raises:
        RunError: no run is finished.
    """
    finished = [job for job in jobs if job.is_trained()]
    if not finished:
        raise RunError(f"no run of {study.name} is finished yet: run the same command again")
    metrics = {job.name: read_metrics(job.run_dir) for job in finished if job.agent == "trained"}
    scores = [score for job in finished for score in _scores(job)]
    lines = [*_areas(finished, metrics), *_successes(scores), *_first_interactions(scores)]
    output.mkdir(parents=True, exist_ok=True)
    columns = [*_CURVE, *(_FIRST_CURVE if _tells_first(metrics.values()) else ())]
    _csv(output / "curves.csv", ["arm", "seed", "step", *columns], _curve_rows(finished, metrics, columns))
    _csv(output / "evaluations.csv", list(Score.__annotations__), (astuple(score) for score in scores))
    _csv(
        output / "summary.csv",
        [*(name for name in Line.__annotations__ if name != "estimate"), *IntervalEstimate.__annotations__],
        ((*astuple(line)[:-1], *astuple(line.estimate)) for line in lines),
    )
    missing = [job.name for job in jobs if job not in finished or not all(job.evaluations().values())]
    about: dict[str, Any] = {
        "study": study.name,
        "command": shlex.join(["groundling", *command]),
        "seeds": study.seeds,
        "episodes": study.episodes,
        "unfinished": missing,
    }
    summary = about | {"figures": [asdict(line) for line in lines]}
    write_atomically(output / "summary.json", json.dumps(summary, indent=1) + "\n")
    figures = _draw(study, finished, metrics, lines, output)
    write_atomically(output / "README.md", _readme(study, about, lines, scores, finished, figures))


def _scores(job: Job) -> list[Score]:
    scores = []
    for suite, evaluation in job.evaluations().items():
        for agent, summary in (evaluation or {"agents": {}})["agents"].items():
            for task, one in {"all": summary, **(evaluation or {})["tasks"][agent]}.items():
                figures = one["figures"]
                success = (figures["success"][name] for name in ("value", "low", "high"))
                first = (figures.get(name, {}).get("value") for name in _FIRST)
                scores.append(Score(job.arm, job.seed, agent, suite, task, one["episodes"], *success, *first))
    return scores


def _areas(jobs: Sequence[Job], metrics: dict[str, list[dict[str, Any]]]) -> list[Line]:
    """Of the arms that learn from their own episodes, the area under the curve of their success."""
    areas: dict[str, list[float]] = {}
    for job in jobs:
        steps, values = plots.smooth_curve(metrics.get(job.name, ()), "success_rate")
        if len(steps):
            areas.setdefault(job.arm, []).append(area_under_curve(steps, values, job.config.training.steps))
    return [
        Line(arm, "area", "trained", "", len(arm_areas), estimate(np.array(arm_areas)))
        for arm, arm_areas in areas.items()
    ]


def _successes(scores: Sequence[Score]) -> list[Line]:
    """By arm, agent and suite; and over all suites that every arm that learns has, without controls."""
    table: dict[tuple[str, str], dict[str, dict[int, float]]] = {}
    for s in scores:
        if s.task == "all":
            table.setdefault((s.arm, s.agent), {}).setdefault(s.suite, {})[s.seed] = s.success
    learning = [set(suites) for (_, agent), suites in table.items() if agent == "trained"]
    shared = sorted(set.intersection(*learning) - set(CONTROLS)) if learning else []
    lines = []
    for (arm, agent), suites in table.items():
        for suite, by_seed in suites.items():
            interval = estimate(np.array(list(by_seed.values())))
            lines.append(Line(arm, "success", agent, suite, len(by_seed), interval))
        if len(shared) > 1 and set(shared) <= set(suites):
            seeds = set.intersection(*(set(suites[suite]) for suite in shared))
            together = np.array([[suites[suite][seed] for suite in shared] for seed in sorted(seeds)])
            if seeds:
                lines.append(Line(arm, "success", agent, SHARED, len(seeds), estimate(together)))
    return lines


def _first_interactions(scores: Sequence[Score]) -> list[Line]:
    """By arm, agent and suite: what the agent first deals with."""
    table: dict[tuple[str, str, str, str], list[float]] = {}
    for s in scores:
        for measure in _FIRST:
            value = getattr(s, measure)
            if s.task == "all" and value is not None:
                table.setdefault((s.arm, measure, s.agent, s.suite), []).append(value)
    return [
        Line(arm, measure, agent, suite, len(values), estimate(np.array(values)))
        for (arm, measure, agent, suite), values in table.items()
    ]


def _tells_first(runs: Iterable[Sequence[dict[str, Any]]]) -> bool:
    return any(row.get("first_precision") is not None for rows in runs for row in rows)


def _curve_rows(
    jobs: Sequence[Job], metrics: dict[str, list[dict[str, Any]]], columns: Sequence[str]
) -> Iterable[tuple[Any, ...]]:
    for job in jobs:
        for row in metrics.get(job.name, ()):
            yield job.arm, job.seed, row["step"], *(row.get(key) for key in columns)


def _csv(path: Path, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows([f"{x:.6g}" if isinstance(x, float) else x for x in row] for row in rows)
    write_atomically(path, text.getvalue())


def _draw(
    study: Study,
    jobs: Sequence[Job],
    metrics: dict[str, list[dict[str, Any]]],
    lines: Sequence[Line],
    output: Path,
) -> dict[str, str]:
    """Draw what there is to draw; by the figure's name, what it shows."""
    drawn: dict[str, str] = {}
    learners = {line.arm for line in lines if line.measure == "area"}
    curves = {
        arm: [metrics[job.name] for job in jobs if job.arm == arm] for arm in study.arms if arm in learners
    }
    if curves:
        figure = plots.draw_learning_curve(curves, "success_rate", "success rate")
        plots.save(figure, output / "success")
        drawn["success"] = "Success in training over env steps, interquartile mean of the seeds (smoothed)"
    if _tells_first(metrics.values()):
        rows = [
            row for run_rows in metrics.values() for row in run_rows if row.get("first_chance") is not None
        ]
        chance = sum(row["first_chance"] for row in rows) / len(rows)
        label = "first thing is the named one"
        figure = plots.draw_learning_curve(curves, "first_precision", label, {"chance": chance})
        plots.save(figure, output / "first")
        drawn["first"] = "Of the first things dealt with in training, the share that is the named one"
    panels: dict[str, dict[str, dict[str, IntervalEstimate]]] = {
        arm: {a: _by_suite(lines, arm, a) for a in ("trained", "zero-shot") if a in _agents(lines, arm)}
        for arm in study.arms
        if "trained" in _agents(lines, arm)
    }
    if panels:
        plots.save(plots.draw_estimates(panels, "success rate"), output / "generalisation")
        drawn["generalisation"] = "Success on held-out episodes of each test, trained and before (zero-shot)"
    if compared := _compared(study, panels):
        series = {arm: panels[arm]["trained"] for arm in compared}
        plots.save(plots.draw_estimates({"": series}, "success rate"), output / "cloning")
        drawn["cloning"] = "Online reinforcement learning beside cloning of as many transitions"
    return drawn


def _agents(lines: Sequence[Line], arm: str) -> list[str]:
    return list(dict.fromkeys(line.agent for line in lines if line.arm == arm and line.measure == "success"))


def _by_suite(
    lines: Sequence[Line], arm: str, agent: str, measure: str = "success"
) -> dict[str, IntervalEstimate]:
    return {
        line.suite: line.estimate
        for line in lines
        if (line.arm, line.agent, line.measure) == (arm, agent, measure)
    }


def _compared(study: Study, there: Collection[str]) -> list[str]:
    """The arms that are clones, and before them the arms that were cloned."""
    clones = [name for name, arm in study.arms.items() if arm.data is not None and name in there]
    cloned = {study.arms[name].data for name in clones}
    return [name for name in study.arms if name in cloned and name in there] + clones


def _readme(
    study: Study,
    about: dict[str, Any],
    lines: Sequence[Line],
    scores: Sequence[Score],
    jobs: Sequence[Job],
    figures: dict[str, str],
) -> str:
    arms = [name for name in study.arms if any(line.arm == name for line in lines)]
    areas = {line.arm: line.estimate for line in lines if line.measure == "area"}
    overview = [
        [
            name,
            study.arms[name].about,
            _told(areas.get(name)),
            *(
                _told(_by_suite(lines, name, agent).get(_HELD_OUT))
                for agent in ("zero-shot", _agent_of(jobs, name))
            ),
        ]
        for name in arms
    ]
    text = [
        f"# {study.title or study.name}",
        "Made by",
        f"```\n{about['command']}\n```",
        f"Seeds: {', '.join(map(str, study.seeds))}. Held-out episodes for each run, agent and test: {study.episodes}. "
        "Figures are interquartile means over seeds (of less than four values: means) with 95 % stratified-bootstrap "
        "intervals; of few seeds these are narrow at best, and of one, or where all agree, there is none. "
        "The area is that under the smoothed curve of the success in "
        f"training, divided by the steps. `{SHARED}` takes together the tests that suit every arm that learns. "
        "`evaluations.csv` has every run by family of tasks, `curves.csv` every update.",
    ]
    if study.note:
        text.append(study.note.strip())
    if about["unfinished"]:
        text.append(
            f"**Unfinished or failed, and so not or not wholly in here: {', '.join(about['unfinished'])}.**"
        )
    text.append("## Arms")
    text.append(_table(["arm", "", "area under the curve", "held-out, before", "held-out"], overview))
    for title, agent in (("After training", "trained"), ("Before training", "zero-shot")):
        columns = [name for name in arms if agent in _agents(lines, name)]
        if columns:
            text += [f"## {title}", _by_suite_table(lines, columns, agent)]
    others = [name for name in arms if "trained" not in _agents(lines, name)]
    if others:
        text += ["## Without training", _by_suite_table(lines, others, None)]
    text += [
        "## Held-out episodes, run by run",
        "With 95 % Wilson intervals over the episodes. All runs play the same ones.",
        _run_table(scores, study.seeds),
    ]
    if firsts := [(line.arm, line.agent) for line in lines if line.measure == "first_precision"]:
        text += [
            "## The thing first dealt with",
            "Of the episodes in which the agent deals with any thing, the share in which the named one is the first; "
            "then the share of all episodes in which it deals with none. "
            "Under `swapped` the thing that the agent reads of counts as named. Chance: of a blind choice.",
            _first_table(lines, list(dict.fromkeys(firsts))),
        ]
    for name, what in figures.items():
        text += [f"## {what}", f"![{what}]({name}.svg)"]
    return "\n\n".join(text) + "\n"


def _agent_of(jobs: Sequence[Job], arm: str) -> str:
    return next(job.agent for job in jobs if job.arm == arm)


def _by_suite_table(lines: Sequence[Line], arms: Sequence[str], agent: str | None) -> str:
    """One line for each suite, one column for each arm; of arms without training the only agent that they have."""
    columns = [_by_suite(lines, arm, agent or _agents(lines, arm)[0]) for arm in arms]
    suites = list(dict.fromkeys(suite for column in columns for suite in column))
    return _table(["test", *arms], [[suite, *(_told(c.get(suite)) for c in columns)] for suite in suites])


def _run_table(scores: Sequence[Score], seeds: Sequence[int]) -> str:
    """One line for each arm's agents, one column for each seed, and one for the episodes of all seeds together."""
    runs: dict[str, dict[int, Score]] = {}
    for s in scores:
        if (s.suite, s.task) == (_HELD_OUT, "all"):
            runs.setdefault(s.arm if s.agent in ("trained", s.arm) else f"{s.arm}, {s.agent}", {})[s.seed] = s
    rows = []
    for name, by_seed in runs.items():
        each = [_together([by_seed[seed]]) if seed in by_seed else "" for seed in seeds]
        rows.append([name, *each, _together(list(by_seed.values()))])
    return _table(["", *(f"seed {seed}" for seed in seeds), "together"], rows)


def _together(scores: Sequence[Score]) -> str:
    """The share of these runs' episodes that succeeded, with its Wilson interval."""
    successes, episodes = sum(round(s.success * s.episodes) for s in scores), sum(s.episodes for s in scores)
    return _told(IntervalEstimate(successes / episodes, *wilson_interval(successes, episodes)))


def _first_table(lines: Sequence[Line], agents: Sequence[tuple[str, str]]) -> str:
    """One line for each suite, one column for each arm's agents, and chance."""
    columns = {
        f"{arm}, before" if agent == "zero-shot" else arm: [
            _by_suite(lines, arm, agent, measure) for measure in ("first_precision", "first_none")
        ]
        for arm, agent in agents
    }
    chances = {line.suite: line.estimate for line in lines if line.measure == "first_chance"}
    rows = [
        [
            suite,
            *(
                f"{_told(precision.get(suite)) or '–'}, none {none[suite].value:.3f}" if suite in none else ""
                for precision, none in columns.values()
            ),
            f"{chance.value:.3f}",
        ]
        for suite, chance in chances.items()
    ]
    return _table(["test", *columns, "chance"], rows)


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def _told(interval: IntervalEstimate | None) -> str:
    return interval.text(".3f") if interval else ""
