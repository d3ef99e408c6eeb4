"""What a judge is asked about two captions: a world's goals and prompts, and the user's own."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self

from groundling.errors import ConfigError
from groundling.judges.asking import quoting as fence
from groundling.judges.asking.subjects import Subject, find_subject
from groundling.registry import unknown

Turn = dict[str, str]
"""One turn of a conversation: ``role`` ("system", "user" or "assistant") and ``content``."""
AnswerFormat = Literal["line", "json", "choice", "motif"]
"""How a judge tells its verdict: see `groundling.judges.asking.answers`."""
_FORMS = {
    "line": "End your answer with one line that holds your verdict and nothing else: 'Verdict: 1', 'Verdict: 2' or "
    "'Verdict: tie'.",
    "json": 'Answer with one JSON object: {"analysis": your reasoning in a few sentences, "verdict": "1", "2" or '
    '"tie"}.',
    "choice": "Keep your reasoning to yourself. Answer with your verdict alone, one word: 1, 2 or tie.",
    "motif": 'Finish by giving your verdict in exactly this form: ("best_{noun}": 1), ("best_{noun}": 2) or '
    '("best_{noun}": None).',
}
_AGAIN = {
    "line": "I could not find your verdict. Answer with this one line and nothing else: 'Verdict: 1', 'Verdict: 2' or "
    "'Verdict: tie'.",
    "json": 'That was not the JSON object I asked for. Answer with nothing but {"verdict": "1"}, {"verdict": "2"} or '
    '{"verdict": "tie"}.',
    "choice": "Answer with one word and nothing else: 1, 2 or tie.",
    "motif": 'So which of the two is the best? Answer with ("best_{noun}": 1), ("best_{noun}": 2) or '
    '("best_{noun}": None).',
}
_LONGEST_ECHO = 8000
"""Characters of a reply that the judge reads again: one that went on and on must not fill its context."""


def verdict_form(answer: AnswerFormat, noun: str) -> str:
    """How a judge is told to give its verdict on two captions that are called ``noun``."""
    return _FORMS[answer].replace("{noun}", noun)


@dataclass(frozen=True)
class Question:
    """One question, asked about every pair of captions.

    Attributes:
        goal: An id of the world's goals, or a sentence of the user's about what is wanted; by default the world's
            first.
        prompt: An id of the world's prompts.
        instructions: Words of the user's in place of the prompt's; ``{goal}`` in them becomes the goal's sentence.
        blstats: Whether the captions tell the state of NetHack's player.
        world: The kind of world whose segments are judged: see `groundling.judges.asking.subjects`.
    """

    goal: str = ""
    prompt: str = "default"
    instructions: str | None = None
    blstats: bool = False
    world: str = field(kw_only=True)

    def __post_init__(self) -> None:
        goals, prompts = self.subject.goals, self.subject.prompts
        if not self.goal:
            object.__setattr__(self, "goal", next(iter(goals)))
        if self.goal not in goals and " " not in self.goal.strip():
            problem = unknown("goal", self.goal, goals)
            raise ConfigError(f"world {self.world!r}: {problem}; or say what is wanted in a sentence")
        if self.prompt not in prompts:
            raise ConfigError(f"world {self.world!r}: {unknown('prompt', self.prompt, prompts)}")

    @classmethod
    def from_file(cls, path: Path, **fields: Any) -> Self:
        """A question with the instructions that stand in a text file.

        Raises:
            ConfigError: the file cannot be read or is empty.
        """
        try:
            text = path.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"--question {path} cannot be read: {error}") from error
        if not text:
            raise ConfigError(
                f"--question {path} is empty: expected instructions that say what the judge is to do with two "
                "descriptions"
            )
        return cls(instructions=text, **fields)

    @property
    def subject(self) -> Subject:
        """What is told of the world."""
        return find_subject(self.world)

    @property
    def noun(self) -> str:
        """What a caption is called: "description", "message" or "text"."""
        prompt = "default" if self.instructions is not None else self.prompt
        return self.subject.nouns.get(prompt, "description")

    def conversation(
        self, first: str, second: str, answer: AnswerFormat, control_tokens: Sequence[str] = (), context: str = ""
    ) -> list[Turn]:
        """System prompt and question, the captions fenced: only what stands behind the marks depends on them.

        Args:
            first: The caption that is shown as number 1.
            second: That as number 2.
            answer: How the verdict is to be told.
            control_tokens: See `groundling.judges.asking.quoting.fence`.
            context: What both have in common, shown before them.
        """
        subject = self.subject
        template = subject.prompts[self.prompt] if self.instructions is None else self.instructions
        instructions = template.replace("{goal}", subject.goals.get(self.goal, self.goal))
        shown = {f"{self.noun} 1": first, f"{self.noun} 2": second}
        if context and subject.context is not None:
            shown = {subject.context: context, **shown}
        code = fence.code(list(shown.values()))
        parts = [
            "\n".join(line.rstrip() for line in instructions.split("\n")),
            subject.notice.replace("{code}", code),
            *(fence.fence(text, label, code, control_tokens, subject.nothing) for label, text in shown.items()),
            verdict_form(answer, self.noun),
        ]
        return [{"role": "system", "content": subject.system}, {"role": "user", "content": "\n\n".join(parts)}]

    def retry(self, conversation: Sequence[Turn], reply: str, answer: AnswerFormat) -> list[Turn]:
        """The same conversation after a reply without a verdict, and the question for it."""
        echo = reply[-_LONGEST_ECHO:].strip() or "(no answer)"  # servers refuse empty turns
        again = _AGAIN[answer].replace("{noun}", self.noun)
        return [*conversation, {"role": "assistant", "content": echo}, {"role": "user", "content": again}]

    def identity(self, answer: AnswerFormat) -> dict[str, Any]:
        """All its words and what else decides its answers, for the store."""
        alone = self.conversation("FIRST", "SECOND", answer)
        identity = {
            "goal": self.goal,
            "prompt": "own" if self.instructions is not None else self.prompt,
            "blstats": self.blstats,
            "answer": answer,
            "conversation": self.retry(alone, "REPLY", answer),
        }
        if self.subject.context is not None:
            together = self.conversation("FIRST", "SECOND", answer, context="CONTEXT")
            identity |= {"world": self.world, "together": together}
        return identity
