"""Prompts as text or conversations, their registry, and `PromptReader`, which formats observations."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from zlib import crc32

from groundling.envs.text_env import TextObservation, check_language
from groundling.errors import ConfigError, foreign
from groundling.registry import Registry


@dataclass(frozen=True, slots=True)
class Conversation:
    """An episode as turns: the world speaks as the user, and the agent's actions are the assistant's answers.

    Attributes:
        goal: Text that starts the conversation, even if earlier turns are omitted.
        views: The text of each observation; at least one.
        choices: The admissible actions at each observation, as text, or ""; repeated only when they change.
        answers: The assistant's answers between the observations, ``len(views) - 1`` in total.
        tools: JSON schemas of the functions that an answer may call.
    """

    system: str
    goal: str
    views: tuple[str, ...]
    choices: tuple[str, ...]
    answers: tuple[str, ...]
    tools: tuple[str, ...] = ()

    @property
    def instructions(self) -> str:
        """The system prompt, with the tools as text, for models whose chat template does not include tools."""
        return "\n\n".join(filter(None, (self.system, tools_as_text(self.tools))))

    def first_message(self, turn: int = 0) -> str:
        """Return the user's first message if the conversation starts with this turn."""
        choices = self.choices[turn]
        if not choices:
            return "\n\n".join(filter(None, (self.goal, self.views[turn])))
        goal = self.goal and f"{self.goal}\n"
        return f"{goal}{choices}\n\n{self.views[turn]}"

    def message(self, turn: int) -> str:
        """Return the user's message of a later turn."""
        if self.choices[turn] == self.choices[turn - 1]:
            return self.views[turn]
        return f"{self.views[turn]}\n{self.choices[turn]}"

    def messages(self) -> list[dict[str, str]]:
        """Return the messages in the format of OpenAI's chat API."""
        messages = [
            {"role": "system", "content": self.instructions},
            {"role": "user", "content": self.first_message()},
        ]
        for turn, answer in enumerate(self.answers, start=1):
            messages.append({"role": "assistant", "content": answer})
            messages.append({"role": "user", "content": self.message(turn)})
        return messages

    def changed(self, change: Callable[[str], str]) -> "Conversation":
        """Return a copy with ``change`` applied to every text."""
        views, choices, answers = (tuple(map(change, texts)) for texts in (self.views, self.choices, self.answers))
        return Conversation(change(self.system), change(self.goal), views, choices, answers, self.tools)

    def __str__(self) -> str:
        """Return the conversation as plain text, for models that do not accept messages."""
        lines = [f"{self.instructions}\n\n{self.first_message()}\n"]
        lines += [f"{answer}\n{self.message(turn)}\n" for turn, answer in enumerate(self.answers, start=1)]
        return "".join(lines)


def tools_as_text(tools: Sequence[str]) -> str:
    """Return a line for each tool, and instructions for calling them; empty without tools."""
    if not tools:
        return ""
    lines = ["You can call tools:"]
    for function in (json.loads(schema)["function"] for schema in tools):
        given = function["parameters"]["properties"].items()
        arguments = ", ".join(f"{name}: {schema.get('type', 'any')}" for name, schema in given)
        lines.append(f"{function['name']}({arguments}): {function['description']}")
    return "\n".join([*lines, 'To call one, write {"name": NAME, "arguments": {NAME: VALUE}}.'])


Prompt = Callable[[TextObservation, str], str | Conversation]
"""Turns an observation and a language into a text, or into a conversation for the model's chat template."""

prompts: Registry[str | Conversation] = Registry("prompt")


_HEADINGS = {"english": ("Goal", "View", "Action"), "french": ("But", "Vue", "Action")}
_TAGS = {"english": ("goal", "actions", "view", "action"), "french": ("but", "actions", "vue", "action")}
_SENTENCES = {
    "english": ("Your task is to {}.", "You can {}.", "{}.", "You choose to {}.", "You choose to"),
    "french": ("Ta tâche : {}.", "Tu peux : {}.", "{}.", "Tu choisis : {}.", "Tu choisis :"),
}


@prompts.register("brief")
def brief(observation: TextObservation, language: str) -> str:
    """Goal, recent observations and actions, without the admissible actions, which scoring policies see anyway."""
    goal, view, action = _HEADINGS[check_language(language)]
    parts = [f"{goal}: {observation.goal}"] if observation.goal else []
    for i, descriptions in enumerate(observation.descriptions):
        taken = observation.past_actions[i] if i < len(observation.past_actions) else ""
        parts.append(f"{view}: {listed(descriptions)}\n {action}: {taken}")
    return " \n ".join(parts)


@prompts.register("present")
def present(observation: TextObservation, language: str) -> str:
    """Goal, recent actions, and only the current observation, for worlds with long observations."""
    goal, view, action = _HEADINGS[check_language(language)]
    parts = [f"{goal}: {observation.goal}"] if observation.goal else []
    parts += [f"{action}: {past}" for past in observation.past_actions]
    parts.append(f"{view}: {listed(observation.descriptions[-1])}\n {action}: ")
    return " \n ".join(parts)


@prompts.register("tagged")
def tagged(observation: TextObservation, language: str) -> str:
    """The contents of GLAM's prompt in XML-style tags."""
    goal, possible, view, action = _TAGS[check_language(language)]
    lines = [f"<{goal}>{observation.goal}</{goal}>"] if observation.goal else []
    if observation.actions:
        lines.append(f"<{possible}>{', '.join(observation.actions)}</{possible}>")
    for i, descriptions in enumerate(observation.descriptions):
        lines.append(f"<{view}>{'; '.join(descriptions)}</{view}>")
        lines += [f"<{action}>{past}</{action}>" for past in observation.past_actions[i : i + 1]]
    return "\n".join([*lines, f"<{action}>"])


@prompts.register("narrative")
def narrative(observation: TextObservation, language: str) -> str:
    """The contents of GLAM's prompt as sentences, with the goal last."""
    goal, possible, view, action, question = _SENTENCES[check_language(language)]
    sentences = []
    for i, descriptions in enumerate(observation.descriptions):
        sentences.append(view.format(". ".join(descriptions)))
        sentences += [action.format(past) for past in observation.past_actions[i : i + 1]]
    sentences += [possible.format(", ".join(observation.actions))] if observation.actions else []
    sentences += [goal.format(observation.goal)] if observation.goal else []
    return " ".join([*sentences, question])


def listed(descriptions: Sequence[str]) -> str:
    return "".join(f"{description}, " for description in descriptions)


_SYSTEM = {
    "english": "You act in a world that is told to you in words. Answer each message with your next action.",
    "french": "Tu agis dans un monde qui t'est décrit. Réponds à chaque message par ta prochaine action.",
}
_PARTS = {"english": ("Goal", "Actions", "View"), "french": ("But", "Actions", "Vue")}
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
    """The episode as turns, with the goal and admissible actions first; for world.history=null."""
    goal, possible, view = _PARTS[check_language(language)]
    views = tuple("\n".join(descriptions) for descriptions in observation.descriptions)
    # Chat templates may strip a message, which would shift the first line of a map.
    views = tuple(f"{view}:\n{text}" if text[:1].isspace() else text for text in views)
    past = observation.past_choices or (observation.actions,) * len(observation.past_actions)
    lists = (*past, observation.actions)
    choices = tuple(f"{possible}: {', '.join(actions)}" if actions else "" for actions in lists)
    wanted = f"{goal}: {observation.goal}" if observation.goal else ""
    return Conversation(_SYSTEM[language], wanted, views, choices, observation.past_actions)


@prompts.register("balrog")
def balrog(observation: TextObservation, language: str) -> Conversation:
    """The setup of BALROG's agents for BabyAI (arXiv 2411.13543), reworded and in English only.

    Starts with the mission, an explanation of each action and two tips, followed by the observations (without "You
    see") and actions. BALROG shows the last 16 turns; world.history=17 adds the current one.
    """
    if check_language(language) != "english":
        raise ConfigError(f"the prompt balrog is English only: set world.language=english, got {language!r}")
    explained = "\n".join(
        f"{action}: {_EXPLANATIONS[action]}" if action in _EXPLANATIONS else action for action in observation.actions
    )
    views = tuple(
        "\n".join(description.removeprefix("You see ") for description in descriptions)
        for descriptions in observation.descriptions
    )
    explained = f"These are the actions:\n{explained}\n" if explained else ""
    choices = ("\n".join([explained, *_TIPS]),) * len(views)
    task = f"Your task: {observation.goal}." if observation.goal else ""
    return Conversation(_BALROG_SYSTEM, task, views, choices, observation.past_actions)


BLANK = TextObservation("nothing", (("nothing",),), (), ("nothing",), {})  # To inspect a prompt's fixed text


def check_prompts(ids: Sequence[str], key: str, least: int) -> tuple[str, ...]:
    """Check that ``key`` lists at least ``least`` distinct known prompts, all of them texts or all conversations."""
    if not all(isinstance(id, str) for id in ids) or len(set(ids)) < max(least, len(ids)):
        raise ConfigError(f"{key} must list {least} or more prompts without duplicates, got {list(ids)}")
    for id in ids:
        prompts.get(id)
    blanks = {}
    for id in ids if len(ids) > 1 else ():
        with foreign(f"prompt {id!r}"):
            blanks[id] = prompts.get(id)(BLANK, "english")
    conversations = [id for id, one in blanks.items() if isinstance(one, Conversation)]
    if 0 < len(conversations) < len(blanks):
        raise ConfigError(f"{key}={list(ids)} mixes texts with conversations ({', '.join(conversations)})")
    return tuple(ids)


def replaced(text: str, replacements: Mapping[str, str]) -> str:
    """Return a text with words replaced in order, as in GLAM's tests."""
    for word, other in replacements.items():
        text = text.replace(word, other)
    return text


class PromptReader:
    """Turns observations into prompts.

    Args:
        prompt: Id of a registered prompt. If several ids are passed, each episode uses one of them.
        language: Language of the prompt; the env must use the same language.
        replacements: Words and their replacements, applied in order to the whole prompt (see `replaced`).
        system: Replaces the system prompt of a conversation.
    """

    def __init__(
        self,
        prompt: str | Sequence[str],
        language: str = "english",
        replacements: Mapping[str, str] | None = None,
        system: str | None = None,
    ) -> None:
        self._ids = check_prompts([prompt] if isinstance(prompt, str) else prompt, "policy.args.prompt", 1)
        self._language = language
        self._replacements = dict(replacements or {})
        self._system = system

    def __call__(self, observation: TextObservation) -> str:
        return str(self.read(observation))

    def read(self, observation: TextObservation, prompt: str | None = None) -> str | Conversation:
        """Return an observation's prompt, built by ``prompt`` or, if None, by the prompt chosen for its episode."""
        # Without the hash, if an env chose tasks by seed modulo a number, each task would always get the same prompt.
        id = prompt or self._ids[crc32(b"%d" % observation.episode) % len(self._ids)]
        with foreign(f"prompt {id!r}"):
            reading = prompts.get(id)(observation, self._language)
        if isinstance(reading, Conversation):
            texts = reading.views, reading.choices, reading.answers
            if any(isinstance(one, str) for one in texts) or len(reading.views) != len(reading.answers) + 1:
                raise ConfigError(f"prompt {id!r} needs tuples, with one answer fewer than views, got {texts!r:.80}")
            reading = replace(reading, tools=observation.tools)
            if self._system is not None:
                reading = replace(reading, system=self._system)
            return reading.changed(lambda text: replaced(text, self._replacements)) if self._replacements else reading
        if not isinstance(reading, str):
            raise ConfigError(f"prompt {id!r} must return a string or a Conversation, got {reading!r:.80}")
        if self._system is not None:
            raise ConfigError(f"policy.args.system has no effect on the prompt {id!r}, which is plain text: remove it")
        if observation.tools:
            reading = "\n".join(filter(None, (tools_as_text(observation.tools), reading)))
        return replaced(reading, self._replacements) if self._replacements else reading

    def forms(self, observation: TextObservation) -> list[str]:
        """Return the observation formatted by each prompt, as strings."""
        return [str(self.read(observation, id)) for id in self._ids]
