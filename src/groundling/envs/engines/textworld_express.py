"""TextWorldExpress (Jansen and Côté 2022, arXiv 2208.01174), an engine written in Java, as a text env."""

import json
import string
from collections.abc import Mapping
from typing import Any

import gymnasium

from groundling.envs.engines.java import shared_java, start_java, stop_java
from groundling.envs.seeds import is_held_out
from groundling.errors import ConfigError, importing

_STATIC_GAMES = frozenset({"sorting"})  # their scores are static fields, which envs in one JVM would share
_GAMES_OF_A_FOLD = 1000
_FIRST = {"train": 0, "dev": 10_000, "test": 20_000}  # Number of each fold's first game


class TextWorldExpress(gymnasium.Env[str, str]):
    """One of the engine's games: coin, mapreader, cookingworld, twc, sorting, arithmetic, simonsays, peckingorder.

    An observation consists of the result of the last action, the room and the inventory. ``info["actions"]`` lists the
    actions, which change at each step, in alphabetical order. The reward is the increase in score. An episode ends
    when the task succeeds or fails, and is truncated after ``max_steps``.

    Args:
        game: Name of the game.
        params: Options of the game, such as ``{numLocations: 5, includeDoors: 1}``; the defaults are the engine's.
        max_steps: Maximum number of steps in an episode.
        fold: Fold of 1,000 games: train, dev or test. If None, seeds of held-out episodes
            (`groundling.envs.seeds.is_held_out`) use test, and other seeds use train.

    Raises:
        ConfigError: The package or Java is missing, or the game, an option or the fold does not exist.
    """

    def __init__(
        self, game: str = "coin", params: Mapping[str, Any] | None = None, max_steps: int = 50, fold: str | None = None
    ) -> None:
        if fold is not None and fold not in _FIRST:
            raise ConfigError(f"fold must be {', '.join(_FIRST)} or null, got {fold!r}")
        options = ",".join(f"{name}={int(value)}" for name, value in (params or {}).items())
        with importing("TextWorldExpress", "worlds"):
            from textworld_express.textworld_express import JAR_PATH
        self._own_gateway = start_java("TextWorldExpress", JAR_PATH) if game in _STATIC_GAMES else None
        jvm = (self._own_gateway or shared_java("TextWorldExpress", JAR_PATH)).jvm
        self._engine = jvm.textworldexpress.runtime.PythonInterface()
        games = list(self._engine.getGameNames())
        if game not in games:
            raise ConfigError(f"TextWorldExpress has no game {game!r}; available: {', '.join(games)}")
        if problem := self._engine.load(game, options):
            self.close()
            raise ConfigError(f"TextWorldExpress cannot load {game} with {options or 'no options'}: {problem}")
        self._max_steps, self._fold = max_steps, fold
        self.observation_space = gymnasium.spaces.Text(100_000, charset=string.printable)
        self.action_space = gymnasium.spaces.Text(1_000, charset=string.printable)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        seed = int(self.np_random.integers(2**31)) if seed is None else seed
        fold = self._fold or ("test" if is_held_out(seed) else "train")
        number = seed % _GAMES_OF_A_FOLD
        self._steps, self._score = 0, 0.0
        state = json.loads(self._engine.generateNewGameJSON(_FIRST[fold] + number, fold, False))
        return self._in_words(state, first=True)

    def close(self) -> None:
        if self._own_gateway is not None:
            stop_java(self._own_gateway)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        state = json.loads(self._engine.stepJSON(action))
        self._steps += 1
        gained, self._score = state["score"] - self._score, state["score"]
        observation, info = self._in_words(state)
        terminated = state["tasksuccess"] or state["taskfailure"] or self._score >= 1
        return observation, gained, terminated, not terminated and self._steps >= self._max_steps, info

    def _in_words(self, state: Mapping[str, Any], first: bool = False) -> tuple[str, dict[str, Any]]:
        parts = [state["look"], state["inventory"]]
        if not first and state["observation"] not in parts:
            parts.insert(0, state["observation"])
        text = "\n".join(parts)
        info = {
            "goal": " ".join(self._engine.getTaskDescription().split()),
            # The engine indents its lists, but the indentation has no meaning.
            "descriptions": [line.strip() for line in text.splitlines() if line.strip()],
            "actions": sorted(set(state["validActions"])),
            "success": state["tasksuccess"],
            "score": state["score"],
        }
        return text, info
