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


ABOUT = {
    module.__name__: module.ABOUT for module in (babyai_text, text_generation, nethack, textworld_express)
}
"""By the module that makes them, what is said of the bundled envs."""


def try_one() -> str:
    """Make one of the bundled envs and begin an episode; what came of it, in words."""
    import gymnasium

    _, info = gymnasium.make(next(iter(babyai_text.LEVELS))).reset(seed=0)
    return f"BabyAI-Text tells {len(info['descriptions'])} things"


__all__ = ["ABOUT", "TextEnv", "register", "try_one"]
