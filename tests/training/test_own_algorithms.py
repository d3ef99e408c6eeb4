"""Users' algorithms: optimizers whose state checkpoints can store, and errors that name the component."""

import json
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from groundling.algorithms import Algorithm, Rollout, algorithms
from groundling.config.schema import ComponentConfig, Config, TrainingConfig
from groundling.errors import ForeignError, RunError
from groundling.policies import Policy
from groundling.training.optimizer_state import load_optimizer
from groundling.training.tracking import TrainingProgress
from groundling.training.trainer import Trainer
from groundling.worlds.text.config import TextConfig, TextEvaluation


class Averaging(torch.optim.AdamW):
    """AdamW with an average of the weights."""

    def step(self, closure: Any = None) -> Any:
        loss = super().step(closure)
        for group in self.param_groups:
            for parameter in (p for p in group["params"] if p.grad is not None):
                moments = self.state[parameter]
                average = moments.get("average", parameter.detach().clone())
                moments["average"] = average.lerp(parameter.detach(), 0.1)
                parameter.data.lerp_(moments["average"], 0.01)
        return loss


class Slowing(torch.optim.SGD):
    """Counts steps in the groups, like schedule-free optimizers, and decreases the learning rate."""

    def __init__(self, parameters: Any, lr: float) -> None:
        super().__init__(parameters, lr)
        for group in self.param_groups:
            group["counts"] = {"steps": torch.zeros(2), "phase": "new"}

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            group["k"] = group.get("k", 0) + 1
            group["counts"]["steps"] += 1
            group["lr"] = torch.tensor(0.1 / (group["k"] + float(group["counts"]["steps"][0])))
        return super().step(closure)


class Unkept(torch.optim.SGD):
    """Stores a tensor in the groups that was not there initially."""

    def step(self, closure: Any = None) -> Any:
        self.param_groups[0]["seen"] = torch.ones(1)
        return super().step(closure)


class Sharing(torch.optim.SGD):
    """Stores a state for all parameters together."""

    def step(self, closure: Any = None) -> Any:
        self.state["all"] = {"sum": torch.zeros(1)}
        return super().step(closure)


class Growing(torch.optim.SGD):
    """Adds a parameter group."""

    def step(self, closure: Any = None) -> Any:
        self.add_param_group({"params": [torch.nn.Parameter(torch.zeros(1))]})
        return super().step(closure)


def _with_group(kind: Any, **settings: Any) -> Any:
    """Return a function that creates an optimizer whose second group has additional settings."""
    return lambda parameters: kind([{"params": parameters[:1]}, {"params": parameters[1:], **settings}], 1e-2)


_OPTIMIZERS: dict[str, Any] = {
    "adamw": lambda parameters: torch.optim.AdamW(parameters, 1e-2),
    "amsgrad": lambda parameters: torch.optim.Adam(parameters, 1e-2, amsgrad=True),
    "adafactor": lambda parameters: torch.optim.Adafactor(parameters, 1e-2),
    "momentum": lambda parameters: torch.optim.SGD(parameters, 1e-2, momentum=0.9),
    "amsgrad in one group": _with_group(torch.optim.AdamW, amsgrad=True),
    "momentum in one group": _with_group(torch.optim.RMSprop, momentum=0.9),
    "lbfgs": lambda parameters: torch.optim.LBFGS(parameters, 1e-2),
    **{kind.__name__.lower(): partial(kind, lr=1e-2) for kind in (Averaging, Slowing, Unkept, Sharing, Growing)},
}


_REFUSED = {
    "lbfgs": "expected a tensor",
    "unkept": "seen of a parameter group is of type Tensor, expected a number",
    "sharing": "has an entry 'all' that belongs to no parameter",
    "growing": "created with 1 parameter groups and now has 2",
}


@algorithms.register("test-likelihood")
@dataclass
class Likelihood(Algorithm):
    """Increases the likelihood of the actions; returns figures according to ``figure``."""

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
            loss = evaluation.values.square().mean() - evaluation.log_probs.mean()
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


def _run(folder: Path, **args: str) -> Trainer:
    config = Config(
        name="mine",
        device="cpu",
        world=TextConfig(env="test/Corridor-v0", num_envs=4, actions=["left", "right", "stay"], num_steps=4),
        policy=ComponentConfig(id="test-table"),
        algorithm=ComponentConfig(id="test-likelihood", args=args),
        training=TrainingConfig(steps=64),
        evaluation=TextEvaluation(),
    )
    return Trainer(config, folder, warn=print)


def _update(run: Trainer) -> dict[str, Any]:
    return run.update(TrainingProgress(Console(quiet=True), 64, 0))


@pytest.mark.parametrize("optimizer", [name for name in _OPTIMIZERS if name not in _REFUSED])
def test_a_run_resumes_with_any_optimizer(optimizer: str, tmp_path: Path) -> None:
    run = _run(tmp_path, optimizer_id=optimizer)
    for _ in range(2):
        _update(run)
    run.save()
    again = _run(tmp_path, optimizer_id=optimizer)
    assert again.counters.update == 2
    assert _update(again)["loss"] == _update(run)["loss"]
    for parameter, same in zip(run.policy.parameters(), again.policy.parameters(), strict=True):
        assert parameter.equal(same)


@pytest.mark.parametrize("optimizer", _REFUSED)
def test_an_optimizer_that_cannot_be_saved_is_named(optimizer: str, tmp_path: Path) -> None:
    run = _run(tmp_path, optimizer_id=optimizer)
    _update(run)
    with pytest.raises(RunError, match=f"(?i)optimizer {optimizer} cannot be saved .* {_REFUSED[optimizer]}"):
        run.save()


def _kept(optimizer: str, folder: Path) -> tuple[torch.optim.Optimizer, dict[str, Any], dict[str, Any]]:
    """Return a new optimizer, and the tensors and metadata that an optimizer stores after an update."""
    run = _run(folder, optimizer_id=optimizer)
    _update(run)
    run.save()
    (path,) = (folder / "checkpoints").glob("*/optimizer.safetensors")
    with safe_open(path, framework="pt") as file:
        written = json.loads(file.metadata()["optimizer"])
    return _OPTIMIZERS[optimizer](list(run.policy.parameters())), load_file(path), written


@pytest.mark.parametrize(
    ("optimizer", "settings", "says"),
    [
        ("slowing", [], "0 parameter groups, expected 1"),
        ("slowing", [{"counts": {"steps": [1.0]}}], r"shape \(1,\), expected \(2,\)"),
    ],
)
def test_invalid_settings_of_an_optimizer_are_refused(
    optimizer: str, settings: list[Any], says: str, tmp_path: Path
) -> None:
    again, tensors, written = _kept(optimizer, tmp_path)
    path = tmp_path / "optimizer.safetensors"
    save_file(tensors, path, metadata={"optimizer": json.dumps({**written, "settings": settings})})
    with pytest.raises(ValueError, match=says):
        load_optimizer(again, path)


@pytest.mark.parametrize("figure", ["torch", "numpy"])
def test_figures_may_be_numbers_of_torch_and_numpy(figure: str, tmp_path: Path) -> None:
    assert type(_update(_run(tmp_path, figure=figure))["loss"]) is float


def test_a_figure_that_the_run_has_already_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    says = "a metric step, which already exists"
    with pytest.raises(RunError, match=f"the algorithm 'test-likelihood' reports {says}"):
        _update(_run(tmp_path / "algorithm", figure="doubled"))
    run = _run(tmp_path / "policy")
    monkeypatch.setattr(run.policy, "figures", lambda: {"step": 7})
    with pytest.raises(RunError, match=f"the policy 'test-table' reports {says}"):
        _update(run)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"loss": torch.ones(2)}, r"{'loss': tensor\(\[1., 1.\]\)} as an update's metrics; expected numbers"),
        ({"loss": None}, "{'loss': None} as an update's metrics"),
        ({"kl": 1, "entropy": "0.5"}, "{'kl': 1, 'entropy': '0.5'} as an update's metrics"),
        (None, "None as an update's metrics; expected numbers by name"),
    ],
)
def test_invalid_figures_are_refused(given: Any, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = _run(tmp_path / "algorithm")
    monkeypatch.setattr(run.algorithm, "update", lambda *_, **__: given)
    with pytest.raises(RunError, match=f"the algorithm 'test-likelihood' returned {says}"):
        _update(run)
    run = _run(tmp_path / "policy")
    monkeypatch.setattr(run.policy, "figures", lambda: given)
    with pytest.raises(RunError, match=f"the policy 'test-table' returned {says}"):
        _update(run)


def test_an_algorithm_that_raises_is_named(tmp_path: Path) -> None:
    with pytest.raises(ForeignError, match="algorithm 'test-likelihood' raised KeyError"):
        _update(_run(tmp_path, figure="missing"))
