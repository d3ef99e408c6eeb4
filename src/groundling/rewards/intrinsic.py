"""Motif's reward (arXiv 2310.00166): what the env pays, and what the reward model thinks of the message."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from groundling.errors import ConfigError
from groundling.judges.reward_models.reward_model import Normalization

_IDENTITY = Normalization(0.0, 1.0, ())


def intrinsic_reward(
    rewards: Tensor,
    counts: Tensor,
    *,
    mean: float = 0.0,
    variance: float = 1.0,
    threshold: float = -math.inf,
    count_exponent: float = 3.0,
) -> Tensor:
    """r̂ = (r - mean) / √variance;   r̂ · [r̂ > threshold] / N(message)^β   (section 3 and appendix of the paper).

    What is at or below the threshold becomes 0. A threshold below 0 lets negative rewards through.

    Args:
        rewards: float, any shape: the reward model's number for each step's message.
        counts: of the same shape: how often this message has occurred in the episode, this time included; at least 1.
        mean: Of the normalisation.
        variance: Of the normalisation; greater than 0.
        threshold: ε, in normalised units.
        count_exponent: β; 0 for no discount of repetition.
    """
    normalized = (rewards - mean) / math.sqrt(variance)
    kept = torch.where(normalized > threshold, normalized, 0.0)
    return kept / counts.to(kept) ** count_exponent


def extrinsic_reward(rewards: Tensor, *, scale: float = 0.1, clip: float = 10.0) -> Tensor:
    """clip(scale · r, ±clip): scaled first, then clipped.

    Args:
        rewards: float, any shape: what the env paid.
        scale: Factor on it.
        clip: The greatest absolute value; infinity for none.
    """
    return (scale * rewards).clamp(-clip, clip)


@dataclass(frozen=True)
class MotifReward:
    """r = extrinsic_coefficient · clip(scale · r_env) + intrinsic_coefficient · r_intrinsic.

    The intrinsic part is neither scaled by ``reward_scale`` nor clipped. The defaults are those of the score task.
    """

    extrinsic_coefficient: float = 0.1
    """0.1 for the score task, 10 for the others, which so pay 50 for a success; 0: intrinsic only."""
    intrinsic_coefficient: float = 0.1
    """0.1 in Motif, 0.4 in ONI; 0: extrinsic only, and no reward model is needed."""
    reward_scale: float = 0.1
    """On the env's reward, before clipping."""
    reward_clip: float = 10.0
    """The greatest absolute value of the env's scaled reward."""
    normalize: bool = True
    """Shift and scale the model's rewards to mean 0 and deviation 1 over its training messages."""
    threshold_quantile: float = 0.5
    """Rewards up to this quantile of the distinct training messages' become 0: 0.05 to 0.95; 0: none do. (In the
    original "0.0" could not be chosen, and the default -0.5 was no quantile.)"""
    count_exponent: float = 3.0
    """The n-th occurrence of a message in an episode is worth 1 / n to this power."""

    def __post_init__(self) -> None:
        """Raise `ConfigError` on options that cannot be run."""
        for name in ("extrinsic_coefficient", "intrinsic_coefficient", "reward_scale", "count_exponent"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ConfigError(f"{name} must be at least 0 and finite, got {getattr(self, name)}")
        if not self.reward_clip > 0:
            raise ConfigError(f"reward_clip must be greater than 0, got {self.reward_clip}")
        if self.threshold_quantile != 0 and not 0.05 <= self.threshold_quantile <= 0.95:
            raise ConfigError(
                f"threshold_quantile must be 0 (no threshold) or lie between 0.05 and 0.95, got "
                f"{self.threshold_quantile}"
            )

    @property
    def needs_reward_model(self) -> bool:
        """Whether there is an intrinsic part."""
        return self.intrinsic_coefficient > 0

    def check(self, normalization: Normalization | None) -> None:
        """Raise `ConfigError` if a reward model with this normalisation cannot be used so."""
        if self.needs_reward_model and normalization is None and (self.normalize or self.threshold_quantile):
            raise ConfigError(
                "this reward model gives labels 0 and 1, which have no mean and quantiles to normalise with: set "
                "normalize=false and threshold_quantile=0"
            )

    def intrinsic(self, rewards: Tensor, counts: Tensor, normalization: Normalization | None) -> Tensor:
        """The intrinsic part, without its coefficient: see `intrinsic_reward`.

        The threshold is a quantile of the model's own rewards, whether they are normalised or not.

        Raises:
            ConfigError: see `check`.
        """
        self.check(normalization)
        spread = normalization or _IDENTITY
        threshold = spread.threshold(self.threshold_quantile) if self.threshold_quantile else -math.inf
        if self.normalize:
            moments = {"mean": spread.mean, "variance": spread.variance}
        else:
            moments, threshold = {}, spread.mean + threshold * math.sqrt(spread.variance)
        return intrinsic_reward(
            rewards, counts, threshold=threshold, count_exponent=self.count_exponent, **moments
        )

    def __call__(
        self,
        extrinsic: Tensor,
        rewards: Tensor | None = None,
        counts: Tensor | None = None,
        normalization: Normalization | None = None,
    ) -> Tensor:
        """What the agent learns from.

        Args:
            extrinsic: float, any shape: what the env paid at each step.
            rewards: of the same shape: the reward model's number for the step's message; not needed without an
                intrinsic part.
            counts: of the same shape: how often the message has occurred in the episode, this time included.
            normalization: Of the reward model.

        Returns:
            float32, of the same shape.

        Raises:
            ConfigError: there is an intrinsic part, and the reward model does not fit or is missing.
        """
        total = self.extrinsic_coefficient * extrinsic_reward(
            extrinsic, scale=self.reward_scale, clip=self.reward_clip
        )
        if not self.needs_reward_model:
            return total
        if rewards is None or counts is None:
            raise ConfigError(
                f"intrinsic_coefficient={self.intrinsic_coefficient} needs a reward model: name one, or set it to 0"
            )
        return total + self.intrinsic_coefficient * self.intrinsic(rewards, counts, normalization)
