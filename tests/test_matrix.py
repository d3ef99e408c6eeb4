"""Every on-policy algorithm works with every policy."""

from pathlib import Path

import pytest
from rich.console import Console

from groundling.configs.schema import ComponentConfig, Config, EnvConfig, ModelConfig, TrainingConfig
from groundling.training.progress import TrainingProgress
from groundling.training.run import Run

_ALGORITHMS = {"ppo": {"learning_rate": 1e-3, "minibatch_size": 8, "micro_batch_size": 4, "epochs": 1}}
_POLICIES = {
    "starter": (ComponentConfig("action_scoring", {"value_hidden_sizes": [8]}), "starter"),
    "starter-causal": (ComponentConfig("action_scoring", {"value_hidden_sizes": [8]}), "starter-causal"),
    "table": (ComponentConfig("test-table"), "starter"),
}
_ENVS = {
    "babyai": EnvConfig(id="BabyAI-GoToObj-v0", num_envs=4),
    "corridor": EnvConfig(id="test/Corridor-v0", num_envs=4, actions=["left", "right", "stay"]),
}


@pytest.mark.parametrize("algorithm", _ALGORITHMS)
@pytest.mark.parametrize(
    ("policy", "env"),
    [(p, e) for p in _POLICIES for e in _ENVS if (p, e) != ("table", "babyai")],  # it knows the corridor only
)
def test_two_updates_change_the_weights(algorithm: str, policy: str, env: str, tmp_path: Path) -> None:
    component, model = _POLICIES[policy]
    config = Config(
        name="matrix",
        device="cpu",
        env=_ENVS[env],
        model=ModelConfig(path=model),
        policy=component,
        algorithm=ComponentConfig(algorithm, _ALGORITHMS[algorithm]),
        training=TrainingConfig(steps=32, steps_per_update=4),
    )
    run = Run(config, tmp_path, warn=print)
    before = {name: p.detach().clone() for name, p in run.policy.named_parameters()}
    progress = TrainingProgress(Console(quiet=True), 32, 0)
    rows = [run.update(progress) for _ in range(2)]
    assert [row["update"] for row in rows] == [1, 2] and rows[1]["step"] == 32
    changed = [name for name, p in run.policy.named_parameters() if not p.equal(before[name])]
    assert changed
    assert all(row["grad_norm"] > 0 for row in rows)
