"""What the world itself pays."""

import math
from dataclasses import dataclass

from torch import Tensor

from groundling.errors import ConfigError
from groundling.rewards.part import Part, parts
from groundling.rewards.stretch import Stretch


@parts.register("env")
@dataclass(kw_only=True)
class EnvPart(Part):
    """The env's own reward: clip(scale · r, ±clip), scaled first and then clipped.

    GLAM scales by 20 and does not clip; Motif scales by 0.1 and clips at 10.
    """

    needs = frozenset({"env"})

    scale: float = 1.0
    """Factor on what the env pays, before clipping."""
    clip: float | None = None
    """The greatest absolute value of the scaled reward; null: none."""

    def __post_init__(self) -> None:
        """Raise `ConfigError` on options that cannot be run."""
        if not math.isfinite(self.scale):
            raise ConfigError(f"scale must be a finite number, got {self.scale}")
        if self.scale == 0:
            raise ConfigError(
                "scale=0 leaves nothing of what the env pays: give another, or take the part out with ~reward.env "
                "(coefficient=0 logs it and learns nothing from it)"
            )
        if self.clip is not None and not self.clip > 0:
            raise ConfigError(f"clip must be greater than 0, or null for none, got {self.clip}")

    def rewards(self, stretch: Stretch) -> Tensor:
        """float32 ``(num_steps, num_envs)``."""
        assert stretch.env is not None
        scaled = self.scale * stretch.env
        return scaled if self.clip is None else scaled.clamp(-self.clip, self.clip)
