"""Seeding of games that draw from the process's global generators, as TextArena's and GEM's do."""

import hashlib
import random
from collections.abc import Callable

import numpy as np

from groundling.envs.text_episode import is_held_out

_DRAWS = 64  # Maximum number of games started to find one of the right split


class GlobalRandom:
    """One env's state of ``random`` and of NumPy's global generator, in effect inside a ``with`` block.

    Without it, all envs of a process draw from one stream, and an episode depends on the steps of the others.
    """

    def __init__(self) -> None:
        self._state = self._process = (random.getstate(), np.random.get_state())

    def __enter__(self) -> None:
        self._process = (random.getstate(), np.random.get_state())
        self._restore(self._state)

    def __exit__(self, *_: object) -> None:
        self._state = (random.getstate(), np.random.get_state())
        self._restore(self._process)

    @staticmethod
    def _restore(state: tuple[object, object]) -> None:
        random.setstate(state[0])  # type: ignore[arg-type]
        np.random.set_state(state[1])  # type: ignore[arg-type]


def start_game(seed: int, start: Callable[[int], str]) -> None:
    """Start games until one belongs to the split of ``seed``: a quarter of the first observations, chosen by their
    hash, are held out. The 64th game is accepted in any case, since some games always start with the same text.

    Args:
        start: Starts a game with a seed in [0, 2³²), and returns its first observation.
    """
    for drawn in np.random.SeedSequence(seed).generate_state(_DRAWS):
        random.seed(int(drawn))
        np.random.seed(drawn)
        text = start(int(drawn))
        if (hashlib.sha256(text.encode()).digest()[0] < 64) == is_held_out(seed):
            return
