"""The contract of a world; `groundling.worlds.protocols` has its optional abilities."""

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
from groundling.envs import text_episode
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
    """Collects rollouts of this process's envs or texts, and resumes after a restart."""

    remaining: float = 1.0
    """Share of the training that is left, from 1 to 0, for schedules; set before each rollout."""
    reward: RewardSum = RewardSum({})
    """The reward, loaded; none in datasets and in worlds that compute it themselves."""

    @abstractmethod
    def collect(
        self, policy: Policy, *, generator: torch.Generator, on_step: Callable[[int], None] = lambda transitions: None
    ) -> tuple[Rollout, Sequence[Episode]]:
        """Return the next rollout, and the episodes that ended in it. ``generator`` draws the actions; it is the same
        in all processes, which draw equally often. ``on_step`` is called with numbers of transitions collected since.
        """

    def in_passes(self, epochs: int) -> tuple[int, int]:
        """Return the steps and the updates of ``epochs`` passes over the data. From now on a rollout ends with a pass,
        so a pass's last may be short. Raise `ConfigError` if the policy's own actions are the data.
        """
        raise ConfigError(
            f"training.epochs={epochs} counts passes over a dataset or a pool's references, and this algorithm "
            "learns from the policy's own episodes or texts: set training.steps"
        )

    @abstractmethod
    def state_dict(self) -> list[dict[str, Any]]:
        """Return the position as JSON, one entry for each of this process's envs."""

    @abstractmethod
    def load_state_dict(self, states: list[dict[str, Any]]) -> None:
        """Return to the position that `state_dict` gave."""

    def tensors(self) -> dict[str, Tensor]:
        """Return the rest of the position, tensors ``(num_envs, …)`` of this process's envs."""
        return {}

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:  # noqa: B027 (optional)
        """Load this process's rows of `tensors`."""

    def incidents(self) -> dict[str, int]:
        """Return counts of lost envs and the like in this process so far; each update logs the sums."""
        return self.reward.figures()

    def samples(self) -> list[dict[str, Any]]:
        """Return readable parts of the last rollout as JSON."""
        return []

    def save_shared(self, folder: Path) -> None:
        """Write state that belongs to no env into a checkpoint; only the first process does."""
        self.reward.save(folder)

    def load_shared(self, folder: Path) -> None:
        """Load what `save_shared` wrote."""
        self.reward.load(folder)

    def close(self) -> None:
        """Close envs and processes."""
        self.reward.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


_SHORT_STEPS = 3  # Steps of a rollout from which the cost of a run is estimated
_ANY_RULES = [["a", 1.0]]  # Rules of a judge whose answers do not matter, in any world


class CannotPlay(ConfigError):
    """A baseline cannot play in this world, and is left out of an evaluation."""


@dataclass(frozen=True)
class Player:
    """An agent under the name that results give it."""

    name: str  # ``trained``, ``zero-shot``, ``clone``, or one of the world's `baselines`
    policy: Policy | None = None  # None for a baseline that needs no policy


@dataclass(frozen=True, kw_only=True)
class Demonstrator(Player):
    """An agent whose play is recorded."""

    world: "World"
    settings: Mapping[str, Any]  # The whole config by dotted key, without private values; stored with the recording
    run: str | None = None  # Name of the folder of the run that the checkpoint belongs to
    checkpoint: str | None = None

    @property
    def identity(self) -> dict[str, Any]:
        """Everything that determines its play, as JSON."""
        model = {}
        if self.policy is not None:
            model = {"model": self.settings["model.path"], "policy": self.world.policy_config.model_dump()}
        return {"agent": self.name, "run": self.run, "checkpoint": self.checkpoint, **model}


@dataclass(eq=False)
class World(ABC):
    """A source of experience. Making one loads nothing and starts nothing.

    A subclass annotates ``config`` with its class of settings, sets `offers`, and implements `collector`, `play` and
    `watch`. Register it as ``@worlds.register(ID)``; its config has that id by default.
    """

    config: Any
    """The config's section ``world``; the annotation of a subclass names its class, a `WorldConfig`."""
    evaluation: Any
    """The config's section ``evaluation``; likewise an `EvaluationConfig`."""
    reward_parts: Mapping[str, RewardPartConfig | None]
    """The config's section ``reward``."""
    policy_config: ComponentConfig
    """The config's section ``policy``."""
    seed: int
    """Seed of the run."""
    device: str
    """Device of reward models and metrics."""
    checkpoint: Path | None = None
    """Checkpoint that is evaluated; a reward model that was trained online is loaded from it."""
    suite: str | None = None
    """Test suite that the world's config was changed for; None while training."""

    offers: ClassVar[WorldSpec]
    """Everything that this kind of world can offer policies and rewards."""
    suites: ClassVar[Mapping[str, str]] = {"held-out": "held-out episodes of the run's own world"}
    """Test suites with descriptions, the default one first."""
    suite_groups: ClassVar[Mapping[str, Sequence[str]]] = {}
    """Names for several suites; ``controls`` has those in which an agent that reads its goal must fail."""
    baselines: ClassVar[Mapping[str, str]] = {}
    """Agents that play here without a policy, with descriptions."""
    experiment: ClassVar[str | None] = None
    """Experiment, a bundled one or the path of a YAML file, from which training starts and in which baselines play."""
    starter_experiment: ClassVar[str | None] = None
    """Experiment that `groundling.train` starts from instead with a starter model, or none."""
    presentation: ClassVar[Presentation] = Presentation()

    # The contract

    @abstractmethod
    def collector(self, policy: Policy, algorithm: Algorithm, rows: slice) -> Collector:
        """Return the source of a run's rollouts, on training seeds, of the envs, texts or columns of a dataset that
        belong to this process (``rows``). Raise `ConfigError` if a component is missing, or an option has no effect.
        """

    @abstractmethod
    def play(self, player: Player, num_episodes: int) -> Iterator[Episode]:
        """Play the first held-out episodes of `suite`, each yielded when it ends, in any order. Raise `CannotPlay` if
        the player is a baseline that cannot play in this world.
        """

    def measure(self, player: Player, episodes: Sequence[Episode]) -> Played:
        """Return all episodes that `play` yielded, in order, with figures that only all of them together have."""
        return Played(episodes)

    @abstractmethod
    def watch(self, player: Player, number: int) -> Iterator[Frame]:
        """Play the held-out episode of this number, step by step; raise as `play`."""

    @classmethod
    def has(cls, place: str) -> bool:
        """Return True for the value of the config's `WorldConfig.PLACE` if it exists, as an env or a pool."""
        return False

    @property
    def spec(self) -> WorldSpec:
        """The specification of the configured world; raise `ConfigError` if its env does not exist or suit."""
        return self.offers

    @property
    def settings(self) -> dict[str, Any]:
        """Settings that evaluations must share to be comparable, as JSON."""
        place, seeding = (
            {self.config.PLACE: getattr(self.config, self.config.PLACE)},
            {"episode_seeds": text_episode.SCHEME},
        )
        return place | self.config.declared(OfEvaluation) | self.evaluation.declared(OfEvaluation) | seeding

    @property
    def entropy_floor(self) -> float:
        """Entropy in nats below which a policy that still fails has stopped exploring; 0 if unknown."""
        floor: float = getattr(self.config, "entropy_floor", 0.0)
        return floor

    # Seeds and suites

    def training_seed(self, row: int, episode: int) -> int:
        """Return the seed of the ``episode``-th training episode of the run's env ``row``."""
        return text_episode.training_seed(self.seed, row, episode)

    @staticmethod
    def held_out_seed(number: int) -> int:
        """Return the seed of a held-out episode, the same for all runs and agents."""
        return text_episode.held_out_seed(number)

    @classmethod
    def find_suites(cls, names: str) -> list[str]:
        """Return the suites of a list of names and groups such as ``held-out,controls``, each once."""
        found: dict[str, None] = {}
        for name in map(str.strip, names.split(",")):
            if name not in cls.suites and name not in cls.suite_groups:
                raise ConfigError(unknown("suite", name, (*cls.suites, *cls.suite_groups)))
            found |= dict.fromkeys(cls.suite_groups.get(name, (name,)))
        return list(found)

    def check_player(self, player: Player) -> None:
        """Raise `CannotPlay` if a player has neither a policy nor the name of a baseline."""
        if player.policy is None and player.name not in self.baselines:
            known = f"there are {', '.join(self.baselines)}" if self.baselines else "it takes a policy"
            raise CannotPlay(f"{player.name} does not play {self.spec.name}: {known}")

    # Rewards and rollouts

    @cached_property
    def reward(self) -> RewardSum:
        """The run's reward, checked, with nothing loaded; raise `GroundlingError` if a part does not suit this world,
        needs something that is missing, or all parts are missing.
        """
        return make_parts(self.reward_parts, self.spec)

    def begin_reward(self, policy: Policy, processes: Processes, samples: Sequence[Sample] = ()) -> RewardSum:
        """Load what `reward` needs; ``samples`` is the training split of a pool."""
        lm = getattr(policy, "lm", None)
        self.reward.begin(RewardContext(self.device, self.seed, processes, self.spec.subject, lm, samples))
        return self.reward

    def rollouts(self, policy: Policy, algorithm: Algorithm) -> Collector:
        """Return the collector of all envs or texts, for a custom loop in one process; use it in a ``with`` block."""
        return self.collector(policy, algorithm, slice(0, self.config.num_rows))

    def shortened(self, recurrence: int, steps_per_gradient: int) -> Self:
        """Return the world with the smallest rollouts that show a run's cost, and with judges that cost nothing. A
        rollout has whole segments of the policy's ``recurrence``, and steps for a gradient of the algorithm.
        """
        steps = max(_SHORT_STEPS, -(-steps_per_gradient // self.config.num_rows))
        return self._with_free_judges({self.config.STEPS: -(-steps // recurrence) * recurrence})

    def _with_free_judges(self, changes: Mapping[str, Any]) -> Self:
        """Return the world with changed settings, and rules in place of judges that are asked during training."""
        parts = dict(self.reward_parts)
        for name, part in self.reward_parts.items():
            if part is not None and part.args.get("online"):
                online = {**part.args["online"], "judge": "rules", "args": {"rules": _ANY_RULES}}
                parts[name] = part.model_copy(update={"args": {**part.args, "online": online}})
                judged = self.reward.parts[name]
                run = RewardContext(self.device, self.seed, world=self.spec.subject)
                with naming(name):
                    judged.begin(run)  # reports errors of the replaced judge's settings
                judged.close()
        return replace(self, config=self.config.model_copy(update=changes), reward_parts=parts)
