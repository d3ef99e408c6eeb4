"""PPO and A2C compared with Stable-Baselines3: the same rollouts, advantages, losses, gradients and steps."""

import copy
from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
import pytest
import stable_baselines3
import torch
from stable_baselines3.common.callbacks import CallbackList
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from torch import Tensor

from groundling.algorithms import A2C, PPO, Rollout, generalized_advantage
from groundling.policies.policy import Action, Evaluated, Policy

_STEPS, _ENVS = 16, 3


class _Noise(gymnasium.Env[np.ndarray, int]):
    """An env with random observations and rewards; an episode ends with a probability of 0.2."""

    observation_space = gymnasium.spaces.Box(-4, 4, (4,), np.float32)
    action_space = gymnasium.spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        return self._observe(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        return (self._observe(), float(self.np_random.normal() + action), self.np_random.random() < 0.2, False, {})

    def _observe(self) -> np.ndarray:
        return self.np_random.normal(size=4).clip(-4, 4).astype(np.float32)


class _Theirs(Policy):
    """Wraps a Stable-Baselines3 policy as one of ours; observations are ``(4,)`` tensors."""

    def __init__(self, policy: Any) -> None:
        super().__init__()
        self.policy = policy

    def evaluate(self, observations: Sequence[Tensor], actions: Tensor) -> Evaluated:
        stacked = torch.stack(list(observations))
        log_distributions = self.policy.get_distribution(stacked).distribution.logits
        return Evaluated.of(log_distributions, actions, self.policy.predict_values(stacked)[:, 0])

    def act(self, observations: Sequence[Tensor], **options: Any) -> Action:
        raise NotImplementedError

    def values(self, observations: Sequence[Tensor], memory: Tensor | None = None) -> Tensor:
        raise NotImplementedError


def _collected(model: OnPolicyAlgorithm) -> tuple[_Theirs, Rollout]:
    """Collect a rollout with ``model``; return its policy and the rollout, both as ours."""
    _, callback = model._setup_learn(_STEPS * _ENVS, CallbackList([]))
    model.collect_rollouts(model.env, callback, model.rollout_buffer, n_rollout_steps=_STEPS)
    buffer = model.rollout_buffer
    starts = torch.from_numpy(np.concatenate([buffer.episode_starts[1:], model._last_episode_starts[None]])).bool()
    with torch.no_grad():
        last = torch.as_tensor(model._last_obs)
        last_values = model.policy.predict_values(last)[:, 0]
    observations = torch.from_numpy(buffer.observations.copy()).flatten(0, 1)
    rollout = Rollout(
        list(observations),
        torch.from_numpy(buffer.actions.copy()).long()[..., 0],
        torch.from_numpy(buffer.log_probs.copy()),
        torch.from_numpy(buffer.values.copy()),
        torch.from_numpy(buffer.rewards.copy()),
        starts,
        last_values,
        list(last),
    )
    return _Theirs(copy.deepcopy(model.policy)), rollout


def _logged(model: OnPolicyAlgorithm) -> dict[str, float]:
    return {name.removeprefix("train/"): value for name, value in model.logger.name_to_value.items()}


def _model(algorithm: type[OnPolicyAlgorithm], **options: Any) -> OnPolicyAlgorithm:
    envs = stable_baselines3.common.vec_env.DummyVecEnv([_Noise] * _ENVS)
    net = {"net_arch": {"pi": [8], "vf": [8]}}
    return algorithm("MlpPolicy", envs, n_steps=_STEPS, seed=1, policy_kwargs=net, device="cpu", **options)


def _assert_equal(theirs: OnPolicyAlgorithm, ours: _Theirs) -> None:
    for (name, p), q in zip(theirs.policy.named_parameters(), ours.policy.parameters(), strict=True):
        assert p.grad is not None and q.grad is not None
        assert torch.allclose(p.grad, q.grad, rtol=1e-4, atol=1e-7), name
        assert torch.allclose(p, q, rtol=1e-5, atol=1e-6), name


@pytest.mark.parametrize(("epochs", "micro"), [(1, None), (6, 7)])
def test_ppo_is_stable_baselines3s(epochs: int, micro: int | None) -> None:
    model = _model(
        stable_baselines3.PPO,
        batch_size=_STEPS * _ENVS,
        n_epochs=epochs,
        learning_rate=0.02,
        ent_coef=0.03,
        vf_coef=0.4,
        gamma=0.9,
        gae_lambda=0.8,
        normalize_advantage=False,
    )
    policy, rollout = _collected(model)
    advantages, returns = generalized_advantage(
        rollout.rewards, rollout.values, rollout.dones, rollout.last_values, 0.9, 0.8
    )
    assert np.allclose(advantages, model.rollout_buffer.advantages, atol=1e-5)
    assert np.allclose(returns, model.rollout_buffer.returns, atol=1e-5)
    ppo = PPO(
        learning_rate=0.02,
        epochs=epochs,
        minibatch_size=_STEPS * _ENVS,
        micro_batch_size=micro,
        entropy_coefficient=0.03,
        value_coefficient=0.8,  # weights half the squared error
        value_clip_range=None,
        gamma=0.9,
        gae_lambda=0.8,
    )
    ppo.setup(policy)
    figures = ppo.update(policy, rollout, generator=torch.Generator())
    model.train()
    _assert_equal(model, policy)
    theirs = _logged(model)
    assert figures["policy_loss"] == pytest.approx(theirs["policy_gradient_loss"], abs=1e-5)
    assert 2 * figures["value_loss"] == pytest.approx(theirs["value_loss"], rel=1e-4)
    assert -figures["entropy"] == pytest.approx(theirs["entropy_loss"], rel=1e-4)
    assert figures["clip_fraction"] == pytest.approx(theirs["clip_fraction"], abs=1e-6)
    assert figures["explained_variance"] == pytest.approx(theirs["explained_variance"], abs=1e-4)
    if epochs > 1:
        assert figures["clip_fraction"] > 0.05


def test_a2c_is_stable_baselines3s() -> None:
    model = _model(stable_baselines3.A2C, ent_coef=0.03)
    policy, rollout = _collected(model)
    a2c = A2C(entropy_coefficient=0.03, micro_batch_size=10)
    a2c.setup(policy)
    figures = a2c.update(policy, rollout, generator=torch.Generator())
    model.train()
    _assert_equal(model, policy)
    theirs = _logged(model)
    assert figures["policy_loss"] == pytest.approx(theirs["policy_loss"], rel=1e-4)
    assert 2 * figures["value_loss"] == pytest.approx(theirs["value_loss"], rel=1e-4)
