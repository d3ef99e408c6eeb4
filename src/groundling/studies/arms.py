"""What the arms of a study come to: success, areas under curves, paired differences, each with its interval."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from groundling.intervals import IntervalEstimate, area_under_curve, estimate
from groundling.reports import plots
from groundling.studies.definition import Study
from groundling.studies.results import FIRST, RunResult, Score

SHARED = "(shared)"
"""In place of a suite: each seed's mean over all that every arm which learns is tested in, but for arms with tests of
their own; without controls, in which who reads fails."""


@dataclass(frozen=True)
class Line:
    """What an arm's runs come to."""

    arm: str
    measure: str
    """success, area (under the curve of the success in training, by steps), difference (of success or area from that of
    the study's reference with the same seed), change (of success from the same agent's in the usual suite), or one of
    `FIRST`."""
    agent: str
    suite: str
    """Empty for the area."""
    seeds: int
    estimate: IntervalEstimate


def sum_up(results: Sequence[RunResult], study: Study, usual: str, controls: Collection[str]) -> list[Line]:
    """All lines of a study.

    Args:
        results: Of its runs.
        study: What was asked.
        usual: The suite from which changes are told: the world as it was in training.
        controls: Suites in which who reads fails.
    """
    scores, areas = [score for one in results for score in one.scores], _areas(results)
    shared = shared_suites(scores, controls, [name for name, arm in study.arms.items() if arm.suites])
    return [
        *(Line(arm, "area", "trained", "", len(one), _estimate(one)) for arm, one in areas.items()),
        *successes(scores, shared),
        *_area_differences(areas, study.reference),
        *differences(scores, study.reference, shared),
        *changes(scores, usual),
        *_first_interactions(scores),
    ]


def agents_of(lines: Sequence[Line], arm: str) -> list[str]:
    """Which of an arm's agents were tested."""
    return list(dict.fromkeys(line.agent for line in lines if line.arm == arm and line.measure == "success"))


def by_suite(
    lines: Sequence[Line], arm: str, agent: str, measure: str = "success"
) -> dict[str, IntervalEstimate]:
    """A measure of one arm's agent."""
    return {
        line.suite: line.estimate
        for line in lines
        if (line.arm, line.agent, line.measure) == (arm, agent, measure)
    }


def _areas(results: Sequence[RunResult]) -> dict[str, dict[int, float]]:
    """Of the arms that learn from their own episodes, by seed, the area under the curve of their success."""
    areas: dict[str, dict[int, float]] = {}
    for one in results:
        steps, values = plots.smooth_curve(one.rows, "success_rate")
        if len(steps):
            training = one.job.config.training
            total = training.steps if training.epochs is None else one.rows[-1]["step"]
            area = area_under_curve(steps, values, total)
            areas.setdefault(one.job.arm, {})[one.job.seed] = area
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


def shared_suites(scores: Sequence[Score], controls: Collection[str], apart: Collection[str]) -> list[str]:
    """The suites that are taken together: of every arm that learns but those ``apart``, without ``controls``.

    Args:
        scores: Of all arms.
        controls: Suites in which who reads fails.
        apart: Arms with tests of their own; where no other arm learns, they are taken like others.
    """
    learning = {arm: set(suites) for (arm, agent), suites in _table(scores).items() if agent == "trained"}
    usual = [suites for arm, suites in learning.items() if arm not in apart] or [*learning.values()]
    return sorted(set.intersection(*usual) - set(controls)) if usual else []


def successes(scores: Sequence[Score], shared: Sequence[str]) -> list[Line]:
    """By arm, agent and suite; and over the ``shared`` suites together."""
    return [
        line for key, suites in _table(scores).items() for line in _lines(*key, "success", suites, shared)
    ]


def differences(scores: Sequence[Score], reference: str | None, shared: Sequence[str]) -> list[Line]:
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
        lines += _lines(arm, agent, "difference", differences, shared)
    return lines


def changes(scores: Sequence[Score], usual: str) -> list[Line]:
    """Of every other suite from the usual one, of the same trained agents."""
    by_arm = {
        (arm, suite): _less(by_seed, suites[usual])
        for (arm, agent), suites in _table(scores).items()
        if agent == "trained" and usual in suites
        for suite, by_seed in suites.items()
        if suite != usual
    }
    return [
        Line(arm, "change", "trained", suite, len(one), _estimate(one))
        for (arm, suite), one in by_arm.items()
        if one
    ]


_BySeed = dict[str, dict[int, float]]
"""By suite and seed."""


def _table(scores: Sequence[Score]) -> dict[tuple[str, str], _BySeed]:
    """The success of all tasks together, by arm and agent."""
    table: dict[tuple[str, str], _BySeed] = {}
    for s in scores:
        if s.task == "all":
            table.setdefault((s.arm, s.agent), {}).setdefault(s.suite, {})[s.seed] = s.success
    return table


def _lines(arm: str, agent: str, measure: str, suites: _BySeed, shared: Sequence[str]) -> Iterator[Line]:
    """Of each suite, and of those that are shared together."""
    for suite, by_seed in suites.items():
        yield Line(arm, measure, agent, suite, len(by_seed), _estimate(by_seed))
    if len(shared) > 1 and set(shared) <= set(suites):
        seeds = set.intersection(*(set(suites[suite]) for suite in shared))
        # What shows in one suite alone would be cut off as an outlier, were suites and seeds taken as one sample.
        means = {seed: float(np.mean([suites[suite][seed] for suite in shared])) for seed in sorted(seeds)}
        if means:
            yield Line(arm, measure, agent, SHARED, len(means), _estimate(means))


def _first_interactions(scores: Sequence[Score]) -> list[Line]:
    """By arm, agent and suite: what the agent first deals with."""
    table: dict[tuple[str, str, str, str], list[float]] = {}
    for s in scores:
        for measure in FIRST:
            value = getattr(s, measure)
            if s.task == "all" and value is not None:
                table.setdefault((s.arm, measure, s.agent, s.suite), []).append(value)
    return [
        Line(arm, measure, agent, suite, len(values), estimate(np.array(values)))
        for (arm, measure, agent, suite), values in table.items()
    ]
