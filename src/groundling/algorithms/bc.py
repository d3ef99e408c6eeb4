"""Behavioural cloning: a policy learns to do what a dataset shows."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from groundling.algorithms.algorithm import Algorithm, algorithms
from groundling.algorithms.rollout import Rollout, micro_batches
from groundling.errors import ConfigError, RunError
from groundling.policies.action_scoring import ActionScoringPolicy
from groundling.policies.policy import Policy


@algorithms.register("bc")
@dataclass
class BehaviouralCloning(Algorithm):
    """Cloning of a dataset's actions (data.path), by maximum likelihood; the defaults are GLAM's.

    L = -E[log P(action | observation)]
    """

    objective: Literal["text", "choice"] = "text"
    """"text": the language model learns to write the action's text after the prompt, of all texts, as in GLAM (whose
    targets also held padding); for policy.id=action_scoring. "choice": to choose it among the admissible actions."""
    learning_rate: float = 5e-4
    """AdamW's step size."""
    learning_rate_schedule: Literal["constant", "linear", "cosine"] = "cosine"
    """How it falls to 0 over the training. It changes between updates, not within one."""
    warmup: float = 0.01
    """The share of the training in which the learning rate rises from a tenth."""
    weight_decay: float = 0.0
    minibatch_size: int = 64
    """Transitions per optimizer step; 8 on each of 8 GPUs in GLAM."""
    micro_batch_size: int | None = None
    """Transitions per forward and backward pass: memory and speed, and nothing else. None: the whole minibatch."""
    max_grad_norm: float = 1.0

    optimizer: torch.optim.AdamW = field(init=False, repr=False)
    gamma = 1.0
    demonstrated = True

    def __post_init__(self) -> None:
        """Raise `ConfigError` on options that cannot be run."""
        for name in ("learning_rate", "minibatch_size", "max_grad_norm"):
            if not 0 < getattr(self, name) < math.inf:
                raise ConfigError(
                    f"algorithm.args.{name} must be greater than 0 and finite, got {getattr(self, name)}"
                )
        if not 0 <= self.weight_decay < math.inf:
            raise ConfigError(f"algorithm.args.weight_decay must be at least 0, got {self.weight_decay}")
        if not 0 <= self.warmup < 1:
            raise ConfigError(f"algorithm.args.warmup must lie in [0, 1), got {self.warmup}")
        if self.micro_batch_size is not None and not 1 <= self.micro_batch_size <= self.minibatch_size:
            raise ConfigError(
                f"algorithm.args.micro_batch_size must lie between 1 and minibatch_size ({self.minibatch_size}), got "
                f"{self.micro_batch_size}"
            )

    def setup(self, policy: Policy) -> None:
        """Make AdamW for the policy's trainable parameters.

        Raises:
            ConfigError: the policy has a memory, or does not choose by its model's texts.
        """
        if policy.memory_size:
            raise ConfigError(
                f"a dataset tells single steps in words: a {type(policy).__name__}, which sees and remembers others, "
                "cannot be cloned from it"
            )
        if self.objective == "text" and not isinstance(policy, ActionScoringPolicy):
            raise ConfigError(
                f"a {type(policy).__name__} does not choose by its model's texts: set "
                "algorithm.args.objective=choice, or policy.id=action_scoring"
            )
        self.optimizer = torch.optim.AdamW(
            [p for p in policy.parameters() if p.requires_grad],
            lr=self.learning_rate,
            weight_decay=self.weight_decay,
        )

    def update(
        self, policy: Policy, rollout: Rollout, *, generator: torch.Generator, remaining: float = 1.0
    ) -> dict[str, float]:
        """Go once through ``rollout``, in its own order, one optimizer step for each minibatch.

        Returns:
            Means over the minibatches of ``loss``, ``probability`` (of the shown actions) and ``grad_norm``; and the
            ``learning_rate``.

        Raises:
            RunError: a loss or gradient is NaN or infinite; the step that would have spoilt the weights is not taken.
        """
        rate = self.learning_rate * self._share_of_rate(1 - remaining)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        costs = policy.costs(rollout.observations)
        steps = [
            self._step(policy, rollout, indices, costs)
            for indices in torch.arange(len(rollout)).split(self.minibatch_size)
        ]
        means = {name: sum(step[name] for step in steps) / len(steps) for name in steps[0]}
        return {**means, "learning_rate": rate}

    def _share_of_rate(self, done: float) -> float:
        """The learning rate's factor after the share ``done`` of the training."""
        if done < self.warmup:
            return 0.1 + 0.9 * done / self.warmup
        left = (1 - done) / (1 - self.warmup)
        return {"constant": 1.0, "linear": left, "cosine": (1 - math.cos(math.pi * left)) / 2}[
            self.learning_rate_schedule
        ]

    def _step(
        self, policy: Policy, rollout: Rollout, indices: Tensor, costs: Sequence[int] | None
    ) -> dict[str, float]:
        """One optimizer step on the minibatch ``indices``; gradients accumulate to its mean."""
        self.optimizer.zero_grad(set_to_none=True)
        figures = {"loss": 0.0, "probability": 0.0}
        size = self.micro_batch_size or self.minibatch_size
        for micro in micro_batches(indices, size, costs, self.world):
            log_probs = self._log_probs(policy, rollout, micro)  # (micro,)
            term = -log_probs.sum() / len(indices)
            term.backward()
            figures["loss"] += term.item()
            figures["probability"] += log_probs.detach().exp().sum().item() / len(indices)
        parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        self.world.sum_gradients(parameters)
        figures = self.world.sum_figures(figures)
        norm = torch.nn.utils.clip_grad_norm_(parameters, self.max_grad_norm).item()
        if not (math.isfinite(figures["loss"]) and math.isfinite(norm)):
            raise RunError(
                f"the loss became {figures['loss']}, its gradient {norm}; training stopped before the weights were "
                "spoilt: lower algorithm.args.learning_rate, and keep the model in float32"
            )
        self.optimizer.step()
        return {**figures, "grad_norm": norm}

    def _log_probs(self, policy: Policy, rollout: Rollout, micro: Tensor) -> Tensor:
        """``(micro,)`` float32: of the shown actions, with gradients."""
        observations = [rollout.observations[i] for i in micro.tolist()]
        actions = rollout.actions.flatten()[micro].to(policy.device)
        if self.objective == "choice":
            return policy.evaluate(observations, actions).log_probs
        assert isinstance(policy, ActionScoringPolicy)
        texts = [[o.actions[a]] for o, a in zip(observations, actions.tolist(), strict=True)]
        with policy.lm.autocast():
            return torch.cat(policy.lm.score(policy.prompts(observations), texts))
