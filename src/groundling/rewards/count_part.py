"""A bonus for what has not been read before in an episode."""

import math
from dataclasses import dataclass

from torch import Tensor

from groundling.errors import ConfigError
from groundling.rewards.part import Part, parts
from groundling.rewards.stretch import Stretch


@parts.register("count")
@dataclass(kw_only=True)
class CountBonus(Part):
    """1 / n^exponent at the n-th time that a caption comes up in its episode.

    A count bonus as in MBIE-EB (Strehl & Littman 2008), whose exponent is 1/2, but of captions and within an episode.
    """

    needs = frozenset({"counts"})

    exponent: float = 0.5
    """How fast repetition loses its worth; usually 0.5 to 3."""

    def __post_init__(self) -> None:
        """Raise `ConfigError` on an exponent that cannot be run."""
        if not 0 < self.exponent < math.inf:
            raise ConfigError(f"exponent must be greater than 0 and finite, got {self.exponent}")

    def rewards(self, stretch: Stretch) -> Tensor:
        """float32 ``(num_steps, num_envs)``."""
        assert stretch.captions is not None
        return stretch.spread(stretch.captions, stretch.captions.counts**-self.exponent)
