"""Seed games that use the process's global random generators, such as those of TextArena and GEM."""
# ruff: noqa: NPY002

import hashlib
import random
from collections.abc import Callable
from typing import Any

import numpy as np

from groundling.envs.seeds import is_held_out

_DRAWS = 64  # Maximum number of games started to find one in the right split


class GlobalRandom:
    """An env's own state of ``random`` and NumPy's global generator, active inside a ``with`` block.

    Without it, all envs in a process would share one stream, and an episode would depend on the steps of other envs.
    """

    def __init__(self) -> None:
        self._own = _state()

    def __enter__(self) -> None:
        self._process = _state()
        _restore(self._own)

    def __exit__(self, *_: object) -> None:
        self._own = _state()
        _restore(self._process)


def start_game(seed: int, start: Callable[[int], str]) -> None:
    """Start games until one belongs to the split of ``seed``. A quarter of the first observations, chosen by hash, are
    held out. The 64th game is always accepted, since some games always start with the same text.

    Args:
        start: A function that starts a game with a seed in [0, 2³²) and returns its first observation.
    """
    for drawn in np.random.SeedSequence(seed).generate_state(_DRAWS):
        random.seed(int(drawn))
        np.random.seed(drawn)
        text = start(int(drawn))
        if (hashlib.sha256(text.encode()).digest()[0] < 64) == is_held_out(seed):
            return


def _state() -> tuple[Any, Any]:
    return random.getstate(), np.random.get_state()


def _restore(state: tuple[Any, Any]) -> None:
    random.setstate(state[0])
    np.random.set_state(state[1])
