"""GLAM's prompt, character for character."""

from collections.abc import Sequence

from groundling.envs.text_env import FRENCH_COLOURS, TextObservation, check_language
from groundling.prompts.prompt import listed, prompts

_HEADINGS = {
    "english": ("Possible action of the agent", "Goal of the agent"),
    "french": ("Actions possibles pour l'agent", "But de l'agent"),
}
# In the order of the original lookup, in which later entries take precedence. It has no entry for doors.
_DETERMINERS = {"the": "la", "a": "une"}
_NOUNS = {"box": "boîte", "ball": "balle", "key": "clef"}
_ENGLISH_ORDERS = ("go to ", "pick up ", "open ", "put ")


def glam_prompt(
    goal: str,
    actions: Sequence[str],
    observations: Sequence[Sequence[str]],
    past_actions: Sequence[str],
    language: str = "english",
) -> str:
    """Return the prompt of GLAM's agents (arXiv 2302.02662, appendix C), including its spaces and commas.

    Args:
        goal: The mission. In French, English BabyAI missions become "aller à …", as in the original; others are kept.
        actions: The admissible actions.
        observations: The recent observations, each a list of descriptions, oldest first; three in GLAM.
        past_actions: The actions taken between them.
        language: ``english`` or ``french``; other values raise `TranslationError`.
    """
    if check_language(language) == "french" and goal.startswith(_ENGLISH_ORDERS):
        # The determiner, noun and colour that occur in the goal as substrings.
        found = (
            next((french for english, french in reversed(words.items()) if english in goal), "")
            for words in (_DETERMINERS, _NOUNS, FRENCH_COLOURS)
        )
        goal = " ".join(["aller à", *found])
    return _glam(goal, actions, observations, past_actions, language)


@prompts.register("glam")
def glam(observation: TextObservation, language: str) -> str:
    """GLAM's prompt: actions, goal, and the recent observations and actions."""
    return _glam(observation.goal, observation.actions, observation.descriptions, observation.past_actions, language)


def _glam(
    goal: str,
    actions: Sequence[str],
    observations: Sequence[Sequence[str]],
    past_actions: Sequence[str],
    language: str,
) -> str:
    possible, wanted = _HEADINGS[check_language(language)]
    parts = [f"{possible}: {', '.join(actions)}"] if actions else []
    parts += [f"{wanted}: {goal}"] if goal else []
    for i, descriptions in enumerate(observations):
        taken = past_actions[i] if i < len(past_actions) else ""
        parts.append(f"Observation {i}: {listed(descriptions)}\n Action {i}: {taken}")
    return " \n ".join(parts)
