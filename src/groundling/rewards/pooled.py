"""Rewards that take long: computed in several processes, and not twice for the same text."""

import multiprocessing
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import torch

from groundling.errors import ConfigError
from groundling.metrics.metric import Meta
from groundling.rewards.reward import Reward, part_of, rewards
from groundling.runtime.parent import end_with

_SAMPLES_AT_ONCE = 4
"""What a process is given at a time: few, as TER takes a thousand times longer for some texts than for others."""

Sample = tuple[str, str, tuple[str, ...], str]


@rewards.register("pooled")
@dataclass(kw_only=True)
class Pooled(Reward):
    """The same as ``reward``, computed in several processes; what a text was given is remembered.

    Meant for TER of long texts (a second a sample); the other lexical rewards take milliseconds. Processes start at
    the first call, and each keeps the model that the reward loads. What does not judge each sample by itself (CIDEr)
    cannot be pooled.
    """

    reward: Mapping[str, Any] | Reward
    """An ``id`` and its ``args``; in Python also a reward."""
    num_processes: int = 0
    """0: none but this one."""
    remembered: int = 100_000
    """How many samples' rewards are kept, the latest."""

    _inner: Reward = field(init=False, repr=False)
    _known: dict[Sample, float] = field(default_factory=dict, init=False, repr=False)
    _pool: ProcessPoolExecutor | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        """Make the reward; raise `ConfigError` if it cannot be pooled, or numbers are negative."""
        super().__post_init__()
        if isinstance(self.reward, Reward):
            self._inner = self.reward
        else:
            if not isinstance(self.reward, Mapping) or "id" not in self.reward or set(self.reward) - {"id", "args"}:
                raise ConfigError(f"pooled needs reward={{id: …, args: {{…}}}}, got {self.reward!r}")
            self._inner = part_of(self.compat, self.reward["id"], self.reward.get("args"))
        if not self._inner.by_sample or self._inner.per_token:
            raise ConfigError(f"{self._inner.name} cannot be pooled: it does not judge each sample by itself")
        self.needs_references = self._inner.needs_references
        for name in ("num_processes", "remembered"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} must be at least 0, got {getattr(self, name)}")

    def check(self) -> None:
        """What the reward needs."""
        self._inner.check()

    def score(
        self,
        prompts: Sequence[str],
        generations: Sequence[str],
        references: Sequence[Sequence[str]],
        meta: Meta | None,
    ) -> list[float]:
        """What the reward gives for each sample, now or earlier."""
        samples: list[Sample] = [
            (prompt, generation, tuple(given), repr(meta[i]) if meta is not None else "")
            for i, (prompt, generation, given) in enumerate(zip(prompts, generations, references, strict=True))
        ]
        new = {sample: i for i, sample in enumerate(samples) if sample not in self._known}
        new_scores = dict(
            zip(new, self._rewarded(list(new.values()), prompts, generations, references, meta), strict=True)
        )
        scores = [new_scores[sample] if sample in new_scores else self._known[sample] for sample in samples]
        self._known |= new_scores
        for sample in [*islice(self._known, max(0, len(self._known) - self.remembered))]:
            del self._known[sample]
        return scores

    def _rewarded(
        self,
        chosen: Sequence[int],
        prompts: Sequence[str],
        generations: Sequence[str],
        references: Sequence[Sequence[str]],
        meta: Meta | None,
    ) -> list[float]:
        """The rewards of the ``chosen`` samples."""
        size = _SAMPLES_AT_ONCE if self.num_processes else max(1, len(chosen))
        jobs = []
        for first in range(0, len(chosen), size):
            part = chosen[first : first + size]
            columns = ([column[i] for i in part] for column in (prompts, generations, references))
            jobs.append((*columns, None if meta is None else [meta[i] for i in part]))
        if not self.num_processes:
            return [score for job in jobs for score in _scores(self._inner, job)]
        if self._pool is None:
            self._pool = ProcessPoolExecutor(
                self.num_processes, multiprocessing.get_context("spawn"), _start, (os.getpid(), self._inner)
            )
        return [score for scores in self._pool.map(_scores_of_kept, jobs) for score in scores]


def _scores(reward: Reward, job: tuple[Any, ...]) -> list[float]:
    return list(map(float, reward(*job)))


# In a process of the pool: the reward, kept from job to job with the model that it has loaded.
_kept_reward: Reward


def _start(parent: int, reward: Reward) -> None:
    end_with(parent)
    global _kept_reward
    _kept_reward = reward
    torch.set_num_threads(1)


def _scores_of_kept(job: tuple[Any, ...]) -> list[float]:
    return _scores(_kept_reward, job)
