"""Shorter forms of GLAM's prompt: the same goal and history without the list of actions and the long headings."""

from collections.abc import Sequence

from groundling.envs.languages import check_language

_HEADINGS = {"english": ("Goal", "View", "Action"), "french": ("But", "Vue", "Action")}


def brief_prompt(
    goal: str,
    observations: Sequence[Sequence[str]],
    past_actions: Sequence[str],
    language: str = "english",
) -> str:
    """The goal, then the recent observations with the actions taken between them.

    A policy that scores candidates is given the admissible actions besides, so where they are always the same it need
    not read them. One observation of four things and two walls has 62 tokens of the starter models' tokenizer; in
    GLAM's form it has 85.

    Args:
        goal: The mission.
        observations: The recent observations, each a list of descriptions, oldest first.
        past_actions: The actions taken between them.
        language: ``english`` or ``french``, of the headings.

    Raises:
        TranslationError: an unknown language.
    """
    goal_head, view, action = _HEADINGS[check_language(language)]
    text = f"{goal_head}: {goal}"
    for i, descriptions in enumerate(observations):
        sentences = "".join(f"{description}, " for description in descriptions)
        taken = past_actions[i] if i < len(past_actions) else ""
        text += f" \n {view}: {sentences}\n {action}: {taken}"
    return text


def present_prompt(
    goal: str,
    observation: Sequence[str],
    past_actions: Sequence[str],
    language: str = "english",
) -> str:
    """The goal, the recent actions, and the present observation alone.

    For worlds with long observations: of ten rooms of TextWorldExpress one has some 220 tokens, and each that
    `brief_prompt` quotes as many again, while a past action, which says where the agent comes from, has 5.

    Args:
        goal: The mission.
        observation: The present one, a list of descriptions.
        past_actions: The recent actions, oldest first.
        language: ``english`` or ``french``, of the headings.

    Raises:
        TranslationError: an unknown language.
    """
    goal_head, view, action = _HEADINGS[check_language(language)]
    taken = "".join(f" \n {action}: {past}" for past in past_actions)
    sentences = "".join(f"{description}, " for description in observation)
    return f"{goal_head}: {goal}{taken} \n {view}: {sentences}\n {action}: "
