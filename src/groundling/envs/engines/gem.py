"""The games and questions of GEM (Liu et al. 2025, arXiv 2510.01051) as text envs."""

import logging
from collections.abc import Mapping
from typing import Any

import gymnasium

from groundling.envs.engines.global_random import GlobalRandom, start_game
from groundling.errors import ConfigError, importing, unknown


class Gem(gymnasium.Env[str, str]):
    r"""A GEM env. Any text is an action, unless ``world.actions`` lists the actions to choose from.

    The goal is the rules or the question. An observation consists of the result of the last action and the board, if
    there is one. An action without ``\boxed{…}`` is wrapped in it. An episode is a success if its last reward is 1.

    Args:
        game: Id of the env, such as ``game:Sokoban-v0-easy`` or ``rg:letter_counting``.
        params: Arguments of the env, such as ``{max_turns: 10}``; the defaults are those of the env.

    Raises:
        ConfigError: The package is missing, the game does not exist, or its data is missing.
    """

    observation_space = action_space = gymnasium.spaces.Text(100_000)

    def __init__(self, game: str = "game:GuessTheNumber-v0-easy", params: Mapping[str, Any] | None = None) -> None:
        make, games = _import_gem()
        if game not in games:
            raise ConfigError(unknown("GEM env", game, games))
        self._random, self._name = GlobalRandom(), game
        with self._random:
            try:
                self._game = make(game, **(params or {}))
            except (LookupError, OSError) as error:  # missing data from NLTK or the hub
                raise ConfigError(f"GEM cannot start {game}: {' '.join(str(error).split()):.200}") from error

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        seed = int(self.np_random.integers(2**31)) if seed is None else seed
        with self._random:
            start_game(seed, self._start)
        text, info = self._observe("", self._first[1])
        return text, info | {"goal": " ".join(self._first[0].split())}

    def _start(self, seed: int) -> str:
        self._first: tuple[str, dict[str, Any]] = self._game.reset(seed=seed)
        return self._first[0] + self._first[1].get("suffix", "")

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        with self._random:
            text, reward, terminated, truncated, about = self._game.step(
                action if r"\boxed{" in action else rf"\boxed{{{action}}}"
            )
        observation, info = self._observe("" if "TERMINAL_STATE" in text else text, about)
        if terminated or truncated:
            info["success"] = reward == 1
        return observation, float(reward), bool(terminated), bool(truncated), info

    def _observe(self, text: str, about: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        parts = [part.strip("\n") for part in (text, about.get("suffix", "")) if part]
        return "\n".join(parts), {"task": self._name, "descriptions": parts}


def _import_gem() -> tuple[Any, Mapping[str, Any]]:
    """Import GEM, then restore the root logger, which the import configures."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    try:
        with importing("GEM", "gem"):
            from gem.envs.registration import ENV_REGISTRY, make
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
    return make, ENV_REGISTRY
