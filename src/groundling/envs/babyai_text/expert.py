"""BabyAI's expert: Farama's bot, which sees the whole state of the env."""

from typing import Any

import gymnasium
from minigrid.utils.baby_ai_bot import BabyAIBot


class Expert:
    """Plays one episode of a BabyAI env; make a new one after each reset.

    The source is minigrid's ``BabyAIBot`` (Hui et al. 2020, arXiv 2007.12770).
    """

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        self._bot = BabyAIBot(env.unwrapped)
        self._last_action: Any = None

    def act(self) -> int:
        """The next action of the env, as its index; call it once for each step."""
        self._last_action = self._bot.replan(self._last_action)
        return int(self._last_action)
