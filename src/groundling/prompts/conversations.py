"""Prompts that are conversations: the whole episode in turns, and BALROG's form for chat models."""

from groundling.envs.languages import check_language
from groundling.envs.text_env import TextObservation
from groundling.errors import ConfigError
from groundling.prompts.prompt import Conversation, prompts

_SYSTEM = {
    "english": "You act in a world that is told to you in words. Answer each message with your next action.",
    "french": "Tu agis dans un monde qui t'est décrit. Réponds à chaque message par ta prochaine action.",
}
_HEADINGS = {"english": ("Goal", "Actions", "View"), "french": ("But", "Actions", "Vue")}
_BALROG_SYSTEM = "You play a game in a world of rooms. Answer each message with one of the actions, and nothing else."
_EXPLANATIONS = {
    "turn left": "face the direction that is to your left now",
    "turn right": "face the direction that is to your right now",
    "go forward": "take a step the way you face",
    "pick up": "take the thing that is right in front of you",
    "drop": "put what you carry down in front of you",
    "toggle": "open or close the door or box that is right in front of you",
}
_TIPS = ("You can carry one thing at a time.", "If what you look for is not in sight, turn around until you see it.")


@prompts.register("conversation")
def conversation(observation: TextObservation, language: str) -> Conversation:
    """The episode in turns, goal and admissible actions first; for world.history=null."""
    goal, possible, view = _HEADINGS[check_language(language)]
    views = tuple("\n".join(descriptions) for descriptions in observation.descriptions)
    # Chat templates may trim a message, which would shift the first line of a map.
    views = tuple(f"{view}:\n{text}" if text[:1].isspace() else text for text in views)
    past = observation.past_choices or (observation.actions,) * len(observation.past_actions)
    choices = tuple(f"{possible}: {', '.join(actions)}" for actions in (*past, observation.actions))
    return Conversation(_SYSTEM[language], f"{goal}: {observation.goal}", views, choices, observation.past_actions)


@prompts.register("balrog")
def balrog(observation: TextObservation, language: str) -> Conversation:
    """The set-up of BALROG's agents for BabyAI (arXiv 2411.13543), in English only and in our own sentences.

    The mission, each action with an explanation, two tips; then the observations, without "You see", and actions.
    BALROG shows the last 16 turns: world.history=17 adds the present one.
    """
    if check_language(language) != "english":
        raise ConfigError(f"the prompt balrog is in English: set world.language=english, got {language!r}")
    explained = "\n".join(
        f"{action}: {_EXPLANATIONS[action]}" if action in _EXPLANATIONS else action for action in observation.actions
    )
    views = tuple(
        "\n".join(description.removeprefix("You see ") for description in descriptions)
        for descriptions in observation.descriptions
    )
    choices = ("\n".join([f"These are the actions:\n{explained}\n", *_TIPS]),) * len(views)
    return Conversation(_BALROG_SYSTEM, f"Your task: {observation.goal}.", views, choices, observation.past_actions)
