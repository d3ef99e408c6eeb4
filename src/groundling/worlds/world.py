"""What a world is: the one thing that training, evaluation and the commands know of where experience comes from."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Generic, Literal, Protocol, Self, TypeVar

import gymnasium
import torch

from groundling.algorithms.algorithm import Algorithm
from groundling.envs.spec import WorldSpec
from groundling.errors import ConfigError, RunError
from groundling.io.row_files import Log, ValidationListener
from groundling.metrics.metric import Document
from groundling.policies.policy import Policy
from groundling.registry import ComponentConfig, unknown
from groundling.rewards import RewardSum, Surroundings, make_parts
from groundling.rewards.part import RewardPartConfig
from groundling.rewards.sum import naming
from groundling.runtime.processes import Processes
from groundling.worlds.collector import Collector
from groundling.worlds.config import EvaluationConfig, WorldConfig
from groundling.worlds.episode import HeldOutEpisode, Played
from groundling.worlds.recording import Collected, Recording
from groundling.worlds.showing import Moment, Probed, ReportTable, ShareBeside, ShownEpisode

C = TypeVar("C", bound=WorldConfig)
E = TypeVar("E", bound=EvaluationConfig)
_REHEARSED_STEPS = 3
_ANY_TABLE = [["a", 1.0]]
"""Of a judge whose answers do not matter, in any world."""


class CannotPlay(ConfigError):
    """A baseline does not play in this world; it is left out."""


@dataclass(frozen=True)
class Demonstrator:
    """Who plays, and where."""

    world: "World[Any, Any]"
    """Where it is played."""
    agent: str
    """What it is called: trained, zero-shot, or one of `groundling.worlds.agents`."""
    policy: Policy | None
    """Whom it follows; None of agents that need no policy."""
    settings: Mapping[str, Any]
    """The whole config by dotted key, as it may be given away beside what is recorded."""
    run: str | None = None
    """The name of the run's folder whose checkpoint it is."""
    checkpoint: str | None = None

    @property
    def about(self) -> dict[str, Any]:
        """Who it is, as JSON: another one would play otherwise."""
        model = {}
        if self.policy is not None:
            model = {"model": self.settings["model.path"], "policy": asdict(self.world.acting)}
        return {"agent": self.agent, "run": self.run, "checkpoint": self.checkpoint, **model}


class Actor(Protocol):
    """An agent outside of the library's own loops."""

    def make_env(self, **args: Any) -> gymnasium.Env[Any, Any]:
        """A new env of the world in which it acts, with these keyword arguments beside the world's."""

    def reset(self) -> None:
        """An episode begins: forget the last one."""

    def act(self, observation: Any, info: Mapping[str, Any]) -> Any:
        """What the env, or the reader, is given for what it shows."""

    @property
    def probabilities(self) -> Mapping[str, float] | None:
        """Of the actions at the last `act`; None of an agent that has none."""


@dataclass(eq=False)
class World(ABC, Generic[C, E]):
    """Where a run's experience comes from. One kind each lies in `worlds.text`, `worlds.nethack`, `worlds.writing`.

    Making one loads nothing and starts nothing.
    """

    config: C
    """The config's section ``world``."""
    evaluation: E
    """The config's section ``evaluation``."""
    reward_parts: Mapping[str, RewardPartConfig | None]
    """The config's section ``reward``."""
    acting: ComponentConfig
    """The config's section ``policy``."""
    seed: int
    """The run's."""
    device: str
    """Where reward models and metrics compute."""
    checkpoint: Path | None = None
    """Of a run that is evaluated: what the world learnt with the policy, such as a reward model that a judge taught
    meanwhile, is taken from there."""

    config_class: ClassVar[type[WorldConfig]]
    """Of the section ``world``."""
    evaluation_class: ClassVar[type[EvaluationConfig]]
    """Of the section ``evaluation``."""
    offers: ClassVar[WorldSpec]
    """What this kind of world offers a policy at most, and what it offers rewards."""
    unit: ClassVar[str] = "env steps"
    """What a step of training is here."""
    episodes: ClassVar[str] = "episodes"
    """What is played."""
    suites: ClassVar[Mapping[str, str]] = {"held-out": "held-out episodes of the run's own world"}
    """The tests, the usual one first, and what they ask."""
    controls: ClassVar[Collection[str]] = ()
    """Of the `suites`, those in which an agent fails that reads what it is asked."""
    study_measures: ClassVar[Literal["success", "figures"]] = "figures"
    """What a study of runs here tells: how often agents succeed, suite by suite, or all figures of its first suite."""
    curves: ClassVar[Mapping[str, str | None]] = {"return_mean": "return", "episode_length": None}
    """The columns of ``metrics.jsonl`` that a study keeps, in their order, and what each is called where a study by
    figures draws it over the steps; None: it is not drawn."""
    learning_figures: ClassVar[Sequence[str]] = ()
    """The columns of ``metrics.jsonl`` that reports draw first, in their order, before what is told in every world."""
    beside: ClassVar[ShareBeside | None] = None
    """What is drawn beside the success rate; None: nothing."""
    meanings: ClassVar[Mapping[str, str]] = {}
    """By figure of an evaluation, what a report says of it where it is there."""
    baselines: ClassVar[Mapping[str, str]] = {}
    """The agents that play here without a policy, and what they do."""
    experiment: ClassVar[str | None] = None
    """In whose world they play if no run is named: a bundled experiment, or the path of a YAML file. None: there are
    none."""

    @classmethod
    def has(cls, place: str) -> bool:
        """Whether there is such a place in this kind of world, as the key `WorldConfig.PLACE` names it."""
        return False

    @classmethod
    def start_from(cls, model: str | None) -> str:
        """The experiment from which `groundling.train` starts in a world of this kind that is named alone.

        Args:
            model: The language model that is named; None: none is.

        Raises:
            ConfigError: there is none.
        """
        raise ConfigError(f"a {cls.__name__} names no experiment to start from: give one")

    def actor(self, policy: Policy, generator: torch.Generator) -> "Actor":
        """The policy as an agent of somebody's own loop.

        Args:
            policy: Acts.
            generator: Draws its actions, where it is evaluated so.

        Raises:
            ConfigError: the policy does not suit this world.
        """
        raise ConfigError(
            f"an agent of {self.spec.name} cannot be loaded to act elsewhere: evaluate or watch the run"
        )

    @property
    @abstractmethod
    def spec(self) -> WorldSpec:
        """What it offers a policy.

        Raises:
            ConfigError: there is no such env, or its actions are not those that the config names.
        """

    @property
    def entropy_floor(self) -> float:
        """Nats; a policy below that still fails no longer explores. 0 where none can be told."""
        return 0.0

    @property
    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """What evaluations are of, as JSON: those of equal settings can stand beside each other."""

    # --------------------------------------------------------------------------------------------- training

    @cached_property
    def reward(self) -> RewardSum:
        """What is learnt from, checked and with nothing loaded.

        Raises:
            ConfigError: a part does not suit this world, or there is none.
            GroundlingError: what one needs is missing.
        """
        return make_parts(self.reward_parts, self.spec)

    def begin_reward(
        self, policy: Policy, processes: Processes, samples: Sequence[Document] = ()
    ) -> RewardSum:
        """`reward`, with what it needs loaded; ``samples`` are a pool's training split."""
        lm = getattr(policy, "lm", None)
        self.reward.begin(Surroundings(self.device, self.seed, processes, self.spec.subject, lm, samples))
        return self.reward

    @abstractmethod
    def collector(self, policy: Policy, algorithm: Algorithm, rows: slice) -> Collector:
        """What a run's rollouts come from, on training seeds.

        Args:
            policy: Acts, and says what memory it keeps.
            algorithm: Learns from them.
            rows: Which of the run's envs, texts or columns of a dataset are this process's.

        Raises:
            ConfigError: a part is missing, or an option does nothing here.
        """

    def rollouts(self, policy: Policy, algorithm: Algorithm) -> Collector:
        """`collector` of all envs or texts, for a loop in one process; close it at the end, as ``with`` does."""
        return self.collector(policy, algorithm, slice(0, self.config.num_rows))

    def rehearsal(self, recurrence: int, steps_per_gradient: int) -> Self:
        """The same with as little to collect as shows what it costs, and with nobody who is paid for answers.

        Args:
            recurrence: Of the policy: a rollout has whole segments of so many steps.
            steps_per_gradient: Of the algorithm: fewer steps than these give it nothing to learn from.
        """
        steps = max(_REHEARSED_STEPS, -(-steps_per_gradient // self.config.num_rows))
        steps = -(-steps // recurrence) * recurrence
        return self._rehearsing({self.config.STEPS: steps})

    def _rehearsing(self, changes: Mapping[str, Any]) -> Self:
        """It with other values in its section of the config, and nobody who is paid."""
        return replace(self, config=replace(self.config, **changes), reward_parts=self._unpaid())

    def _unpaid(self) -> dict[str, RewardPartConfig | None]:
        """The reward's parts with a table of rules in the place of judges that are asked: they may cost money."""
        parts = dict(self.reward_parts)
        for name, part in self.reward_parts.items():
            if part is not None and part.args.get("online"):
                online = {**part.args["online"], "judge": "rules", "args": {"rules": _ANY_TABLE}}
                parts[name] = replace(part, args={**part.args, "online": online})
                judged = self.reward.parts[name]
                run = Surroundings(self.device, self.seed, world=self.spec.subject)
                with naming(name):
                    judged.begin(run)  # whose mistakes are told
                judged.close()
        return parts

    def check_measures(self, policy: Policy) -> None:
        """Raise `GroundlingError` where what is measured while the run trains lacks something."""

    def random_play(self, count: int) -> list[Any]:
        """Observations of training episodes in which actions are drawn uniformly.

        Raises:
            ConfigError: this world gives none.
        """
        raise ConfigError(
            f"{self.spec.name} has no random play to observe: leave policy.args.calibration out"
        )

    def logs(
        self,
        policy: Policy,
        algorithm: Algorithm,
        run_dir: Path,
        update: int,
        last_step: int,
        listeners: Sequence[ValidationListener],
    ) -> list[Log]:
        """What measures the policy while it learns, each into a file of its own.

        Args:
            policy: What learns.
            algorithm: What it learns by.
            run_dir: The run's folder.
            update: After which the run goes on.
            last_step: With which it ends.
            listeners: Are told the figures of validation splits, too.
        """
        return []

    # -------------------------------------------------------------------------------------------- recording

    def learning_from(self, dataset: Path) -> C:
        """The section ``world`` of a run that learns from a dataset, in the place of what the policy does.

        Raises:
            ConfigError: this world has no datasets.
        """
        raise ConfigError(f"{self.spec.name} has no datasets of episodes to learn from")

    def record_episodes(
        self,
        player: Demonstrator,
        num_episodes: int,
        output: Path,
        *,
        only_success: bool = False,
        validation_fraction: float = 0.0,
        on_episode: Callable[[], None] = lambda: None,
    ) -> Collected:
        """Let an agent play training episodes, and write their transitions into a dataset's folder.

        Raises:
            ConfigError: this world has no datasets.
        """
        raise ConfigError(f"{self.spec.name} has no datasets of episodes to collect: give --pairs N")

    def recorded(self, output: Path) -> Collected:
        """What `record_episodes` has written into a dataset's folder so far.

        Raises:
            ConfigError: what reads datasets is not installed.
        """
        return Collected()

    def record_pairs(
        self,
        players: Sequence[Demonstrator],
        recording: Recording,
        on_segment: Callable[[], None] = lambda: None,
    ) -> int:
        """Let agents play, each an episode at a time, and write pairs of segments for `groundling annotate`.

        Returns:
            How many pairs there are.

        Raises:
            ConfigError: this world records none.
        """
        raise ConfigError(f"{self.spec.name} has no pairs of segments to collect")

    # ------------------------------------------------------------------------------------------- evaluation

    def changes(self, suite: str, overrides: Sequence[str] = ()) -> list[str | Mapping[str, Any]]:
        """The overrides that make a run's world a suite's, those of the caller among them.

        Args:
            suite: One of `suites`.
            overrides: The caller's own, which have the last word over the suite's.

        Raises:
            ConfigError: there is no such suite, or it does not suit this world.
        """
        self.find_suites(suite)
        return list(overrides)

    @classmethod
    def find_suites(cls, names: str) -> list[str]:
        """The suites of a list of names such as ``held-out,french``, each once.

        Raises:
            ConfigError: no such suite.
        """
        listed = list(dict.fromkeys(map(str.strip, names.split(","))))
        for name in listed:
            if name not in cls.suites:
                raise ConfigError(unknown("suite", name, cls.suites))
        return listed

    def try_suite(self, suite: str) -> None:
        """Raise `ConfigError` where a suite cannot be played in this world, which is already changed for it."""

    @abstractmethod
    def play(
        self,
        agent: str,
        policy: Policy | None,
        suite: str,
        num_episodes: int,
        on_episode: Callable[[], None] = lambda: None,
    ) -> Played:
        """Let an agent play the first held-out episodes of a suite, in their order.

        Args:
            agent: What it is called: trained, zero-shot, or one of the `baselines`.
            policy: Whom it follows; None of a baseline.
            suite: For which this world is already changed.
            num_episodes: How many.
            on_episode: Called after each.

        Raises:
            CannotPlay: it is a baseline that does not know this world.
        """

    def check_agent(self, agent: str, policy: Policy | None) -> None:
        """Raise `CannotPlay` where an agent without a policy is none of the `baselines`."""
        if policy is None and agent not in self.baselines:
            known = f"there are {', '.join(self.baselines)}" if self.baselines else "it takes a policy"
            raise CannotPlay(f"{agent} does not play {self.spec.name}: {known}")

    def details(self, played: Mapping[str, Played]) -> dict[str, Any]:
        """Further results of an evaluation, as JSON; ``"notes"`` are sentences, which `evaluate` prints as warnings."""
        return {}

    def samples(self, policy: Policy | None, played: Played) -> list[dict[str, Any]]:
        """Some of an agent's episodes, as JSON: enough to be shown in a report."""
        return []

    def shown(self, run_dir: Path, sample: Mapping[str, Any]) -> ShownEpisode:
        """One of `samples` as a report shows it; this world is changed for its suite.

        Args:
            run_dir: The run's folder.
            sample: As JSON.

        Raises:
            RunError: this world has no episodes to show.
        """
        raise RunError(
            f"{run_dir / 'samples'} holds an episode, and {self.spec.name} has none to show: delete it"
        )

    def tables(self, evaluations: Mapping[str, Mapping[str, Any]]) -> list[ReportTable]:
        """What a report tells of a run's evaluations beside their figures.

        Args:
            evaluations: By suite, as JSON.
        """
        return []

    def probed(self, run_dir: Path) -> Probed | None:
        """What a run's policy thought of fixed situations as it learnt; None where it was not asked.

        Raises:
            RunError: what was kept of it cannot be read.
        """
        return None

    @abstractmethod
    def watch(self, agent: str, policy: Policy | None, suite: str, number: int) -> Iterator[Moment]:
        """Let an agent play a held-out episode, moment by moment.

        Args:
            agent: As in `play`.
            policy: As in `play`.
            suite: As in `play`.
            number: Which of the held-out episodes.

        Raises:
            CannotPlay: it is a baseline that does not know this world.
        """

    def predictions(self, episodes: Sequence[HeldOutEpisode]) -> list[dict[str, Any]]:
        """What each episode says, as JSON, in a world where that is a text; none elsewhere."""
        return []
