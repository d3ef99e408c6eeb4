"""The single-player games of TextArena (Guertler et al. 2025, arXiv 2504.11442) as text envs."""

from collections.abc import Mapping
from typing import Any

import gymnasium

from groundling.envs.engines.global_random import GlobalRandom, start_game
from groundling.errors import ConfigError, importing, unknown


class TextArena(gymnasium.Env[str, str]):
    """A single-player game. Any text is an action, unless ``world.actions`` lists the actions to choose from.

    The goal states the game's rules. An observation consists of the game's messages since the last action and its board,
    if it has one. An action without brackets is put in brackets. The game's reward, between 0 and 1, is returned at
    the end of the episode; 1 means success. ``info["metrics"]["invalid_move"]`` is 1 if an invalid move ended it.

    Args:
        game: Id of the game, such as ``FrozenLake-v0``.
        params: Arguments of the game, such as ``{size: 5, num_holes: 6}``; the defaults are those of the game.

    Raises:
        ConfigError: The package or the game's data is missing, or the game does not exist or needs several players.
    """

    observation_space = action_space = gymnasium.spaces.Text(100_000)

    def __init__(self, game: str = "GuessTheNumber-v0", params: Mapping[str, Any] | None = None) -> None:
        with importing("TextArena", "textarena"):
            import textarena
            from textarena.envs.registration import ENV_REGISTRY
        if game not in ENV_REGISTRY:
            raise ConfigError(unknown("TextArena game", game, ENV_REGISTRY))
        self._textarena, self._random, self._name = textarena, GlobalRandom(), game
        with self._random:
            try:
                self._game = textarena.make(game, **(params or {}))
                while isinstance(self._game, textarena.Wrapper):  # wrappers repeat all earlier messages
                    self._game = self._game.env
                self._game.reset(num_players=1, seed=0)
            except (AssertionError, LookupError, SyntaxError) as error:  # player count, NLTK data or Python version
                raise ConfigError(f"TextArena cannot start {game}: {' '.join(str(error).split()):.200}") from error

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        seed = int(self.np_random.integers(2**31)) if seed is None else seed
        with self._random:
            start_game(seed, self._start)
        return self._observe()

    def _start(self, seed: int) -> str:
        self._game.reset(num_players=1, seed=seed)
        self._messages = self._game.get_observation()[1]
        return "\n".join(text for _, text, _ in self._messages)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        with self._random:
            done, _ = self._game.step(action if "[" in action else f"[{action}]")
            self._messages = self._game.get_observation()[1]
        observation, info = self._observe()
        if not done:
            return observation, 0.0, False, False, info
        rewards, about = self._game.close()
        info["success"] = rewards[0] >= 1
        info["metrics"] = {"invalid_move": float(about[0]["invalid_move"])}
        return observation, float(rewards[0]), True, False, info

    def _observe(self) -> tuple[str, dict[str, Any]]:
        kinds = self._textarena.ObservationType
        boards = [text for _, text, kind in self._messages if kind == kinds.GAME_BOARD][-1:]
        hidden = (kinds.PROMPT, kinds.PLAYER_ACTION, kinds.GAME_BOARD)
        texts = [text for _, text, kind in self._messages if kind not in hidden] + boards
        info: dict[str, Any] = {"task": self._name, "descriptions": [text.strip("\n") for text in texts]}
        if rules := [text for _, text, kind in self._messages if kind == kinds.PROMPT]:
            info["goal"] = " ".join(rules[0].split())
        return "\n".join(texts), info
