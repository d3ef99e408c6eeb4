"""Other forms of GLAM's prompt, to train and to test with. All are in English or French."""

from groundling.envs.languages import check_language
from groundling.envs.observation import TextObservation
from groundling.prompts.prompt import prompts

_HEADINGS = {"english": ("Goal", "View", "Action"), "french": ("But", "Vue", "Action")}
_TAGS = {"english": ("goal", "actions", "view", "action"), "french": ("but", "actions", "vue", "action")}
_SENTENCES = {
    "english": ("Your task is to {}.", "You can {}.", "{}.", "You choose to {}.", "You choose to"),
    "french": ("Ta tâche : {}.", "Tu peux : {}.", "{}.", "Tu choisis : {}.", "Tu choisis :"),
}


@prompts.register("brief")
def brief(observation: TextObservation, language: str) -> str:
    """Goal, recent observations and actions, without the admissible actions, which a scoring policy gets anyway.

    An observation of four things and two walls takes 62 tokens of the starter models' tokenizer, in GLAM's form 85.
    """
    goal, view, action = _HEADINGS[check_language(language)]
    text = f"{goal}: {observation.goal}"
    for i, descriptions in enumerate(observation.descriptions):
        taken = observation.past_actions[i] if i < len(observation.past_actions) else ""
        text += f" \n {view}: {_listed(descriptions)}\n {action}: {taken}"
    return text


@prompts.register("present")
def present(observation: TextObservation, language: str) -> str:
    """Goal, recent actions, and only the present observation: for worlds with long observations.

    An observation of ten rooms of TextWorldExpress takes some 220 tokens, a past action 5.
    """
    goal, view, action = _HEADINGS[check_language(language)]
    taken = "".join(f" \n {action}: {past}" for past in observation.past_actions)
    seen = _listed(observation.descriptions[-1])
    return f"{goal}: {observation.goal}{taken} \n {view}: {seen}\n {action}: "


@prompts.register("tagged")
def tagged(observation: TextObservation, language: str) -> str:
    """The contents of GLAM's prompt between tags."""
    goal, possible, view, action = _TAGS[check_language(language)]
    lines = [f"<{goal}>{observation.goal}</{goal}>"]
    lines.append(f"<{possible}>{', '.join(observation.actions)}</{possible}>")
    for i, descriptions in enumerate(observation.descriptions):
        lines.append(f"<{view}>{'; '.join(descriptions)}</{view}>")
        lines += [f"<{action}>{past}</{action}>" for past in observation.past_actions[i : i + 1]]
    return "\n".join([*lines, f"<{action}>"])


@prompts.register("narrative")
def narrative(observation: TextObservation, language: str) -> str:
    """The contents of GLAM's prompt in sentences, with the goal last."""
    goal, possible, view, action, question = _SENTENCES[check_language(language)]
    sentences = []
    for i, descriptions in enumerate(observation.descriptions):
        sentences.append(view.format(". ".join(descriptions)))
        sentences += [action.format(past) for past in observation.past_actions[i : i + 1]]
    sentences += [possible.format(", ".join(observation.actions)), goal.format(observation.goal), question]
    return " ".join(sentences)


def _listed(descriptions: tuple[str, ...]) -> str:
    return "".join(f"{description}, " for description in descriptions)
