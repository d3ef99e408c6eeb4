"""Every on-policy algorithm works with every policy."""

import json
from pathlib import Path

import pytest
from rich.console import Console

from groundling.algorithms import DRRN
from groundling.configs.schema import ComponentConfig, Config, EnvConfig, ModelConfig, TrainingConfig
from groundling.errors import ConfigError
from groundling.training.progress import TrainingProgress
from groundling.training.run import Run
from tests.conftest import TablePolicy

_ALGORITHMS = {"ppo": {"learning_rate": 1e-3, "minibatch_size": 8, "micro_batch_size": 4, "epochs": 1}}
_SMALL = {"channels": 8, "hidden_size": 8, "recurrence": 2}
_POLICIES = {
    "starter": (ComponentConfig("action_scoring", {"value_hidden_sizes": [8]}), "starter"),
    "starter-causal": (ComponentConfig("action_scoring", {"value_hidden_sizes": [8]}), "starter-causal"),
    "action-head": (ComponentConfig("action_head", {"hidden_sizes": [8]}), "starter"),
    "drrn": (ComponentConfig("drrn", {"embedding_size": 8, "hidden_size": 8}), "starter"),
    "symbolic": (ComponentConfig("symbolic", _SMALL), "starter"),
    "table": (ComponentConfig("test-table"), "starter"),
}
_ENVS = {
    "babyai": EnvConfig(id="BabyAI-GoToObj-v0", num_envs=4),
    "corridor": EnvConfig(id="test/Corridor-v0", num_envs=4, actions=["left", "right", "stay"]),
}


_STRANGERS = [("table", "babyai"), ("symbolic", "corridor")]  # they see no more than their own world


@pytest.mark.parametrize("algorithm", _ALGORITHMS)
@pytest.mark.parametrize(
    ("policy", "env"),
    [(p, e) for p in _POLICIES for e in _ENVS if (p, e) not in _STRANGERS],
)
def test_two_updates_change_the_weights(algorithm: str, policy: str, env: str, tmp_path: Path) -> None:
    _, rows = _two_updates(ComponentConfig(algorithm, _ALGORITHMS[algorithm]), policy, env, tmp_path)
    assert all(row["grad_norm"] > 0 for row in rows)


def test_drrn_learns_from_its_replay(tmp_path: Path) -> None:
    algorithm = ComponentConfig("drrn", {"batch_size": 8, "steps_per_gradient": 4, "replay_size": 20})
    run, rows = _two_updates(algorithm, "drrn", "babyai", tmp_path)
    assert [row["replay"] for row in rows] == [16, 20]
    assert all(row["grad_norm"] > 0 for row in rows)
    state = json.loads(json.dumps(run.algorithm.state_dict()))
    again = DRRN(batch_size=8, steps_per_gradient=4, replay_size=20)
    again.load_state_dict(state)
    assert again.state_dict() == run.algorithm.state_dict() and again._replay == run.algorithm._replay
    with pytest.raises(ConfigError, match=r"policy\.id=drrn"):
        again.setup(TablePolicy())


def _two_updates(algorithm: ComponentConfig, policy: str, env: str, folder: Path) -> tuple[Run, list[dict]]:
    component, model = _POLICIES[policy]
    config = Config(
        name="matrix",
        device="cpu",
        env=_ENVS[env],
        model=ModelConfig(path=model),
        policy=component,
        algorithm=algorithm,
        training=TrainingConfig(steps=32, steps_per_update=4),
    )
    run = Run(config, folder, warn=print)
    before = {name: p.detach().clone() for name, p in run.policy.named_parameters()}
    progress = TrainingProgress(Console(quiet=True), 32, 0)
    rows = [run.update(progress) for _ in range(2)]
    assert [row["update"] for row in rows] == [1, 2] and rows[1]["step"] == 32
    changed = [name for name, p in run.policy.named_parameters() if not p.equal(before[name])]
    assert changed
    return run, rows
