"""The results of a study that asks how often agents succeed, suite by suite: CSVs, figures, and a README."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from groundling.configs.studies import Study
from groundling.errors import RunError
from groundling.evaluation import plots
from groundling.evaluation.study import Job
from groundling.evaluation.tables import StudyHead, estimate_cell, markdown_table, write_csv, write_curves
from groundling.files import write_atomically
from groundling.intervals import IntervalEstimate, area_under_curve, estimate, wilson_interval
from groundling.training.tracking import read_metrics
from groundling.worlds import World

SHARED = "(shared)"
"""In place of a suite: all that suit every arm, taken together; without controls, in which who reads fails."""
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
    """success, area (under the curve of the success in training, by steps), difference (of success or area from that of
    the study's reference with the same seed), or one of `_FIRST`."""
    agent: str
    suite: str
    """Empty for the area."""
    seeds: int
    estimate: IntervalEstimate


def write_study_by_success(
    study: Study, jobs: Sequence[Job], world: type[World[Any, Any]], output: Path, command: Sequence[str]
) -> None:
    """Write what the finished ``jobs`` found into ``output``.

    ``curves.csv`` (one row per update), ``evaluations.csv`` (per run, agent, suite and family of tasks),
    ``summary.csv`` and ``summary.json`` (interquartile means over seeds with bootstrap intervals), the figures
    ``success``, ``first`` (of worlds that tell which thing is first dealt with), ``generalisation`` and ``cloning`` as
    SVG and PNG, and ``README.md``.

    Args:
        study: What was asked.
        jobs: The runs that were asked for.
        world: The kind of world they are of.
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
    areas = _areas(finished, metrics)
    lines = [
        *(Line(arm, "area", "trained", "", len(one), _estimate(one)) for arm, one in areas.items()),
        *_successes(scores, world.controls),
        *_area_differences(areas, study.reference),
        *_differences(scores, study.reference, world.controls),
        *_first_interactions(scores),
    ]
    output.mkdir(parents=True, exist_ok=True)
    runs = [(job.arm, job.seed, metrics.get(job.name, ())) for job in finished]
    columns = [*world.curves, *(_FIRST_CURVE if _tells_first(metrics.values()) else ())]
    write_curves(output / "curves.csv", runs, columns)
    write_csv(output / "evaluations.csv", list(Score.__annotations__), (astuple(score) for score in scores))
    write_csv(
        output / "summary.csv",
        [*(name for name in Line.__annotations__ if name != "estimate"), *IntervalEstimate.__annotations__],
        ((*astuple(line)[:-1], *astuple(line.estimate)) for line in lines),
    )
    missing = [job.name for job in jobs if job not in finished or not all(job.evaluations().values())]
    head = StudyHead(study, command, missing)
    head.write_summary(output, [asdict(line) for line in lines])
    tested = {score.suite for score in scores}
    usual = next((suite for suite in world.suites if suite in tested), next(iter(world.suites)))
    figures = _draw(study, finished, metrics, lines, world.unit, usual, output)
    write_atomically(output / "README.md", _readme(head, lines, scores, finished, usual, figures))


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


def _areas(jobs: Sequence[Job], metrics: dict[str, list[dict[str, Any]]]) -> dict[str, dict[int, float]]:
    """Of the arms that learn from their own episodes, by seed, the area under the curve of their success."""
    areas: dict[str, dict[int, float]] = {}
    for job in jobs:
        steps, values = plots.smooth_curve(metrics.get(job.name, ()), "success_rate")
        if len(steps):
            area = area_under_curve(steps, values, job.config.training.steps)
            areas.setdefault(job.arm, {})[job.seed] = area
    return areas


def _estimate(by_seed: Mapping[int, float]) -> IntervalEstimate:
    return estimate(np.array(list(by_seed.values())))


def _less(by_seed: Mapping[int, float], reference: Mapping[int, float]) -> dict[int, float]:
    """The differences of the seeds that both have."""
    return {seed: value - reference[seed] for seed, value in by_seed.items() if seed in reference}


def _area_differences(areas: Mapping[str, Mapping[int, float]], reference: str | None) -> list[Line]:
    """Of every other arm from the reference with the same seeds."""
    beside = {} if reference is None else areas.get(reference, {})
    differences = {arm: _less(by_seed, beside) for arm, by_seed in areas.items() if arm != reference}
    return [
        Line(arm, "difference", "trained", "", len(one), _estimate(one))
        for arm, one in differences.items()
        if one
    ]


def _successes(scores: Sequence[Score], controls: Collection[str]) -> list[Line]:
    """By arm, agent and suite; and over all suites that every arm that learns has, without controls."""
    table = _table(scores)
    shared = _shared(table, controls)
    return [line for key, suites in table.items() for line in _lines(*key, "success", suites, shared)]


def _differences(scores: Sequence[Score], reference: str | None, controls: Collection[str]) -> list[Line]:
    """Of every other arm's trained agents from the reference's of the same seeds, which play the same episodes."""
    table = _table(scores)
    beside = {} if reference is None else table.get((reference, "trained"), {})
    lines: list[Line] = []
    for (arm, agent), suites in table.items():
        if agent != "trained" or arm == reference:
            continue
        paired = {
            suite: _less(by_seed, beside[suite]) for suite, by_seed in suites.items() if suite in beside
        }
        differences = {suite: by_seed for suite, by_seed in paired.items() if by_seed}
        lines += _lines(arm, agent, "difference", differences, _shared(table, controls))
    return lines


_BySeed = dict[str, dict[int, float]]
"""By suite and seed."""


def _table(scores: Sequence[Score]) -> dict[tuple[str, str], _BySeed]:
    """The success of all tasks together, by arm and agent."""
    table: dict[tuple[str, str], _BySeed] = {}
    for s in scores:
        if s.task == "all":
            table.setdefault((s.arm, s.agent), {}).setdefault(s.suite, {})[s.seed] = s.success
    return table


def _shared(table: Mapping[tuple[str, str], _BySeed], controls: Collection[str]) -> list[str]:
    """The suites that every arm that learns has, without controls."""
    learning = [set(suites) for (_, agent), suites in table.items() if agent == "trained"]
    return sorted(set.intersection(*learning) - set(controls)) if learning else []


def _lines(arm: str, agent: str, measure: str, suites: _BySeed, shared: Sequence[str]) -> Iterator[Line]:
    """Of each suite, and of those that are shared together."""
    for suite, by_seed in suites.items():
        yield Line(arm, measure, agent, suite, len(by_seed), _estimate(by_seed))
    if len(shared) > 1 and set(shared) <= set(suites):
        seeds = set.intersection(*(set(suites[suite]) for suite in shared))
        together = np.array([[suites[suite][seed] for suite in shared] for seed in sorted(seeds)])
        if measure == "difference":  # which may be in one suite alone, and would be cut off as an outlier
            together = together.mean(axis=1)
        if seeds:
            yield Line(arm, measure, agent, SHARED, len(seeds), estimate(together))


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


def _draw(
    study: Study,
    jobs: Sequence[Job],
    metrics: dict[str, list[dict[str, Any]]],
    lines: Sequence[Line],
    unit: str,
    usual: str,
    output: Path,
) -> dict[str, str]:
    """Draw what there is to draw, over steps in their ``unit``; by the figure's name, what it shows.

    Arms without training are lines in the figures of the others.
    """
    untrained = {
        arm: {suite: one.value for suite, one in _by_suite(lines, arm, agents[0]).items()}
        for arm in study.arms
        if (agents := _agents(lines, arm)) and "trained" not in agents
    }
    drawn: dict[str, str] = {}
    learners = {line.arm for line in lines if line.measure == "area"}
    curves = {
        arm: [metrics[job.name] for job in jobs if job.arm == arm] for arm in study.arms if arm in learners
    }
    if curves:
        levels = {arm: suites[usual] for arm, suites in untrained.items() if usual in suites}
        figure = plots.draw_learning_curve(
            curves, "success_rate", "success rate", levels, steps=unit, is_share=True
        )
        plots.save(figure, output / "success")
        drawn["success"] = f"Success in training over {unit}, interquartile mean of the seeds (smoothed)"
    if _tells_first(metrics.values()):
        rows = [
            row for run_rows in metrics.values() for row in run_rows if row.get("first_chance") is not None
        ]
        chance = sum(row["first_chance"] for row in rows) / len(rows)
        label = "first thing is the named one"
        figure = plots.draw_learning_curve(
            curves, "first_precision", label, {"chance": chance}, unit, is_share=True
        )
        plots.save(figure, output / "first")
        drawn["first"] = "Of the first things dealt with in training, the share that is the named one"
    panels: dict[str, dict[str, dict[str, IntervalEstimate]]] = {
        arm: {a: _by_suite(lines, arm, a) for a in ("trained", "zero-shot") if a in _agents(lines, arm)}
        for arm in study.arms
        if "trained" in _agents(lines, arm)
    }
    if panels:
        plots.save(plots.draw_estimates(panels, "success rate", untrained), output / "generalisation")
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
    head: StudyHead,
    lines: Sequence[Line],
    scores: Sequence[Score],
    jobs: Sequence[Job],
    usual: str,
    figures: dict[str, str],
) -> str:
    study = head.study
    arms = [name for name in study.arms if any(line.arm == name for line in lines)]
    areas = {line.arm: line.estimate for line in lines if line.measure == "area"}
    overview = [
        [
            name,
            study.arms[name].about,
            _cell(areas.get(name)),
            *(
                _cell(_by_suite(lines, name, agent).get(usual))
                for agent in ("zero-shot", _agent_of(jobs, name))
            ),
        ]
        for name in arms
    ]
    text = head.markdown(
        f"Seeds: {', '.join(map(str, study.seeds))}. Held-out episodes for each run, agent and test: {study.episodes}. "
        "Figures are interquartile means over seeds (of less than four values: means) with 95 % stratified-bootstrap "
        "intervals; of few seeds these are narrow at best, and of one, or where all agree, there is none. "
        "The area is that under the smoothed curve of the success in "
        f"training, divided by the steps. `{SHARED}` takes together the tests that suit every arm that learns. "
        "`evaluations.csv` has every run by family of tasks, `curves.csv` every update."
    )
    text.append("## Arms")
    text.append(markdown_table(["arm", "", "area under the curve", f"{usual}, before", usual], overview))
    for title, agent in (("After training", "trained"), ("Before training", "zero-shot")):
        columns = [name for name in arms if agent in _agents(lines, name)]
        if columns:
            text += [f"## {title}", _by_suite_table(lines, columns, agent)]
    if differences := {
        line.arm: _by_suite(lines, line.arm, "trained", "difference")
        for line in lines
        if line.measure == "difference"
    }:
        text += [
            f"## Differences from {study.reference}",
            "Of agents trained with the same seed, which play the same episodes: interquartile means of the "
            f"differences, with their intervals. In bold: the interval excludes 0. `{SHARED}`: of each seed's mean "
            "over the tests.",
            _difference_table(differences),
        ]
    others = [name for name in arms if (agents := _agents(lines, name)) and "trained" not in agents]
    if others:
        text += ["## Without training", _by_suite_table(lines, others, None)]
    text += [
        "## Held-out episodes, run by run",
        "With 95 % Wilson intervals over the episodes. All runs play the same ones.",
        _run_table(scores, study.seeds, usual),
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
    rows = [[suite, *(_cell(c.get(suite)) for c in columns)] for suite in suites]
    return markdown_table(["test", *arms], rows)


def _difference_table(differences: Mapping[str, Mapping[str, IntervalEstimate]]) -> str:
    """One line for each suite, one column for each arm."""
    suites = list(dict.fromkeys(suite for column in differences.values() for suite in column))

    def cell(one: IntervalEstimate | None) -> str:
        text = estimate_cell(one, "+.3f")
        return (
            f"**{text}**"
            if one is not None and (one.low > 0 or one.high < 0) and one.low < one.high
            else text
        )

    rows = [
        [suite or "(area under the curve)", *(cell(column.get(suite)) for column in differences.values())]
        for suite in suites
    ]
    return markdown_table(["test", *differences], rows)


def _run_table(scores: Sequence[Score], seeds: Sequence[int], usual: str) -> str:
    """Of the usual suite, one line for each arm's agents, one column for each seed, and one for all their episodes."""
    runs: dict[str, dict[int, Score]] = {}
    for s in scores:
        if (s.suite, s.task) == (usual, "all"):
            runs.setdefault(s.arm if s.agent in ("trained", s.arm) else f"{s.arm}, {s.agent}", {})[s.seed] = s
    rows = []
    for name, by_seed in runs.items():
        each = [_together([by_seed[seed]]) if seed in by_seed else "" for seed in seeds]
        rows.append([name, *each, _together(list(by_seed.values()))])
    return markdown_table(["", *(f"seed {seed}" for seed in seeds), "together"], rows)


def _together(scores: Sequence[Score]) -> str:
    """The share of these runs' episodes that succeeded, with its Wilson interval."""
    successes, episodes = sum(round(s.success * s.episodes) for s in scores), sum(s.episodes for s in scores)
    return _cell(IntervalEstimate(successes / episodes, *wilson_interval(successes, episodes)))


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
                f"{_cell(precision.get(suite)) or '–'}, none {none[suite].value:.3f}" if suite in none else ""
                for precision, none in columns.values()
            ),
            f"{chance.value:.3f}",
        ]
        for suite, chance in chances.items()
    ]
    return markdown_table(["test", *columns, "chance"], rows)


def _cell(share: IntervalEstimate | None) -> str:
    return estimate_cell(share, ".3f")
