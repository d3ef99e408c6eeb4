"""Protocols for optional capabilities of worlds; commands check for them with `isinstance`."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import gymnasium
import torch

from groundling.algorithms.algorithm import Algorithm
from groundling.errors import ConfigError
from groundling.io.row_files import Log, ValidationListener
from groundling.judges.preferences.pairs import Format
from groundling.policies.policy import Policy
from groundling.worlds.episode import EpisodeView, Played, ProbeHistory, ReportTable
from groundling.worlds.world import Demonstrator, Player, World


@dataclass
class Collected:
    """Size of a dataset of episodes."""

    episodes: int = 0
    kept: int = 0
    transitions: int = 0


@dataclass(frozen=True)
class PairSettings:
    """Settings for a dataset of pairs. If a setting is None, the world's default is used."""

    output: Path
    name: str  # name of the agents in the dataset's description
    pairs: int
    length: int | None = None  # steps per segment; 0 for whole episodes
    stride: int | None = None  # one segment is kept per ``stride`` steps
    format: Format | None = None  # file format
    screens: bool = False  # record the screen at each step (NetHack)

    def check_texts(self) -> None:
        """Raise `ConfigError` if an option applies only to NetHack."""
        if self.screens:
            raise ConfigError("--screens applies only to NetHack: remove it")
        if self.format not in (None, "parquet"):
            raise ConfigError(f"--format {self.format} applies only to NetHack: use --format parquet")


@runtime_checkable
class EpisodeRecorder(Protocol):
    """A world whose episodes can be recorded as training datasets."""

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
        """Play training episodes with an agent, and write the transitions to the dataset folder ``output``."""

    def recorded(self, output: Path) -> Collected:
        """Return the current size of a dataset; raise `ConfigError` if a required package is missing."""

    def learning_from(self, dataset: Path) -> Any:
        """Return the ``world`` section for a run that learns from a dataset."""


def episode_recorder(world: World) -> EpisodeRecorder:
    """Return the world if it can record datasets; otherwise raise `ConfigError`."""
    if not isinstance(world, EpisodeRecorder):
        raise ConfigError(f"{world.spec.name} cannot record episodes: record pairs instead, with collect --pairs N")
    return world


@runtime_checkable
class PairRecorder(Protocol):
    """A world that can record pairs of segments for a judge."""

    def record_pairs(
        self, players: Sequence[Demonstrator], settings: PairSettings, on_segment: Callable[[], None] = lambda: None
    ) -> int:
        """Play with each agent in turn, write pairs of segments for `groundling annotate`, and return how many."""


@runtime_checkable
class Suites(Protocol):
    """A world with test suites, each of which changes its config."""

    def suite_overrides(self, suite: str, overrides: Sequence[str]) -> list[str | Mapping[str, Any]]:
        """Return a suite's overrides plus the caller's; raise `ConfigError` if the suite does not apply here."""

    def check_suite(self) -> None:
        """Raise `ConfigError` if `World.suite`, for which this world was configured, cannot be played."""


@runtime_checkable
class TrainingMeasures(Protocol):
    """A world that evaluates a policy periodically during training."""

    def check_measures(self, policy: Policy) -> None:
        """Raise `GroundlingError` if anything that the evaluations need is missing."""

    def logs(
        self,
        policy: Policy,
        algorithm: Algorithm,
        run_dir: Path,
        update: int,
        last_step: int,
        listeners: Sequence[ValidationListener],
    ) -> Iterable[Log]:
        """Return the logs that evaluate the policy, each with its own file in the run's folder. The run continues from
        ``update`` and ends at ``last_step``. Listeners receive the metrics of validation splits.
        """


@runtime_checkable
class RandomPlay(Protocol):
    """A world that provides observations for calibrating or comparing policies."""

    def random_play(self, count: int) -> list[Any]:
        """Return observations from training episodes played with uniformly random actions."""


class Actor(ABC):
    """An agent in a custom loop."""

    probabilities: Mapping[str, float] | None = None
    """Action probabilities of the last call to `act`; None if the agent has none."""

    def make_env(self, **args: Any) -> gymnasium.Env[Any, Any]:
        """Create an env of the agent's world; these keyword arguments override the world's."""
        raise ConfigError("this agent generates text and has no env: pass prompts to `act`")

    def reset(self) -> None:  # noqa: B027 (optional)
        """Start a new episode."""

    @abstractmethod
    def act(self, observation: Any, info: Mapping[str, Any]) -> Any:
        """Return the action or the text for an observation."""


@runtime_checkable
class ActsElsewhere(Protocol):
    """A world whose agents can act in custom loops."""

    def actor(self, policy: Policy, generator: torch.Generator) -> Actor:
        """Return an agent that follows the policy and samples with the generator, or raise `ConfigError`."""


@runtime_checkable
class Exhibit(Protocol):
    """A world that adds episodes, tables and notes to evaluations and reports."""

    def details(self, played: Mapping[str, Played]) -> dict[str, Any]:
        """Return additional results of an evaluation as JSON; its ``"notes"`` are sentences printed as warnings."""

    def samples(self, player: Player, played: Played) -> list[dict[str, Any]]:
        """Return the episodes as JSON, in the format that `view` reads. Reports omit those with ``"chosen": false``,
        which only need to contain the data for replaying them.
        """

    def view(self, run_dir: Path, sample: Mapping[str, Any]) -> EpisodeView:
        """Return the report's view of one of `samples`; this world must be configured for the sample's suite."""

    def tables(self, evaluations: Mapping[str, Mapping[str, Any]]) -> list[ReportTable]:
        """Return tables of a run's evaluations, which are passed as JSON by suite."""


@runtime_checkable
class Probes(Protocol):
    """A world that probes a policy in fixed situations during training."""

    def probe_history(self, run_dir: Path) -> ProbeHistory | None:
        """Return the probe results of a run, or None if it has no probes; raise `RunError` if they cannot be read."""
