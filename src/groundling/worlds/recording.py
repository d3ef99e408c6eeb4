"""What is recorded of agents at play: datasets of their episodes, and pairs of segments for a judge."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from groundling.judges.preferences.labels import Format
from groundling.policies.policy import Policy

if TYPE_CHECKING:
    from groundling.worlds.world import World


@dataclass(frozen=True)
class Demonstrator:
    """Who plays, and where."""

    world: "World[Any, Any]"
    """Where it is played."""
    agent: str
    """What it is called: trained, zero-shot, or one of `groundling.worlds.AGENTS`."""
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


@dataclass
class Collected:
    """What a dataset has come to."""

    episodes: int = 0
    kept: int = 0
    transitions: int = 0


@dataclass(frozen=True)
class Recording:
    """Which pairs of segments are recorded."""

    output: Path
    name: str
    """Of who plays, as the dataset tells it."""
    pairs: int
    length: int | None = None
    """Steps of a segment; 0: it is a whole episode; None: as is usual in the world."""
    stride: int | None = None
    """Of how many steps one segment is kept; None: as is usual in the world."""
    format: Format | None = None
    """Of the files; None: as is usual in the world."""
