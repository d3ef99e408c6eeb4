"""Reasoning Gym (Stojanovski et al. 2025, arXiv 2505.24760): generated questions with verifiable answers."""

import functools
import json
from collections.abc import Mapping
from typing import Any

import gymnasium

from groundling.envs.seeds import is_held_out
from groundling.errors import ConfigError, importing, unknown

FIRST = {"train": 0, "val": 2**29, "test": 2**30}
"""Seed of each split's first question; question i of a dataset has the seed ``seed + i``."""


def questions(dataset: str, split: str, size: int, params: Mapping[str, Any] | None = None) -> Any:
    """Return a split's questions: a sequence of mappings with ``question``, ``answer`` and ``metadata``.

    Raises:
        ConfigError: The package is missing, or the dataset does not exist.
    """
    return _create(dataset, split, size, json.dumps(dict(params or {}), sort_keys=True))


@functools.cache
def _create(dataset: str, split: str, size: int, params: str) -> Any:
    with importing("Reasoning Gym", "reasoning-gym"):
        import reasoning_gym
    if dataset not in reasoning_gym.factory.DATASETS:
        raise ConfigError(unknown("Reasoning Gym dataset", dataset, reasoning_gym.factory.DATASETS))
    return reasoning_gym.create_dataset(dataset, seed=FIRST[split], size=size, **json.loads(params))


class ReasoningGym(gymnasium.Env[str, str]):
    """A question as a one-turn episode; any text is an answer. The reward is the verifier's score for the answer,
    between 0 and 1; 1 is a success. Held-out questions are generated with other seeds, but datasets with few distinct
    questions, such as ``count_bits`` with small numbers, repeat training questions; ``check-env`` counts these.

    Args:
        dataset: Name of a dataset, such as ``letter_counting``.
        params: Arguments of the dataset, such as ``{max_words: 5}``; the defaults are those of the dataset.
        size: Number of questions in each split.
    """

    observation_space = action_space = gymnasium.spaces.Text(100_000)

    def __init__(
        self, dataset: str = "letter_counting", params: Mapping[str, Any] | None = None, size: int = 10_000
    ) -> None:
        if size < 1:
            raise ConfigError(f"size must be at least 1, got {size!r}")
        self._name = dataset
        self._create = functools.partial(questions, dataset, size=size, params=params)
        self._questions = self._create("train")

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        seed = int(self.np_random.integers(2**31)) if seed is None else seed
        self._questions = self._create("test" if is_held_out(seed) else "train")
        self._entry = self._questions[seed % len(self._questions)]
        return self._entry["question"], {"task": self._name}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        score = float(self._questions.score_answer(action, self._entry))
        return "", score, True, False, {"task": self._name, "success": score == 1}
