"""Summary of a study's arms: success, areas under curves, paired differences, each with its interval."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from groundling.intervals import IntervalEstimate, area_under_curve, estimate
from groundling.reports import plots
from groundling.studies.definition import Study
from groundling.studies.results import FIRST, RunResult, Score

SHARED = "(shared)"
"""In place of a suite: each seed's mean over the suites of every trained arm, without controls (in which an agent that
reads its mission fails) and arms with their own suites."""

BySeed = Mapping[int, float]
Table = dict[tuple[str, str], dict[str, BySeed]]
"""By arm and agent, by suite, a value of each seed."""


@dataclass(frozen=True)
class SummaryRow:
    """A measure of an arm over its seeds."""

    arm: str
    measure: str
    """success, area (under the curve of success in training), difference (of success or area from the reference arm's
    with the same seed), change (of success from the same agent's in the usual suite), or one of `FIRST`."""
    agent: str
    suite: str
    """Empty for the area."""
    seeds: int
    estimate: IntervalEstimate


def summarize(results: Sequence[RunResult], study: Study, usual: str, controls: Collection[str]) -> list[SummaryRow]:
    """Summarise the results of a study's runs.

    Args:
        results: The runs' results.
        study: The study.
        usual: The suite that changes are relative to: the world of the training.
        controls: Suites in which an agent that reads its mission fails.
    """
    scores, areas = [score for one in results for score in one.scores], _areas(results)
    shared = shared_suites(scores, controls, [name for name, arm in study.arms.items() if arm.suites])
    return [
        *_rows("area", areas),
        *success_rows(scores, shared),
        *_rows("difference", _differences(areas, study.reference)),
        *difference_rows(scores, study.reference, shared),
        *change_rows(scores, usual),
        *_first_interaction_rows(scores),
    ]


def agents_of(rows: Sequence[SummaryRow], arm: str) -> list[str]:
    """Return the tested agents of an arm."""
    return list(dict.fromkeys(row.agent for row in rows if row.arm == arm and row.measure == "success"))


def by_suite(
    rows: Sequence[SummaryRow], arm: str, agent: str, measure: str = "success"
) -> dict[str, IntervalEstimate]:
    """Return a measure of one arm's agent by suite."""
    wanted = arm, agent, measure
    return {row.suite: row.estimate for row in rows if (row.arm, row.agent, row.measure) == wanted}


def shared_suites(scores: Sequence[Score], controls: Collection[str], apart: Collection[str]) -> list[str]:
    """Return the suites of every trained arm, without ``controls``.

    Args:
        scores: Scores of all arms.
        controls: Suites in which an agent that reads its mission fails.
        apart: Arms with their own suites, which count only if no other arm is trained.
    """
    trained = {arm: set(suites) for (arm, agent), suites in _success(scores).items() if agent == "trained"}
    usual = [suites for arm, suites in trained.items() if arm not in apart] or [*trained.values()]
    return sorted(set.intersection(*usual) - set(controls)) if usual else []


def success_rows(scores: Sequence[Score], shared: Sequence[str]) -> Iterator[SummaryRow]:
    """Success by arm, agent and suite, and over the ``shared`` suites together."""
    return _rows("success", _with_shared(_success(scores), shared))


def difference_rows(scores: Sequence[Score], reference: str | None, shared: Sequence[str]) -> Iterator[SummaryRow]:
    """Differences of trained agents from the reference arm's of the same seeds, which play the same episodes."""
    return _rows("difference", _with_shared(_differences(_success(scores), reference), shared))


def change_rows(scores: Sequence[Score], usual: str) -> Iterator[SummaryRow]:
    """Differences of trained agents' success in other suites from their success in the usual one."""
    changes: Table = {
        key: {suite: _minus(by_seed, suites[usual]) for suite, by_seed in suites.items() if suite != usual}
        for key, suites in _success(scores).items()
        if key[1] == "trained" and usual in suites
    }
    return _rows("change", changes)


def _first_interaction_rows(scores: Sequence[Score]) -> Iterator[SummaryRow]:
    of_all = [score for score in scores if score.task == "all"]
    for arm, agent, suite in dict.fromkeys((s.arm, s.agent, s.suite) for s in of_all):
        for measure in FIRST:
            by_seed = {
                s.seed: getattr(s, measure)
                for s in of_all
                if (s.arm, s.agent, s.suite) == (arm, agent, suite) and getattr(s, measure) is not None
            }
            yield from _rows(measure, {(arm, agent): {suite: by_seed}})


def _rows(measure: str, table: Table) -> Iterator[SummaryRow]:
    for (arm, agent), suites in table.items():
        for suite, by_seed in suites.items():
            if by_seed:
                values = np.array(list(by_seed.values()))
                yield SummaryRow(arm, measure, agent, suite, len(by_seed), estimate(values))


def _success(scores: Sequence[Score]) -> Table:
    """Success over all families of tasks."""
    table: dict[tuple[str, str], dict[str, dict[int, float]]] = {}
    for s in scores:
        if s.task == "all":
            table.setdefault((s.arm, s.agent), {}).setdefault(s.suite, {})[s.seed] = s.success
    return {key: {**suites} for key, suites in table.items()}


def _areas(results: Sequence[RunResult]) -> Table:
    """Area under the curve of training success, of arms that learn from their own episodes."""
    areas: dict[str, dict[int, float]] = {}
    for one in results:
        steps, values = plots.smooth_curve(one.rows, "success_rate")
        if len(steps):
            training = one.job.config.training
            total = training.steps if training.epochs is None else one.rows[-1]["step"]
            areas.setdefault(one.job.arm, {})[one.job.seed] = area_under_curve(steps, values, total)
    return {(arm, "trained"): {"": by_seed} for arm, by_seed in areas.items()}


def _minus(by_seed: BySeed, other: BySeed) -> BySeed:
    """Differences of the seeds that both have."""
    return {seed: value - other[seed] for seed, value in by_seed.items() if seed in other}


def _differences(table: Table, reference: str | None) -> Table:
    """Differences of trained agents from the reference arm's, without suites that have no common seed."""
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


def _with_shared(table: Table, shared: Sequence[str]) -> Table:
    """Add `SHARED` where an agent has all of the shared suites."""
    return {key: suites | _shared(suites, shared) for key, suites in table.items()}


def _shared(suites: Mapping[str, BySeed], shared: Sequence[str]) -> dict[str, BySeed]:
    if len(shared) < 2 or not set(shared) <= set(suites):
        return {}
    seeds = set.intersection(*(set(suites[suite]) for suite in shared))
    # If suites and seeds were one sample, an effect in a single suite would be cut off as an outlier.
    return {SHARED: {seed: float(np.mean([suites[suite][seed] for suite in shared])) for seed in sorted(seeds)}}
