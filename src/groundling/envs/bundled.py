"""The bundled envs, by Gymnasium id. The code of an env is imported when the env is created."""

from typing import Any

import gymnasium
from gymnasium.envs.registration import WrapperSpec

_BABYAI, _NETHACK = "groundling.envs.babyai_text", "groundling.envs.nethack"
_WRITING, _ENGINES = "groundling.envs.text_generation", "groundling.envs.engines"
ABOUT = {
    _BABYAI: "GLAM's text levels",
    "groundling.envs.mixture": "several text envs; each episode is played in one of them",
    _WRITING: "text generation for a pool's prompts, token by token",
    f"{_NETHACK}.words": "one of Motif's NetHack tasks, with observations as text",
    _NETHACK: "one of Motif's NetHack tasks",
    f"{_ENGINES}.gem": "a GEM game or question (extra gem)",
    f"{_ENGINES}.reasoning_gym": "a Reasoning Gym question (extra reasoning-gym)",
    f"{_ENGINES}.scienceworld": "a ScienceWorld task (extra scienceworld)",
    f"{_ENGINES}.text_arena": "a single-player TextArena game (extra textarena)",
    f"{_ENGINES}.textworld:": "a generated TextWorld game (extra textworld)",
    f"{_ENGINES}.textworld_express": "a TextWorldExpress game (extra worlds)",
}  # descriptions for `groundling list envs`, by module

MIXED_TASKS = ("goto", "pickup", "open", "putnext", "pick up seq go to")
LEVELS: dict[str, dict[str, object]] = {
    "BabyAI-MixedTrainLocal-v0": {"tasks": MIXED_TASKS, "split": "train"},
    "BabyAI-MixedTestLocal-v0": {"tasks": MIXED_TASKS, "split": "test"},
    "BabyAI-PickUpSeqGoToLocal-v0": {"tasks": ("pick up seq go to",), "split": "train"},
    "BabyAI-PickUpThenGoToLocal-v0": {"tasks": ("pick up then go to",), "split": "train"},
    "BabyAI-GoToAfterPickUpLocal-v0": {"tasks": ("go to after pick up",), "split": "train"},
    "BabyAI-PickUpSeqPickUpLocal-v0": {"tasks": ("pick up seq pick up",), "split": None},
}  # GLAM's levels and their arguments for `LocalLevel`
TASKS: dict[str, dict[str, Any]] = {
    "NetHackScore-v1": {"goal": "score"},
    "NetHackStaircase-v1": {"goal": "staircase", "level": 2},
    "NetHackStaircaseLvl3-v1": {"goal": "staircase", "level": 3},
    "NetHackStaircaseLvl4-v1": {"goal": "staircase", "level": 4},
    "NetHackStaircaseContinual-v1": {"goal": "staircase", "level": 2, "continual": True},
    "NetHackStaircaseLvl3Continual-v1": {"goal": "staircase", "level": 3, "continual": True},
    "NetHackStaircaseLvl4Continual-v1": {"goal": "staircase", "level": 4, "continual": True},
    "NetHackOracle-v1": {"goal": "oracle"},
    "NetHackOracleSober-v1": {"goal": "oracle", "sober": True},
}  # Motif's tasks and their arguments for `groundling.envs.nethack.make_goal`
WORDS = {name.replace("NetHack", "NetHackWords-"): arguments for name, arguments in TASKS.items()}
"""The same tasks with observations as text, and their arguments for `groundling.envs.nethack.words.make_words`."""
TEXT_GENERATION = "TextGeneration-v0"
ENGINES = {
    "Gem-v0": "gem:Gem",
    "ReasoningGym-v0": "reasoning_gym:ReasoningGym",
    "ScienceWorld-v0": "scienceworld:ScienceWorld",
    "TextArena-v0": "text_arena:TextArena",
    "TextWorld-v0": "textworld:TextWorldGame",
    "TextWorldExpress-v0": "textworld_express:TextWorldExpress",
}  # Envs from other packages, and their modules in `groundling.envs.engines`


def register() -> None:
    """Register the envs with Gymnasium; neither nle nor the engines need to be installed."""
    import minigrid  # noqa: F401  (registers its own envs first)

    for id, arguments in LEVELS.items():
        gymnasium.register(id, entry_point=f"{_BABYAI}.text:make_level", kwargs=arguments)
    gymnasium.register("Mixture-v0", entry_point="groundling.envs.mixture:Mixture")
    gymnasium.register(TEXT_GENERATION, entry_point=f"{_WRITING}.env:TextGenerationEnv")
    limit = WrapperSpec("AdoptTimeLimit", f"{_NETHACK}.tasks:AdoptTimeLimit", {})
    for entry_point, tasks in ((f"{_NETHACK}:make_goal", TASKS), (f"{_NETHACK}.words:make_words", WORDS)):
        for id, arguments in tasks.items():
            gymnasium.register(id, entry_point=entry_point, kwargs=arguments, additional_wrappers=(limit,))
    for id, entry_point in ENGINES.items():
        gymnasium.register(id, entry_point=f"{_ENGINES}.{entry_point}")
