"""KL penalty against a reference policy, and the controller of its coefficient."""

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from groundling.algorithms.batch import Batch
from groundling.algorithms.losses import kl_estimate, masked_mean
from groundling.algorithms.regularizers import Regularizer
from groundling.algorithms.rollout import Rollout
from groundling.arguments import provided
from groundling.envs.spec import WorldSpec
from groundling.errors import ConfigError
from groundling.policies.policy import Evaluation, Policy

_MAX_ERROR = 0.2
_RATE = 0.1


class KLPenalty(Regularizer):
    """Penalty for moving away from the reference, in the rewards or, as a regularizer, in the loss.
    In the rewards each step loses c (log π(a) - log π_ref(a)), an estimate of c KL(π ‖ π_ref) (Ziegler et al. 2019,
    arXiv 1909.08593, equation 2). In the loss it is c E[exp(-d) + d - 1], d = log π - log π_ref (GRPO, arXiv
    2402.03300, equation 4). Both use log-probabilities before any filter or mask. With a target (KL per step), c
    follows the measured KL, once per rollout (arXiv 1909.08593, section 2.2, with RL4LMs's rate)::

        e = clip((KL - target) / target, -0.2, 0.2);  c ← c (1 + 0.1 e)
    """

    name = "reference_kl"

    def __init__(self, coefficient: float, target: float | None = None) -> None:
        if target is not None and not coefficient:
            raise ConfigError(
                f"algorithm.args.kl_target={target} adapts kl_coefficient, which is 0: set kl_coefficient above 0"
            )
        self.coefficient, self.target = coefficient, target

    def accepts(self, policy: Callable[..., Policy], args: Mapping[str, Any], world: WorldSpec) -> str | None:
        if self.coefficient and isinstance(policy, type) and not _has_reference(policy):
            return f"kl_coefficient={self.coefficient} needs a reference to compare the policy to"
        return None

    def rewards(self, rollout: Rollout) -> Tensor:
        """Rewards minus the penalty, ``(num_steps, num_envs)``; 0 outside of the mask."""
        rewards = rollout.rewards
        if self.coefficient:
            rewards = rewards - self.coefficient * self._kl(rollout)
        return rewards if rollout.mask is None else rewards.masked_fill(~rollout.mask, 0.0)

    def targets(self, rollout: Rollout) -> dict[str, Tensor]:
        """``reference``: log π_ref of the actions, or of the tokens of turns."""
        kl = self._kl(rollout)
        if rollout.tokens is not None and rollout.tokens.kl is not None:
            return {"reference": rollout.tokens.log_probs - rollout.tokens.kl}
        raw = rollout.log_probs if rollout.raw_log_probs is None else rollout.raw_log_probs
        return {"reference": raw - kl}

    def value(self, policy: Policy, evaluation: Evaluation, batch: Batch) -> Tensor:
        log_ratio = evaluation.raw_log_probs() - batch.more["reference"]
        if batch.weights is not None:
            log_ratio = log_ratio.masked_fill(batch.weights == 0, 0.0)
        return masked_mean(kl_estimate(log_ratio), batch.weights)

    def adapt(self, rollout: Rollout) -> dict[str, float]:
        """Adapt the coefficient to a rollout's KL; return the old one and ``kl_mean``, or {} without a KL."""
        if rollout.kl is None:
            return {}
        kl = rollout.kl if rollout.mask is None else rollout.kl[rollout.mask]
        figures = {"kl_mean": kl.mean().item(), "kl_coefficient": self.coefficient}
        if self.target is not None:
            error = max(-_MAX_ERROR, min(_MAX_ERROR, (figures["kl_mean"] - self.target) / self.target))
            self.coefficient *= 1 + _RATE * error
        return figures

    def _kl(self, rollout: Rollout) -> Tensor:
        if rollout.kl is None:
            raise ConfigError(
                f"algorithm.args.kl_coefficient={self.coefficient} needs a policy that compares itself to a reference, "
                "and this one does not: set it to 0, or choose policy.id=action_scoring, action_writing or "
                "action_generating (in a world) or token (for texts)"
            )
        return rollout.kl


def _has_reference(policy: type[Policy]) -> bool:
    """Return True for a policy that is made with a reference, or computes one itself."""
    has_role = any(one.role == "reference" for one in provided(policy).values())
    return has_role or "reference_log_probs" in vars(policy)
