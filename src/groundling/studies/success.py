"""Results of a study by success rate, suite by suite."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple, fields
from typing import Any

from groundling.envs.seeds import SCHEME
from groundling.errors import RunError
from groundling.evaluation.tables import estimate_cell, markdown_table
from groundling.intervals import IntervalEstimate, wilson_interval
from groundling.reports import plots
from groundling.studies.definition import Study
from groundling.studies.page import StudyPage, curves_table
from groundling.studies.results import RunResult, Score, result_of
from groundling.studies.run import Job
from groundling.studies.summary import SHARED, SummaryRow, agents_of, by_suite, summarize
from groundling.worlds import World

_FIRST_CURVES = ("first_named", "first_other", "first_none", "first_precision", "first_chance")
"""Columns of worlds that report an agent's first interaction."""


def page_of_success(
    study: Study, jobs: Sequence[Job], world: type[World], elsewhere: Mapping[str, RunResult]
) -> StudyPage:
    """Make the results page of the finished ``jobs``.

    ``arms/`` holds each arm's settings, ``curves.csv`` one row for each update, ``evaluations.csv`` one for each run,
    agent, suite and family of tasks, ``summary.csv`` interquartile means over seeds with bootstrap intervals. Pictures
    are ``success``, ``first`` (of worlds that report the first interaction), ``generalisation`` and ``cloning``.

    Args:
        study: The study.
        jobs: Its runs.
        world: Their kind of world.
        elsewhere: Results of another machine, by the job's name (`read_results`).

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
    rows = summarize(results, study, usual, world.suite_groups.get("controls", ()))
    updates = [row for one in results for row in one.rows]
    reports_first = any(row.get("first_precision") is not None for row in updates)
    columns = [*world.presentation.curves, *(_FIRST_CURVES if reports_first else ())]
    header = [field.name for field in fields(SummaryRow)[:-1] + fields(IntervalEstimate)]
    pictures, captions = _draw(study, results, rows, world.presentation.unit, usual)
    return StudyPage(
        explanation=(
            f"Seeds: {', '.join(map(str, study.seeds))}. Held-out episodes for each run, agent and test: "
            f"{study.episodes}. Figures are interquartile means over seeds (of less than four values: means) with 95 % "
            "bootstrap intervals. With few seeds these intervals tend to be too narrow; with one seed, or "
            "where all seeds agree, there is no interval. The area under the curve is that of the smoothed success in "
            f"training, divided by the steps. `{SHARED}` is the same figure of each seed's mean over the tests that "
            "suit every arm that learns, arms with tests of their own left out. `evaluations.csv` has every run by "
            "family of tasks, `curves.csv` every update."
        ),
        sections=[*_tables(study, results, rows, scores, usual), *captions],
        tables={
            "curves": curves_table([(one.job, one.rows) for one in results], columns),
            "evaluations": ([field.name for field in fields(Score)], map(astuple, scores)),
            "summary": (header, [[*astuple(row)[:-1], *astuple(row.estimate)] for row in rows]),
        },
        pictures=pictures,
        figures=[asdict(row) for row in rows],
        unfinished=[name for name, one in by_job.items() if one is None or not one.is_complete],
        about={
            "suites": {job.arm: job.suites for job in jobs},
            "tested": {job.arm: list(dict.fromkeys(s.suite for s in scores if s.arm == job.arm)) for job in jobs},
            "episode_seeds": SCHEME,
        },
        arms=[one.job for one in results],
    )


def _tables(
    study: Study, results: Sequence[RunResult], rows: Sequence[SummaryRow], scores: Sequence[Score], usual: str
) -> list[str]:
    """Sections with tables, in Markdown."""
    arms = [name for name in study.arms if any(row.arm == name for row in rows)]
    areas = {row.arm: row.estimate for row in rows if row.measure == "area"}
    final = {one.job.arm: one.job.agent for one in results}
    overview = [
        [
            name,
            study.arms[name].about,
            _cell(areas.get(name)),
            *(_cell(by_suite(rows, name, agent).get(usual)) for agent in ("zero-shot", final[name])),
        ]
        for name in arms
    ]
    text = ["## Arms", markdown_table(["arm", "", "area under the curve", f"{usual}, before", usual], overview)]
    titles = {"trained": "After training", "clone": "After cloning", "zero-shot": "Before training"}
    for agent, title in titles.items():
        columns = {name: by_suite(rows, name, agent) for name in arms if agent in agents_of(rows, name)}
        if columns:
            text += [f"## {title}", _suite_table(columns)]
    if differences := _by_arm(rows, "difference"):
        text += [
            f"## Differences from {study.reference}",
            "Between agents trained with the same seed, which play the same episodes: interquartile means of the "
            "differences, with their intervals. In bold: the interval excludes 0.",
            _difference_table(differences),
        ]
    if changes := _by_arm(rows, "change"):
        text += [
            f"## Differences from {usual}",
            "Of the same agents after training: interquartile means over the seeds of success in the test less that in "
            f"{usual}, with their intervals. In bold: the interval excludes 0.",
            _difference_table(changes),
        ]
    if untrained := {
        name: agents[0] for name in arms if "trained" not in (agents := agents_of(rows, name)) and agents
    }:
        columns = {name: by_suite(rows, name, agent) for name, agent in untrained.items()}
        text += ["## Without training", _suite_table(columns)]
    text += [
        "## Held-out episodes, run by run",
        "With 95 % Wilson intervals over the episodes. All runs play the same episodes.",
        _run_table(scores, study.seeds, usual),
    ]
    if firsts := dict.fromkeys((row.arm, row.agent) for row in rows if row.measure == "first_precision"):
        text += [
            "## The thing first dealt with",
            "First the share of episodes in which the mission's thing is the first that the agent deals with, "
            "among the episodes in which it deals with any; then the share of all episodes in which it deals with "
            "none. Under `swapped` the thing that the agent's mission names counts as the mission's. Chance: that "
            "of a blind choice.",
            _first_table(rows, list(firsts)),
        ]
    return text


def _by_arm(rows: Sequence[SummaryRow], measure: str) -> dict[str, dict[str, IntervalEstimate]]:
    """A measure of trained agents, by arm and suite."""
    arms = dict.fromkeys(row.arm for row in rows if row.measure == measure)
    return {arm: by_suite(rows, arm, "trained", measure) for arm in arms}


def _suites(columns: Mapping[str, Mapping[str, IntervalEstimate]]) -> list[str]:
    return list(dict.fromkeys(suite for column in columns.values() for suite in column))


def _suite_table(columns: Mapping[str, Mapping[str, IntervalEstimate]]) -> str:
    """One line for each suite, one column for each arm."""
    rows = [[suite, *(_cell(c.get(suite)) for c in columns.values())] for suite in _suites(columns)]
    return markdown_table(["test", *columns], rows)


def _difference_table(columns: Mapping[str, Mapping[str, IntervalEstimate]]) -> str:
    """One line for each suite, one column for each arm; in bold where the interval excludes 0."""

    def cell(one: IntervalEstimate | None) -> str:
        text = estimate_cell(one, "+.3f")
        excludes_0 = one is not None and (one.low > 0 or one.high < 0) and one.low < one.high
        return f"**{text}**" if excludes_0 else text

    rows = [
        [suite or "(area under the curve)", *(cell(column.get(suite)) for column in columns.values())]
        for suite in _suites(columns)
    ]
    return markdown_table(["test", *columns], rows)


def _run_table(scores: Sequence[Score], seeds: Sequence[int], usual: str) -> str:
    """The usual suite: one line for each agent, one column for each seed, and one for all their episodes."""
    runs: dict[str, dict[int, Score]] = {}
    for s in scores:
        if (s.suite, s.task) == (usual, "all"):
            runs.setdefault(s.arm if s.agent in ("trained", s.arm) else f"{s.arm}, {s.agent}", {})[s.seed] = s
    rows = [
        [
            name,
            *(_pooled([by_seed[seed]]) if seed in by_seed else "" for seed in seeds),
            _pooled(list(by_seed.values())),
        ]
        for name, by_seed in runs.items()
    ]
    return markdown_table(["", *(f"seed {seed}" for seed in seeds), "together"], rows)


def _pooled(scores: Sequence[Score]) -> str:
    """Success over these runs' episodes together, with its Wilson interval."""
    successes, episodes = sum(round(s.success * s.episodes) for s in scores), sum(s.episodes for s in scores)
    return _cell(IntervalEstimate(successes / episodes, *wilson_interval(successes, episodes)))


def _first_table(rows: Sequence[SummaryRow], agents: Sequence[tuple[str, str]]) -> str:
    """One line for each suite, one column for each arm's agents, and chance."""
    columns = {
        f"{arm}, before" if agent == "zero-shot" else arm: (
            by_suite(rows, arm, agent, "first_precision"),
            by_suite(rows, arm, agent, "first_none"),
        )
        for arm, agent in agents
    }
    chances = {row.suite: row.estimate for row in rows if row.measure == "first_chance"}
    cells = [
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
    return markdown_table(["test", *columns, "chance"], cells)


def _cell(share: IntervalEstimate | None) -> str:
    return estimate_cell(share, ".3f")


def _draw(
    study: Study, results: Sequence[RunResult], rows: Sequence[SummaryRow], unit: str, usual: str
) -> tuple[dict[str, Any], list[str]]:
    """Draw the pictures; return them by name, and the README's sections that show them.

    Untrained arms are horizontal lines in the figures of the others.
    """
    tested = {arm: agents for arm in study.arms if (agents := agents_of(rows, arm))}
    untrained = {
        arm: {suite: one.value for suite, one in by_suite(rows, arm, agents[0]).items()}
        for arm, agents in tested.items()
        if "trained" not in agents
    }
    drawn: dict[str, tuple[Any, str]] = {}
    learners = {row.arm for row in rows if row.measure == "area"}
    curves = {arm: [one.rows for one in results if one.job.arm == arm] for arm in study.arms if arm in learners}
    if curves:
        levels = {arm: suites[usual] for arm, suites in untrained.items() if usual in suites}
        picture = plots.draw_learning_curve(curves, "success_rate", "success rate", levels, unit, is_share=True)
        drawn["success"] = (picture, f"Success in training over {unit}, interquartile mean of the seeds (smoothed)")
    updates = [row for one in results for row in one.rows]
    chances = [row["first_chance"] for row in updates if row.get("first_chance") is not None]
    if chances and min(chances) < 1:  # otherwise there is only one thing to interact with
        level = {"chance": sum(chances) / len(chances)}
        label = "first thing is the named one"
        picture = plots.draw_learning_curve(curves, "first_precision", label, level, unit, is_share=True)
        drawn["first"] = (picture, "Of the first things dealt with in training, the share that is the named one")
    panels: dict[str, dict[str, dict[str, IntervalEstimate]]] = {
        arm: {a: by_suite(rows, arm, a) for a in ("trained", "clone", "zero-shot") if a in agents}
        for arm, agents in tested.items()
        if "trained" in agents
    }
    if panels:
        picture = plots.draw_estimates(panels, untrained, "success rate")
        drawn["generalisation"] = (
            picture,
            "Success on held-out episodes of each test, trained and before (zero-shot)",
        )
    clones = [arm for arm in panels if study.arms[arm].data is not None]
    cloned = {study.arms[arm].data for arm in clones}
    if clones:
        series = {arm: panels[arm]["trained"] for arm in [*(a for a in panels if a in cloned), *clones]}
        picture = plots.draw_estimates({"": series}, {}, "success rate")
        drawn["cloning"] = picture, "Online reinforcement learning and cloning"
    sections = [text for name, (_, what) in drawn.items() for text in (f"## {what}", f"![{what}]({name}.svg)")]
    return {name: picture for name, (picture, _) in drawn.items()}, sections
