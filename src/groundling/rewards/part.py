"""Parts of a run's reward."""

import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import model_validator
from torch import Tensor

from groundling.envs.spec import Evidence, WorldSpec
from groundling.errors import ConfigError
from groundling.fields import Section
from groundling.metrics.scorer import Document
from groundling.registry import Registry
from groundling.rewards.inputs import RewardInputs
from groundling.runtime.processes import Processes

_EVIDENCE: dict[Evidence, str] = {
    "env": "an env's own reward",
    "captions": "a text to read at each step",
    "counts": "how often a caption has come up in the episode",
    "references": "texts to compare with (references)",
}


class RewardPartConfig(Section):
    """One summand of a run's reward."""

    id: str | None = None
    """One of `groundling list rewards`; null: the part's name."""
    coefficient: float = 1.0
    """Factor of its rewards in the sum; 0: they are only logged."""
    args: dict[str, Any] = {}

    @model_validator(mode="before")
    @classmethod
    def _check_mapping(cls, values: Any) -> Any:
        if isinstance(values, int | float):
            raise ValueError("a part, {coefficient: 1, args: {…}}, or null")
        return values


@dataclass(frozen=True)
class RewardContext:
    """Device, seed, model and data that a run provides to the parts of its reward."""

    device: str = "cpu"
    seed: int = 0
    processes: Processes = field(default_factory=Processes)
    world: str | None = None  # Kind of world, as judges distinguish them; None if they do not know it
    lm: Any = None  # The language model under training; None in runs without one
    samples: Sequence[Document] = ()  # The split of a pool for which texts are generated; empty in other worlds


class Part(ABC):
    """One summand of a reward. It is made and checked before anything is loaded; `begin` loads what it needs.

    Each of several processes has its own instance, which sees only that process's envs; a checkpoint keeps the first's
    state. Rewards that depend on steps of other envs therefore change with the number of processes, unless the part
    gathers these steps by `RewardContext.processes`.
    """

    needs: frozenset[Evidence] = frozenset()
    """Inputs that it uses; of the class, unless it depends on arguments."""
    per_token = False
    """Uses every token of a generated text, and not only the whole."""
    needs_model = False
    """Uses the language model under training."""

    def accepts(self, world: WorldSpec) -> str | None:
        """Return None if it can reward in a world, else why not."""
        return refusal(self.needs, world.evidence)

    def check(self) -> None:  # noqa: B027 (many need nothing)
        """Raise `GroundlingError` if a library, a model or a file is missing; fast, and loads no model."""

    def begin(self, context: RewardContext) -> None:  # noqa: B027 (many need nothing)
        """Load what it needs; called once, before `rewards`."""

    @abstractmethod
    def rewards(self, inputs: RewardInputs) -> Tensor:
        """float32 ``(num_steps, num_envs)``, on the CPU, without the coefficient."""

    def figures(self) -> dict[str, int]:
        """Counts to log besides its rewards, of this process."""
        return {}

    def forget(self) -> None:  # noqa: B027 (most have no state)
        """Reset the state that later rewards depend on."""

    def save(self, folder: Path) -> None:  # noqa: B027 (most have no state)
        """Write the state that later rewards depend on into an existing folder."""

    def load(self, folder: Path) -> None:  # noqa: B027 (most have no state)
        """Restore what `save` wrote."""

    def close(self) -> None:  # noqa: B027 (most have no resources)
        """Release threads and processes."""


parts: Registry[Any] = Registry("reward")
"""Classes of parts, and all rewards of texts, of which `create_part` makes parts."""


def check_name(name: str) -> None:
    """Raise `ConfigError` if a part cannot have this name, which is also that of a folder."""
    if not re.fullmatch(r"[\w-]{1,100}", name):
        raise ConfigError(f"a part of the reward is named by letters, digits, _ and -, got {name!r}")


def refusal(needs: Collection[Evidence], evidence: Collection[Evidence]) -> str | None:
    """Return why a part that uses ``needs`` cannot reward where there is ``evidence``, or None."""
    missing = [text for kind, text in _EVIDENCE.items() if kind in needs and kind not in evidence]
    return f"it looks at {' and '.join(missing)}" if missing else None
