"""The policies that score and write actions, compared with their initial weights."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console
from safetensors.torch import save_file

from groundling.config.compose import compose
from groundling.envs.text_env import TextObservation
from groundling.errors import ConfigError
from groundling.lm import LanguageModel
from groundling.policies import ActionScoringPolicy, ActionTextPolicy, ActionWritingPolicy
from groundling.training.build import world_of
from groundling.training.tracking import TrainingProgress
from groundling.training.trainer import Trainer
from tests.building import policy_of
from tests.thorough import thorough

_ACTIONS = ("turn left", "go forward", "drop")
_SEEN = [
    TextObservation("go to the red ball", ((description,),), (), _ACTIONS, {})
    for description in ("You see a red ball 2 steps forward", "You see a wall 1 step left")
]


def test_compat_excludes_normalize() -> None:
    lm = LanguageModel.from_pretrained("starter")
    with pytest.raises(ConfigError, match="normalize=token does nothing without compat=null"):
        ActionScoringPolicy(lm, normalize="token", compat="glam")
    assert "normalize=token" in str(ActionScoringPolicy(lm).exploration_advice())
    assert "normalize" not in str(ActionScoringPolicy(lm, compat="glam").exploration_advice())


def _disturb(lm: LanguageModel, part: str) -> None:
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in lm.named_parameters():
            if part in name:
                parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))


_KINDS = [ActionScoringPolicy, ActionWritingPolicy]


def _check_reference(policy: ActionTextPolicy, began: torch.Tensor, part: str) -> None:
    actions = torch.tensor([1, 2])
    chosen = began.gather(1, actions[:, None])[:, 0]
    for _ in range(2):
        torch.testing.assert_close(policy.reference_log_probs(_SEEN, actions), chosen, atol=1e-5, rtol=0)
        _disturb(policy.lm, part)
    assert (policy.outputs(_SEEN).log_probs - began).abs().max() > 1e-3


@pytest.mark.parametrize("kind", _KINDS)
def test_actions_are_compared_to_a_frozen_model(kind: type[ActionTextPolicy]) -> None:
    lm, reference = (LanguageModel.from_pretrained("starter") for _ in range(2))
    policy = kind(lm, reference, temperature=2.0)
    _check_reference(policy, policy.outputs(_SEEN).log_probs, "layer_norm")
    assert not any(p.requires_grad for p in reference.parameters())
    assert kind(lm).reference_log_probs(_SEEN, torch.tensor([0, 0])) is None


@pytest.mark.parametrize("kind", _KINDS)
def test_with_adapters_the_reference_is_the_model_without_them(kind: type[ActionTextPolicy]) -> None:
    lm = LanguageModel.from_pretrained("starter", lora={"r": 2, "target_modules": ["q"]})
    policy = kind(lm, lm)
    _check_reference(policy, policy.outputs(_SEEN).log_probs, "lora_B")
    assert any(p.requires_grad for p in lm.parameters())


_SMALL = ["world.num_envs=4", "training.steps=16", "world.num_steps=4", "algorithm.args.minibatch_size=8"]


@pytest.mark.parametrize(
    "more", [["policy.id=action_writing"], *thorough([], ["model.lora={r: 2, target_modules: [q]}"])]
)
def test_rewards_are_shaped_by_leaving_the_first_policy(more: list[str], tmp_path: Path) -> None:
    """The penalty is a part of the reward, so it is the only signal if there is no other reward."""
    config = compose("demo-easy", [*_SMALL, *more, "reward.env.coefficient=0", "algorithm.args.kl_coefficient=0.5"])
    run = Trainer(config, tmp_path, warn=print)
    rollout, _ = run.collector.collect(run.policy, generator=torch.Generator().manual_seed(0))
    assert rollout.kl is not None and not rollout.rewards.any()
    _disturb(run.policy.lm, "lora_B" if "lora" in str(more) else "layer_norm")
    rollout, _ = run.collector.collect(run.policy, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(run.algorithm.rewards(rollout), -0.5 * rollout.kl)
    row = run.update(TrainingProgress(Console(quiet=True), 16, 0))
    assert row["kl_coefficient"] == 0.5 and abs(row["kl_mean"]) > 1e-3


def test_the_reference_is_loaded_for_training_only() -> None:
    config = compose("demo-easy", ["algorithm.args.kl_coefficient=0.5"])
    assert policy_of(config).reference is None
    assert policy_of(config, learns=True).reference is not None


@pytest.mark.parametrize("kind", _KINDS)
def test_a_calibrated_policy_prefers_no_action_everywhere(kind: type[ActionTextPolicy], tmp_path: Path) -> None:
    lm = LanguageModel.from_pretrained("starter")
    policy = kind(lm, value_hidden_sizes=(8,), calibration=2)
    before = policy.outputs(_SEEN).log_probs
    policy.calibrate(_SEEN)
    after = policy.outputs(_SEEN).log_probs
    expected = (before - before.mean(0)).log_softmax(-1)
    torch.testing.assert_close(after, expected, atol=1e-6, rtol=0)
    assert (after - before).abs().max() > 0.1
    policy.save_pretrained(tmp_path)
    again = kind(LanguageModel.from_pretrained(tmp_path), value_hidden_sizes=(8,), calibration=2)
    again.load_weights(tmp_path)
    assert torch.equal(again.outputs(_SEEN).log_probs, after)
    for damaged in ({"mean": torch.zeros(3)}, {"means": torch.zeros(3, 1)}, {"means": torch.full((3,), torch.nan)}):
        save_file(damaged, tmp_path / "calibration.safetensors")
        with pytest.raises(ConfigError, match=r"calibration\.safetensors"):
            again.load_weights(tmp_path)
    with pytest.raises(ConfigError, match="needs an env whose actions never change"):
        policy.calibrate([*_SEEN, replace(_SEEN[0], actions=_ACTIONS[:2])])


def test_calibration_uses_random_play_and_the_seed() -> None:
    config = compose("demo-easy", ["policy.args.calibration=16", "device=cpu"])
    one, other = policy_of(config), policy_of(config)
    seen = world_of(config).random_play(64)
    assert torch.equal(one.outputs(seen).log_probs, other.outputs(seen).log_probs)
    plain = policy_of(compose("demo-easy", ["device=cpu"]))
    with pytest.raises(ConfigError, match=r"calibrated on 6 actions, but this env has 3"):
        one.outputs(_SEEN)

    def spread(policy: ActionTextPolicy) -> float:
        return float(policy.outputs(seen).log_probs.exp().mean(0).std())

    assert spread(one) < spread(plain) / 2
