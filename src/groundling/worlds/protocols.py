"""Protocols of abilities that only some worlds have; commands check for them with `isinstance`."""

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
    """Settings of a dataset of pairs; None: the world's default."""

    output: Path
    name: str  # name of the agents in the dataset's description
    pairs: int
    length: int | None = None  # steps of a segment; 0: whole episodes
    stride: int | None = None  # keep one segment of every so many steps
    format: Format | None = None  # file format
    screens: bool = False  # keep the screen of each step (NetHack)

    def check_texts(self) -> None:
        """Raise `ConfigError` if an option is for NetHack only."""
        if self.screens:
            raise ConfigError("--screens is for NetHack, other worlds have none: leave it out")
        if self.format not in (None, "parquet"):
            raise ConfigError(f"--format {self.format} is NetHack's: pairs of texts are written as parquet")


@runtime_checkable
class EpisodeRecorder(Protocol):
    """A world whose episodes are recorded as datasets to learn from."""

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
        """Let an agent play training episodes, and write their transitions into a dataset's folder."""

    def recorded(self, output: Path) -> Collected:
        """Return the size of a dataset so far; raise `ConfigError` if the package that reads it is not installed."""

    def learning_from(self, dataset: Path) -> Any:
        """Return the section ``world`` of a run that learns from a dataset."""


def episode_recorder(world: World) -> EpisodeRecorder:
    """Return a world that records datasets; raise `ConfigError` if it does not."""
    if not isinstance(world, EpisodeRecorder):
        raise ConfigError(f"{world.spec.name} has no datasets of episodes; it records pairs (collect --pairs N)")
    return world


@runtime_checkable
class PairRecorder(Protocol):
    """A world that records pairs of segments for a judge."""

    def record_pairs(
        self, players: Sequence[Demonstrator], settings: PairSettings, on_segment: Callable[[], None] = lambda: None
    ) -> int:
        """Let agents play in turns, write pairs of segments for `groundling annotate`, and return their number."""


@runtime_checkable
class Suites(Protocol):
    """A world with suites that change its config."""

    def suite_overrides(self, suite: str, overrides: Sequence[str]) -> list[str | Mapping[str, Any]]:
        """Return a suite's overrides, then the caller's; raise `ConfigError` if the suite does not suit this world."""

    def check_suite(self) -> None:
        """Raise `ConfigError` if `World.suite`, for which this world was changed, cannot be played."""


@runtime_checkable
class TrainingMeasures(Protocol):
    """A world that measures a policy at intervals during training."""

    def check_measures(self, policy: Policy) -> None:
        """Raise `GroundlingError` if something needed for the measurements is missing."""

    def logs(
        self,
        policy: Policy,
        algorithm: Algorithm,
        run_dir: Path,
        update: int,
        last_step: int,
        listeners: Sequence[ValidationListener],
    ) -> Iterable[Log]:
        """Return the logs that measure the policy, each with its own file in the run's folder. The run continues from
        ``update``, and ends at ``last_step``; listeners receive the figures of validation splits.
        """


@runtime_checkable
class RandomPlay(Protocol):
    """A world with states to calibrate or compare policies in."""

    def random_play(self, count: int) -> list[Any]:
        """Return observations of training episodes with uniformly drawn actions."""


class Actor(ABC):
    """An agent in a custom loop."""

    probabilities: Mapping[str, float] | None = None
    """Probabilities of the actions at the last `act`; None of an agent without any."""

    def make_env(self, **args: Any) -> gymnasium.Env[Any, Any]:
        """Make an env of its world; these keyword arguments replace the world's."""
        raise ConfigError("a writer acts in no env: give `act` a prompt")

    def reset(self) -> None:  # noqa: B027 (optional)
        """Begin an episode."""

    @abstractmethod
    def act(self, observation: Any, info: Mapping[str, Any]) -> Any:
        """Return the action, or the text, for an observation."""


@runtime_checkable
class ActsElsewhere(Protocol):
    """A world whose agents act in custom loops."""

    def actor(self, policy: Policy, generator: torch.Generator) -> Actor:
        """Return a policy as an agent that draws by the generator; raise `ConfigError` if it does not fit here."""


@runtime_checkable
class Exhibit(Protocol):
    """A world that adds episodes, tables and notes to evaluations and reports."""

    def details(self, played: Mapping[str, Played]) -> dict[str, Any]:
        """Return further results of an evaluation, as JSON; ``"notes"`` are sentences printed as warnings."""

    def samples(self, player: Player, played: Played) -> list[dict[str, Any]]:
        """Return a few episodes as JSON, from which `view` shows them."""

    def view(self, run_dir: Path, sample: Mapping[str, Any]) -> EpisodeView:
        """Return one of `samples` as a report shows it; this world was changed for its suite."""

    def tables(self, evaluations: Mapping[str, Mapping[str, Any]]) -> list[ReportTable]:
        """Return tables of a run's evaluations, which are JSON by suite."""


@runtime_checkable
class Probes(Protocol):
    """A world that asks a policy about fixed situations during training."""

    def probe_history(self, run_dir: Path) -> ProbeHistory | None:
        """Return the answers of a run's policy; None if it was not asked; raise `RunError` if they cannot be read."""
