"""Settings of text worlds."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from groundling.envs.babyai_text import ACTIONS
from groundling.envs.make import check_registered
from groundling.errors import ConfigError
from groundling.fields import (
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

_GRIDS = ("BabyAI-", "MiniGrid-")  # Beginnings of the ids of envs whose actions are GLAM's unless others are named
_NUM_USUAL = len(ACTIONS["english"])
_LEAST = 3  # Actions without which an agent gets nowhere on a grid: turn left, turn right, go forward
_NOT_IN_ARGS = {
    "id": "set world.env",
    "language": "set world.language",
    "render_mode": "reports and `groundling watch` choose how an env is drawn",
}  # and what to set instead; every env is given these


class TextConfig(WorldConfig):
    """A Gymnasium env described in words, or a dataset of an agent's episodes there."""

    PLACE: ClassVar[str] = "env"

    id: str = "text"
    env: Annotated[str, OfEvaluation]
    """Any BabyAI or MiniGrid env that Gymnasium knows, or a text env of your own."""
    args: Annotated[dict[str, Any], OfEvaluation] = {}
    """Keyword arguments of the env, such as task or num_dists."""
    num_envs: Annotated[int, Ge(1)] = 32
    """Envs stepped together; GLAM used 32."""
    num_steps: Annotated[int, Ge(1)] = 40
    """Steps of each env between two updates; GLAM took 40."""
    group_size: Annotated[int | None, Ge(2)] = None
    """Envs that play the same episodes, from equal seeds, for algorithms that compare them (grpo, rloo, gigpo). A
    rollout is then one episode of each env, of at most num_steps steps. null: a rollout continues where the last one
    stopped, and all its episodes are compared."""
    actions: Annotated[list[str] | None, OfEvaluation, ReadByModel.when(are_texts)] = None
    """The admissible actions in words; the i-th is the env's action i, and a grid needs at least 3. null: GLAM's six,
    in the env's language, or those that the env lists at each step."""
    language: Annotated[str, OfEvaluation] = "english"
    """english or french: the sentences, the mission and the prompt."""
    history: Annotated[int | None, Ge(1), OfEvaluation] = 3
    """Observations that the prompt quotes, including the present one; 1 makes prompts short and fast. null: the whole
    episode, for policy.args.prompt=conversation."""
    num_workers: Annotated[int, Ge(0), NoEffectOnResults] = 0
    """Processes that step the envs, for slow envs and envs that crash or hang; 0: the learner steps them."""
    timeout: Annotated[float, Gt(0), NoEffectOnResults] = 60.0
    """Seconds after which an env in a worker counts as hung."""
    step_limit: Annotated[int | None, Ge(1)] = None
    """Steps after which a training episode is truncated; null: only the env's own limit. Twice the expert's length
    makes detours cost the episode. Held-out episodes have the env's limit."""
    last_step_limit: Annotated[int | None, Ge(1)] = None
    """Tighten step_limit linearly to this one by the end of the training; null: it stays."""
    bootstrap_truncated: bool = False
    """Value a time-out as if the episode continued (the usual practice), not as its end (GLAM)."""
    entropy_floor: Annotated[float, Ge(0), MayChangeOnResume] = 0.001
    """Stop, with advice, when the policy's entropy (nats) stays below this while episodes still fail; 0: never."""
    dataset: str | None = None
    """A folder that `groundling collect` wrote, to learn from instead of the env, by algorithms that clone (bc). A
    step of training is then one of num_envs × num_steps transitions of each update."""
    probes: Annotated[Literal[1, 2, "both"] | None, MayChangeOnResume, TrainingOnly] = None
    """1, 2 or both: log each action's probability in one or both of two sets of fixed situations, before the first
    update and after each; null: no."""

    def check(self) -> None:
        if self.probes is not None and self.language != "english":
            raise ConfigError(
                f"the probes are written in English, and world.language={self.language}: set world.probes=null"
            )
        check_registered(self.env)
        actions = self.actions or []
        if self.actions == []:
            raise ConfigError(
                "world.actions is empty: name at least one action, such as [turn left, turn right, go forward]"
            )
        if len(set(actions)) < len(actions):
            raise ConfigError(f"world.actions names an action twice: {', '.join(actions)}")
        if 0 < len(actions) < _LEAST and self.env.startswith(_GRIDS):
            raise ConfigError(
                f"world.actions names {len(actions)} actions ({', '.join(actions)}), and the i-th name is the env's "
                f"action i: {', '.join(ACTIONS['english'])}. Name the first {_LEAST} at least, in this order"
            )
        if self.group_size is not None and self.num_envs % self.group_size:
            whole = -(-self.num_envs // self.group_size) * self.group_size
            raise ConfigError(
                f"world.num_envs={self.num_envs} is no multiple of world.group_size={self.group_size}, so that one "
                f"group would have fewer envs: set world.num_envs={whole}"
            )
        if self.group_size is not None and self.args.get("draw_task") == "construction":
            raise ConfigError(
                "world.args.draw_task=construction gives each env a task of its own, and the envs of a group "
                f"(world.group_size={self.group_size}) are to play the same episodes: set draw_task=reset, or task"
            )
        for name, instead in _NOT_IN_ARGS.items():
            if name in self.args:
                raise ConfigError(f"world.args.{name} is not for an experiment to set: {instead}")

    def unused(self, use: Use) -> Mapping[str, str]:
        idle = unused_in_play(use)
        if not self.num_workers:
            idle["world.timeout"] = "it is for envs in workers (world.num_workers)"
        if self.step_limit is None:
            idle["world.last_step_limit"] = "it tightens world.step_limit, which is not set"
        if self.dataset is None and not use.demonstrated:
            idle["evaluation.every"] = "only a pool or a dataset has a validation split"
        if use.demonstrated:
            idle["world.bootstrap_truncated"] = idle["reward"] = "its algorithm does not learn from rewards"
            for name in ("group_size", "step_limit", "last_step_limit"):
                idle[f"world.{name}"] = "its algorithm learns from a dataset"
        if not use.policy_reads and self.dataset is None:  # a dataset is refused for showing no symbols
            idle["world.history"] = idle["world.probes"] = "its policy reads no words"
            all_named = len(self.actions or ()) == _NUM_USUAL and self.env.startswith(_GRIDS)
            if not use.captions_read and all_named:
                idle["world.actions"] = f"its policy reads no words, and there are {_NUM_USUAL} actions anyway"
        return idle


class TextEvaluation(EvaluationConfig):
    """Held-out episodes of a text world."""

    baselines: list[str] = ["zero-shot", "random", "expert"]
    """Agents to compare the trained policy with on the same episodes: zero-shot, random, expert; clone where the run
    cloned first (cloning.episodes)."""
    num_envs: Annotated[int, Ge(1), NoEffectOnResults] = 32
    """Envs stepped together."""
    deterministic: Annotated[bool, OfEvaluation] = False
    """Take the likeliest action instead of drawing one; GLAM draws."""
    every: Annotated[int | None, Ge(1)] = None
    """Updates between two measurements of a dataset's validation split; also before the first and after the last;
    null: none."""
