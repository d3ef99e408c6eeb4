"""Slow rewards: computed in several processes, and once for each text."""

import multiprocessing
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from typing import Annotated, Any

import torch

from groundling.errors import ConfigError
from groundling.fields import Ge
from groundling.metrics.scorer import Meta, References, Scorer, Texts
from groundling.rewards.registry import create_within, rewards
from groundling.rewards.reward import Reward
from groundling.runtime.parent import end_with

_SAMPLES_PER_JOB = 4  # Few, as TER takes a thousand times longer for some texts than for others

Sample = tuple[str, str, Sequence[str], Mapping[str, Any]]  # Prompt, generation, references and meta


@rewards.register("pooled")
@dataclass(kw_only=True)
class Pooled(Reward):
    """``reward``, computed in several processes and cached by sample.
    Meant for TER of long texts (a second per sample); other lexical rewards take milliseconds. Processes start at the
    first call, and each keeps the model that the reward loads. Rewards that depend on other samples (CIDEr) are
    refused.
    """

    reward: Any
    """A mapping with an ``id`` and its ``args``; in Python also a reward."""
    num_processes: Annotated[int, Ge(0)] = 0
    """0: only this process."""
    remembered: Annotated[int, Ge(0)] = 100_000
    """Number of samples whose rewards are cached; the oldest are dropped."""

    _inner: Scorer = field(init=False, repr=False)
    _cache: dict[str, float] = field(default_factory=dict, init=False, repr=False)
    _pool: ProcessPoolExecutor | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        given = self.reward
        if isinstance(given, Scorer):
            self._inner = given
        elif isinstance(given, Mapping) and "id" in given and not set(given) - {"id", "args"}:
            self._inner = create_within(self.compat, given["id"], given.get("args"))
        else:
            raise ConfigError(f"pooled needs reward={{id: …, args: {{…}}}}, got {given!r}")
        if not self._inner.by_sample or self._inner.per_token:
            raise ConfigError(f"{self._inner.name} cannot be pooled: it does not judge each sample by itself")
        self.needs_references = self._inner.needs_pool

    def check(self) -> None:
        self._inner.check()

    def score(self, prompts: Texts, generations: Texts, references: References, meta: Meta) -> list[float]:
        samples = list(zip(prompts, generations, references, meta or [{}] * len(prompts), strict=True))
        keys = [repr((prompt, text, list(given), more)) for prompt, text, given, more in samples]
        new = {key: sample for key, sample in zip(keys, samples, strict=True) if key not in self._cache}
        self._cache |= zip(new, self._score_new(list(new.values())), strict=True)
        scores = [self._cache[key] for key in keys]
        for key in [*islice(self._cache, max(0, len(self._cache) - self.remembered))]:
            del self._cache[key]
        return scores

    def _score_new(self, samples: Sequence[Sample]) -> list[float]:
        if not self.num_processes:
            return _score(self._inner, samples) if samples else []
        if self._pool is None:
            self._pool = ProcessPoolExecutor(
                self.num_processes, multiprocessing.get_context("spawn"), _start, (os.getpid(), self._inner)
            )
        jobs = [samples[i : i + _SAMPLES_PER_JOB] for i in range(0, len(samples), _SAMPLES_PER_JOB)]
        return [score for scores in self._pool.map(_score_in_worker, jobs) for score in scores]


def _score(reward: Scorer, samples: Sequence[Sample]) -> list[float]:
    return list(map(float, reward(*map(list, zip(*samples, strict=True)))))


_worker_reward: Scorer  # In a worker process: the reward, kept from job to job with the model that it has loaded


def _start(parent: int, reward: Scorer) -> None:
    end_with(parent)
    global _worker_reward
    _worker_reward = reward
    torch.set_num_threads(1)


def _score_in_worker(samples: Sequence[Sample]) -> list[float]:
    return _score(_worker_reward, samples)
