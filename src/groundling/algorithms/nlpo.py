"""Natural language policy optimisation: PPO among the tokens that an older copy of the policy finds likely."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import torch

from groundling.algorithms.algorithm import algorithms
from groundling.algorithms.ppo import PPO
from groundling.algorithms.rollout import Rollout
from groundling.envs.text_env import WorldSpec
from groundling.errors import ConfigError
from groundling.fields import Ge
from groundling.policies.policy import Policy


@algorithms.register("nlpo")
@dataclass
class NLPO(PPO):
    """NLPO (Ramamurthy et al. 2023, arXiv 2210.01241, section 4 and algorithm 1).
    The policy holds a mask model, an older copy of itself, and samples among the tokens that the mask model finds
    likely. PPO's ratio and entropy are those of the masked distribution, the KL penalty that of the unmasked one.
    Every μ updates the mask model becomes a copy of the policy; in the released RL4LMs it never does.
    """

    target_update_iterations: Annotated[int, Ge(1)] = 20
    """μ: updates between refreshes of the mask model; 5 to 100 in RL4LMs."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._updates = 0  # since training began

    def accepts(self, policy: Callable[..., Policy], args: Mapping[str, Any], world: WorldSpec) -> str | None:
        has_mask = hasattr(policy, "refresh_mask")
        if isinstance(policy, type) and not has_mask:
            return "it needs a policy that masks its tokens"
        if has_mask and "mask_type" in inspect.signature(policy).parameters and args.get("mask_type") is None:
            return "it needs a mask (policy.args.mask_type=learned_top_p)"
        if args.get("mask_type") == "topk":
            return "a mask of the policy's own likeliest tokens (mask_type=topk) has nothing to refresh"
        return super().accepts(policy, args, world)

    def setup(self, policy: Policy) -> None:
        _refresh_of(policy)
        super().setup(policy)

    def update(
        self, policy: Policy, rollout: Rollout, *, generator: torch.Generator, remaining: float = 1.0
    ) -> dict[str, float]:
        """Update as PPO, and refresh the mask model every ``target_update_iterations`` updates.
        ``mask_age`` in the figures is the number of updates since the last refresh before this one.
        """
        age = self._updates % self.target_update_iterations
        figures = super().update(policy, rollout, generator=generator, remaining=remaining)
        self._updates += 1
        if self._updates % self.target_update_iterations == 0:
            _refresh_of(policy)()
        return {**figures, "mask_age": age}

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "updates": self._updates}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._updates = state["updates"]


def _refresh_of(policy: Policy) -> Callable[[], None]:
    """The policy's method that copies its weights into its mask model."""
    refresh: Callable[[], None] | None = getattr(policy, "refresh_mask", None)
    if refresh is None:
        raise ConfigError(
            f"algorithm nlpo needs a policy that masks its tokens, and this {type(policy).__name__} does not: set "
            "policy.id=token and policy.args.mask_type=learned_top_p, or algorithm.id=ppo"
        )
    return refresh
