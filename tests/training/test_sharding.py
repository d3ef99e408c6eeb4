"""Layers in parts on several processes; that the run is the same is told by test_processes.py."""

import subprocess
import sys
from pathlib import Path

import pytest

from groundling.configs.compose import compose
from groundling.errors import ConfigError
from groundling.training.build import make_policy
from groundling.training.sharding import shard
from groundling.world import World

_SHARD = """
from groundling.configs.compose import compose
from groundling.training.build import make_algorithm, make_policy, make_shards
from groundling.world import World, in_parts

config = compose("rl4lms/increasing_numbers_ppo", ["model.fsdp=true", "device=cpu"])
world, policy = World.join("cpu"), make_policy(config, learns=True)
before = {name: weight.detach().clone() for name, weight in policy.named_parameters()}
shards = make_shards(config, policy, world)
algorithm = make_algorithm(config, policy, world)
shards.bring_together()
for name, weight in policy.named_parameters():
    assert not in_parts(weight) and weight.equal(before[name]), name
with shards.apart():
    learnt = [p for group in algorithm.optimizer.param_groups for p in group["params"]]
    frozen = list(policy.reference.parameters())
    for weights in (learnt, frozen):
        parts = [p for p in weights if in_parts(p)]
        here, all = sum(p.to_local().numel() for p in parts), sum(p.numel() for p in parts)
        assert here == all / 2 > 0.2 * sum(p.numel() for p in weights), (here, all)
    print("in parts")
"""


def test_each_process_has_its_part_of_the_layers(tmp_path: Path) -> None:
    script = tmp_path / "shard.py"
    script.write_text(_SHARD)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run([*launcher, str(script)], capture_output=True, text=True, timeout=240)
    assert done.stdout.count("in parts") == 2, done.stderr


@pytest.mark.parametrize(
    ("experiment", "overrides", "processes", "told"),
    [
        ("rl4lms/increasing_numbers_ppo", [], 1, "this is one: start it with torchrun"),
        ("demo", [], 2, "not action_scoring"),
        ("rl4lms/increasing_numbers_ppo", ["~algorithm.args", "algorithm={id:trpo,args:{}}"], 2, "trpo"),
        ("rl4lms/increasing_numbers_ppo", ["model.compile=true"], 2, "model.compile=True"),
        ("rl4lms/increasing_numbers_ppo", ["model.device_map=auto"], 2, "model.device_map=auto"),
    ],
)
def test_what_cannot_be_dealt_out_is_told(
    experiment: str, overrides: list[str], processes: int, told: str
) -> None:
    config = compose(experiment, ["model.fsdp=true", "device=cpu", *overrides])
    policy = make_policy(compose(experiment, ["device=cpu"]))
    with pytest.raises(ConfigError, match=told):
        shard(config, policy, World(0, processes))
