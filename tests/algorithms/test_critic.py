"""Additional training of value heads: warm-up, more epochs, a separate learning rate, detached inputs."""

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch

from groundling.algorithms import Rollout, create
from groundling.algorithms.algorithm import check_trains
from groundling.errors import ConfigError
from groundling.lm import LanguageModel
from groundling.policies import ActionGeneratingPolicy, ActionHeadPolicy, ActionScoringPolicy, TokenPolicy
from groundling.policies.text_states import TokenPrompt
from groundling.worlds.text.world import TextWorld
from tests.algorithms.rollouts import corridor, generator
from tests.thorough import thorough

_OPTIONS = {"learning_rate": 1e-3, "minibatch_size": 4, "epochs": 2, "value_coefficient": 1.0}


@pytest.fixture(scope="module")
def lm() -> LanguageModel:
    return LanguageModel.from_pretrained("starter-causal")


def _policy(lm: LanguageModel, make: Any = ActionScoringPolicy) -> Any:
    torch.manual_seed(0)
    head = {"num_actions": 3, "hidden_sizes": (8,)} if make is ActionHeadPolicy else {"value_hidden_sizes": (8,)}
    return make(copy.deepcopy(lm), prompt="brief", **head)


def _rollout(policy: Any, seed: int = 0) -> Rollout:
    return corridor(policy, 4, 3).collect(policy, generator=generator(seed))[0]


def _update(policy: Any, rollout: Rollout | None = None, algorithm: Any = None, **options: Any) -> dict[str, float]:
    if algorithm is None:
        algorithm = create("ppo", **_OPTIONS, **options)
        algorithm.setup(policy)
    return algorithm.update(policy, _rollout(policy) if rollout is None else rollout, generator=generator(1))


def _changed(policy: Any, before: dict[str, torch.Tensor]) -> set[str]:
    now = policy.state_dict()
    return {
        "head" if name.startswith("value_head") else "rest"
        for name, old in before.items()
        if not torch.equal(old, now[name])
    }


@pytest.mark.parametrize("make", [ActionHeadPolicy, *thorough(ActionScoringPolicy)])
def test_only_the_head_learns_in_the_warm_up(lm: LanguageModel, make: Any) -> None:
    policy = _policy(lm, make)
    algorithm = create("ppo", **_OPTIONS, value_warmup=1, value_epochs=3)
    algorithm.setup(policy)
    before = copy.deepcopy(policy.state_dict())
    figures = _update(policy, algorithm=algorithm)
    assert _changed(policy, before) == {"head"}
    assert figures["approx_kl"] == pytest.approx(0, abs=1e-6) and {"policy_loss", "entropy"} <= figures.keys()
    _update(policy, algorithm=algorithm)
    assert _changed(policy, before) == {"head", "rest"}


def test_a_detached_value_loss_trains_the_head_alone(lm: LanguageModel) -> None:
    """All advantages are 0, and there is no entropy bonus."""
    for detach, learns in ((False, {"head", "rest"}), (True, {"head"})):
        policy = _policy(lm)
        rollout = _rollout(policy)
        rollout.rewards[:], rollout.dones[:] = 1.0, True
        rollout.values[:] = 1.0  # equal to the returns, so the policy has no gradient
        before = copy.deepcopy(policy.state_dict())
        _update(policy, rollout, detach_values=detach, entropy_coefficient=0.0, value_clip_range=None)
        assert _changed(policy, before) == learns, detach


def test_more_epochs_fit_the_values_of_the_last_rollouts(lm: LanguageModel) -> None:
    errors = {}
    for epochs in (0, 20):
        policy = _policy(lm)
        algorithm = create("ppo", **_OPTIONS, value_epochs=epochs, **({"value_rollouts": 2} if epochs else {}))
        algorithm.setup(policy)
        for seed in range(3):
            rollout = _rollout(policy, seed)
            rollout.rewards[:], rollout.dones[:] = 2.0, True
            figures = _update(policy, rollout, algorithm)
        assert ("value_fit_loss" in figures) == bool(epochs)
        errors[epochs] = figures["value_loss"]
        kept = algorithm.tensors()
        assert [len(kept[name]) for name in sorted(kept)] == ([12] * 4 if epochs else [])
    assert errors[20] < errors[0] / 4


def test_more_epochs_do_not_change_other_weights(lm: LanguageModel) -> None:
    weights = []
    for epochs in (0, 2):
        policy = _policy(lm)
        _update(policy, value_epochs=epochs)
        weights.append({n: p for n, p in policy.state_dict().items() if not n.startswith("value_head")})
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_turns_are_fitted_token_by_token(lm: LanguageModel) -> None:
    policy = _policy(lm, ActionGeneratingPolicy)
    rollout = _rollout(policy)
    algorithm = create("ppo", **_OPTIONS, value_epochs=1)
    algorithm.setup(policy)
    _update(policy, rollout, algorithm)
    assert len(algorithm.tensors()["0.returns"]) == int(rollout.tokens.mask.sum())


def test_texts_of_any_length_are_fitted_token_by_token(lm: LanguageModel) -> None:
    """Each stored row is the input of the head at one token, with that token's return."""
    policy = TokenPolicy(copy.deepcopy(lm), value_hidden_sizes=(8,))
    prompts = [TokenPrompt(tuple(lm.tokenizer(text)["input_ids"])) for text in ("go", "see", "a ball")]
    written = policy.write(prompts, torch.rand(3, 6, generator=generator()).double())
    for column, length in enumerate((2, 6, 3)):  # as if the first and the last text had ended
        written.mask[length:, column] = False
        written.observations[column] = replace(written.observations[column], length=length)
        written.dones[length - 1, column] = True
    rewards = torch.arange(18.0).view(6, 3) * written.mask
    rollout = Rollout(
        written.observations,
        written.actions,
        written.log_probs,
        written.values,
        rewards,
        written.dones,
        torch.zeros(3),
        [],
        sequences=True,
        mask=written.mask,
    )
    algorithm = create("ppo", minibatch_size=5, epochs=1, gamma=0.0, value_epochs=1, learning_rate=1e-12)
    algorithm.setup(policy)
    algorithm.update(policy, rollout, generator=generator(1))
    kept = algorithm.tensors()
    assert kept["0.returns"].tolist() == rewards.T[written.mask.T].tolist()
    with torch.no_grad():
        values = policy.evaluate(written.observations, written.actions.T).values[written.mask.T]
        torch.testing.assert_close(policy.value_head(kept["0.states"]), values)


def test_policies_without_a_value_head_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = TextWorld.offers
    for options in ({"value_epochs": 1}, {"detach_values": True}):
        with pytest.raises(ConfigError, match=f"{next(iter(options))} needs a policy with a value head"):
            check_trains("ppo", options, "symbolic", {}, spec)
