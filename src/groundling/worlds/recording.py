"""What is recorded of agents at play: datasets of their episodes, and pairs of segments for a judge."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from groundling.configs.schema import Config
from groundling.judges.preferences.labels import Format
from groundling.policies.policy import Policy


@dataclass(frozen=True)
class Demonstrator:
    """Who plays, and where."""

    config: Config
    """Whose world it is played in."""
    agent: str
    """What it is called: trained, zero-shot, or one of `groundling.worlds.AGENTS`."""
    policy: Policy | None
    """Whom it follows; None of agents that need no policy."""
    run: str | None = None
    """The name of the run's folder whose checkpoint it is."""
    checkpoint: str | None = None

    @property
    def about(self) -> dict[str, Any]:
        """Who it is, as JSON: another one would play otherwise."""
        config = self.config
        model = (
            {"model": config.model.path, "policy": asdict(config.policy)} if self.policy is not None else {}
        )
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
