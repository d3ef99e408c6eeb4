"""Algorithms of a user's own: any optimizer that a checkpoint can hold, and mistakes told by their names."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

from groundling.algorithms import Algorithm, Rollout, algorithms
from groundling.configs.schema import ComponentConfig, Config, TrainingConfig
from groundling.errors import ForeignError, RunError
from groundling.policies import Policy
from groundling.training.progress import TrainingProgress
from groundling.training.run import Run
from groundling.worlds.text.config import TextConfig

_OPTIMIZERS: dict[str, Any] = {
    "adamw": lambda parameters: torch.optim.AdamW(parameters, 1e-2),
    "amsgrad": lambda parameters: torch.optim.Adam(parameters, 1e-2, amsgrad=True),
    "adafactor": lambda parameters: torch.optim.Adafactor(parameters, 1e-2),
    "momentum": lambda parameters: torch.optim.SGD(parameters, 1e-2, momentum=0.9),
    "lbfgs": lambda parameters: torch.optim.LBFGS(parameters, 1e-2),
}


@algorithms.register("test-likelihood")
@dataclass
class Likelihood(Algorithm):
    """Makes what was done likelier; its figures are as ``figure`` says."""

    optimizer_id: str = "adamw"
    figure: str = "plain"
    gamma: float = 1.0
    optimizer: torch.optim.Optimizer = field(init=False, repr=False)

    def setup(self, policy: Policy) -> None:
        self.optimizer = _OPTIMIZERS[self.optimizer_id](list(policy.parameters()))

    def update(
        self, policy: Policy, rollout: Rollout, *, generator: torch.Generator, remaining: float = 1.0
    ) -> dict[str, Any]:
        def loss() -> torch.Tensor:
            self.optimizer.zero_grad()
            evaluation = policy.evaluate(rollout.observations, rollout.actions.flatten())
            loss = -evaluation.log_probs.mean()
            loss.backward()
            return loss

        value = self.optimizer.step(loss)
        assert value is not None
        return {
            "plain": {"loss": value.item()},
            "torch": {"loss": value.detach()},
            "numpy": {"loss": np.float32(value.item())},
            "doubled": {"loss": value.item(), "step": 7},
            "missing": {}["loss"] if self.figure == "missing" else {},
        }[self.figure]


def _run(folder: Path, **args: str) -> Run:
    config = Config(
        name="mine",
        device="cpu",
        world=TextConfig(env="test/Corridor-v0", num_envs=4, actions=["left", "right", "stay"], num_steps=4),
        policy=ComponentConfig("test-table"),
        algorithm=ComponentConfig("test-likelihood", args),
        training=TrainingConfig(steps=64),
    )
    return Run(config, folder, warn=print)


def _update(run: Run) -> dict[str, Any]:
    return run.update(TrainingProgress(Console(quiet=True), 64, 0))


@pytest.mark.parametrize("optimizer", ["adamw", "amsgrad", "adafactor", "momentum"])
def test_a_run_goes_on_with_any_optimizer(optimizer: str, tmp_path: Path) -> None:
    run = _run(tmp_path, optimizer_id=optimizer)
    for _ in range(2):
        _update(run)
    run.save()
    again = _run(tmp_path, optimizer_id=optimizer)
    assert again.counters.update == 2
    assert _update(again)["loss"] == _update(run)["loss"]
    for parameter, same in zip(run.policy.parameters(), again.policy.parameters(), strict=True):
        assert parameter.equal(same)


def test_an_optimizer_that_no_checkpoint_holds_is_named(tmp_path: Path) -> None:
    run = _run(tmp_path, optimizer_id="lbfgs")
    _update(run)
    with pytest.raises(RunError, match=r"optimizer LBFGS cannot be kept .* is no tensor, but of type"):
        run.save()


@pytest.mark.parametrize("figure", ["torch", "numpy"])
def test_figures_may_be_numbers_of_torch_and_numpy(figure: str, tmp_path: Path) -> None:
    assert type(_update(_run(tmp_path, figure=figure))["loss"]) is float


def test_a_figure_that_the_run_has_already_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="a figure called step, which the run has already"):
        _update(_run(tmp_path, figure="doubled"))


def test_an_algorithm_that_raises_is_named(tmp_path: Path) -> None:
    with pytest.raises(ForeignError, match="algorithm 'test-likelihood' raised KeyError"):
        _update(_run(tmp_path, figure="missing"))
