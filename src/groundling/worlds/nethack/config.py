"""What the config says of NetHack's tasks."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

from omegaconf import MISSING

from groundling.envs.nethack import TASKS
from groundling.errors import ConfigError
from groundling.fields import Ge
from groundling.registry import unknown
from groundling.worlds.config import EvaluationConfig, Use, WorldConfig, unused_in_play


@dataclass
class NetHackConfig(WorldConfig):
    """One of NetHack's tasks."""

    PLACE: ClassVar[str] = "env"

    id: str = "nethack"
    env: str = MISSING
    """The task, such as NetHackScore-v1: `groundling list envs`."""
    args: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments of the task, such as vector."""
    num_envs: Annotated[int, Ge(1)] = 32
    """Games played together, an even number if there are workers; Motif played 480."""
    num_steps: Annotated[int, Ge(1)] = 40
    """Steps that each game takes between two updates; Motif took 32."""
    num_workers: Annotated[int, Ge(0)] = 0
    """Processes of each learner that step its envs; 0: it steps them itself, which is fastest on a CPU with one learner
    for each core."""
    ahead: bool = False
    """Collect the next rollout while the learner is at work on this one; for GPUs, with workers."""
    bootstrap_truncated: bool = False
    """Whether a time-out is valued as if the episode went on (the usual practice) or as its end (Motif)."""
    entropy_floor: Annotated[float, Ge(0.0)] = 0.001
    """Of a task with a goal: stop, with advice, when the policy's entropy (nats) stays below this while episodes still
    fail; 0: never."""

    def check(self) -> None:
        """See `WorldConfig.check`."""
        if self.env not in TASKS:
            raise ConfigError(unknown("NetHack task", self.env, TASKS))
        if self.num_workers and self.num_envs % 2:
            raise ConfigError(
                f"world.num_envs={self.num_envs} is odd, and the workers of world.num_workers={self.num_workers} step "
                f"one half of the envs while the learner acts in the other: set world.num_envs={self.num_envs + 1}"
            )
        limit = self.args.get("max_episode_steps", 1)
        if type(limit) is not int or limit < 1:  # nle would end each game at once, or play on without end
            raise ConfigError(f"world.args.max_episode_steps must be a whole number of at least 1, got {limit!r}")

    def unused(self, use: Use) -> Mapping[str, str]:
        """See `WorldConfig.unused`."""
        idle = unused_in_play(use)
        if TASKS.get(self.env, {}).get("goal") == "score":
            idle["world.entropy_floor"] = f"{self.env} has no failures, only a score"
        return idle


@dataclass
class NetHackEvaluation(EvaluationConfig):
    """Held-out games."""

    num_envs: Annotated[int, Ge(1)] = 32
    """Games played together."""
    deterministic: bool = False
    """Take the likeliest action instead of drawing one."""
    baselines: list[str] = field(default_factory=lambda: ["zero-shot", "random", "explorer"])
    """What the trained policy is compared with on the same games: zero-shot, random, explorer."""
