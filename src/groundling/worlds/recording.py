"""Settings and results of recording agents: datasets of episodes, and pairs of segments for a judge."""

from dataclasses import dataclass
from pathlib import Path

from groundling.errors import ConfigError
from groundling.judges.preferences.pairs import Format


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

    def refuse_screens(self) -> None:
        """Raise `ConfigError` if screens are asked for in a world without any."""
        if self.screens:
            raise ConfigError("--screens is for NetHack, other worlds have none: leave it out")
