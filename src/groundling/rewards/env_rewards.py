"""Rewards of the env, and for new captions."""

from dataclasses import dataclass
from typing import Annotated

from torch import Tensor

from groundling.errors import ConfigError
from groundling.fields import Gt
from groundling.rewards.inputs import RewardInputs
from groundling.rewards.part import Part, parts


@parts.register("env")
@dataclass(kw_only=True)
class EnvPart(Part):
    """The env's reward, clip(scale · r, ±clip). GLAM: scale 20, no clip; Motif: scale 0.1, clip 10."""

    needs = frozenset({"env"})

    scale: float = 1.0
    """Factor on the env's reward, before clipping."""
    clip: Annotated[float | None, Gt(0)] = None
    """Greatest absolute value of the scaled reward; null: no limit."""

    def __post_init__(self) -> None:
        if self.scale == 0:
            raise ConfigError(
                "scale=0 removes the env's reward: give another, or take the part out with ~reward.env "
                "(coefficient=0 logs it and learns nothing from it)"
            )

    def rewards(self, inputs: RewardInputs) -> Tensor:
        assert inputs.env is not None
        scaled = self.scale * inputs.env
        return scaled if self.clip is None else scaled.clamp(-self.clip, self.clip)


@parts.register("count")
@dataclass(kw_only=True)
class CountBonus(Part):
    """1 / n^exponent at the n-th occurrence of a caption in its episode.
    MBIE-EB's count bonus (Strehl and Littman 2008; exponent 1/2), but for captions and within episodes.
    """

    needs = frozenset({"counts"})

    exponent: Annotated[float, Gt(0)] = 0.5
    """Rate at which the bonus falls with repetition; usually 0.5 to 3."""

    def rewards(self, inputs: RewardInputs) -> Tensor:
        assert inputs.captions is not None
        return inputs.spread(inputs.captions, inputs.captions.counts**-self.exponent)
