"""GLAM's prompt, to the letter."""

from collections.abc import Sequence

from groundling.envs.languages import FRENCH_COLOURS, check_language

_HEADINGS = {
    "english": ("Possible action of the agent", "Goal of the agent"),
    "french": ("Actions possibles pour l'agent", "But de l'agent"),
}
# In the order in which the original looks them up: a later one replaces an earlier one. It knows no doors.
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
    """The prompt that GLAM's agents read (arXiv 2302.02662, appendix C), spaces and commas included.

    Args:
        goal: The mission. In French, an English mission of BabyAI's is put as the original put it, which knows "go to"
            alone; any other stands as it is, as those of an env made with ``language="french"`` do.
        actions: The admissible actions.
        observations: The recent observations, each a list of descriptions, oldest first; three in GLAM.
        past_actions: The actions taken between them.
        language: ``english`` or ``french``.

    Raises:
        TranslationError: an unknown language.
    """
    if check_language(language) == "french" and goal.startswith(_ENGLISH_ORDERS):
        goal = _goal_as_the_original_translates_it(goal)
    return tell(goal, actions, observations, past_actions, language)


def tell(
    goal: str,
    actions: Sequence[str],
    observations: Sequence[Sequence[str]],
    past_actions: Sequence[str],
    language: str,
) -> str:
    """The same with the goal as it is given, whatever the language; arguments and errors are `glam_prompt`'s."""
    check_language(language)
    possible, wanted = _HEADINGS[language]
    prompt = f"{possible}: {', '.join(actions)} \n {wanted}: {goal}"
    for i, descriptions in enumerate(observations):
        seen = "".join(f"{description}, " for description in descriptions)
        taken = past_actions[i] if i < len(past_actions) else ""
        prompt += f" \n Observation {i}: {seen}\n Action {i}: {taken}"
    return prompt


def _goal_as_the_original_translates_it(goal: str) -> str:
    """Every goal becomes "aller à …" with whatever determiner, noun and colour occur in it as substrings."""

    def last_match(words: dict[str, str]) -> str:
        return next((french for english, french in reversed(words.items()) if english in goal), "")

    return f"aller à {last_match(_DETERMINERS)} {last_match(_NOUNS)} {last_match(FRENCH_COLOURS)}"
