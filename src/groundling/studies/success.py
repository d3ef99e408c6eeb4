"""Results of a study: success rates by suite."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, astuple, fields
from typing import Any

from groundling.envs.seeds import SCHEME
from groundling.errors import RunError
from groundling.evaluation.evaluate import estimate_cell, markdown_table
from groundling.intervals import IntervalEstimate, wilson_interval
from groundling.reports import plots
from groundling.studies.definition import Study
from groundling.studies.page import (
    SHARED,
    RunResult,
    Score,
    StudyPage,
    SummaryRow,
    agents_of,
    by_suite,
    curves_table,
    result_of,
    summarize,
)
from groundling.studies.run import StudyJob
from groundling.worlds import World

_FIRST_CURVES = ("first_named", "first_other", "first_none", "first_precision", "first_chance")  # in some worlds


def page_of_success(study: Study, jobs: Sequence[StudyJob], world: type[World]) -> StudyPage:
    """Create the results page for the finished jobs."""
    by_job = {job.name: result_of(job) for job in jobs}
    results = [one for one in by_job.values() if one is not None]
    if not results:
        raise RunError(f"no run of {study.name} has finished yet: run the same command again")
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
            f"Seeds: {', '.join(map(str, study.seeds))}. Held-out episodes per run, agent and test: {study.episodes}. "
            "Values are interquartile means over seeds (plain means of fewer than four values) with 95% bootstrap "
            "intervals. With few seeds, these intervals tend to be too narrow; with one seed, or if all seeds agree, "
            "there is no interval. The area under the curve is that of the smoothed training success, divided by the "
            f"number of steps. `{SHARED}` is based on each seed's mean over the tests that all trained arms share "
            "(without arms that have their own). `evaluations.csv` lists each run by task family, `curves.csv` each update."
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
        about={"episode_seeds": SCHEME},
        arms={one.job.arm: one.job.arm_config for one in results},
    )


def _tables(
    study: Study, results: Sequence[RunResult], rows: Sequence[SummaryRow], scores: Sequence[Score], usual: str
) -> list[str]:
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
            "Differences between agents with the same seed, on the same episodes: interquartile means with intervals. "
            "Bold: the interval excludes 0.",
            _suite_table(differences, _difference),
        ]
    if changes := _by_arm(rows, "change"):
        text += [
            f"## Differences from {usual}",
            f"Success in the test minus success in {usual}, for the same agents: interquartile means over seeds "
            "with intervals. Bold: the interval excludes 0.",
            _suite_table(changes, _difference),
        ]
    if untrained := {
        name: agents[0] for name in arms if "trained" not in (agents := agents_of(rows, name)) and agents
    }:
        columns = {name: by_suite(rows, name, agent) for name, agent in untrained.items()}
        text += ["## Without training", _suite_table(columns)]
    text += [
        "## Held-out episodes by run",
        "With 95% Wilson intervals over episodes. All runs play the same episodes.",
        _run_table(scores, study.seeds, usual),
    ]
    if firsts := dict.fromkeys((row.arm, row.agent) for row in rows if row.measure == "first_precision"):
        text += [
            "## First interaction",
            "The share of first interactions that are with the named object, then the share of episodes without an "
            "interaction. Under `swapped`, the object named in the prompt counts as named. Chance is a random choice.",
            _first_table(rows, list(firsts)),
        ]
    return text


def _by_arm(rows: Sequence[SummaryRow], measure: str) -> dict[str, dict[str, IntervalEstimate]]:
    """Return a measure of trained agents, by arm and suite."""
    arms = dict.fromkeys(row.arm for row in rows if row.measure == measure)
    return {arm: by_suite(rows, arm, "trained", measure) for arm in arms}


def _cell(share: IntervalEstimate | None) -> str:
    return estimate_cell(share, ".3f")


def _suite_table(
    columns: Mapping[str, Mapping[str, IntervalEstimate]], cell: Callable[[IntervalEstimate | None], str] = _cell
) -> str:
    """Return a table with a row per suite and a column per arm."""
    suites = dict.fromkeys(suite for column in columns.values() for suite in column)
    rows = [
        [suite or "(area under the curve)", *(cell(column.get(suite)) for column in columns.values())]
        for suite in suites
    ]
    return markdown_table(["test", *columns], rows)


def _difference(one: IntervalEstimate | None) -> str:
    """Format a difference, in bold if its interval excludes 0."""
    text = estimate_cell(one, "+.3f")
    return f"**{text}**" if one is not None and one.low < one.high and (one.low > 0 or one.high < 0) else text


def _run_table(scores: Sequence[Score], seeds: Sequence[int], usual: str) -> str:
    """Return the usual suite's table: a row per agent, a column per seed, and a column for all episodes."""
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
    return markdown_table(["", *(f"seed {seed}" for seed in seeds), "all"], rows)


def _pooled(scores: Sequence[Score]) -> str:
    """Return the success rate over all episodes of these runs, with its Wilson interval."""
    successes, episodes = sum(round(s.success * s.episodes) for s in scores), sum(s.episodes for s in scores)
    return _cell(IntervalEstimate(successes / episodes, *wilson_interval(successes, episodes)))


def _first_table(rows: Sequence[SummaryRow], agents: Sequence[tuple[str, str]]) -> str:
    """Return a table with a row per suite, a column for each arm's agents, and a column for chance."""
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


def _draw(
    study: Study, results: Sequence[RunResult], rows: Sequence[SummaryRow], unit: str, usual: str
) -> tuple[dict[str, Any], list[str]]:
    """Draw the plots, with untrained arms as horizontal lines; return them and the README sections that show them."""
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
        drawn["success"] = (picture, f"Training success over {unit} (smoothed, interquartile mean over seeds)")
    updates = [row for one in results for row in one.rows]
    chances = [row["first_chance"] for row in updates if row.get("first_chance") is not None]
    if chances and min(chances) < 1:  # otherwise there is only one object to interact with
        level = {"chance": sum(chances) / len(chances)}
        label = "first object is the named one"
        picture = plots.draw_learning_curve(curves, "first_precision", label, level, unit, is_share=True)
        drawn["first"] = (picture, "Share of first interactions in training that are with the named object")
    panels: dict[str, dict[str, dict[str, IntervalEstimate]]] = {
        arm: {a: by_suite(rows, arm, a) for a in ("trained", "clone", "zero-shot") if a in agents}
        for arm, agents in tested.items()
        if "trained" in agents
    }
    if panels:
        picture = plots.draw_estimates(panels, untrained, "success rate")
        drawn["generalisation"] = (picture, "Held-out success in each test, trained and zero-shot")
    clones = [arm for arm in panels if study.arms[arm].data is not None]
    cloned = {study.arms[arm].data for arm in clones}
    if clones:
        series = {arm: panels[arm]["trained"] for arm in [*(a for a in panels if a in cloned), *clones]}
        picture = plots.draw_estimates({"": series}, {}, "success rate")
        drawn["cloning"] = picture, "Online RL and cloning"
    sections = [text for name, (_, what) in drawn.items() for text in (f"## {what}", f"![{what}]({name}.svg)")]
    return {name: picture for name, (picture, _) in drawn.items()}, sections
