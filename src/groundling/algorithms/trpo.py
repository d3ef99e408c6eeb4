"""Trust region policy optimisation."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from groundling.algorithms.advantages import explained_variance
from groundling.algorithms.algorithm import algorithms
from groundling.algorithms.batch import Batch
from groundling.algorithms.losses import kl_divergence, masked_mean
from groundling.algorithms.on_policy import OnPolicy
from groundling.algorithms.optimisation import Terms, accumulate, check_finite, learn, trainable
from groundling.algorithms.rollout import Rollout
from groundling.policies.policy import Evaluation, Policy


@algorithms.register("trpo")
@dataclass
class TRPO(OnPolicy):
    """TRPO (Schulman et al. 2015, arXiv 1502.05477, appendix C), with the defaults of sb3-contrib, as RL4LMs has them.

    maximise E[ρ Â] + c_e E[H] subject to E[KL(π_old ‖ π)] ≤ δ:
    with F the Hessian of the KL and A = F + damping, x ≈ A⁻¹ g by conjugate gradients, and
    θ = θ_old + αʲ sqrt(2 δ / xᵀA x) x for the first j that keeps the bound and improves the objective, which the whole
    rollout decides.

    F x is a Hessian-vector product of the KL, by differentiating twice. Old distributions are computed again with the
    old weights, one micro-batch at a time, and never kept. The trust region is over the weights that the choice of
    actions depends on; those that only the value depends on are then fitted by Adam. A value function of shared weights
    alone therefore does not learn: give it weights of its own.
    """

    learning_rate: float = 1e-3
    """Adam's step size for the value function; the policy's step follows from target_kl."""
    target_kl: float = 0.01
    """δ: how far the policy may move in an update, in nats per step."""
    gae_lambda: float = 0.95
    """λ of generalised advantage estimation; usually 0.9 to 1."""
    normalize_advantages: bool = True
    """Shift and scale the rollout's advantages to mean 0 and deviation 1."""
    conjugate_gradient_steps: int = 15
    damping: float = 0.1
    """Added to F's diagonal."""
    line_search_steps: int = 10
    line_search_factor: float = 0.8
    """α: how much shorter each next try is."""
    critic_epochs: int = 10
    """How often the value function is fitted to each rollout."""
    minibatch_size: int = 128
    """Steps per step of the value function; of whole sequences as many as hold so many on average."""
    max_grad_norm: float = 0.5
    """Of the value function's gradient."""

    def setup(self, policy: Policy) -> None:
        """Make Adam, which will step on the value function's weights alone."""
        self.optimizer = torch.optim.Adam(trainable(policy), lr=self.learning_rate)

    def update(
        self, policy: Policy, rollout: Rollout, *, generator: torch.Generator, remaining: float = 1.0
    ) -> dict[str, float]:
        """One step of the policy on the whole of ``rollout``, and ``critic_epochs`` of the value function.

        Returns:
            ``policy_loss`` (the negated surrogate before the step), ``entropy``, ``grad_norm``, ``surrogate_gain``,
            ``step_kl`` and ``step_size`` (0 where no try kept the bound and improved); ``value_loss``, where there is a
            value function, and ``explained_variance``.

        Raises:
            RunError: a loss or gradient is NaN or infinite; the step is not taken.
        """
        learning_rate = self.schedule(remaining)
        batch = Batch.of(
            policy, rollout, *self.advantages(rollout, self.gae_lambda, self.normalize_advantages)
        )
        actor, critic = _parts(policy, batch)
        figures = self._step(policy, batch, actor)
        self.optimizer.zero_grad(set_to_none=True)  # the actor's are no business of Adam's
        if critic:
            minibatches = batch.minibatches(self.minibatch_size, self.critic_epochs, generator)
            fit = learn(
                self, batch, lambda micro: _value_terms(policy, batch, micro), minibatches, None, critic
            )
            figures["value_loss"] = fit["loss"]
        figures["explained_variance"] = explained_variance(batch.values, batch.returns, batch.weights)
        return {**figures, "learning_rate": learning_rate, **self.kl.adapt(rollout)}

    def _step(self, policy: Policy, batch: Batch, actor: list[Tensor]) -> dict[str, float]:
        """Move the weights ``actor`` as far as the trust region lets them."""
        whole = torch.arange(len(batch))
        with _twice_differentiable():
            local_figures = accumulate(
                self,
                batch,
                lambda micro: self._terms(batch, micro, batch.evaluate(policy, micro)),
                whole,
                actor,
            )
            figures = self.processes.sum_figures(local_figures)
            gradient = -_flat_gradient(actor)
            figures["grad_norm"] = gradient.norm().item()
            check_finite(figures)
            objective = -figures.pop("loss")
            direction = conjugate_gradient(
                lambda vector: self._curvature(policy, batch, actor, vector),
                gradient,
                self.conjugate_gradient_steps,
            )
            curvature = direction @ self._curvature(policy, batch, actor, direction)
        step = direction * (2 * self.target_kl / curvature.clamp(min=1e-12)).sqrt()
        search_figures = self._search(policy, batch, actor, step, objective)
        return {**figures, **search_figures}

    def _search(
        self, policy: Policy, batch: Batch, actor: list[Tensor], step: Tensor, objective: float
    ) -> dict[str, float]:
        """The longest step, of those that are tried, that keeps the bound and improves on ``objective``."""
        old, whole = torch.cat([p.detach().flatten() for p in actor]), torch.arange(len(batch))

        def terms(micro: Tensor) -> Terms:
            _assign(actor, old)
            before = batch.evaluate(policy, micro).log_distributions()
            _assign(actor, new)
            evaluation = batch.evaluate(policy, micro)
            kl = masked_mean(kl_divergence(before, evaluation.log_distributions()), batch.weights_of(micro))
            return {**self._terms(batch, micro, evaluation), "kl": kl}

        size = 1.0
        for _ in range(self.line_search_steps):
            new = old + size * step
            with torch.no_grad():
                tried = self.processes.sum_figures(accumulate(self, batch, terms, whole, []))
            if tried["kl"] <= self.target_kl and -tried["loss"] > objective:
                _assign(actor, new)
                gain = -tried["loss"] - objective
                return {"surrogate_gain": gain, "step_kl": tried["kl"], "step_size": size}
            size *= self.line_search_factor
        _assign(actor, old)
        return {"surrogate_gain": 0.0, "step_kl": 0.0, "step_size": 0.0}

    def _terms(self, batch: Batch, micro: Tensor, evaluation: Evaluation) -> Terms:
        weights = batch.weights_of(micro)
        log_ratio = evaluation.log_probs - batch.log_probs[micro]
        if weights is not None:
            log_ratio = log_ratio.masked_fill(weights == 0, 0.0)
        policy_loss = -masked_mean(log_ratio.exp() * batch.advantages[micro], weights)
        entropy = masked_mean(evaluation.entropies, weights)
        loss = policy_loss - self.entropy_coefficient * entropy
        return {"loss": loss, "policy_loss": policy_loss, "entropy": entropy}

    def _curvature(self, policy: Policy, batch: Batch, actor: list[Tensor], vector: Tensor) -> Tensor:
        """A ``vector``: the gradient of ∇KL · vector, whose KL is that from the present policy to itself."""
        pieces = vector.split([p.numel() for p in actor])

        def terms(micro: Tensor) -> Terms:
            present = batch.evaluate(policy, micro).log_distributions()
            kl = masked_mean(kl_divergence(present.detach(), present), batch.weights_of(micro))
            gradients = torch.autograd.grad(kl, actor, create_graph=True, materialize_grads=True)
            products = [g.flatten() @ v for g, v in zip(gradients, pieces, strict=True)]
            return {"loss": torch.stack(products).sum()}

        accumulate(self, batch, terms, torch.arange(len(batch)), actor)
        return _flat_gradient(actor) + self.damping * vector


def conjugate_gradient(product: Callable[[Tensor], Tensor], b: Tensor, steps: int) -> Tensor:
    """Solve A x = b for a positive definite A, of which only ``product(v) = A v`` is known (Hestenes and Stiefel 1952).

    Args:
        product: A times a vector ``(n,)``.
        b: ``(n,)``.
        steps: How many at most; n are exact, but for rounding.
    """
    x, residual = torch.zeros_like(b), b.clone()
    towards, squared = residual, residual @ residual
    for _ in range(steps):
        if squared < 1e-10 * (b @ b) or not squared:
            break
        image = product(towards)
        length = squared / (towards @ image)
        x, residual = x + length * towards, residual - length * image
        squared, previous = residual @ residual, squared
        towards = residual + squared / previous * towards
    return x


def _parts(policy: Policy, batch: Batch) -> tuple[list[Tensor], list[Tensor]]:
    """The weights that the choice of actions depends on, and those that the value alone does."""
    weights = trainable(policy)

    def reached(output: Tensor) -> list[bool]:
        if not output.requires_grad:
            return [False] * len(weights)
        gradients = torch.autograd.grad(output.sum(), weights, retain_graph=True, allow_unused=True)
        return [g is not None for g in gradients]

    # The only admissible action is no choice, takes no logits, and has a log-probability of 0.
    chosen = batch.log_probs.reshape(len(batch), -1).ne(0).any(1)
    example = chosen.int().argmax().reshape(1).cpu()
    # What may be asked for twice; with checkpointed gradients the layers are computed again as they were at first.
    with _twice_differentiable():
        evaluation = batch.evaluate(policy, example)
        chooses, values = reached(evaluation.log_probs), reached(evaluation.values)
    actor = [p for p, in_choice in zip(weights, chooses, strict=True) if in_choice]
    critic = [
        p
        for p, in_value, in_choice in zip(weights, values, chooses, strict=True)
        if in_value and not in_choice
    ]
    return actor, critic


def _value_terms(policy: Policy, batch: Batch, micro: Tensor) -> Terms:
    error = batch.evaluate(policy, micro).values - batch.returns[micro]
    return {"loss": 0.5 * masked_mean(error.square(), batch.weights_of(micro))}


def _flat_gradient(parameters: list[Tensor]) -> Tensor:
    return torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in parameters])


@torch.no_grad()
def _assign(parameters: list[Tensor], vector: Tensor) -> None:
    """Write the flat ``vector`` into ``parameters``."""
    for parameter, piece in zip(parameters, vector.split([p.numel() for p in parameters]), strict=True):
        parameter.copy_(piece.view_as(parameter))


@contextmanager
def _twice_differentiable() -> Iterator[None]:
    """Attention and recurrent layers by kernels whose gradient has a gradient, which what is compiled has not."""
    with (
        torch.compiler.set_stance("force_eager"),
        sdpa_kernel(SDPBackend.MATH),
        torch.backends.cudnn.flags(enabled=False),
    ):
        yield
