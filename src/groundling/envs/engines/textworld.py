"""TextWorld (Côté et al. 2018, arXiv 1806.11532): text envs with games that are generated from a seed."""

import hashlib
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gymnasium

from groundling.envs.seeds import is_held_out
from groundling.errors import ConfigError, importing, unknown
from groundling.io.files import cache

_COOKING = dict.fromkeys(("recipe", "take", "go"), 1) | dict.fromkeys(("open", "cook", "cut", "drop"), False)
_DEFAULTS: dict[str, dict[str, Any]] = {
    "coin_collector": {"level": 5},
    "treasure_hunter": {"level": 5},
    "simple": {"rewards": "dense", "goal": "brief", "test": False},
    "cooking": {**_COOKING, "recipe_seed": 0, "split": None},
}


class TextWorldGame(gymnasium.Env[str, str]):
    """One of the engine's challenges: coin_collector, treasure_hunter, simple, cooking.

    An observation consists of the result of the last action, the room and the inventory. ``info["actions"]`` lists the
    admissible actions in alphabetical order. The reward is the increase in score divided by the game's maximum score,
    or -1 for losing the game. An episode is truncated after ``max_steps``.

    A game takes a few seconds to generate and compile, and is cached in ``~/.cache/groundling/textworld``.

    Args:
        challenge: Name of the challenge.
        params: Settings of the challenge, such as ``{level: 10}``.
        max_steps: Maximum number of steps in an episode.
        games: Number of games in each split; held-out episodes use different games from training episodes.

    Raises:
        ConfigError: The package is missing, or the challenge or a setting does not exist.
    """

    observation_space = action_space = gymnasium.spaces.Text(100_000)

    def __init__(
        self,
        challenge: str = "treasure_hunter",
        params: Mapping[str, Any] | None = None,
        max_steps: int = 50,
        games: int = 100,
    ) -> None:
        if challenge not in _DEFAULTS:
            raise ConfigError(unknown("TextWorld challenge", challenge, _DEFAULTS))
        if wrong := (params or {}).keys() - _DEFAULTS[challenge].keys():
            raise ConfigError(unknown(f"{challenge} setting", min(wrong), _DEFAULTS[challenge]))
        if games < 1:
            raise ConfigError(f"games must be at least 1, got {games!r}")
        with importing("TextWorld", "textworld"):
            import textworld
        self._textworld = textworld
        self._challenge, self._settings = challenge, _DEFAULTS[challenge] | dict(params or {})
        self.max_steps, self._games = max_steps, games
        names = ("description", "inventory", "admissible_commands", "objective", "score", "max_score", "won", "lost")
        self._wanted = textworld.EnvInfos(**dict.fromkeys(names, True))
        self._game: Any = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        seed = int(self.np_random.integers(2**31)) if seed is None else seed
        self.close()
        path = self._path(seed % self._games + 2**30 * is_held_out(seed))
        self._game = self._textworld.start(str(path), self._wanted)
        self._game.seed(0)  # seeds the interpreter
        self._steps, self._score = 0, 0
        state = self._game.reset()
        text, info = self._observe(state, first=True)
        return text, info | {"goal": " ".join(state.objective.split())}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        state, score, done = self._game.step(action)
        self._steps += 1
        gained, self._score = (score - self._score) / state.max_score, score
        text, info = self._observe(state)
        reward = -1.0 if state.lost else gained
        return text, reward, done, not done and self._steps >= self.max_steps, info

    def close(self) -> None:
        if self._game is not None:
            self._game.close()

    def _observe(self, state: Any, first: bool = False) -> tuple[str, dict[str, Any]]:
        parts = [state.description, state.inventory]
        result = state.feedback.partition("\n>")[0]  # a prompt and a status line follow
        if not first and result.split() not in [part.split() for part in parts]:
            parts.insert(0, result)
        lines = [line.strip() for part in parts for line in part.splitlines() if line.strip()]
        actions = sorted(set(state.admissible_commands or ["look"]))  # the list is empty once the game has ended
        info = {"task": self._challenge, "descriptions": lines, "actions": actions, "success": bool(state.won)}
        return "\n".join(lines), info

    def _path(self, seed: int) -> Path:
        """Return the path of a compiled game, generating the game if necessary."""
        settings = json.dumps([self._textworld.__version__, self._settings], sort_keys=True)
        name = f"{self._challenge}-{hashlib.sha256(settings.encode()).hexdigest()[:12]}-{seed}"
        kept = cache() / "textworld" / f"{name}.z8"
        if kept.exists():
            return kept
        kept.parent.mkdir(parents=True, exist_ok=True)
        from textworld.challenges import CHALLENGES

        options = self._textworld.GameOptions()
        options.seeds = seed
        with tempfile.TemporaryDirectory(dir=kept.parent) as folder:
            options.path = str(Path(folder) / kept.name)
            game = CHALLENGES[f"tw-{self._challenge}"][1](self._settings, options)
            made = Path(self._textworld.generator.compile_game(game, options))
            for suffix in (".json", ".z8"):  # the last one marks the game as complete
                made.with_suffix(suffix).replace(kept.with_suffix(suffix))
        return kept
