"""BabyAI's expert: Farama's bot, which sees the whole state of the env."""

from typing import Any

import gymnasium
from minigrid.utils.baby_ai_bot import BabyAIBot

from groundling.errors import GroundlingError


class ExpertError(GroundlingError):
    """The expert does not know this env, or was asked before its first reset."""


class Expert:
    """Plays a BabyAI env, episode by episode, by minigrid's ``BabyAIBot`` (Hui et al. 2020, arXiv 2007.12770).

    Args:
        env: A BabyAI env, wrapped or not.

    Raises:
        ExpertError: The env is not BabyAI's.
    """

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        self._env: Any = env.unwrapped
        if not hasattr(self._env, "validate_instrs"):
            raise ExpertError(f"the expert is BabyAI's bot, and {self._env} is no env of BabyAI")
        self._instructions: Any = None
        self._bot: BabyAIBot | None = None
        self._asked_at = -1
        self._advised: Any = None

    def act(self) -> int:
        """Return the next action's index, assuming that its advice is followed; a second call returns the same."""
        if not hasattr(self._env, "instrs"):
            raise ExpertError("the expert was asked before the env's first reset: call env.reset() first")
        if self._instructions is not self._env.instrs:  # each episode has its own
            self._instructions, self._bot = self._env.instrs, BabyAIBot(self._env)
            self._asked_at, self._advised = -1, None
        assert self._bot is not None
        if self._asked_at != self._env.step_count:
            self._advised, self._asked_at = self._bot.replan(self._advised), self._env.step_count
        return int(self._advised)
