"""The journals of a command's evaluations: each is found again by what is played, by whom, and by which code."""

import hashlib
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from shutil import rmtree
from types import TracebackType
from typing import Self

import torch
from torch import Tensor

import groundling
from groundling.config.schema import Config
from groundling.io.files import cache
from groundling.policies.policy import Policy
from groundling.worlds.journal import Journal

_DAYS = 30
"""After which what was stopped is deleted."""
_SETTINGS = ("world", "policy", "model", "reward", "evaluation", "seed")
"""Of a configuration: what an episode follows from."""
_PACKAGES = ("torch", "transformers", "peft", "gymnasium", "minigrid", "nle")
"""What it follows from beside our code."""
_FOLDER = "GROUNDLING_JOURNALS"
"""Of the environment: where the command lines of a command that runs several leave their journals to it."""
_SAMPLED = 2**16
"""Numbers of a tensor of weights, at most, that go into its digest beside the sum of all."""


class Journals:
    """The journals of the evaluations of a command; a context manager. They are deleted where it ends without an error.

    They lie in the user's cache: those in a run's folder that somebody sent would decide what is found of it.
    """

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._journals: list[Journal] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for journal in self._journals:
            if kind is None and _FOLDER not in os.environ:
                journal.forget()
            else:
                journal.close()

    def of(self, config: Config, agent: str, policy: Policy | None, suite: str, num_episodes: int) -> Journal:
        """The journal of what an agent does in a suite; one that keeps nothing of who follows no policy.

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
            *(agent, suite, num_episodes, *_versions(), _code(), _weights(policy)),
            *(str(policy.device), torch.cuda.device_count()),
            *(settings[name] for name in _SETTINGS),
        ]
        try:
            folder = Path(os.environ.get(_FOLDER) or _home())
        except RuntimeError:  # the user has no home
            return Journal()
        _delete_old(_home())
        journal = Journal(folder / f"{_digest(about)}.jsonl", self._began)
        self._journals.append(journal)
        return journal


@contextmanager
def journals_of_command_lines(words: Sequence[str]) -> Iterator[None]:
    """Let the command lines that are run in the block leave their journals, which are deleted where it ends without an
    error.

    Args:
        words: Of the command that runs them: the same command goes on with them.
    """
    try:
        folder = _home() / _digest([str(Path.cwd()), *words])
    except RuntimeError:
        yield
        return
    os.environ[_FOLDER] = str(folder)
    try:
        yield
    finally:
        del os.environ[_FOLDER]
    rmtree(folder, ignore_errors=True)


def _home() -> Path:
    return cache() / "evaluations"


def _digest(about: object) -> str:
    return hashlib.sha256(json.dumps(about, sort_keys=True, default=str).encode()).hexdigest()[:32]


def _versions() -> Iterator[str]:
    for name in _PACKAGES:
        with suppress(PackageNotFoundError):
            yield f"{name} {version(name)}"


def _code() -> list[tuple[str, int, int]]:
    """All files of this package, and of the user's own code that is loaded: when they were written, and their sizes."""
    ours = Path(groundling.__file__).parent
    others = (str(Path(os.__file__).parent), str(Path(torch.__file__).parents[1]), str(ours))
    named = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
    own = {Path(name) for name in named if isinstance(name, str) and not name.startswith(others)}
    found = [(str(path), path.stat()) for path in sorted([*ours.rglob("*.py"), *filter(Path.is_file, own)])]
    return [(name, stat.st_mtime_ns, stat.st_size) for name, stat in found]


def _weights(policy: Policy) -> list[str]:
    return [_digest_of(value) for value in policy.state_dict().values() if isinstance(value, Tensor)]


def _digest_of(weights: Tensor) -> str:
    """Of the sum and of a sample of the numbers: to hash a large model takes longer than many an evaluation."""
    if weights.is_meta:
        return str(weights.shape)
    flat = weights.detach().flatten()
    sampled = flat[:: max(1, flat.numel() // _SAMPLED)].to("cpu", torch.float64)
    total = float(flat.sum(dtype=torch.float64))
    return hashlib.sha256(sampled.numpy().tobytes() + repr((total, weights.shape)).encode()).hexdigest()


def _delete_old(home: Path) -> None:
    with suppress(OSError):  # the folder may be another user's
        for path in list(home.glob("**/*.jsonl")):
            with suppress(OSError):  # another process may delete it meanwhile
                if time.time() - path.stat().st_mtime > _DAYS * 24 * 3600:
                    path.unlink()
