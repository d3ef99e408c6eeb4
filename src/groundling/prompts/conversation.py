"""An episode as a conversation: what the world says is a user's words, and each action is the assistant's answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from groundling.envs.languages import check_language

_SYSTEM = {
    "english": "You act in a world that is told to you in words. Answer each message with your next action.",
    "french": "Tu agis dans un monde qui t'est décrit. Réponds à chaque message par ta prochaine action.",
}
_HEADINGS = {"english": ("Goal", "Actions", "View"), "french": ("But", "Actions", "Vue")}


@dataclass(frozen=True, slots=True)
class Conversation:
    """What was said up to where the assistant, who is the agent, has to speak."""

    system: str
    """The system prompt."""
    goal: str
    """Told first, whichever turn comes first."""
    views: tuple[str, ...]
    """What is seen, turn by turn; one at least."""
    choices: tuple[str, ...]
    """What can be done at each of them: told first, and where it changes."""
    answers: tuple[str, ...]
    """The assistant's, between them: one less than there are views."""

    def opening(self, first: int = 0) -> str:
        """The user's first words, if the conversation begins with that turn."""
        return f"{self.goal}\n{self.choices[first]}\n\n{self.views[first]}"

    def words(self, turn: int) -> str:
        """The user's words of a turn that is not the first."""
        if self.choices[turn] == self.choices[turn - 1]:
            return self.views[turn]
        return f"{self.views[turn]}\n{self.choices[turn]}"

    def messages(self) -> list[dict[str, str]]:
        """As a chat server takes them."""
        said = [{"role": "system", "content": self.system}, {"role": "user", "content": self.opening()}]
        for turn, answer in enumerate(self.answers, start=1):
            said.append({"role": "assistant", "content": answer})
            said.append({"role": "user", "content": self.words(turn)})
        return said

    def changed(self, change: Callable[[str], str]) -> Conversation:
        """The same with every text changed."""
        views, choices, answers = (
            tuple(map(change, texts)) for texts in (self.views, self.choices, self.answers)
        )
        return Conversation(change(self.system), change(self.goal), views, choices, answers)

    def __str__(self) -> str:
        """In a plain form, for those that read no conversations."""
        said = [f"{self.system}\n\n{self.opening()}\n"]
        said += [f"{answer}\n{self.words(turn)}\n" for turn, answer in enumerate(self.answers, start=1)]
        return "".join(said)


def tell_episode(
    goal: str,
    observations: Sequence[Sequence[str]],
    past_actions: Sequence[str],
    choices: Sequence[Sequence[str]],
    language: str = "english",
) -> Conversation:
    """Goal and admissible actions first, then observations and actions in turn.

    Args:
        goal: The mission.
        observations: Each a list of descriptions, oldest first; of the whole episode, or of its end.
        past_actions: The actions taken between them.
        choices: The admissible actions at each observation.
        language: ``english`` or ``french``, of the system prompt and the headings.

    Raises:
        TranslationError: an unknown language.
    """
    wanted, possible, seen = _HEADINGS[check_language(language)]
    views = tuple("\n".join(descriptions) for descriptions in observations)
    # Chat templates may trim a message, which would shift the first line of a map.
    views = tuple(f"{seen}:\n{view}" if view[:1].isspace() else view for view in views)
    lists = tuple(f"{possible}: {', '.join(actions)}" for actions in choices)
    return Conversation(_SYSTEM[language], f"{wanted}: {goal}", views, lists, tuple(past_actions))
