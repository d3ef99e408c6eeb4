"""What the config says of a text world."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, Self

from omegaconf import MISSING

from groundling.envs.babyai_text import ACTIONS
from groundling.envs.make import check_registered
from groundling.errors import ConfigError
from groundling.fields import Ge
from groundling.worlds.config import EvaluationConfig, Use, WorldConfig, unused_in_play

PROBE_SETS: tuple[int | str, ...] = (1, 2, "both")
"""What `TextConfig.probes` may be, beside null."""
_GRIDS = ("BabyAI-", "MiniGrid-")
"""How the ids of envs begin whose actions are GLAM's unless others are named."""
_NUM_USUAL = len(ACTIONS["english"])
_LEAST = 3
"""Actions without which nobody gets anywhere on a grid: to turn left, to turn right, to go forward."""
_USUAL_TIMEOUT = 60.0
_NOT_IN_ARGS = {
    "id": "set world.env",
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
    num_envs: Annotated[int, Ge(1)] = 32
    """Envs stepped together; GLAM used 32."""
    num_steps: Annotated[int, Ge(1)] = 40
    """Steps that each env takes between two updates; GLAM took 40."""
    group_size: Annotated[int | None, Ge(2)] = None
    """So many envs play the same episodes, from equal seeds, for algorithms that compare these (grpo, rloo, gigpo). A
    rollout is then one episode of each env, of num_steps steps at most. null: it goes on where the last one stopped,
    and all its episodes are compared."""
    actions: list[str] | None = None
    """The admissible actions in words; the i-th is the env's action i, and on a grid there are 3 at least. null: GLAM's
    six, in the env's language, or those that the env tells at each step."""
    language: str = "english"
    """english or french: the sentences, the mission and the prompt."""
    history: Annotated[int | None, Ge(1)] = 3
    """How many observations the prompt quotes, the present one included; 1 makes prompts short and fast. null: the
    whole episode, for which there is policy.args.prompt=conversation."""
    num_workers: Annotated[int, Ge(0)] = 0
    """Processes that step the envs, for slow ones and for such as crash or hang; 0: the learner steps them."""
    timeout: float = _USUAL_TIMEOUT
    """Seconds after which an env in a worker counts as hung."""
    step_limit: Annotated[int | None, Ge(1)] = None
    """Steps after which a training episode is truncated, if the env does not end it before; null: no limit but the
    env's own. Twice the expert's length makes detours cost the episode. Held-out episodes have the env's limit."""
    last_step_limit: Annotated[int | None, Ge(1)] = None
    """Tightens step_limit linearly to this one by the end of the training; null: it stays."""
    bootstrap_truncated: bool = False
    """Whether a time-out is valued as if the episode went on (the usual practice) or as its end (GLAM)."""
    entropy_floor: Annotated[float, Ge(0.0)] = 0.001
    """Stop, with advice, when the policy's entropy (nats) stays below this while episodes still fail; 0: never."""
    dataset: str | None = None
    """A folder that `groundling collect` wrote, to be learnt from in the place of the env; for algorithms that clone
    (bc). A step of training is then one of num_envs × num_steps transitions of each update."""
    probes: int | str | None = None
    """1, 2 or both: log each action's probability in one or both of two sets of fixed situations, before the first
    update and after each; null: no."""

    def in_play(self) -> Self:
        """See `WorldConfig.in_play`: probes are logged during training only."""
        return replace(self, probes=None)

    def check(self) -> None:
        """See `WorldConfig.check`."""
        if self.probes not in (None, *PROBE_SETS):
            sets = ", ".join(map(str, PROBE_SETS))
            raise ConfigError(f"world.probes must be {sets} or null, got {self.probes}")
        if self.probes is not None and self.language != "english":
            raise ConfigError(
                f"the probes are written in English, and world.language={self.language}: set world.probes=null"
            )
        check_registered(self.env)
        if self.actions == []:
            raise ConfigError(
                "world.actions is empty: name at least one action, such as [turn left, turn right, go forward]"
            )
        actions = self.actions or []
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
        if self.last_step_limit is not None and self.step_limit is None:
            raise ConfigError(
                f"world.last_step_limit={self.last_step_limit} does nothing without world.step_limit, from which it "
                "tightens: set both, or leave it out"
            )
        if not 0 < self.timeout < math.inf:
            raise ConfigError(f"world.timeout must be greater than 0 and finite, got {self.timeout}")
        for name, instead in _NOT_IN_ARGS.items():
            if name in self.args:
                raise ConfigError(f"world.args.{name} is not for an experiment to set: {instead}")

    def unused(self, use: Use) -> Mapping[str, str]:
        """See `WorldConfig.unused`."""
        idle = unused_in_play(use)
        if not self.num_workers:
            idle["world.timeout"] = "it is for envs in workers (world.num_workers)"
        if self.dataset is None and not use.demonstrated:
            idle["evaluation.every"] = "only a pool or a dataset has a validation split"
        if use.demonstrated:
            idle["world.bootstrap_truncated"] = idle["reward"] = "its algorithm does not learn from rewards"
            for name in ("group_size", "step_limit", "last_step_limit"):
                idle[f"world.{name}"] = "its algorithm learns from a dataset"
        if not use.policy_reads and self.dataset is None:  # a dataset is refused for showing no symbols
            idle["world.history"] = idle["world.probes"] = "its policy reads no words"
            if not use.captions_read and len(self.actions or ()) == _NUM_USUAL and self.env.startswith(_GRIDS):
                idle["world.actions"] = f"its policy reads no words, and there are {_NUM_USUAL} actions anyway"
        return idle


@dataclass
class TextEvaluation(EvaluationConfig):
    """Held-out episodes of a text world."""

    num_envs: Annotated[int, Ge(1)] = 32
    """Envs stepped together."""
    deterministic: bool = False
    """Take the likeliest action instead of drawing one; GLAM draws."""
    baselines: list[str] = field(default_factory=lambda: ["zero-shot", "random", "expert"])
    """What the trained policy is compared with on the same episodes: zero-shot, random, expert; clone where the
    run cloned first (cloning.episodes)."""
    every: Annotated[int | None, Ge(1)] = None
    """Updates between two measurements of a dataset's validation split during training, the first before it, and one
    after its last update; null: none."""
