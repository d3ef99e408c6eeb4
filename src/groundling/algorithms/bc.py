"""Behavioural cloning: a policy learns to do what a dataset shows."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from groundling.algorithms.algorithm import Algorithm, algorithms, is_other
from groundling.algorithms.batch import Batch
from groundling.algorithms.losses import masked_mean
from groundling.algorithms.optimisation import (
    Schedule,
    Terms,
    check_options,
    learn,
    make_adamw,
    set_learning_rate,
    share_of_rate,
)
from groundling.algorithms.rollout import Rollout
from groundling.envs.spec import WorldSpec
from groundling.errors import ConfigError
from groundling.policies.action_text import ActionTextPolicy
from groundling.policies.policy import Policy

_NOT_BY_TEXTS = (
    "that policy does not choose by the probability of an action's text (algorithm.args.objective=choice)"
)


@algorithms.register("supervised")
@algorithms.register("bc")
@dataclass
class BehaviouralCloning(Algorithm):
    """Cloning of a dataset's actions (world.dataset) or texts, by maximum likelihood; the defaults are GLAM's.

    L = -E[log P(action | observation)], of texts -E[log P(token | prompt and tokens before)] over the text's own tokens
    """

    objective: Literal["text", "choice"] = "text"
    """"text": the language model learns to write the action's text after the prompt, of all texts, as in GLAM (whose
    targets also held padding); for policy.id=action_scoring and action_writing. "choice": to choose it among the
    admissible actions. Whole texts are always learnt token by token."""
    learning_rate: float = 5e-4
    """AdamW's step size."""
    learning_rate_schedule: Schedule = "cosine"
    """How it falls to 0 over the training. It changes between updates, not within one."""
    warmup: float = 0.01
    """The share of the training in which the learning rate rises from a tenth."""
    weight_decay: float = 0.0
    """AdamW's; of matrices alone."""
    minibatch_size: int = 64
    """Transitions, or whole texts, per optimizer step; 8 on each of 8 GPUs in GLAM."""
    micro_batch_size: int | None = None
    """As many per forward and backward pass: memory and speed, and nothing else. None: the whole minibatch."""
    max_grad_norm: float = 1.0

    optimizer: torch.optim.Optimizer = field(init=False, repr=False)
    gamma = 1.0
    demonstrated = True
    needs_values = False
    tells_entropy = False

    def __post_init__(self) -> None:
        """Raise `ConfigError` on options that cannot be run."""
        check_options(self)

    def accepts(self, policy: Callable[..., Policy], args: Mapping[str, Any], world: WorldSpec) -> str | None:
        reason = super().accepts(policy, args, world)
        if reason is not None or self.objective == "choice" or world.action == "token":
            return reason
        if getattr(policy, "writes_turns", False):
            return (
                "objective=text learns an action straight after its prompt, and that policy writes turns: set "
                "algorithm.args.objective=choice"
            )
        return _NOT_BY_TEXTS if is_other(policy, ActionTextPolicy) else None

    def setup(self, policy: Policy) -> None:
        """Make AdamW for the policy's trainable parameters.

        Raises:
            ConfigError: the policy has a memory.
        """
        if policy.memory_size:
            raise ConfigError(
                f"a dataset holds single steps in words: a {type(policy).__name__}, which remembers earlier steps, "
                "cannot learn from it"
            )
        self.optimizer = make_adamw(policy, self.learning_rate, weight_decay=self.weight_decay)

    def update(
        self, policy: Policy, rollout: Rollout, *, generator: torch.Generator, remaining: float = 1.0
    ) -> dict[str, float]:
        """Go once through ``rollout``, in its own order, one optimizer step for each minibatch.

        Returns:
            Means over the minibatches of ``loss``, ``probability`` (of the shown actions) and ``grad_norm``; and the
            ``learning_rate``.

        Raises:
            ConfigError: the objective is texts, and the policy does not choose by its model's.
            RunError: a gradient is NaN or infinite, and the step is not taken; or another figure is, which is told
                after the last minibatch.
        """
        rate = self.learning_rate * share_of_rate(self.learning_rate_schedule, self.warmup, remaining)
        set_learning_rate(self.optimizer, rate)
        nothing = torch.zeros_like(rollout.rewards)  # there is no advantage in a dataset
        batch = Batch.of(policy, rollout, nothing, nothing)
        batch.num_steps = len(batch)  # sizes are told in elements
        counted = torch.arange(len(batch))
        if batch.weights is not None:  # texts past the end of a pass are masked
            counted = counted[batch.weights.any(1).cpu()]
        minibatches = counted.split(self.minibatch_size)
        figures = learn(self, batch, lambda micro: self._terms(policy, batch, micro), minibatches)
        return {**figures, "learning_rate": rate}

    @torch.no_grad()
    def measure(self, policy: Policy, rollout: Rollout) -> dict[str, float]:
        """Of single steps that are not learnt: ``loss``, and ``accuracy``, how often the policy would do what is shown.

        Raises:
            ConfigError: as `update`.
        """
        nothing = torch.zeros_like(rollout.rewards)
        batch = Batch.of(policy, rollout, nothing, nothing)
        loss, right = 0.0, 0
        for micro in torch.arange(len(batch)).split(self.micro_batch_size or self.minibatch_size):
            loss -= self._log_probs(policy, batch, micro).sum().item()
            seen = [batch.observations[i] for i in micro.tolist()]
            outputs = policy.outputs(seen)
            if outputs is None:  # it thinks before it acts
                chosen = policy.act(seen, deterministic=True).actions.to(batch.actions.device)
            else:
                chosen = outputs.log_probs.argmax(-1)
            right += int((chosen == batch.actions[micro]).sum())
        return {"loss": loss / len(batch), "accuracy": right / len(batch)}

    def _terms(self, policy: Policy, batch: Batch, micro: Tensor) -> Terms:
        log_probs = self._log_probs(policy, batch, micro)  # (micro,), of sequences (micro, length)
        weights = batch.weights_of(micro)
        probability = masked_mean(log_probs.detach().exp(), weights)
        return {"loss": -masked_mean(log_probs, weights), "probability": probability}

    def _log_probs(self, policy: Policy, batch: Batch, micro: Tensor) -> Tensor:
        """Of the shown actions, with gradients; float32, of their shape."""
        if batch.actions.ndim > 1 or self.objective == "choice":  # the actions of a sequence are its text
            # The model's own: of a text that it did not sample, filters of sampling would say that it cannot be.
            return batch.evaluate(policy, micro).raw_log_probs()
        if not isinstance(policy, ActionTextPolicy):
            raise ConfigError(f"algorithm bc clones a {type(policy).__name__}: {_NOT_BY_TEXTS}")
        observations = [batch.observations[i] for i in micro.tolist()]
        texts = [[o.actions[a]] for o, a in zip(observations, batch.actions[micro].tolist(), strict=True)]
        with policy.lm.autocast():
            return torch.cat(policy.lm.score(policy.read(observations), texts))
