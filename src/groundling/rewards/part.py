"""What a part of a run's reward is: it says what it looks at, and gives each step a number."""

import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from groundling.envs.spec import Evidence, WorldSpec
from groundling.errors import ConfigError
from groundling.metrics.metric import Document
from groundling.registry import Registry
from groundling.rewards.stretch import Stretch
from groundling.runtime.processes import Processes

_EVIDENCE: dict[Evidence, str] = {
    "env": "an env's own reward",
    "captions": "a text to read at each step",
    "counts": "how often a caption has come up in the episode",
    "references": "texts to compare with (references)",
}


@dataclass
class RewardPartConfig:
    """One summand of what an agent learns from."""

    id: str | None = None
    """One of `groundling list rewards`; null: the name under which the part stands."""
    coefficient: float = 1.0
    """Factor on it in the sum; 0: it is logged and not learnt from."""
    args: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Surroundings:
    """What a run lends its reward's parts."""

    device: str = "cpu"
    seed: int = 0
    processes: Processes = field(default_factory=Processes)
    world: str | None = None
    """The kind of world, as judges tell them apart; None: they know nothing of it."""
    lm: Any = None
    """The language model under training; None in runs without one."""
    samples: Sequence[Document] = ()
    """Of a pool, all samples of the split that texts are written to; empty elsewhere."""


class Part(ABC):
    """One summand of a reward. Made and checked before anything is loaded; `begin` loads what it needs.

    Of several processes each has one of its own, which sees the steps of that process's envs alone; a checkpoint keeps
    the first one's state. What depends on steps of other envs is therefore another reward with several processes,
    unless it gathers them by `Surroundings.processes`.
    """

    needs: frozenset[Evidence] = frozenset()
    """What it looks at; known of the class, but where it depends on arguments."""
    per_token = False
    """Whether it looks at every token of a written text, and not only at the whole."""
    needs_model = False
    """Whether it reads the language model under training."""

    def accepts(self, world: WorldSpec) -> str | None:
        """Whether it can reward in a world: None, or why not."""
        return refusal(self.needs, world.evidence)

    def check(self) -> None:  # noqa: B027 (many need nothing)
        """Raise `GroundlingError` if a library, a model or a file is missing; cheap, and loads no model."""

    def begin(self, run: Surroundings) -> None:  # noqa: B027 (many need nothing)
        """Load what it needs; called once, before the first of `rewards`."""

    @abstractmethod
    def rewards(self, stretch: Stretch) -> Tensor:
        """float32 ``(num_steps, num_envs)``, on the CPU, without its coefficient."""

    def figures(self) -> dict[str, int]:
        """What is to be watched of it beside its rewards: counts so far, of this process."""
        return {}

    def forget(self) -> None:  # noqa: B027 (most remember nothing)
        """Reward from here on as if nothing had been rewarded before."""

    def save(self, folder: Path) -> None:  # noqa: B027 (most remember nothing)
        """Write what later rewards depend on into ``folder``, which is there."""

    def load(self, folder: Path) -> None:  # noqa: B027 (most remember nothing)
        """Take up what `save` wrote."""

    def close(self) -> None:  # noqa: B027 (most hold nothing open)
        """Let go of threads and processes."""


parts: Registry[Part] = Registry("reward")
"""Every kind of part; `groundling.rewards.text_part` adds all rewards of texts."""


def check_name(name: str) -> None:
    """Raise `ConfigError` if a part cannot be called so: its name is that of a folder."""
    if not re.fullmatch(r"[\w-]{1,100}", name):
        raise ConfigError(f"a part of the reward is named by letters, digits, _ and -, got {name!r}")


def refusal(needs: Collection[Evidence], evidence: Collection[Evidence]) -> str | None:
    """Why what looks at ``needs`` cannot reward where there is ``evidence``; None if it can."""
    missing = [said for kind, said in _EVIDENCE.items() if kind in needs and kind not in evidence]
    return f"it looks at {' and '.join(missing)}" if missing else None
