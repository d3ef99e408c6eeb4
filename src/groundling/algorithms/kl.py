"""The penalty for moving away from a reference policy, and the controller of its weight."""

from dataclasses import dataclass

from torch import Tensor

from groundling.algorithms.rollout import Rollout
from groundling.errors import ConfigError

_CLIP = 0.2
"""How large a relative error the controller believes at most."""
_RATE = 0.1
"""What share of this error it changes the coefficient by."""


@dataclass
class KLPenalty:
    """c · (log π(a) - log π_ref(a)), an estimate of c · KL(π ‖ π_ref), taken off the reward of each step.

    With a target the coefficient c follows the measured KL (Ziegler et al. 2019, arXiv 1909.08593, section 2.2, with
    RL4LMs's rate and once per rollout)::

        e = clip((KL - target) / target, -0.2, 0.2);  c ← c (1 + 0.1 e)
    """

    coefficient: float
    """c; 0: no penalty."""
    target: float | None = None
    """KL per step that c is steered to; None: c is constant."""

    def __post_init__(self) -> None:
        """Raise `ConfigError` on a target that nothing can be steered to."""
        if self.target is not None and not self.coefficient:
            raise ConfigError(
                f"algorithm.args.kl_target={self.target} adapts kl_coefficient, which is 0: set kl_coefficient "
                "above 0"
            )

    def rewards(self, rollout: Rollout) -> Tensor:
        """``(num_steps, num_envs)``: r - c (log π - log π_ref) where the rollout's mask counts, 0 elsewhere.

        Raises:
            ConfigError: there is a coefficient, but no reference.
        """
        rewards = rollout.rewards
        if self.coefficient:
            rewards = rewards - self.coefficient * reference_kl(rollout, self.coefficient)
        return rewards if rollout.mask is None else rewards.masked_fill(~rollout.mask, 0.0)

    def adapt(self, rollout: Rollout) -> dict[str, float]:
        """Steer the coefficient by the KL of ``rollout``, which was penalised with the present one.

        Returns:
            ``kl_mean`` and the present ``kl_coefficient``; nothing where there is no reference.
        """
        if rollout.kl is None:
            return {}
        kl = rollout.kl if rollout.mask is None else rollout.kl[rollout.mask]
        figures = {"kl_mean": kl.mean().item(), "kl_coefficient": self.coefficient}
        if self.target is not None:
            error = max(-_CLIP, min(_CLIP, (figures["kl_mean"] - self.target) / self.target))
            self.coefficient *= 1 + _RATE * error
        return figures


def reference_kl(rollout: Rollout, coefficient: float) -> Tensor:
    """The rollout's ``kl``.

    Raises:
        ConfigError: it has none.
    """
    if rollout.kl is None:
        raise ConfigError(
            f"algorithm.args.kl_coefficient={coefficient} needs a policy that compares itself to a reference, and this "
            "one does not: set it to 0, or choose policy.id=action_scoring, action_writing or action_generating (in a "
            "world) or token (of texts)"
        )
    return rollout.kl
