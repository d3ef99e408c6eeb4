"""Any BabyAI or MiniGrid env, told in words."""

from collections.abc import Sequence
from typing import Any, Literal, SupportsFloat

import gymnasium
from minigrid.envs.babyai.core import roomgrid_level

from groundling.envs.babyai_text.descriptions import describe
from groundling.envs.babyai_text.languages import (
    Language,
    TranslationError,
    check_language,
    translate_mission,
)
from groundling.envs.babyai_text.sight import see_faster
from groundling.errors import ConfigError
from groundling.registry import unknown

ACTIONS: dict[Language, tuple[str, ...]] = {
    "english": ("turn left", "turn right", "go forward", "pick up", "drop", "toggle"),
    "french": ("tourner à gauche", "tourner à droite", "aller tout droit", "ramasser", "lâcher", "basculer"),
}
"""GLAM's actions in words, by language; the i-th is Minigrid's action i."""

Observation = dict[str, Any]


def translate_actions(actions: Sequence[str], language: str) -> list[str]:
    """Tell those of `ACTIONS` in ``language``; those that are told in it already stand as they are.

    Raises:
        TranslationError: an unknown language, or an action that is none of them.
    """
    own = ACTIONS[check_language(language)]
    known = {name: own[i] for names in ACTIONS.values() for i, name in enumerate(names)}
    for action in actions:
        if action not in known:
            raise TranslationError(
                f"cannot tell the action {action!r} in {language}: expected {', '.join(ACTIONS['english'])}; for "
                f"others give all of them in {language}, as env.actions=[…]"
            )
    return [known[action] for action in actions]


# Minigrid prints every level that it draws and rejects; a module's own `print` hides the built-in one.
roomgrid_level.print = lambda *_: None  # type: ignore[attr-defined]


class BabyAIText(gymnasium.Wrapper[Observation, int, Observation, int]):
    """Adds ``info["descriptions"]``, a list of sentences, at reset and step; leaves the rest as it is.

    Args:
        env: A MiniGrid env with its ordinary observation (image, direction, mission).
        language: ``english`` or ``french``, of the sentences and of ``obs["mission"]``.
        compat: See `describe`.
    """

    def __init__(
        self,
        env: gymnasium.Env[Observation, int],
        language: str = "english",
        compat: Literal["glam"] | None = None,
    ) -> None:
        super().__init__(env)
        see_faster(env.unwrapped)
        self.language = check_language(language)
        if compat not in (None, "glam"):
            raise ConfigError(unknown("compat", str(compat), ("glam",)))
        self.compat: Literal["glam"] | None = compat
        if self.language != "english":
            # Minigrid's space holds the English missions; BabyAI's holds any text.
            space: Any = env.observation_space
            mission = roomgrid_level.BabyAIMissionSpace()
            self.observation_space = gymnasium.spaces.Dict({**space.spaces, "mission": mission})

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Begin an episode: Minigrid's observation, and its sentences in the info."""
        observation, info = self.env.reset(seed=seed, options=options)
        return self._told(observation, info)

    def step(self, action: int) -> tuple[Observation, SupportsFloat, bool, bool, dict[str, Any]]:
        """Take one of Minigrid's actions."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        observation, info = self._told(observation, info)
        return observation, reward, terminated, truncated, info

    def _told(self, observation: Observation, info: dict[str, Any]) -> tuple[Observation, dict[str, Any]]:
        unwrapped: Any = self.env.unwrapped
        info["descriptions"] = describe(
            observation["image"], unwrapped.carrying, self.language, compat=self.compat
        )
        if self.language != "english":
            observation = {**observation, "mission": translate_mission(observation["mission"], self.language)}
        return observation, info
