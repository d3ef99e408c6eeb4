"""The interface of a world. Its optional capabilities are in `groundling.worlds.protocols`."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from groundling.algorithms.algorithm import Algorithm
from groundling.algorithms.rollout import Rollout
from groundling.envs import seeds
from groundling.envs.text_env import WorldSpec
from groundling.envs.text_generation.pools import Sample
from groundling.errors import ConfigError, unknown
from groundling.fields import OfEvaluation
from groundling.policies.policy import Policy
from groundling.registry import ComponentConfig
from groundling.rewards import RewardContext, RewardSum, make_parts
from groundling.rewards.part import RewardPartConfig
from groundling.rewards.sum import naming
from groundling.runtime.processes import Processes
from groundling.worlds.episode import Episode, Frame, Played, Presentation


class Collector(ABC):
    """Collects rollouts of this process's envs or texts, and can resume after a restart."""

    remaining: float = 1.0
    """Remaining fraction of the training run, from 1 to 0, which schedules use; set before each rollout."""
    reward: RewardSum = RewardSum({})
    """The loaded reward; empty for datasets and for worlds that compute rewards themselves."""

    @abstractmethod
    def collect(
        self, policy: Policy, *, generator: torch.Generator, on_step: Callable[[int], None] = lambda transitions: None
    ) -> tuple[Rollout, Sequence[Episode]]:
        """Return the next rollout and the episodes that ended in it. ``generator`` samples the actions; all processes
        must draw the same number of values from it. ``on_step`` is called with the number of new transitions.
        """

    def in_passes(self, epochs: int) -> tuple[int, int]:
        """Return the numbers of steps and updates in ``epochs`` passes over the data. After this call, no rollout
        spans two passes, so the last one of a pass may be short. Raise `ConfigError` if the policy generates the data.
        """
        raise ConfigError(
            f"training.epochs={epochs} requires a dataset or a pool's references, but this algorithm learns from the "
            "policy's own episodes or texts: set training.steps instead"
        )

    @abstractmethod
    def state_dict(self) -> list[dict[str, Any]]:
        """Return the collector's state as JSON, one entry for each of this process's envs."""

    @abstractmethod
    def load_state_dict(self, states: list[dict[str, Any]]) -> None:
        """Restore the state returned by `state_dict`."""

    def tensors(self) -> dict[str, Tensor]:
        """Return the rest of the state as tensors ``(num_envs, …)`` for this process's envs."""
        return {}

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:  # noqa: B027 (optional)
        """Load this process's rows of `tensors`."""

    def incidents(self) -> dict[str, int]:
        """Return counts of incidents, such as lost envs, in this process so far; each update logs their sums."""
        return self.reward.figures()

    def samples(self) -> list[dict[str, Any]]:
        """Return human-readable samples of the last rollout as JSON."""
        return []

    def save_shared(self, folder: Path) -> None:
        """Write state that does not belong to any env to a checkpoint; called only in the first process."""
        self.reward.save(folder)

    def load_shared(self, folder: Path) -> None:
        """Load the state written by `save_shared`."""
        self.reward.load(folder)

    def close(self) -> None:
        """Close envs and processes."""
        self.reward.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


_SHORT_STEPS = 3  # Minimum number of rollout steps for estimating a run's cost
_ANY_RULES = [["a", 1.0]]  # Rules, valid in any world, for a judge whose answers do not matter


class CannotPlay(ConfigError):
    """Raised if a baseline cannot play in a world; evaluations skip it."""


@dataclass(frozen=True)
class Player:
    """An agent and its name in results."""

    name: str  # ``trained``, ``zero-shot``, ``clone``, or one of the world's `baselines`
    policy: Policy | None = None  # None for a baseline that needs no policy
    algorithm: Algorithm | None = None  # Evaluates on held-out preferences, if the run learned from preferences


@dataclass(frozen=True, kw_only=True)
class Demonstrator(Player):
    """An agent whose episodes are recorded."""

    world: "World"
    settings: Mapping[str, Any]  # The full config by dotted key, without private values; stored with the recording
    run: str | None = None  # Folder name of the checkpoint's run
    checkpoint: str | None = None

    @property
    def identity(self) -> dict[str, Any]:
        """Everything that determines how the agent plays, as JSON."""
        model = {}
        if self.policy is not None:
            model = {"model": self.settings["model.path"], "policy": self.world.policy_config.model_dump()}
        return {"agent": self.name, "run": self.run, "checkpoint": self.checkpoint, **model}


@dataclass(eq=False)
class World(ABC):
    """A source of experience. Creating a world does not load or start anything.

    A subclass annotates ``config`` with its settings class, sets `offers`, and implements `collector`, `play` and
    `watch`. Register it with ``@worlds.register(ID)``; the ``id`` of its config must default to this ID.
    """

    config: Any
    """The config's ``world`` section; a subclass annotates it with its own subclass of `WorldConfig`."""
    evaluation: Any
    """The config's ``evaluation`` section; annotated with a subclass of `EvaluationConfig`."""
    reward_parts: Mapping[str, RewardPartConfig | None]
    """The config's ``reward`` section."""
    policy_config: ComponentConfig
    """The config's ``policy`` section."""
    seed: int
    """Seed of the run."""
    device: str
    """Device for reward models and metrics."""
    checkpoint: Path | None = None
    """The evaluated checkpoint, from which a reward model that was trained online is loaded."""
    suite: str | None = None
    """The test suite for which the config was changed; None during training."""

    offers: ClassVar[WorldSpec]
    """Everything that this kind of world can provide to policies and rewards."""
    suites: ClassVar[Mapping[str, str]] = {"held-out": "held-out episodes of the run's own world"}
    """Test suites with descriptions, the default one first."""
    suite_groups: ClassVar[Mapping[str, Sequence[str]]] = {}
    """Named groups of suites. In the suites of ``controls``, an agent that reads its goal is expected to fail."""
    baselines: ClassVar[Mapping[str, str]] = {}
    """Agents that play in this kind of world without a policy, mapped to descriptions."""
    experiment: ClassVar[str | None] = None
    """Default experiment for training and for baselines: a bundled one, or the path of a YAML file."""
    open_experiment: ClassVar[str | None] = None
    """Default experiment of `groundling.train`, if it differs: one that leaves settings to `training.defaults`."""
    presentation: ClassVar[Presentation] = Presentation()

    # The interface

    @abstractmethod
    def collector(self, policy: Policy, algorithm: Algorithm, rows: slice) -> Collector:
        """Return a collector of training rollouts for ``rows``, this process's share of the envs, texts or dataset
        columns. Raise `ConfigError` if a component is missing or an option has no effect.
        """

    @abstractmethod
    def play(self, player: Player, num_episodes: int) -> Iterator[Episode]:
        """Play the first held-out episodes of `suite`, yielding each one when it ends, in any order. Raise
        `CannotPlay` if the player is a baseline that cannot play in this world.
        """

    def measure(self, player: Player, episodes: Sequence[Episode]) -> Played:
        """Return all episodes that `play` yielded, in order, with their corpus-level metrics."""
        return Played(episodes)

    @abstractmethod
    def watch(self, player: Player, number: int) -> Iterator[Frame]:
        """Play held-out episode ``number`` step by step; raises the same errors as `play`."""

    @classmethod
    def has(cls, place: str) -> bool:
        """Return True if this kind of world has an env, task or pool with this name (see `WorldConfig.PLACE`)."""
        return False

    @classmethod
    def policy_for(cls, place: str, args: Mapping[str, Any] = {}) -> str | None:
        """Return the policy for an env whose actions the default experiment's policy cannot choose; otherwise, None."""
        return None

    @property
    def spec(self) -> WorldSpec:
        """The specification of the configured world; raises `ConfigError` if its env is unknown or unsupported."""
        return self.offers

    def settled(self) -> Any:
        """Return the config with all information that an agent needs when the env is unavailable."""
        return self.config

    @property
    def settings(self) -> dict[str, Any]:
        """The settings that must be equal for evaluations to be comparable, as JSON."""
        place, seeding = (
            {self.config.PLACE: getattr(self.config, self.config.PLACE)},
            {"episode_seeds": seeds.SCHEME},
        )
        return place | self.config.declared(OfEvaluation) | self.evaluation.declared(OfEvaluation) | seeding

    @property
    def entropy_floor(self) -> float:
        """Entropy in nats below which a failing policy is considered to have stopped exploring; 0 if not defined."""
        floor: float = getattr(self.config, "entropy_floor", 0.0)
        return floor

    @property
    def longest_episode(self) -> int | None:
        """The maximum number of steps in an episode, or None if it is unknown."""
        return None

    # Seeds and suites

    def training_seed(self, row: int, episode: int) -> int:
        """Return the seed of training episode ``episode`` of the run's env ``row``."""
        return seeds.training_seed(self.seed, row, episode)

    @staticmethod
    def held_out_seed(number: int) -> int:
        """Return the seed of a held-out episode, which is the same for all runs and agents."""
        return seeds.held_out_seed(number)

    @classmethod
    def find_suites(cls, names: str) -> list[str]:
        """Return the distinct suites in a comma-separated list of suites and groups (``held-out,controls``)."""
        found: dict[str, None] = {}
        for name in map(str.strip, names.split(",")):
            if name not in cls.suites and name not in cls.suite_groups:
                raise ConfigError(unknown("suite", name, (*cls.suites, *cls.suite_groups)))
            found |= dict.fromkeys(cls.suite_groups.get(name, (name,)))
        return list(found)

    def check_player(self, player: Player) -> None:
        """Raise `CannotPlay` if a player has neither a policy nor the name of a baseline."""
        if player.policy is None and player.name not in self.baselines:
            known = f"available: {', '.join(self.baselines)}" if self.baselines else "it requires a policy"
            raise CannotPlay(f"{player.name} cannot play {self.spec.name}: {known}")

    # Rewards and rollouts

    @cached_property
    def reward(self) -> RewardSum:
        """The run's reward, validated but not loaded. Raises `GroundlingError` if it has no parts, or if a part is
        incompatible with this world or needs something that is missing.
        """
        return make_parts(self.reward_parts, self.spec)

    def begin_reward(self, policy: Policy, processes: Processes, samples: Sequence[Sample] = ()) -> RewardSum:
        """Load the resources of `reward`; ``samples`` is the training split of a pool."""
        lm = getattr(policy, "lm", None)
        self.reward.begin(RewardContext(self.device, self.seed, processes, self.spec.subject, lm, samples))
        return self.reward

    def rollouts(self, policy: Policy, algorithm: Algorithm) -> Collector:
        """Return a collector for all envs or texts, for a single-process custom loop; use it in a ``with`` block."""
        return self.collector(policy, algorithm, slice(0, self.config.num_rows))

    def shortened(self, recurrence: int, steps_per_gradient: int) -> Self:
        """Return a copy that suffices to estimate a run's cost: its judges cost nothing and its rollouts are as short
        as possible, with whole segments of ``recurrence`` steps and at least ``steps_per_gradient`` transitions.
        """
        steps = max(_SHORT_STEPS, -(-steps_per_gradient // self.config.num_rows))
        return self._with_free_judges({self.config.STEPS: -(-steps // recurrence) * recurrence})

    def _with_free_judges(self, changes: Mapping[str, Any]) -> Self:
        """Return a copy with changed settings, in which rules replace the judges queried during training."""
        parts, free = dict(self.reward_parts), {"judge": "rules", "args": {"rules": _ANY_RULES}}
        for name, part in self.reward_parts.items():
            if part is not None and (part.id or name) == "rubric":
                parts[name] = part.model_copy(update={"args": {**part.args, **free}})
            if part is not None and part.args.get("online"):
                online = {**part.args["online"], **free}
                parts[name] = part.model_copy(update={"args": {**part.args, "online": online}})
                judged = self.reward.parts[name]
                run = RewardContext(self.device, self.seed, world=self.spec.subject)
                with naming(name):
                    judged.begin(run)  # reports errors in the replaced judge's settings
                judged.close()
        return replace(self, config=self.config.model_copy(update=changes), reward_parts=parts)
