"""The page of a study that asks how often agents succeed: its README."""

from collections.abc import Mapping, Sequence

from groundling.evaluation.tables import estimate_cell, markdown_table
from groundling.intervals import IntervalEstimate, wilson_interval
from groundling.studies.arms import SHARED, Line, agents_of, by_suite
from groundling.studies.head import StudyHead
from groundling.studies.results import Score


def page(
    head: StudyHead,
    lines: Sequence[Line],
    scores: Sequence[Score],
    agents: Mapping[str, str],
    usual: str,
    figures: Mapping[str, str],
) -> str:
    """The page in Markdown.

    Args:
        head: How the results were made.
        lines: What the arms come to.
        scores: What the runs come to.
        agents: Which agent of an arm its line in the first table tells of.
        usual: The suite that this table tells of.
        figures: What was drawn: the name of each file without its ending, and what it shows.
    """
    study = head.study
    arms = [name for name in study.arms if any(line.arm == name for line in lines)]
    areas = {line.arm: line.estimate for line in lines if line.measure == "area"}
    overview = [
        [
            name,
            study.arms[name].about,
            _cell(areas.get(name)),
            *(_cell(by_suite(lines, name, agent).get(usual)) for agent in ("zero-shot", agents[name])),
        ]
        for name in arms
    ]
    text = head.markdown(
        f"Seeds: {', '.join(map(str, study.seeds))}. Held-out episodes for each run, agent and test: "
        f"{study.episodes}. Figures are interquartile means over seeds (of less than four values: means) with 95 % "
        "bootstrap intervals. With few seeds these intervals tend to be too narrow; with one seed, or "
        "where all seeds agree, there is none. The area under the curve is that of the smoothed success in "
        f"training, divided by the steps. `{SHARED}` is the same figure of each seed's mean over the tests that suit "
        "every arm that learns, arms with tests of their own left out. `evaluations.csv` has every run by family of "
        "tasks, `curves.csv` every update."
    )
    text.append("## Arms")
    text.append(markdown_table(["arm", "", "area under the curve", f"{usual}, before", usual], overview))
    titles = {"trained": "After training", "clone": "After cloning", "zero-shot": "Before training"}
    for agent, title in titles.items():
        columns = [name for name in arms if agent in agents_of(lines, name)]
        if columns:
            text += [f"## {title}", _by_suite_table(lines, columns, agent)]
    if differences := _by_arm(lines, "difference"):
        text += [
            f"## Differences from {study.reference}",
            "Between agents trained with the same seed, which play the same episodes: interquartile means of the "
            "differences, with their intervals. In bold: the interval excludes 0.",
            _difference_table(differences),
        ]
    if changes := _by_arm(lines, "change"):
        text += [
            f"## Differences from {usual}",
            "Of the same agents after training: interquartile means over the seeds of success in the test less that in "
            f"{usual}, with their intervals. In bold: the interval excludes 0.",
            _difference_table(changes),
        ]
    others = [name for name in arms if (tested := agents_of(lines, name)) and "trained" not in tested]
    if others:
        text += ["## Without training", _by_suite_table(lines, others, None)]
    text += [
        "## Held-out episodes, run by run",
        "With 95 % Wilson intervals over the episodes. All runs play the same episodes.",
        _run_table(scores, study.seeds, usual),
    ]
    if firsts := [(line.arm, line.agent) for line in lines if line.measure == "first_precision"]:
        text += [
            "## The thing first dealt with",
            "First the share of episodes in which the mission's thing is the first that the agent deals with, "
            "among the episodes in which it deals with any; then the share of all episodes in which it deals with "
            "none. Under `swapped` the thing that the agent's mission names counts as the mission's. Chance: that "
            "of a blind choice.",
            _first_table(lines, list(dict.fromkeys(firsts))),
        ]
    for name, what in figures.items():
        text += [f"## {what}", f"![{what}]({name}.svg)"]
    return "\n\n".join(text) + "\n"


def _by_arm(lines: Sequence[Line], measure: str) -> dict[str, dict[str, IntervalEstimate]]:
    """A measure of trained agents, by arm and suite."""
    return {
        line.arm: by_suite(lines, line.arm, "trained", measure) for line in lines if line.measure == measure
    }


def _by_suite_table(lines: Sequence[Line], arms: Sequence[str], agent: str | None) -> str:
    """One line for each suite, one column for each arm; of arms without training the only agent that they have."""
    columns = [by_suite(lines, arm, agent or agents_of(lines, arm)[0]) for arm in arms]
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
            by_suite(lines, arm, agent, measure) for measure in ("first_precision", "first_none")
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
