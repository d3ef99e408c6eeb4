"""Summary of a study's arms: success, areas under curves, paired differences, each with its interval."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from groundling.intervals import IntervalEstimate, area_under_curve, estimate
from groundling.reports import plots
from groundling.studies.definition import Study
from groundling.studies.results import FIRST, RunResult, Score

SHARED = "(shared)"
"""In place of a suite: each seed's mean over the suites of every trained arm, without controls (in which an agent that
reads its mission fails) and arms with their own suites."""

BySeed = dict[int, float]
Table = dict[tuple[str, str], dict[str, BySeed]]  # by arm and agent, by suite, a value of each seed


@dataclass(frozen=True)
class SummaryRow:
    """A measure of an arm over its seeds."""

    arm: str
    measure: str
    """success, area (under the curve of success in training), difference (of success or area from the reference arm's
    with the same seed), change (of success from the same agent's in the usual suite), or one of `FIRST`."""
    agent: str
    suite: str  # empty for the area
    seeds: int
    estimate: IntervalEstimate


def summarize(results: Sequence[RunResult], study: Study, usual: str, controls: Collection[str]) -> list[SummaryRow]:
    """Summarise a study's results; changes are from ``usual``, the training's suite; for ``controls`` see `SHARED`."""
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
    """Return a measure over all families of tasks, where it was reported."""
    table: Table = {}
    for s in scores:
        if s.task == "all" and (value := getattr(s, measure)) is not None:
            table.setdefault((s.arm, s.agent), {}).setdefault(s.suite, {})[s.seed] = value
    return table


def shared_suites(success: Table, controls: Collection[str], apart: Collection[str]) -> list[str]:
    """Return the suites of all trained arms, without ``controls``; arms ``apart`` count only if no others do."""
    trained = {arm: set(suites) for (arm, agent), suites in success.items() if agent == "trained"}
    usual = [suites for arm, suites in trained.items() if arm not in apart] or [*trained.values()]
    return sorted(set.intersection(*usual) - set(controls)) if usual else []


def with_shared(table: Table, shared: Sequence[str]) -> Table:
    """Add `SHARED`, each seed's mean over the shared suites, where an agent has all of them."""
    # If suites and seeds were one sample, an effect in a single suite would be cut off as an outlier.
    added: Table = {}
    for key, suites in table.items():
        added[key] = suites
        if len(shared) > 1 and set(shared) <= set(suites):
            seeds = sorted(set.intersection(*(set(suites[suite]) for suite in shared)))
            means = {seed: float(np.mean([suites[suite][seed] for suite in shared])) for seed in seeds}
            added[key] = suites | {SHARED: means}
    return added


def differences(table: Table, reference: str | None) -> Table:
    """Return differences of trained agents from the reference arm's of the same seeds, on the same episodes."""
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
    """Return differences of trained agents' success in other suites from their success in the usual one."""
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
    """Differences of the seeds that both have."""
    return {seed: value - other[seed] for seed, value in by_seed.items() if seed in other}


def _areas(results: Sequence[RunResult]) -> Table:
    """Area under the curve of training success, of arms that learn from their own episodes."""
    areas: Table = {}
    for one in results:
        steps, values = plots.smooth_curve(one.rows, "success_rate")
        if len(steps):
            training = one.job.config.training
            total = training.steps if training.epochs is None else one.rows[-1]["step"]
            of_arm = areas.setdefault((one.job.arm, "trained"), {"": {}})
            of_arm[""][one.job.seed] = area_under_curve(steps, values, total)
    return areas
