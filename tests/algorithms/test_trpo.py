import copy

import pytest
import torch
from torch import Tensor, nn

from groundling.algorithms import TRPO, Rollout
from groundling.algorithms.losses import kl_divergence
from groundling.algorithms.rollout import Batch
from groundling.algorithms.trpo import _actor_and_critic, conjugate_gradient
from groundling.envs.text_env import TextObservation
from groundling.lm import LanguageModel
from groundling.policies import ActionWritingPolicy
from groundling.policies.policy import Evaluated, Policy
from tests.algorithms.rollouts import generator, texts
from tests.algorithms.test_ppo import _policy_and_rollout
from tests.conftest import SequencePolicy


def _corridor() -> tuple[Policy, Rollout]:
    return _policy_and_rollout()


def _batch(policy: Policy, rollout: Rollout) -> Batch:
    return Batch.of(policy, rollout, TRPO().targets(rollout))


def _mean(x: Tensor, batch: Batch) -> Tensor:
    return x.mean() if batch.weights is None else (x * batch.weights).sum() / batch.weights.sum()


@pytest.mark.parametrize("world", [texts, _corridor])
@pytest.mark.parametrize("target_kl", [0.001, 0.03])
def test_a_step_keeps_its_bound_and_improves_the_surrogate(world, target_kl: float) -> None:  # type: ignore[no-untyped-def]
    policy, rollout = world()
    old = copy.deepcopy(policy)
    trpo = TRPO(target_kl=target_kl, damping=1e-3, micro_batch_size=16)
    trpo.setup(policy)
    figures = trpo.update(policy, rollout, generator=generator())
    batch = _batch(policy, rollout)
    with torch.no_grad():
        before, after = (p.evaluate(batch.observations, batch.actions) for p in (old, policy))
    kl = _mean(kl_divergence(before.log_distributions(), after.log_distributions()), batch)
    gain = _mean((after.log_probs - before.log_probs).exp() * batch.advantages, batch) - _mean(batch.advantages, batch)
    assert 0.2 * target_kl < kl <= target_kl and gain > 1e-3
    assert figures["step_kl"] == pytest.approx(kl.item(), abs=1e-6)
    assert figures["surrogate_gain"] == pytest.approx(gain.item(), abs=1e-5)
    assert figures["step_size"] > 0


def test_the_curvature_is_the_hessian_of_the_kl() -> None:
    policy, rollout = texts()
    batch = _batch(policy, rollout)
    with torch.no_grad():
        present = policy.evaluate(batch.observations, batch.actions).log_distributions()

    def kl(actor: Tensor) -> Tensor:
        before = policy._before(batch.actions)
        new = policy._look_up(actor, batch.observations, before).log_softmax(-1)
        return _mean(kl_divergence(present, new), batch)

    size = policy.actor.numel()
    hessian = torch.autograd.functional.hessian(kl, policy.actor.detach()).reshape(size, size)
    vector = torch.randn(size, generator=generator())
    trpo = TRPO(damping=0.3, micro_batch_size=20)
    trpo.setup(policy)
    product = trpo._curvature(policy, batch, [policy.actor], vector)
    assert torch.allclose(product, hessian @ vector + 0.3 * vector, atol=1e-5)


def test_conjugate_gradients_solve_positive_definite_systems() -> None:
    torch.manual_seed(0)
    root = torch.randn(12, 12, dtype=torch.float64)
    matrix, b = root @ root.T + torch.eye(12), torch.randn(12, dtype=torch.float64)
    assert torch.allclose(conjugate_gradient(lambda v: matrix @ v, b, 30), torch.linalg.solve(matrix, b))
    assert not conjugate_gradient(lambda v: matrix @ v, torch.zeros(12), 5).any()


class _Shared(SequencePolicy):
    """A value head on the weights on which the choice depends."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.unused = nn.Linear(5, 1), nn.Linear(2, 2)

    def evaluate(self, observations: list[int], actions: Tensor) -> Evaluated:
        scores = self._look_up(self.actor, observations, self._before(actions))
        return Evaluated.of(scores.log_softmax(-1), actions, self.head(scores)[..., 0])


def test_actor_and_critic_are_found_by_dependence() -> None:
    torch.manual_seed(0)
    policy = _Shared()
    policy.critic.requires_grad_(False)
    batch = _batch(policy, policy.write([0, 1, 2] * 4, generator()))
    actor, critic = _actor_and_critic(policy, batch)
    assert [id(p) for p in actor] == [id(policy.actor)]
    assert [id(p) for p in critic] == [id(policy.head.weight), id(policy.head.bias)]
    separate, rollout = texts()
    actor, critic = _actor_and_critic(separate, _batch(separate, rollout))
    assert [id(p) for p in actor] == [id(separate.actor)] and [id(p) for p in critic] == [id(separate.critic)]


def test_the_dependence_is_that_of_a_real_choice() -> None:
    """A single admissible action does not use logits, but a choice between two requires the output layer."""
    lm = LanguageModel.from_pretrained("starter-causal")
    head = lm.model.get_output_embeddings()
    head.weight = nn.Parameter(head.weight.detach().clone())  # untied from the embeddings
    policy = ActionWritingPolicy(lm, prompt="brief", value_hidden_sizes=(8,))
    seen = [TextObservation("go", (("You see a key",),), (), a, {}) for a in (("wait",), ("go left", "wait"))]
    action = policy.act(seen, generator=generator())
    figures = (one[None] for one in (action.actions, action.log_probs, action.values))
    rollout = Rollout(seen, *figures, torch.rand(1, 2), torch.ones(1, 2).bool(), torch.zeros(2), [])
    actor, critic = _actor_and_critic(policy, _batch(policy, rollout))
    assert sum(weight is head.weight for weight in actor) == 1
    assert {id(p) for p in critic} == {id(p) for p in policy.value_head.parameters()}


def test_the_policy_stays_if_no_try_improves(monkeypatch: pytest.MonkeyPatch) -> None:
    policy, rollout = texts()
    before = policy.actor.detach().clone()
    monkeypatch.setattr("groundling.algorithms.trpo.conjugate_gradient", lambda product, b, steps: -b)
    trpo = TRPO()
    trpo.setup(policy)
    figures = trpo.update(policy, rollout, generator=generator())
    assert figures["step_size"] == figures["step_kl"] == figures["surrogate_gain"] == 0
    assert torch.equal(policy.actor, before)
