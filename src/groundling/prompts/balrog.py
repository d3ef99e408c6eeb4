"""BALROG's form of a BabyAI episode, in words of our own: how a chat model is asked that was never trained for this."""

from collections.abc import Sequence

from groundling.envs.languages import check_language
from groundling.errors import ConfigError
from groundling.prompts.conversation import Conversation

_SYSTEM = (
    "You play a game in a world of rooms. Answer each message with one of the actions, and nothing else."
)
_EXPLANATIONS = {
    "turn left": "face the direction that is to your left now",
    "turn right": "face the direction that is to your right now",
    "go forward": "take a step the way you face",
    "pick up": "take the thing that is right in front of you",
    "drop": "put what you carry down in front of you",
    "toggle": "open or close the door or box that is right in front of you",
}
_TIPS = (
    "You can carry one thing at a time.",
    "If what you look for is not in sight, turn around until you see it.",
)


def balrog_conversation(
    goal: str,
    observations: Sequence[Sequence[str]],
    past_actions: Sequence[str],
    actions: Sequence[str],
    language: str,
) -> Conversation:
    """The mission, the actions with an explanation each and two tips; then what was seen, without "You see", and done.

    The set-up is that of BALROG's agents for BabyAI (arXiv 2411.13543), which are shown the last 16 turns
    (``world.history=17`` with the present one); the sentences are ours.

    Args:
        goal: The mission.
        observations: Each a list of descriptions, oldest first.
        past_actions: The actions taken between them.
        actions: The admissible ones.
        language: ``english``; there is no other.

    Raises:
        ConfigError: another language.
    """
    if check_language(language) != "english":
        raise ConfigError(f"the prompt balrog is in English: set world.language=english, got {language!r}")
    explained = "\n".join(
        f"{action}: {_EXPLANATIONS[action]}" if action in _EXPLANATIONS else action for action in actions
    )
    views = tuple(
        "\n".join(description.removeprefix("You see ") for description in descriptions)
        for descriptions in observations
    )
    choices = "\n".join([f"These are the actions:\n{explained}\n", *_TIPS])
    return Conversation(
        _SYSTEM, f"Your task: {goal}.", views, (choices,) * len(observations), tuple(past_actions)
    )
