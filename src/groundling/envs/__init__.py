"""Worlds: Gymnasium envs whose observations can be told in words."""

from groundling.envs import babyai_text, nethack, text_generation, textworld_express
from groundling.envs.text_env import TextEnv


def register() -> None:
    """Register the envs with Gymnasium."""
    import minigrid  # noqa: F401  (registers its own, which ours stand beside)

    babyai_text.register()
    text_generation.register()
    nethack.register()
    textworld_express.register()


__all__ = ["TextEnv", "register"]
