"""The journals of a command's evaluations: each is found again by what is played, by whom, and by which code."""

import hashlib
import json
import os
import sys
import time
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch

from groundling import __version__
from groundling.configs.schema import Config
from groundling.files import cache
from groundling.policies.policy import Policy
from groundling.worlds.journal import Journal

_DAYS = 30
"""After which what was stopped is forgotten."""
_PLAYED_WITH = ("world", "policy", "model", "reward", "evaluation", "seed", "device")
"""Of a configuration: what an episode hangs on."""


class Journals:
    """Keeps what a command's agents have done until the command comes to its end; a context manager.

    They lie in the user's own cache: those in a run's folder that somebody sent would decide what is found of it.
    """

    def __init__(self) -> None:
        self._open: list[Journal] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for journal in self._open:
            if kind is None:
                journal.forget()
            else:
                journal.close()

    def of(self, config: Config, agent: str, policy: Policy | None, suite: str, num_episodes: int) -> Journal:
        """The journal of what an agent does in a suite; an empty one that keeps nothing of who follows no policy.

        Args:
            config: Under the suite.
            agent: What the results call it.
            policy: Whom it follows; its weights tell it from others.
            suite: Which is played.
            num_episodes: How many.
        """
        if policy is None:
            return Journal()
        settings = asdict(config)
        about = [
            *(__version__, torch.__version__, agent, suite, num_episodes, _code(), _weights(policy)),
            *(settings[name] for name in _PLAYED_WITH),
        ]
        name = hashlib.sha256(json.dumps(about, sort_keys=True, default=str).encode()).hexdigest()[:32]
        folder = cache() / "evaluations"
        _forget_old(folder)
        journal = Journal(folder / f"{name}.jsonl")
        self._open.append(journal)
        return journal


def _weights(policy: Policy) -> list[float]:
    return [float(value.sum(dtype=torch.float64)) for value in policy.state_dict().values()]


def _code() -> list[tuple[str, int]]:
    """The files of the code that is loaded, but for what is installed, and when each was written."""
    installed = str(Path(os.__file__).parent), str(Path(torch.__file__).parents[1])
    named: set[Any] = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
    files = (name for name in named if isinstance(name, str) and not name.startswith(installed))
    return sorted((name, Path(name).stat().st_mtime_ns) for name in files if Path(name).is_file())


def _forget_old(folder: Path) -> None:
    for path in folder.glob("*.jsonl"):
        if time.time() - path.stat().st_mtime > _DAYS * 24 * 3600:
            path.unlink(missing_ok=True)
