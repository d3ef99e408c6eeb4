"""Optimizers, learning rate schedules, and gradient steps that accumulate over micro-batches and processes."""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from groundling.algorithms.rollout import Batch, micro_batches
from groundling.errors import RunError, warn_caller
from groundling.policies.policy import Policy
from groundling.runtime.processes import Processes, in_parts

Schedule = Literal["constant", "linear", "cosine"]
Terms = dict[str, Tensor]
"""Terms of a loss by their names in the log, each a scalar mean over unmasked steps; ``"loss"`` is differentiated."""
LossFunction = Callable[[Batch], Terms]


class Learner(Protocol):
    """Interface of algorithms that take gradient steps on minibatches."""

    optimizer: torch.optim.Optimizer
    processes: Processes
    divides_minibatches: ClassVar[bool]
    learning_rate: float
    learning_rate_schedule: Schedule
    warmup: float
    micro_batch_size: int | None
    max_grad_norm: float


def trainable(policy: Policy) -> list[Tensor]:
    """Return the weights that require gradients."""
    return [p for p in policy.parameters() if p.requires_grad]


def whole_and_parts(parameters: Iterable[Tensor]) -> list[list[Tensor]]:
    """Separate unsharded parameters from sharded ones, since no kernel accepts both; drop empty groups."""
    whole, parts = list[Tensor](), list[Tensor]()
    for parameter in parameters:
        (parts if in_parts(parameter) else whole).append(parameter)
    return [group for group in (whole, parts) if group]


def make_adamw(
    policy: Policy,
    learning_rate: float,
    betas: tuple[float, float] = (0.9, 0.999),
    epsilon: float = 1e-8,
    weight_decay: float = 0.0,
) -> torch.optim.AdamW:
    """Create AdamW (Loshchilov and Hutter 2019, arXiv 1711.05101) for trainable weights; only matrices are decayed."""
    parameters = trainable(policy)
    groups = [(parameters, weight_decay)]
    if weight_decay:
        groups = [([p for p in parameters if p.ndim > 1], weight_decay), ([p for p in parameters if p.ndim <= 1], 0.0)]
    return torch.optim.AdamW(
        [{"params": params, "weight_decay": decay} for group, decay in groups for params in whole_and_parts(group)],
        lr=learning_rate,
        betas=betas,
        eps=epsilon,
        fused=True,  # otherwise a small model's optimizer step takes longer than its gradients
    )


def schedule_learning_rate(algorithm: Learner, remaining: float) -> float:
    """Set and return the learning rate for an update, with a fraction ``remaining`` of training left.
    It rises from a tenth of ``learning_rate`` to its full value over ``warmup``, then follows the schedule.
    """
    left = remaining / (1 - algorithm.warmup)
    factors = {"constant": 1.0, "linear": left, "cosine": (1 - math.cos(math.pi * left)) / 2}
    factor = factors[algorithm.learning_rate_schedule]
    if 1 - remaining < algorithm.warmup:
        factor = 0.1 + 0.9 * (1 - remaining) / algorithm.warmup
    for group in algorithm.optimizer.param_groups:
        group["lr"] = algorithm.learning_rate * factor
    return algorithm.learning_rate * factor


def learn(
    learner: Learner,
    batch: Batch,
    loss: LossFunction,
    minibatches: Iterable[Tensor],
    target_kl: float | None = None,
    parameters: list[Tensor] | None = None,
) -> dict[str, float]:
    """Take one optimizer step per minibatch, until one has an ``approx_kl`` above ``target_kl``; return mean metrics.
    No step is taken on that minibatch, but its metrics are included. Pass ``parameters`` to train only these.
    A NaN or infinite gradient raises `RunError` before it corrupts the weights; other terms are checked at the end.
    """
    if parameters is None:
        parameters = [p for group in learner.optimizer.param_groups for p in group["params"]]
    clip = _clip_parts if any(map(in_parts, parameters)) else torch.nn.utils.clip_grad_norm_
    processes, sums, norms = learner.processes, dict[str, float](), list[float]()
    for indices in minibatches:
        local_figures = accumulate(learner, batch, loss, indices, parameters)
        norms.append(clip(parameters, learner.max_grad_norm).item())
        if not math.isfinite(norms[-1]):
            check_finite({**processes.sum_figures(local_figures), "grad_norm": norms[-1]})
        for name, value in local_figures.items():
            sums[name] = sums.get(name, 0.0) + value
        if target_kl is not None:
            reached = processes.sum_figures({"approx_kl": local_figures.get("approx_kl", 0.0)})
            if reached["approx_kl"] > target_kl:
                break
        learner.optimizer.step()
    # Gathered once per update: for a small model, gathering after every step would take as long as the step.
    figures = {name: total / len(norms) for name, total in processes.sum_figures(sums).items()}
    check_finite(figures)
    return {**figures, "grad_norm": sum(norms) / len(norms)}


def accumulate(
    learner: Learner, batch: Batch, loss: LossFunction, indices: Tensor, parameters: list[Tensor]
) -> dict[str, float]:
    """Accumulate the gradient of the mean loss over the elements ``indices`` into ``parameters``, in micro-batches.
    If the device runs out of memory, micro-batches are halved for the rest of the run, and the minibatch is restarted.
    Return this process's contribution to each term; summed over all processes, it is the term's mean.
    """
    while True:
        size = len(indices) if learner.micro_batch_size is None else batch.elements(learner.micro_batch_size)
        for parameter in parameters:
            parameter.grad = None
        try:
            figures = _accumulate_share(learner, batch, loss, indices, parameters, min(size, len(indices)))
            break
        except torch.OutOfMemoryError as error:
            problem = str(error).split(". ")[0]
            if not learner.divides_minibatches:
                raise RunError(f"{problem}: lower algorithm.args.minibatch_size") from error
            if any(map(in_parts, parameters)):  # the other processes are already waiting at the next layer
                raise RunError(f"{problem}: lower algorithm.args.micro_batch_size") from error
        # This is outside the except block because the exception keeps the failed pass's tensors alive.
        if (size := min(size, len(indices))) == 1:
            raise RunError(
                f"{problem}. Not even one observation fits into memory: set model.gradient_checkpointing=true, or "
                "train fewer weights (model.lora)"
            )
        # The size is in steps, like the option, so that it also applies to rollouts with a different length.
        learner.micro_batch_size = steps = math.ceil(size // 2 * batch.num_steps / len(batch))
        message = f"{problem}: continuing with algorithm.args.micro_batch_size={steps}, which affects only speed"
        warn_caller(message)
        torch.cuda.empty_cache()
    learner.processes.sum_gradients(parameters)
    return figures


def check_finite(figures: Mapping[str, float]) -> None:
    """Raise `RunError` if a metric is NaN or infinite."""
    for name, value in figures.items():
        if not math.isfinite(value):
            raise RunError(
                f"{name} became {value}; training stopped before the weights were corrupted. Check that rewards are "
                "finite, or restart from the last checkpoint (model.path=…) with a lower algorithm.args.learning_rate"
            )


def _accumulate_share(
    learner: Learner, batch: Batch, loss: LossFunction, indices: Tensor, parameters: list[Tensor], size: int
) -> dict[str, float]:
    """Accumulate this process's share of ``indices`` in micro-batches of at most ``size`` elements."""
    figures: dict[str, float] = {}
    processes, sharded = learner.processes, any(map(in_parts, parameters))
    parts = [(micro, batch.share(micro, indices)) for micro in micro_batches(indices, size, batch.work, processes)]
    if sharded:
        # Sharded layers need the same number of passes in all processes. Extra passes repeat an element with weight 0.
        everyone = [Processes(rank, processes.size) for rank in range(processes.size)]
        most = max(len(list(micro_batches(indices, size, batch.work, process))) for process in everyone)
        parts += [(indices[:1], 0.0)] * (most - len(parts))
    for micro, share in parts:
        terms = loss(batch[micro])
        if terms["loss"].requires_grad:
            # Sharded parameters are leaves only while they are gathered, so they cannot be passed as inputs.
            (terms["loss"] * share).backward(inputs=None if sharded else parameters)
        values = torch.stack([term.detach() for term in terms.values()]).tolist()
        for name, value in zip(terms, values, strict=True):
            figures[name] = figures.get(name, 0.0) + share * value
    return figures


def _clip_parts(parameters: list[Tensor], max_norm: float) -> Tensor:
    """Equivalent of `torch.nn.utils.clip_grad_norm_` if some of the parameters are sharded."""
    groups = whole_and_parts(p for p in parameters if p.grad is not None)
    norms: list[Any] = [torch.nn.utils.get_total_norm([p.grad for p in group]) for group in groups]  # type: ignore[misc]
    total = torch.stack([norm.full_tensor() if in_parts(norm) else norm for norm in norms]).norm()
    for group in groups:
        torch.nn.utils.clip_grads_with_norm_(group, max_norm, total)
    return total


def settings_of(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """Return a copy of the settings of each parameter group, with tensors converted to lists."""
    return [
        {name: _plain(value) for name, value in group.items() if name != "params"} for group in optimizer.param_groups
    ]


def _plain(value: Any) -> Any:
    """Copy a setting in JSON-serialisable form, since the optimizer may change the original in place."""
    if isinstance(value, torch.Tensor | np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value
