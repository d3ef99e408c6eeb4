"""Settings of NetHack's tasks."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from groundling.envs.nethack import RECORDING, TASKS
from groundling.errors import ConfigError, unknown
from groundling.fields import CommandLineOnly, Ge, MayChangeOnResume, NoEffectOnResults, OfEvaluation, TrainingOnly
from groundling.worlds.config import EvaluationConfig, Use, WorldConfig, unused_in_play


class NetHackConfig(WorldConfig):
    """One of NetHack's tasks."""

    PLACE: ClassVar[str] = "env"

    id: str = "nethack"
    env: Annotated[str, OfEvaluation]
    """The task, such as NetHackScore-v1: `groundling list envs`."""
    args: Annotated[dict[str, Any], OfEvaluation, CommandLineOnly.of(*RECORDING), TrainingOnly.of(*RECORDING)] = {}
    """Keyword arguments of the task, such as vector."""
    num_envs: Annotated[int, Ge(1)] = 32
    """Games played together, an even number with workers; Motif played 480."""
    num_steps: Annotated[int, Ge(1)] = 40
    """Steps of each game between two updates; Motif took 32."""
    num_workers: Annotated[int, Ge(0), NoEffectOnResults] = 0
    """Processes of each learner that step its envs; 0: the learner itself, fastest on a CPU with a core for each."""
    ahead: Annotated[bool, MayChangeOnResume] = False
    """Collect the next rollout while the learner works on this one; for GPUs, with workers."""
    bootstrap_truncated: bool = False
    """Value a time-out as if the episode continued (the usual practice), not as its end (Motif)."""
    entropy_floor: Annotated[float, Ge(0), MayChangeOnResume] = 0.001
    """For tasks with a goal: stop, with advice, while the policy's entropy (nats) is below this and episodes fail; 0:
    never."""

    def check(self) -> None:
        if self.env not in TASKS:
            raise ConfigError(unknown("NetHack task", self.env, TASKS))
        if self.num_workers and self.num_envs % 2:
            raise ConfigError(
                f"world.num_envs={self.num_envs} is odd, and the workers of world.num_workers={self.num_workers} step "
                f"one half of the envs while the learner acts in the other: set world.num_envs={self.num_envs + 1}"
            )
        limit = self.args.get("max_episode_steps", 1)
        if type(limit) is not int or limit < 1:  # nle would end each game at once, or never
            raise ConfigError(f"world.args.max_episode_steps must be a whole number of at least 1, got {limit!r}")

    def unused(self, use: Use) -> Mapping[str, str]:
        idle = unused_in_play(use)
        if TASKS.get(self.env, {}).get("goal") == "score":
            idle["world.entropy_floor"] = f"{self.env} has no failures, only a score"
        return idle


class NetHackEvaluation(EvaluationConfig):
    """Held-out games."""

    baselines: list[str] = ["zero-shot", "random", "explorer"]
    """Agents to compare the trained policy with on the same games: zero-shot, random, explorer."""
    num_envs: Annotated[int, Ge(1), NoEffectOnResults] = 32
    """Games played together."""
    deterministic: Annotated[bool, OfEvaluation] = False
    """Take the likeliest action instead of drawing one."""
