"""What is recorded of agents at play: datasets of their episodes, and pairs of segments for a judge."""

from dataclasses import dataclass
from pathlib import Path

from groundling.errors import ConfigError
from groundling.judges.preferences.labels import Format


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
    screens: bool = False
    """Keep the screen of each step; for NetHack."""

    def refuse_screens(self) -> None:
        """Raise `ConfigError` if screens are asked for, in a world that has none."""
        if self.screens:
            raise ConfigError("--screens is for NetHack, other worlds have none: leave it out")
