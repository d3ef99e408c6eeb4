"""Other forms of the same prompt, to train on or to test with: does an agent read, or know one form by heart?"""

from collections.abc import Sequence

from groundling.envs.languages import check_language

_TAGS = {
    "english": ("goal", "actions", "view", "action"),
    "french": ("but", "actions", "vue", "action"),
}
_SENTENCES = {
    "english": ("Your task is to {}.", "You can {}.", "{}.", "You choose to {}.", "You choose to"),
    "french": ("Ta tâche : {}.", "Tu peux : {}.", "{}.", "Tu choisis : {}.", "Tu choisis :"),
}


def tagged_prompt(
    goal: str,
    actions: Sequence[str],
    observations: Sequence[Sequence[str]],
    past_actions: Sequence[str],
    language: str = "english",
) -> str:
    """Goal, admissible actions, and the recent observations and actions, each between tags.

    Args:
        goal: The mission.
        actions: The admissible actions.
        observations: The recent observations, each a list of descriptions, oldest first.
        past_actions: The actions taken between them.
        language: ``english`` or ``french``, of the tags.

    Raises:
        TranslationError: an unknown language.
    """
    wanted, possible, view, action = _TAGS[check_language(language)]
    lines = [f"<{wanted}>{goal}</{wanted}>", f"<{possible}>{', '.join(actions)}</{possible}>"]
    for i, descriptions in enumerate(observations):
        lines.append(f"<{view}>{'; '.join(descriptions)}</{view}>")
        lines += [f"<{action}>{past}</{action}>" for past in past_actions[i : i + 1]]
    return "\n".join([*lines, f"<{action}>"])


def narrative_prompt(
    goal: str,
    actions: Sequence[str],
    observations: Sequence[Sequence[str]],
    past_actions: Sequence[str],
    language: str = "english",
) -> str:
    """The same in sentences, what is seen first and the goal last; arguments and errors are `tagged_prompt`'s."""
    wanted, possible, seen, chosen, choose = _SENTENCES[check_language(language)]
    sentences = []
    for i, descriptions in enumerate(observations):
        sentences.append(seen.format(". ".join(descriptions)))
        sentences += [chosen.format(past) for past in past_actions[i : i + 1]]
    return " ".join([*sentences, possible.format(", ".join(actions)), wanted.format(goal), choose])
