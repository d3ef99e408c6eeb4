"""Settings of text worlds."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from groundling.envs.babyai_text import ACTIONS
from groundling.envs.make import check_registered
from groundling.envs.openenv.env import PREFIX
from groundling.envs.text_env import GoalKey
from groundling.errors import ConfigError
from groundling.fields import (
    CommandLineOnly,
    Ge,
    Gt,
    MayChangeOnResume,
    NoEffectOnResults,
    OfEvaluation,
    ReadByModel,
    TrainingOnly,
    are_texts,
)
from groundling.worlds.config import EvaluationConfig, Use, WorldConfig, unused_in_play

_GRIDS = ("BabyAI-", "MiniGrid-")  # Prefixes of env ids for which GLAM's actions are the default
_NUM_USUAL = len(ACTIONS["english"])
_LEAST = 3  # Any agent on a grid needs at least three actions: turn left, turn right, go forward
_NOT_IN_ARGS = {
    "id": "set world.env instead",
    "language": "set world.language instead",
    "render_mode": "reports and `groundling watch` choose the render mode",
}  # arguments that are set elsewhere, with advice


class TextConfig(WorldConfig):
    """A Gymnasium env described as text, or a dataset of an agent's episodes in it."""

    PLACE: ClassVar[str] = "env"

    id: str = "text"
    env: Annotated[str, OfEvaluation, CommandLineOnly.when(lambda env: env.startswith(PREFIX))]
    """Any BabyAI or MiniGrid env that is registered with Gymnasium, your own text env, or openenv:URL for the env of
    an OpenEnv server."""
    args: Annotated[dict[str, Any], OfEvaluation] = {}
    """Keyword arguments of the env, such as task or num_dists."""
    num_envs: Annotated[int, Ge(1)] = 32
    """Number of envs stepped together; GLAM used 32."""
    num_steps: Annotated[int, Ge(1)] = 40
    """Number of steps of each env between two updates; GLAM used 40."""
    group_size: Annotated[int | None, Ge(2)] = None
    """Number of envs that play the same episodes, from the same seeds, for algorithms that compare them (grpo, rloo,
    gigpo). A rollout is then one episode of each env, of at most num_steps steps. If null, a rollout continues where
    the last one stopped, and all its episodes are compared."""
    actions: Annotated[list[str] | None, OfEvaluation, ReadByModel.when(are_texts)] = None
    """Names of the admissible actions: the i-th names the env's action i, and a grid needs at least 3. If null, grids
    use GLAM's six actions in the env's language. Other envs list their actions at each step or name them in an
    attribute such as action_names; otherwise, the actions are numbered."""
    goal: Annotated[str | None, OfEvaluation, ReadByModel] = None
    """The goal of every episode, as a sentence. If null, the env's goal is used, if it has one."""
    goal_key: Annotated[str | None, OfEvaluation] = None
    """The key under which the env's info or observation contains the goal, if it is not one of the usual keys."""
    language: Annotated[str, OfEvaluation] = "english"
    """Language of the descriptions, the mission and the prompt: english or french."""
    history: Annotated[int | None, Ge(1), OfEvaluation] = 3
    """Number of observations in the prompt, including the current one; 1 is fastest. If null, the prompt contains
    the whole episode, which is meant for policy.args.prompt=conversation."""
    num_workers: Annotated[int, Ge(0), NoEffectOnResults] = 0
    """Number of processes that step the envs, for envs that are slow, crash or hang. If 0, the learner steps them."""
    timeout: Annotated[float, Gt(0), NoEffectOnResults] = 60.0
    """Seconds after which an env in a worker is considered hung."""
    step_limit: Annotated[int | None, Ge(1)] = None
    """Number of steps after which a training episode is truncated; held-out episodes always have the env's own limit.
    If null, only the env's limit applies. A limit of twice the expert's episode length makes detours fail."""
    last_step_limit: Annotated[int | None, Ge(1)] = None
    """Value that step_limit reaches at the end of training, changing linearly. If null, step_limit is constant."""
    bootstrap_truncated: bool = False
    """Bootstrap the value at a time-out (the usual practice), instead of treating it as a termination (GLAM)."""
    entropy_floor: Annotated[float, Ge(0), MayChangeOnResume] = 0.001
    """Stop training if the policy's entropy in nats stays below this while episodes fail; 0 disables the check."""
    dataset: str | None = None
    """A folder written by `groundling collect`, from which cloning algorithms (bc) learn instead of the env. A
    training step is then a transition, and an update uses num_envs × num_steps of them."""
    probes: Annotated[Literal[1, 2, "both"] | None, MayChangeOnResume, TrainingOnly] = None
    """Log the action probabilities in fixed situations before the first update and after each one. 1 and 2 select one
    of two sets of situations, both selects both sets, and null disables logging."""

    def check(self) -> None:
        if self.probes is not None and self.language != "english":
            raise ConfigError(f"the probes are in English, but world.language={self.language}: set world.probes=null")
        check_registered(self.env)
        actions = self.actions or []
        if self.actions == []:
            raise ConfigError("world.actions is empty: list actions, as in [turn left, turn right, go forward]")
        if self.goal is not None and self.goal_key is not None:
            raise ConfigError(f"world.goal_key={self.goal_key} has no effect, because world.goal is set: remove one")
        if len({*actions, ""}) <= len(actions):
            raise ConfigError(f"world.actions contains a duplicate or an empty string: {', '.join(actions)}")
        if 0 < len(actions) < _LEAST and self.env.startswith(_GRIDS):
            raise ConfigError(
                f"world.actions lists only {len(actions)} actions ({', '.join(actions)}). The env's actions are "
                f"{', '.join(ACTIONS['english'])}: name at least the first {_LEAST}, in this order"
            )
        if self.group_size is not None and self.num_envs % self.group_size:
            whole = -(-self.num_envs // self.group_size) * self.group_size
            raise ConfigError(
                f"world.num_envs={self.num_envs} is not a multiple of world.group_size={self.group_size}: use {whole}"
            )
        if self.group_size is not None and self.args.get("draw_task") == "construction":
            raise ConfigError(
                "world.args.draw_task=construction gives each env a different task, but the envs of a group "
                f"(world.group_size={self.group_size}) must play the same episodes: set draw_task=reset, or set task"
            )
        for name, instead in _NOT_IN_ARGS.items():
            if name in self.args:
                raise ConfigError(f"world.args.{name} cannot be set: {instead}")

    @property
    def reads_goal(self) -> str | GoalKey | None:
        """The goal for `TextEnv`, or the key to read it from; None to use the env's goal."""
        return self.goal if self.goal_key is None else GoalKey(self.goal_key)

    def unused(self, use: Use) -> Mapping[str, str]:
        idle = unused_in_play(use)
        if not self.num_workers:
            idle["world.timeout"] = "it applies only to envs in workers (world.num_workers)"
        if self.step_limit is None:
            idle["world.last_step_limit"] = "world.step_limit is not set"
        if self.dataset is None and not use.demonstrated:
            idle["evaluation.every"] = "only pools and datasets have a validation split"
        if use.demonstrated:
            idle["world.bootstrap_truncated"] = idle["reward"] = "the algorithm does not learn from rewards"
            for name in ("group_size", "step_limit", "last_step_limit"):
                idle[f"world.{name}"] = "the algorithm learns from a dataset"
        if not use.policy_reads and self.dataset is None:  # a dataset is rejected because it has no symbols
            idle["world.history"] = idle["world.probes"] = "the policy does not read text"
            all_named = len(self.actions or ()) == _NUM_USUAL and self.env.startswith(_GRIDS)
            if not use.captions_read and all_named:
                idle["world.actions"] = f"the policy does not read text, and {_NUM_USUAL} actions are the default"
        return idle


class TextEvaluation(EvaluationConfig):
    """Settings for held-out episodes of a text world."""

    baselines: list[str] = ["zero-shot", "random", "expert"]
    """Agents to compare the trained policy with on the same episodes: zero-shot, random, expert (in BabyAI) or
    explorer (in NetHack), and clone if the run started with cloning (cloning.episodes)."""
    num_envs: Annotated[int, Ge(1), NoEffectOnResults] = 32
    """Number of envs stepped together."""
    deterministic: Annotated[bool, OfEvaluation] = False
    """Choose the most likely action instead of sampling; GLAM samples."""
    every: Annotated[int | None, Ge(1)] = None
    """Number of updates between evaluations on a dataset's validation split, which is also evaluated before the first
    and after the last update. If null, it is not evaluated."""
