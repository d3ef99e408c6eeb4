"""The question about two captions, built from a world's goal and prompt or from the user's instructions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from groundling.errors import ConfigError, unknown
from groundling.judges.asking import quoting as fence

Table = list[tuple[str, float]]  # case-insensitive regular expressions, each with the value of a matching line


@dataclass(frozen=True)
class Subject:
    """A kind of world, described for judges."""

    system: str  # the system prompt
    goals: Mapping[str, str]  # a sentence for each goal, by id; the first is the default
    prompts: Mapping[str, str]  # instructions by id; {goal} stands for the goal's sentence
    notice: str  # explains the delimiters around captions; {code} stands for the code in the delimiters
    nouns: Mapping[str, str] = field(default_factory=dict)  # noun for a caption by prompt; "description" by default
    context: str | None = None  # name of the text that two captions share, if any
    reads: str = "text"  # how default label names refer to the captions
    nothing: str = "(nothing was said)"  # replaces an empty caption
    reward_model: str = "characters"  # id of the reward model that usually reads the captions
    rules: Mapping[str, Table] = field(default_factory=dict)  # tables of the rules judge, by goal


subjects: dict[str, Subject] = {}
"""Kinds of world by their names in datasets and in `WorldSpec.subject`; add your own."""


def find_subject(world: str) -> Subject:
    if world not in subjects:
        hint = "" if subjects else "; import groundling.worlds, which registers all bundled kinds"
        raise ConfigError(unknown("kind of world", world, subjects) + hint)
    return subjects[world]


WORDS = ("1", "2", "tie")  # possible verdicts on a pair, indexed by `Preference` code
Message = dict[str, str]  # a message of a conversation: role ("system", "user" or "assistant") and content
AnswerFormat = Literal["line", "json", "choice", "motif"]  # format of a verdict (see `judge.parse`)
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
_MAX_ECHO = 8000  # maximum number of characters of a reply that a retry repeats, so that the context does not overflow


@dataclass(frozen=True)
class Question:
    """A question to ask about every pair of captions.

    Attributes:
        goal: Id of one of the world's goals, or a sentence; by default the world's first goal.
        prompt: Id of one of the world's prompts.
        instructions: Custom instructions that replace the prompt; ``{goal}`` stands for the goal's sentence.
        blstats: True if captions include the player's status in NetHack.
        world: The kind of world, a key of `groundling.judges.asking.questions.subjects`.
    """

    goal: str = ""
    prompt: str = "default"
    instructions: str | None = None
    blstats: bool = False
    world: str = field(kw_only=True)

    num_captions: ClassVar[int] = 2

    def __post_init__(self) -> None:
        goals, prompts = self.subject.goals, self.subject.prompts
        if not self.goal:
            object.__setattr__(self, "goal", next(iter(goals)))
        if self.goal not in goals and " " not in self.goal.strip():
            problem = unknown("goal", self.goal, goals)
            raise ConfigError(f"world {self.world!r}: {problem}; or describe the goal in a sentence")
        if self.prompt not in prompts:
            raise ConfigError(f"world {self.world!r}: {unknown('prompt', self.prompt, prompts)}")

    @classmethod
    def from_file(cls, path: Path, **fields: Any) -> Self:
        """Create a question with the instructions in a text file."""
        try:
            text = path.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"--question {path} cannot be read: {error}") from error
        if not text:
            raise ConfigError(f"--question {path} is empty: expected instructions for comparing two descriptions")
        return cls(instructions=text, **fields)

    @property
    def subject(self) -> Subject:
        return find_subject(self.world)

    @property
    def noun(self) -> str:
        """The noun for a caption: "description", "message" or "text"."""
        prompt = "default" if self.instructions is not None else self.prompt
        return self.subject.nouns.get(prompt, "description")

    @property
    def words(self) -> tuple[str, ...]:
        """The possible verdicts."""
        return WORDS

    def verdict_form(self, answer: AnswerFormat) -> str:
        """Return the sentence that asks for a verdict in this form."""
        return _FORMS[answer].replace("{noun}", self.noun)

    def conversation(
        self, first: str, second: str, answer: AnswerFormat, control_tokens: Sequence[str] = (), context: str = ""
    ) -> list[Message]:
        """Return the system prompt and the question, with the shared ``context`` and the fenced captions."""
        subject = self.subject
        template = subject.prompts[self.prompt] if self.instructions is None else self.instructions
        instructions = template.replace("{goal}", subject.goals.get(self.goal, self.goal))
        captions = (first, second)[: self.num_captions]
        shown = {f"{self.noun} {number}": caption for number, caption in enumerate(captions, start=1)}
        if context and subject.context is not None:
            shown = {subject.context: context, **shown}
        code = fence.code(list(shown.values()))
        parts = [
            "\n".join(line.rstrip() for line in instructions.split("\n")),
            subject.notice.replace("{code}", code),
            *(fence.fence(text, label, code, control_tokens, subject.nothing) for label, text in shown.items()),
            self.verdict_form(answer),
        ]
        return [{"role": "system", "content": subject.system}, {"role": "user", "content": "\n\n".join(parts)}]

    def retry(self, conversation: Sequence[Message], reply: str, answer: AnswerFormat) -> list[Message]:
        """Return the conversation, extended by a reply that had no verdict and a request for a verdict."""
        echo = reply[-_MAX_ECHO:].strip() or "(no answer)"  # servers reject empty messages
        again = {"role": "user", "content": self.second_request(answer)}
        return [*conversation, {"role": "assistant", "content": echo}, again]

    def second_request(self, answer: AnswerFormat) -> str:
        """Return the message that asks for the verdict after a reply without one."""
        return _AGAIN[answer].replace("{noun}", self.noun)

    def identity(self, answer: AnswerFormat) -> dict[str, Any]:
        """Return everything about the question that answers depend on, to identify stored answers."""
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
