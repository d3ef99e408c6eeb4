"""All combinations of worlds, policies, algorithms and rewards train, or are rejected before anything is loaded.

The list is that of `scripts/combinations.py`, which writes docs/combinations.md. In every world, all policies and
algorithms are trained with one reward, and all rewards with one policy and one algorithm; rejections are tested for
all combinations.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from scripts.combinations import (
    ALGORITHMS,
    PAGE,
    PAID,
    POLICIES,
    REWARDS,
    WORLDS,
    Combination,
    config_of,
    learners,
    page,
    rewarded,
    verdict,
)

from groundling.algorithms.algorithm import algorithms
from groundling.cli.main import main
from groundling.errors import GroundlingError
from groundling.judges.reward_models import reward_models
from groundling.policies.policy import policies
from groundling.training import build
from groundling.training.build import dry_run
from groundling.training.tracking import TrainingProgress
from groundling.training.trainer import Trainer
from tests.thorough import some_of, thorough

_LEARNERS, _REWARDED = list(learners()), list(rewarded())
_ALL = [*_LEARNERS, *(one for one in _REWARDED if one not in _LEARNERS)]
_USUAL = {"text": "action_scoring", "text, changing actions": "drrn", "NetHack": "nethack", "writing": "token"}
"""The policy that `make test` trains with every algorithm in a world; other policies are trained with one."""


def _is_usual(one: Combination) -> bool:
    return one.policy == _USUAL[one.world] or one.algorithm == "ppo"


def _named(one: Any) -> str:
    return "-".join((one.world, one.policy, one.algorithm, one.reward)).replace(" ", "_")


@dataclass(frozen=True)
class Parts:
    """Inputs of runs, created once."""

    models: Callable[[str], Path]
    distilled: Path
    datasets: Callable[[str], Path]

    def config_of(self, one: Combination) -> Any:
        clones = one.clones and one.world.startswith("text")
        dataset = str(self.datasets(one.world)) if clones else ""
        family = "t5" if one.world == "text" else "gpt2"  # an encoder-decoder, and a causal model
        return config_of(one, self.distilled, str(self.models(family)), dataset)


@pytest.fixture(scope="session")
def parts(model_folder: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Parts:
    distilled, recorded = tmp_path_factory.mktemp("distilled"), tmp_path_factory.mktemp("recorded")
    reward_models.create("table").save(distilled)

    def dataset(world: str) -> Path:
        folder = recorded / world.replace(" ", "_")
        if not folder.exists():
            config = config_of(Combination(world, "random", "ppo", PAID), distilled)
            words = [f"world.env={config.world.env}", "device=cpu", "evaluation.num_envs=2"]
            assert main(["collect", "random", *words, "--episodes", "2", "--output", str(folder)]) == 0
        return folder

    return Parts(model_folder, distilled, dataset)


@pytest.fixture
def unloadable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make loading fail."""

    def load(*args: object, **kwargs: object) -> None:
        raise AssertionError("something was loaded")

    monkeypatch.setattr(build, "_make_language_model", load)
    monkeypatch.setattr(policies, "create", load)


def test_the_lists_are_complete() -> None:
    for registry, names in ((policies, POLICIES), (algorithms, ALGORITHMS)):
        assert {id for id in registry if registry.get(id).__module__.startswith("groundling.")} == set(names)


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run python -m scripts.combinations"


@pytest.mark.usefixtures("unloadable")
@pytest.mark.parametrize("every", [11, *thorough(1)])
def test_all_combinations_are_decided_before_anything_is_loaded(every: int, parts: Parts) -> None:
    """A learner and a reward that are compatible with a world are compatible, except for dataset clones."""
    suited = {(one.world, one.reward) for one in _REWARDED if verdict(parts.config_of(one)) is None}
    for learner in _LEARNERS[::every]:
        trains = verdict(parts.config_of(learner)) is None
        for reward in REWARDS:
            refusal = verdict(parts.config_of(replace(learner, reward=reward)))
            asked = not learner.clones or learner.world == "writing" or reward == PAID
            assert (refusal is None) == (trains and asked and (learner.world, reward) in suited), (learner, refusal)
            assert refusal is None or (refusal and "\n" not in refusal)


@pytest.mark.parametrize("one", some_of(_ALL, [one for one in _ALL if _is_usual(one)]), ids=_named)
def test_two_updates_change_the_weights_or_a_run_is_refused(
    one: Combination, parts: Parts, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    config = parts.config_of(one)
    refusal = verdict(config)
    if refusal is not None:
        request.getfixturevalue("unloadable")
        with pytest.raises(GroundlingError) as refused:
            Trainer(config, tmp_path, warn=pytest.fail)
        assert "is incompatible with" in str(refused.value) and "\n" not in str(refused.value)
        return
    if one.world == "NetHack":
        pytest.importorskip("nle")
    run = Trainer(config, tmp_path, warn=pytest.fail)
    before = {name: p.detach().clone() for name, p in run.policy.named_parameters()}
    progress = TrainingProgress(Console(quiet=True), config.training.steps, 0)
    rows = [run.update(progress) for _ in range(2)]
    run.collector.close()
    assert [row["update"] for row in rows] == [1, 2] and 0 < rows[0]["step"] < rows[1]["step"]
    assert all(row["grad_norm"] > 0 for row in rows)
    assert any(not p.equal(before[name]) for name, p in run.policy.named_parameters())


@pytest.mark.parametrize("world", WORLDS)
def test_a_dry_run_asks_rules_in_a_judges_place_in_every_world(world: str, parts: Parts) -> None:
    if world == "NetHack":
        pytest.importorskip("nle")
    (one,) = (one for one in _REWARDED if one.world == world and one.reward == "judge queried online")
    assert dry_run(parts.config_of(one)).updates > 0
