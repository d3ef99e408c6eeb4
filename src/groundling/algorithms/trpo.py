"""Trust region policy optimisation."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Annotated

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from groundling.algorithms.algorithm import algorithms
from groundling.algorithms.losses import clipped_value_loss, kl_divergence, masked_mean
from groundling.algorithms.on_policy import OnPolicy
from groundling.algorithms.optimisation import Terms, accumulate, check_finite, learn, trainable
from groundling.algorithms.rollout import Batch, Rollout, Targets
from groundling.fields import Ge, Gt, Le, Lt
from groundling.policies.policy import Evaluated, Policy


@algorithms.register("trpo")
@dataclass
class TRPO(OnPolicy):
    """TRPO (Schulman et al. 2015, arXiv 1502.05477, appendix C), with the defaults of sb3-contrib, as in RL4LMs.
    It maximises E[ρ Â] + c_e E[H] subject to E[KL(π_old ‖ π)] ≤ δ:
    with F the Hessian of the KL and A = F + damping, x ≈ A⁻¹ g by conjugate gradients, and
    θ = θ_old + αʲ sqrt(2 δ / xᵀA x) x for the first j that satisfies the bound and improves the rollout's objective.

    F x, a Hessian-vector product, is computed by differentiating the KL twice. The trust region covers weights that
    affect the choice of actions; Adam trains only the others, so use separate weights for the value function.
    """

    learning_rate: Annotated[float, Gt(0)] = 1e-3
    """Adam's step size for the value function; the policy's step follows from target_kl."""
    target_kl: Annotated[float, Gt(0)] = 0.01  # δ: how far the policy may move in an update, in nats per step
    gae_lambda: Annotated[float, Ge(0), Le(1)] = 0.95  # λ of generalised advantage estimation; usually 0.9 to 1
    normalize_advantages: bool = True  # Shift and scale advantages to mean 0 and standard deviation 1
    conjugate_gradient_steps: Annotated[int, Ge(1)] = 15
    damping: Annotated[float, Ge(0)] = 0.1  # Added to F's diagonal
    line_search_steps: Annotated[int, Ge(1)] = 10
    line_search_factor: Annotated[float, Ge(0), Lt(1)] = 0.8  # α: ratio of successive step lengths
    critic_epochs: Annotated[int, Ge(1)] = 10  # Training epochs of the value function per rollout
    minibatch_size: Annotated[int, Ge(1)] = 128
    """Steps per optimizer step of the value function. For texts, which are not split, an average number of tokens."""
    max_grad_norm: Annotated[float, Gt(0)] = 0.5  # For the value function's gradient

    def setup(self, policy: Policy) -> None:
        self.optimizer = torch.optim.Adam(trainable(policy), lr=self.learning_rate)

    def targets(self, rollout: Rollout) -> Targets:
        return self.generalized_advantages(rollout, self.gae_lambda, self.normalize_advantages)

    def loss(self, evaluation: Evaluated, batch: Batch) -> Terms:
        log_ratio = evaluation.log_probs - batch.log_probs
        if batch.weights is not None:
            log_ratio = log_ratio.masked_fill(batch.weights == 0, 0.0)
        policy_loss = -masked_mean(log_ratio.exp() * batch.advantages, batch.weights)
        return {"loss": policy_loss, "policy_loss": policy_loss}

    def optimize(self, policy: Policy, batch: Batch, generator: torch.Generator) -> dict[str, float]:
        """Take one policy step on the whole rollout, then train the value function for ``critic_epochs``."""
        actor, critic = _actor_and_critic(policy, batch)
        figures = self._step(policy, batch, actor)
        self.optimizer.zero_grad(set_to_none=True)  # Adam must not apply the actor's gradients

        def value_loss(part: Batch) -> Terms:
            values = policy.evaluate(part.observations, part.actions).values
            return {"loss": clipped_value_loss(values, part.values, part.returns, mask=part.weights)}

        if critic:
            minibatches = batch.minibatches(self.minibatch_size, self.critic_epochs, generator)
            figures["value_loss"] = learn(self, batch, value_loss, minibatches, None, critic)["loss"]
        return figures

    def _step(self, policy: Policy, batch: Batch, actor: list[Tensor]) -> dict[str, float]:
        """Move the weights ``actor`` as far as the trust region allows."""
        with _twice_differentiable():
            local_figures = accumulate(self, batch, partial(self.regularized, policy), batch.index, actor)
            figures = self.processes.sum_figures(local_figures)
            gradient = -_flat_gradient(actor)
            figures["grad_norm"] = gradient.norm().item()
            check_finite(figures)
            objective = -figures.pop("loss")
            direction = conjugate_gradient(
                lambda vector: self._curvature(policy, batch, actor, vector), gradient, self.conjugate_gradient_steps
            )
            curvature = direction @ self._curvature(policy, batch, actor, direction)
        step = direction * (2 * self.target_kl / curvature.clamp(min=1e-12)).sqrt()
        return {**figures, **self._line_search(policy, batch, actor, step, objective)}

    def _line_search(
        self, policy: Policy, batch: Batch, actor: list[Tensor], step: Tensor, objective: float
    ) -> dict[str, float]:
        """Take the longest candidate step that satisfies the bound and improves on ``objective``."""
        old = torch.cat([p.detach().flatten() for p in actor])

        def terms(part: Batch) -> Terms:
            _assign(actor, old)
            before = policy.evaluate(part.observations, part.actions).log_distributions()
            _assign(actor, new)
            evaluation = policy.evaluate(part.observations, part.actions)
            kl = masked_mean(kl_divergence(before, evaluation.log_distributions()), part.weights)
            return {**self.regularized(policy, part, evaluation), "kl": kl}

        size = 1.0
        for _ in range(self.line_search_steps):
            new = old + size * step
            with torch.no_grad():
                tried = self.processes.sum_figures(accumulate(self, batch, terms, batch.index, []))
            if tried["kl"] <= self.target_kl and -tried["loss"] > objective:
                _assign(actor, new)
                gain = -tried["loss"] - objective
                return {"surrogate_gain": gain, "step_kl": tried["kl"], "step_size": size}
            size *= self.line_search_factor
        _assign(actor, old)
        return {"surrogate_gain": 0.0, "step_kl": 0.0, "step_size": 0.0}

    def _curvature(self, policy: Policy, batch: Batch, actor: list[Tensor], vector: Tensor) -> Tensor:
        """Return the product of A and ``vector``: the gradient of ∇KL(π ‖ π) · vector, plus damping."""
        pieces = vector.split([p.numel() for p in actor])

        def product(part: Batch) -> Terms:
            present = policy.evaluate(part.observations, part.actions).log_distributions()
            kl = masked_mean(kl_divergence(present.detach(), present), part.weights)
            gradients = torch.autograd.grad(kl, actor, create_graph=True, materialize_grads=True)
            products = [g.flatten() @ v for g, v in zip(gradients, pieces, strict=True)]
            return {"loss": torch.stack(products).sum()}

        accumulate(self, batch, product, batch.index, actor)
        return _flat_gradient(actor) + self.damping * vector


def conjugate_gradient(product: Callable[[Tensor], Tensor], b: Tensor, steps: int) -> Tensor:
    """Solve A x = b ``(n,)`` for a positive definite A, given as ``product(v) = A v`` (Hestenes and Stiefel 1952).
    ``steps`` is the maximum number of iterations; n iterations yield the exact solution, up to rounding.
    """
    x, residual = torch.zeros_like(b), b.clone()
    direction, squared = residual, residual @ residual
    for _ in range(steps):
        if squared < 1e-10 * (b @ b) or not squared:
            break
        image = product(direction)
        length = squared / (direction @ image)
        x, residual = x + length * direction, residual - length * image
        squared, previous = residual @ residual, squared
        direction = residual + squared / previous * direction
    return x


def _actor_and_critic(policy: Policy, batch: Batch) -> tuple[list[Tensor], list[Tensor]]:
    """Return the weights that affect the choice of actions, and those that affect only the value."""
    weights = trainable(policy)

    def reached(output: Tensor) -> list[bool]:
        if not output.requires_grad:
            return [False] * len(weights)
        gradients = torch.autograd.grad(output.sum(), weights, retain_graph=True, allow_unused=True)
        return [g is not None for g in gradients]

    # A single admissible action has log-probability 0 whatever the logits, so pick an element with a choice.
    chosen = batch.log_probs.reshape(len(batch), -1).ne(0).any(1)
    example = batch[chosen.int().argmax().reshape(1).cpu()]
    # Checkpointed layers are recomputed as in the first pass, so both passes need these kernels.
    with _twice_differentiable():
        evaluation = policy.evaluate(example.observations, example.actions)
        in_choice, in_value = reached(evaluation.log_probs), reached(evaluation.values)
    actor = [p for p, chooses in zip(weights, in_choice, strict=True) if chooses]
    critic = [p for p, chooses, values in zip(weights, in_choice, in_value, strict=True) if values and not chooses]
    return actor, critic


def _flat_gradient(parameters: list[Tensor]) -> Tensor:
    return torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in parameters])


@torch.no_grad()
def _assign(parameters: list[Tensor], vector: Tensor) -> None:
    for parameter, piece in zip(parameters, vector.split([p.numel() for p in parameters]), strict=True):
        parameter.copy_(piece.view_as(parameter))


@contextmanager
def _twice_differentiable() -> Iterator[None]:
    """Use kernels that can be differentiated twice, unlike compiled and fused kernels."""
    with (
        torch.compiler.set_stance("force_eager"),
        sdpa_kernel(SDPBackend.MATH),
        torch.backends.cudnn.flags(enabled=False),
    ):
        yield
