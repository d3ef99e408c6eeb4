"""What the config says of a text world."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import gymnasium
from omegaconf import MISSING

from groundling.arguments import at_least
from groundling.errors import ConfigError
from groundling.registry import unknown
from groundling.worlds.config import EvaluationConfig, WorldConfig

_USUAL_TIMEOUT = 60.0
_NOT_IN_ARGS = {
    "language": "set world.language",
    "render_mode": "reports and `groundling watch` choose how an env is drawn",
}
"""Arguments that envs are given anyway, and what to do instead."""


@dataclass
class TextConfig(WorldConfig):
    """A Gymnasium env that is told in words, or a dataset of what somebody did there."""

    PLACE: ClassVar[str] = "env"

    id: str = "text"
    env: str = MISSING
    """Any BabyAI or MiniGrid env that Gymnasium knows, or a text env of your own."""
    args: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments of the env, such as task or num_dists."""
    num_envs: int = at_least(1, 32)
    """Envs stepped together; GLAM used 32."""
    num_steps: int = at_least(1, 40)
    """Steps that each env takes between two updates; GLAM took 40."""
    actions: list[str] | None = None
    """The admissible actions in words; the i-th is the env's action i. null: GLAM's six, in the env's language, or
    those that the env tells at each step."""
    language: str = "english"
    """english or french: the sentences, the mission and the prompt."""
    history: int = at_least(1, 3)
    """How many observations the prompt quotes, the present one included; 1 makes prompts short and fast."""
    num_workers: int = at_least(0, 0)
    """Processes that step the envs, for slow ones and for such as crash or hang; 0: the learner steps them."""
    timeout: float = _USUAL_TIMEOUT
    """Seconds after which an env in a worker counts as hung."""
    bootstrap_truncated: bool = False
    """Whether a time-out is valued as if the episode went on (the usual practice) or as its end (GLAM)."""
    entropy_floor: float = at_least(0.0, 0.001)
    """Stop, with advice, when the policy's entropy (nats) stays below this while episodes still fail; 0: never."""
    dataset: str | None = None
    """A folder that `groundling collect` wrote, to be learnt from in the place of the env; for algorithms that clone
    (bc). A step of training is then one of num_envs × num_steps transitions of each update."""
    probes: int | str | None = None
    """1, 2 or both: log each action's probability in one or both of two sets of fixed situations, before the first
    update and after each; null: no."""

    def check(self) -> None:
        """See `WorldConfig.check`."""
        if self.env not in gymnasium.registry:
            raise ConfigError(unknown("env", self.env, gymnasium.registry))
        if self.actions == []:
            raise ConfigError(
                "world.actions is empty: name at least one action, such as [turn left, turn right, go forward]"
            )
        actions = self.actions or []
        if len(set(actions)) < len(actions):
            raise ConfigError(f"world.actions names an action twice: {', '.join(actions)}")
        if not 0 < self.timeout < math.inf:
            raise ConfigError(f"world.timeout must be greater than 0 and finite, got {self.timeout}")
        for name, instead in _NOT_IN_ARGS.items():
            if name in self.args:
                raise ConfigError(f"world.args.{name} is not for an experiment to set: {instead}")

    def unused(self, demonstrated: bool) -> Mapping[str, str]:
        """See `WorldConfig.unused`."""
        idle = {}
        if not self.num_workers:
            idle["world.timeout"] = "it is for envs in workers (world.num_workers)"
        if self.dataset is None and not demonstrated:
            idle["evaluation.every"] = "only a pool or a dataset has a validation split"
        if demonstrated:
            idle["world.bootstrap_truncated"] = idle["reward"] = "its algorithm learns from no rewards"
        return idle


@dataclass
class TextEvaluation(EvaluationConfig):
    """Held-out episodes of a text world."""

    num_envs: int = at_least(1, 32)
    """Envs stepped together."""
    deterministic: bool = False
    """Take the likeliest action instead of drawing one; GLAM draws."""
    baselines: list[str] = field(default_factory=lambda: ["zero-shot", "random", "expert"])
    """What the trained policy is compared with on the same episodes: zero-shot, random, expert."""
    every: int | None = at_least(1, None)
    """Updates between two measurements of a dataset's validation split during training, the first before it, and one
    after its last update; null: none."""
