"""The registry of prompts, and conversations as one kind of prompt."""

from collections.abc import Callable
from dataclasses import dataclass

from groundling.envs.observation import TextObservation
from groundling.registry import Registry


@dataclass(frozen=True, slots=True)
class Conversation:
    """An episode in turns: the world speaks as the user, and the agent's actions are the assistant's answers.

    Attributes:
        goal: Stands first, whichever turn the conversation begins with.
        views: The text of each observation; at least one.
        choices: The admissible actions at each observation, as text; repeated only when they change.
        answers: The assistant's answers between the observations: ``len(views) - 1``.
    """

    system: str
    goal: str
    views: tuple[str, ...]
    choices: tuple[str, ...]
    answers: tuple[str, ...]

    def first_message(self, turn: int = 0) -> str:
        """Return the user's first message if the conversation begins with this turn."""
        return f"{self.goal}\n{self.choices[turn]}\n\n{self.views[turn]}"

    def message(self, turn: int) -> str:
        """Return the user's message of a later turn."""
        if self.choices[turn] == self.choices[turn - 1]:
            return self.views[turn]
        return f"{self.views[turn]}\n{self.choices[turn]}"

    def messages(self) -> list[dict[str, str]]:
        """Return the messages in the form of OpenAI's chat API."""
        messages = [{"role": "system", "content": self.system}, {"role": "user", "content": self.first_message()}]
        for turn, answer in enumerate(self.answers, start=1):
            messages.append({"role": "assistant", "content": answer})
            messages.append({"role": "user", "content": self.message(turn)})
        return messages

    def changed(self, change: Callable[[str], str]) -> "Conversation":
        """Return a copy with ``change`` applied to every text."""
        views, choices, answers = (tuple(map(change, texts)) for texts in (self.views, self.choices, self.answers))
        return Conversation(change(self.system), change(self.goal), views, choices, answers)

    def __str__(self) -> str:
        """Return the conversation as plain text, for models that take no messages."""
        lines = [f"{self.system}\n\n{self.first_message()}\n"]
        lines += [f"{answer}\n{self.message(turn)}\n" for turn, answer in enumerate(self.answers, start=1)]
        return "".join(lines)


Prompt = Callable[[TextObservation, str], str | Conversation]
"""Turns an observation and a language into a text, or into a conversation for the model's chat template."""

prompts: Registry[str | Conversation] = Registry("prompt")
