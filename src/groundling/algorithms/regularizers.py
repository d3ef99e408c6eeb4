"""Terms that any on-policy algorithm can add to its loss."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from groundling.algorithms.losses import kl_estimate, masked_mean
from groundling.algorithms.rollout import Batch, Rollout
from groundling.envs.text_env import WorldSpec
from groundling.errors import ConfigError
from groundling.policies.action_scoring import ActionTextPolicy
from groundling.policies.policy import Evaluated, Policy, Turn
from groundling.policies.prompt_policy import PromptPolicy
from groundling.prompts import BLANK, PromptReader, check_prompts
from groundling.registry import provided


@dataclass(eq=False)
class Regularizer(ABC):
    """Base class for terms that add ``coefficient`` · `value` to a loss. Subclasses implement `value`."""

    name: ClassVar[str]  # The name of its value in the log
    coefficient: float
    scale = 1.0  # Additional factor applied to the value in the current minibatch's loss; not logged

    def accepts(self, policy: Callable[..., Policy], args: Mapping[str, Any], world: WorldSpec) -> str | None:
        """Return None if the term is compatible with the policy and the world; otherwise return the reason."""
        return None

    def targets(self, rollout: Rollout) -> dict[str, Tensor]:
        """Return the tensors ``(num_steps, num_envs)`` that `value` reads from `Batch.more`."""
        return {}

    def prepare(self, policy: Policy, batch: Batch, generator: torch.Generator) -> None:  # noqa: B027 (most need none)
        """Prepare for learning from a rollout, using ``generator`` for random numbers."""

    @abstractmethod
    def value(self, policy: Policy, evaluation: Evaluated, batch: Batch) -> Tensor:
        """Return the mean over a micro-batch's unmasked steps, a scalar with gradients."""


class EntropyBonus(Regularizer):
    """Mean entropy E[H]; a negative coefficient keeps the policy stochastic for longer (Williams and Peng 1991)."""

    name = "entropy"

    def value(self, policy: Policy, evaluation: Evaluated, batch: Batch) -> Tensor:
        return masked_mean(evaluation.entropies, batch.weights)


@dataclass(eq=False)
class KLPenalty(Regularizer):
    """Penalty for divergence from the reference, in the rewards or, as a regularizer, in the loss.
    In the rewards, a step's penalty is c (log π(a) - log π_ref(a)), an estimate of c KL(π ‖ π_ref) (Ziegler et al.
    2019, arXiv 1909.08593, equation 2). In the loss, it is c E[exp(-d) + d - 1], d = log π - log π_ref (GRPO, arXiv
    2402.03300, equation 4). Both use log-probabilities before any filter or mask. With a target (KL per step), c is
    adapted to the measured KL once per rollout (arXiv 1909.08593, section 2.2, with RL4LMs' rate)::

        e = clip((KL - target) / target, -0.2, 0.2);  c ← c (1 + 0.1 e)
    """

    name = "reference_kl"

    target: float | None = None

    def accepts(self, policy: Callable[..., Policy], args: Mapping[str, Any], world: WorldSpec) -> str | None:
        if not self.coefficient or not isinstance(policy, type) or "reference_log_probs" in vars(policy):
            return None
        if any(one.role == "reference" for one in provided(policy).values()):
            return None
        return f"kl_coefficient={self.coefficient} needs a reference to compare the policy to"

    def rewards(self, rollout: Rollout) -> Tensor:
        """Return rewards minus the penalty, ``(num_steps, num_envs)``; 0 outside the mask."""
        rewards = rollout.rewards
        if self.coefficient:
            rewards = rewards - self.coefficient * self._kl(rollout)
        return rewards if rollout.mask is None else rewards.masked_fill(~rollout.mask, 0.0)

    def targets(self, rollout: Rollout) -> dict[str, Tensor]:
        """Return ``reference``: log π_ref of the actions, or of the turns' tokens."""
        kl = self._kl(rollout)
        if rollout.tokens is not None and rollout.tokens.kl is not None:
            return {"reference": rollout.tokens.log_probs - rollout.tokens.kl}
        raw = rollout.log_probs if rollout.raw_log_probs is None else rollout.raw_log_probs
        return {"reference": raw - kl}

    def value(self, policy: Policy, evaluation: Evaluated, batch: Batch) -> Tensor:
        log_ratio = evaluation.raw_log_probs() - batch.more["reference"]
        if batch.weights is not None:
            log_ratio = log_ratio.masked_fill(batch.weights == 0, 0.0)
        return masked_mean(kl_estimate(log_ratio), batch.weights)

    def adapt(self, rollout: Rollout) -> dict[str, float]:
        """Adapt the coefficient to a rollout's KL; return the old coefficient and ``kl_mean``, or {} without a KL."""
        if rollout.kl is None:
            return {}
        kl = rollout.kl if rollout.mask is None else rollout.kl[rollout.mask]
        figures = {"kl_mean": kl.mean().item(), "kl_coefficient": self.coefficient}
        if self.target is not None:
            error = max(-0.2, min(0.2, (figures["kl_mean"] - self.target) / self.target))
            self.coefficient *= 1 + 0.1 * error
        return figures

    def _kl(self, rollout: Rollout) -> Tensor:
        if rollout.kl is None:
            raise ConfigError(f"kl_coefficient={self.coefficient} needs a policy with a reference: set it to 0")
        return rollout.kl


class ContrastiveLoss(Regularizer):
    """Triplet loss that aligns the hidden states of an observation in different prompts (arXiv 2410.19920)::

        C = E[max(0, |z_i(o) - z_j(o)| - |z_i(o) - z_i(o')| + 1)]

    z_i(o) is the hidden state of observation o in prompt i from which the value is computed. For each o, prompts i and
    j and another observation o' of the rollout are sampled once. If o and o' have the same text, the loss is 0. It
    takes three more forward passes. ``prompts`` lists at least two ids, either all plain-text or all conversational.
    """

    name = "contrast"

    def __init__(self, coefficient: float, prompts: Sequence[str]) -> None:
        check_prompts(prompts, "algorithm.args.contrast_prompts", 2)
        self.coefficient, self.prompts = coefficient, prompts

    def accepts(self, policy: Callable[..., Policy], args: Mapping[str, Any], world: WorldSpec) -> str | None:
        if isinstance(policy, type) and not issubclass(policy, ActionTextPolicy):
            return f"contrast_coefficient={self.coefficient} needs a policy that reads a prompt and the actions' texts"
        if args.get("system") is not None:  # plain-text prompts reject it
            PromptReader(self.prompts, world.language, system=args["system"]).forms(BLANK)
        return None

    def prepare(self, policy: Policy, batch: Batch, generator: torch.Generator) -> None:
        count, num_prompts = len(batch), len(self.prompts)
        self._observations = batch.observations
        self._first = torch.randint(num_prompts, (count,), generator=generator)
        offset = torch.randint(1, num_prompts, (count,), generator=generator)
        self._second = (self._first + offset) % num_prompts
        offset = torch.randint(1, max(count, 2), (count,), generator=generator)
        self._other = (torch.arange(count) + offset) % count

    def value(self, policy: Policy, evaluation: Evaluated, batch: Batch) -> Tensor:
        assert isinstance(policy, ActionTextPolicy)
        elements = [self._observations[i] for i in [*batch.index.tolist(), *self._other[batch.index].tolist()]]
        observed = [one.observation if isinstance(one, Turn) else one for one in elements]
        first, second = (
            [self.prompts[number] for number in numbers[batch.index].tolist()]
            for numbers in (self._first, self._second)
        )
        anchor = policy.read(observed[: len(batch)], first)
        positive = policy.read(observed[: len(batch)], second)
        negative = policy.read(observed[len(batch) :], first)
        differ = torch.tensor([a != n for a, n in zip(anchor, negative, strict=True)], device=policy.device)
        z_anchor, z_positive, z_negative = policy.states([*anchor, *positive, *negative]).chunk(3)
        losses = F.triplet_margin_loss(z_anchor, z_positive, z_negative, margin=1.0, reduction="none")  # (n,)
        weights = batch.weights
        if weights is not None and weights.ndim > 1:
            weights = weights.sum(-1)
        return masked_mean(losses * differ, weights)


class GoalContrast(Regularizer):
    """Hinge loss on the KL divergence between the policies under an observation's own goal and under another goal::

        C = E[max(0, m - KL(π(· | o, g) ‖ π(· | o, g')))]

    g' is the goal of another observation of the rollout, sampled once; if it equals g, the loss is 0. For generated
    turns, the KL is summed over the tokens, given the same previous tokens. C is our variant of the contrastive loss
    between a task and a perturbed task (Liu et al. 2026, arXiv 2606.26918). C takes one more forward pass.
    """

    name = "goal_contrast"

    def __init__(self, coefficient: float, margin: float) -> None:
        self.coefficient, self.margin = coefficient, margin
        self._has_goals = False  # True once a rollout has contained different goals

    def accepts(self, policy: Callable[..., Policy], args: Mapping[str, Any], world: WorldSpec) -> str | None:
        if isinstance(policy, type) and not issubclass(policy, PromptPolicy):
            return f"goal_coefficient={self.coefficient} needs a policy that reads the goal in a prompt"
        return None

    def prepare(self, policy: Policy, batch: Batch, generator: torch.Generator) -> None:
        goals = [getattr(one, "observation", one).goal for one in batch.observations]
        self._has_goals |= len({*goals}) > 1
        if not self._has_goals:
            raise ConfigError(
                f"goal_coefficient={self.coefficient} has no effect, because all {len(goals)} observations have the "
                f"goal {goals[0]!r:.80}: set it to 0"
            )
        offsets = torch.randint(1, max(len(goals), 2), (len(goals),), generator=generator)
        others = ((torch.arange(len(goals)) + offsets) % len(goals)).tolist()
        self._differ = torch.tensor([goal != goals[other] for goal, other in zip(goals, others, strict=True)])
        self._swapped = [_with_goal(one, goals[other]) for one, other in zip(batch.observations, others, strict=True)]

    def value(self, policy: Policy, evaluation: Evaluated, batch: Batch) -> Tensor:
        swapped = policy.evaluate([self._swapped[i] for i in batch.index.tolist()], batch.actions)
        own, other = evaluation.log_distributions(), swapped.log_distributions()  # (n, …, num_actions)
        ratio = (own - other).masked_fill(own.isinf(), 0.0)  # inadmissible actions contribute nothing
        kl = (own.exp() * ratio).sum(-1)
        weights = batch.weights
        if weights is not None and weights.ndim > 1:
            kl, weights = (kl * (weights > 0)).sum(-1), weights.sum(-1)
        return masked_mean((self.margin - kl).clamp(min=0) * self._differ[batch.index].to(kl.device), weights)


def _with_goal(observation: Any, goal: str) -> Any:
    if isinstance(observation, Turn):
        return replace(observation, observation=replace(observation.observation, goal=goal))
    return replace(observation, goal=goal)
