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

# The entropy bonus is what is left to learn from where no episode was rewarded, and there is no value function.
_CRITIC_FREE = {
    "learning_rate": 1e-3,
    "minibatch_size": 8,
    "micro_batch_size": 4,
    "entropy_coefficient": 0.01,
}
_ALGORITHMS = {
    "ppo": {"learning_rate": 1e-3, "minibatch_size": 8, "micro_batch_size": 4, "epochs": 1},
    "a2c": {"micro_batch_size": 4},
    "trpo": {
        "micro_batch_size": 8,
        "conjugate_gradient_steps": 1,
        "line_search_steps": 2,
        "critic_epochs": 1,
        "minibatch_size": 8,
    },
    "rloo": _CRITIC_FREE,
    "grpo": _CRITIC_FREE,
    "reinforce_pp": _CRITIC_FREE,
}
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


_PAIRS = [(p, e) for p in _POLICIES for e in _ENVS if (p, e) not in _STRANGERS]
_PRODUCT = [
    (algorithm, policy, env)
    for algorithm in _ALGORITHMS
    for policy, env in _PAIRS
    # To the others an env is what it is to PPO: the quicker one will do.
    if algorithm == "ppo" or env == "corridor" or (policy, "corridor") in _STRANGERS
]


@pytest.mark.parametrize(("algorithm", "policy", "env"), _PRODUCT)
def test_two_updates_change_the_weights(algorithm: str, policy: str, env: str, tmp_path: Path) -> None:
    _, rows = _two_updates(ComponentConfig(algorithm, _ALGORITHMS[algorithm]), policy, env, tmp_path)
    assert all(row["grad_norm"] > 0 for row in rows)


def test_drrn_learns_from_its_replay(tmp_path: Path) -> None:
    algorithm = ComponentConfig("drrn", {"batch_size": 8, "steps_per_gradient": 4, "replay_size": 20})
    run, rows = _two_updates(algorithm, "drrn", "babyai", tmp_path)
    assert [row["replay"] for row in rows] == [16, 20]
    assert all(row["grad_norm"] > 0 for row in rows)
    state = json.loads(json.dumps(run.algorithm.state_dict()))
    assert len(json.dumps(state)) < 100  # however much is remembered
    again = DRRN(batch_size=8, steps_per_gradient=4, replay_size=20)
    again.keep_in(tmp_path)
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
