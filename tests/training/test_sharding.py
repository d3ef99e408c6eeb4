"""Sharded layers; test_processes.py compares such a run with a run in one process."""

from collections.abc import Callable
from typing import Any

import pytest

from groundling.config.compose import compose
from groundling.errors import ConfigError
from groundling.runtime.processes import Processes, in_parts
from groundling.training.build import make_algorithm, make_policy, world_of
from groundling.training.optimizer_state import _layers_of, shard
from tests.building import policy_of
from tests.launching import launch


def _deal_out() -> None:
    """Run in each of two processes."""
    config = compose("rl4lms/increasing_numbers_ppo", ["model.fsdp=true", "device=cpu"])
    processes = Processes.join("cpu")
    policy = make_policy(config.policy, config.model, config.algorithm, world_of(config), learns=True)
    before = {name: weight.detach().clone() for name, weight in policy.named_parameters()}
    shards = shard(config.model, config.algorithm.id, policy, processes)
    algorithm = make_algorithm(config.algorithm, policy, processes)
    shards.gather()
    for name, weight in policy.named_parameters():
        assert not in_parts(weight) and weight.equal(before[name]), name
    with shards.sharded():
        learnt = [p for group in algorithm.optimizer.param_groups for p in group["params"]]
        frozen = list(policy.reference.language_model.parameters())
        for weights in (learnt, frozen):
            parts = [p for p in weights if in_parts(p)]
            here, all = sum(p.to_local().numel() for p in parts), sum(p.numel() for p in parts)
            assert here == all / 2 > 0.2 * sum(p.numel() for p in weights), (here, all)
        print("in parts")


def test_each_process_has_its_part_of_the_layers() -> None:
    ended = launch(2, _deal_out)
    assert [(process.exit_code, process.output) for process in ended] == [(0, "in parts\n")] * 2


@pytest.mark.parametrize(
    ("experiment", "overrides", "message"),
    [
        ("demo-easy", [], "ActionScoringPolicy chooses actions"),
        ("rl4lms/increasing_numbers_ppo", ["~algorithm.args", "algorithm={id:trpo,args:{}}"], "trpo"),
        ("rl4lms/increasing_numbers_ppo", ["model.compile=true"], "model.compile=True"),
        ("rl4lms/increasing_numbers_ppo", ["model.device_map=auto"], "model.device_map=auto"),
    ],
)
def test_settings_that_exclude_sharding_are_reported(experiment: str, overrides: list[str], message: str) -> None:
    config = compose(experiment, ["model.fsdp=true", *overrides])
    policy = policy_of(compose(experiment, ["device=cpu"]))
    with pytest.raises(ConfigError, match=message):
        shard(config.model, config.algorithm.id, policy, Processes(0, 2))


@pytest.mark.parametrize(
    ("tie", "message"),
    [
        (lambda layers, model: setattr(layers[1], "input_layernorm", layers[0].input_layernorm), "share weights"),
        (lambda layers, model: setattr(model.model, "norm", layers[0].input_layernorm), "share weights"),
        (lambda layers, model: setattr(model, "_no_split_modules", []), "does not list its layers"),
    ],
)
def test_layers_that_cannot_be_sharded_are_reported(tie: Callable[[Any, Any], None], message: str) -> None:
    config = compose("rl4lms/increasing_numbers_ppo", ["device=cpu"])
    model = policy_of(config).lm.model
    assert len(_layers_of(model)) == len(model.model.layers)
    tie(model.model.layers, model)
    with pytest.raises(ConfigError, match=message):
        _layers_of(model)
