"""A sample of `make faults`, with each kind of fault once or twice, on the fastest commands."""

import random
from collections.abc import Iterator

import pytest

from tests.faults import cases
from tests.faults.cases import Bench, Case
from tests.faults.harness import Scenario
from tests.faults.scenarios import prepare, scenarios
from tests.thorough import THOROUGH, thorough


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    folder = tmp_path_factory.mktemp("faults")
    (folder / "materials").mkdir()
    prepare(folder / "materials")
    return Bench(folder / "cases", folder / "materials", random.Random(0))


@pytest.fixture(scope="module")
def every(bench: Bench) -> dict[str, Scenario]:
    return {scenario.name: scenario for scenario in scenarios(bench.materials)}


def _assert_survived(tried: Iterator[Case]) -> list[Case]:
    done = list(tried)
    assert done and not [case for case in done if case.problem is not None]
    return done


@pytest.mark.parametrize(
    "name", ["train table", "collect --episodes", *thorough("evaluate", "annotate", "distill", "study")]
)
def test_a_killed_command_ends_as_undisturbed(name: str, bench: Bench, every: dict[str, Scenario]) -> None:
    done = _assert_survived(cases.killed(bench, every[name], 3))
    assert sum(case.kills for case in done) >= 1


@THOROUGH
@pytest.mark.parametrize("name", ["train table", *thorough("distill")])
def test_a_full_disk_keeps_earlier_work(name: str, bench: Bench, every: dict[str, Scenario]) -> None:
    _assert_survived(cases.full_disk(bench, every[name], 2))


@pytest.mark.parametrize("name", ["evaluate", "publish"])
def test_a_read_only_folder_is_reported(name: str, bench: Bench, every: dict[str, Scenario]) -> None:
    _assert_survived(cases.read_only(bench, every[name]))


@pytest.mark.parametrize("name", ["collect --episodes", *thorough("train table")])
def test_two_processes_at_once_exclude_each_other(name: str, bench: Bench, every: dict[str, Scenario]) -> None:
    _assert_survived(cases.two_at_once(bench, every[name]))


@pytest.mark.parametrize("most", [2, *thorough(12)])
def test_a_damaged_run_resumes_exactly_or_is_refused(most: int, bench: Bench, every: dict[str, Scenario]) -> None:
    assert len(_assert_survived(cases.damaged(bench, every["train table"], most=most))) == most
