"""Behavioural cloning: maximum likelihood of a dataset's actions."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from groundling.algorithms.algorithm import Algorithm, algorithms
from groundling.algorithms.losses import masked_mean
from groundling.algorithms.optimisation import Schedule, Terms, learn, make_adamw, schedule_learning_rate
from groundling.algorithms.rollout import Batch, Rollout, Targets
from groundling.envs.text_env import WorldSpec
from groundling.fields import Ge, Gt, Lt, NoEffectOnResults
from groundling.policies.action_scoring import ActionTextPolicy
from groundling.policies.policy import Policy, Turn


@algorithms.register("supervised")
@algorithms.register("bc")
@dataclass
class BehaviouralCloning(Algorithm):
    """Maximum-likelihood cloning of a dataset's actions (world.dataset) or texts; the defaults are GLAM's.
    L = -E[log P(action | observation)] or, for texts, -E[log P(token | prompt, earlier tokens)] over all tokens
    """

    objective: Literal["text", "choice"] = "text"
    """"text": learn to generate the action's text after the prompt, as in GLAM (whose targets also contained padding);
    requires policy.id=action_scoring or action_writing. "choice": learn to choose among the admissible actions.
    For text generation, this has no effect."""
    learning_rate: Annotated[float, Gt(0)] = 5e-4  # AdamW's step size
    learning_rate_schedule: Schedule = "cosine"
    """Schedule of the learning rate over training; the rate is set once per update."""
    warmup: Annotated[float, Ge(0), Lt(1)] = 0.01
    """Fraction of training over which the learning rate rises from a tenth of its maximum."""
    weight_decay: Annotated[float, Ge(0)] = 0.0  # AdamW's weight decay, for matrices only
    minibatch_size: Annotated[int, Ge(1)] = 64
    """Transitions, or whole texts, per optimizer step; 8 on each of 8 GPUs in GLAM."""
    micro_batch_size: Annotated[int | None, Ge(1), NoEffectOnResults] = None
    """Transitions or texts per pass; affects only memory and speed. If null, each pass processes a whole minibatch."""
    max_grad_norm: Annotated[float, Gt(0)] = 1.0

    gamma = 1.0
    offline = True
    needs_values = False
    reports_entropy = False

    def accepts(self, policy: Callable[..., Policy], args: Mapping[str, Any], world: WorldSpec) -> str | None:
        reason = super().accepts(policy, args, world)
        if reason is not None or self.objective == "choice" or world.action != "choice":
            return reason
        if getattr(policy, "writes_turns", False):
            return "the policy generates turns: set algorithm.args.objective=choice"
        if isinstance(policy, type) and not issubclass(policy, ActionTextPolicy):
            return "the policy does not score the actions' texts: set algorithm.args.objective=choice"
        return None

    def setup(self, policy: Policy) -> None:
        self.optimizer = make_adamw(policy, self.learning_rate, weight_decay=self.weight_decay)

    def update(
        self, policy: Policy, rollout: Rollout, *, generator: torch.Generator, remaining: float = 1.0
    ) -> dict[str, float]:
        """Take one optimizer step on each minibatch of ``rollout``, in order."""
        learning_rate = schedule_learning_rate(self, remaining)
        batch = _batch_of(policy, rollout)
        counted = batch.index
        if batch.weights is not None:  # texts past the end of the dataset are masked
            counted = counted[batch.weights.any(1).cpu()]
        minibatches = counted.split(self.minibatch_size)

        def loss(part: Batch) -> Terms:
            log_probs = self._log_probs(policy, part)
            probability = masked_mean(log_probs.detach().exp(), part.weights)
            return {"loss": -masked_mean(log_probs, part.weights), "probability": probability}

        figures = learn(self, batch, loss, minibatches)
        return {**figures, "learning_rate": learning_rate}

    @torch.no_grad()
    def measure(self, policy: Policy, rollout: Rollout) -> dict[str, float]:
        """Evaluate single steps without learning; return ``loss`` and ``accuracy``, the share of correct actions."""
        batch = _batch_of(policy, rollout)
        loss, correct = 0.0, 0
        for indices in batch.index.split(self.micro_batch_size or self.minibatch_size):
            part = batch[indices]
            loss -= self._log_probs(policy, part).sum().item()
            if isinstance(part.observations[0], Turn):  # any text is an action
                written = policy.act([turn.observation for turn in part.observations], deterministic=True).chosen
                correct += sum(text == turn.action for text, turn in zip(written, part.observations, strict=True))
                continue
            outputs = policy.outputs(part.observations)
            if outputs is None:  # the policy thinks before it acts
                chosen = policy.act(part.observations, deterministic=True).actions.to(part.actions.device)
            else:
                chosen = outputs.log_probs.argmax(-1)
            correct += int((chosen == part.actions).sum())
        return {"loss": loss / len(batch), "accuracy": correct / len(batch)}

    def _log_probs(self, policy: Policy, batch: Batch) -> Tensor:
        """Return log-probabilities of the demonstrated actions, float32 with the actions' shape, with gradients."""
        is_turns = isinstance(batch.observations[0], Turn)  # any text is an action
        if (
            is_turns or batch.actions.ndim > 1 or self.objective == "choice"
        ):  # the actions of a sequence are its tokens
            # Unfiltered, because the model did not sample these texts, so a sampling filter could exclude one.
            return policy.evaluate(batch.observations, batch.actions).raw_log_probs()
        assert isinstance(policy, ActionTextPolicy)  # see `accepts`
        actions = zip(batch.observations, batch.actions.tolist(), strict=True)
        texts = [[observation.actions[action]] for observation, action in actions]
        with policy.lm.autocast():
            return torch.cat(policy.lm.score(policy.read(batch.observations), texts))


def _batch_of(policy: Policy, rollout: Rollout) -> Batch:
    """Return the batch of a dataset's rollout, with advantages and returns of 0; minibatch sizes count elements."""
    zeros = torch.zeros_like(rollout.rewards)
    batch = Batch.of(policy, rollout, Targets(zeros, zeros))
    batch.num_steps = len(batch)
    return batch
