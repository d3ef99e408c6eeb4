"""What a judge is: it answers conversations, or it labels whole datasets by other figures."""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from groundling.errors import ConfigError, RunError, foreign
from groundling.judges.asking.questions import AnswerFormat, Question, Turn
from groundling.judges.preferences.pairs import Pairs
from groundling.registry import Registry


@dataclass(frozen=True)
class Request:
    """A conversation that ends with a turn of the user's.

    Attributes:
        number: The caller's; a retry has that of the request it follows.
        conversation: What was said so far.
        goal: The id of the question's goal.
        world: The kind of world that it is about.
        noun: What the question calls a caption.
    """

    number: int
    conversation: list[Turn]
    goal: str
    world: str = ""
    noun: str = "description"


@dataclass(frozen=True)
class Reply:
    """What a judge answered.

    Attributes:
        text: Its words.
        complete: False if they were cut off.
        probabilities: Of first, second and tie as shown, where the judge has them.
        prompt_tokens: How many it read.
        completion_tokens: How many it wrote.
        failure: Why there is no answer, in words; the request is then made again at the next run.
    """

    text: str
    complete: bool = True
    probabilities: tuple[float, float, float] | None = None
    prompt_tokens: int = 0
    completion_tokens: int = 0
    failure: str | None = None


Tell = Callable[[Request, Reply], Request | None]
"""Takes a reply as soon as it is there, and gives what is to be asked next because of it."""
Keep = Callable[[], None]
"""Puts on the disk what was told; any thread may call it, one at a time."""


def keep_nothing() -> None:
    """A `Keep` for answers that stay in memory."""


class Judge:
    """Answers conversations; a subclass defines `answer`, or `ask` if it answers several at once.

    Attributes:
        answer_format: The form in which it is asked for its verdict.
        control_tokens: Texts that its tokenizer does not read as text.
        parallel: How many requests it works on at once.
        expected_tokens: How many tokens a reply has, about; for estimates.
        expected_seconds: How long a request takes, about; None if that cannot be said.
        effortless: Making it loads nothing, asking again costs nothing: its answers need not reach the disk one by one.
    """

    answer_format: AnswerFormat = "line"
    control_tokens: Sequence[str] = ()
    parallel: int = 1
    expected_tokens: int = 0
    expected_seconds: float | None = None
    effortless: bool = False

    def accepts(self, question: Question) -> str | None:
        """Whether it can answer this question: None is yes, else why not, in one line."""
        return None

    def identity(self) -> dict[str, Any]:
        """What decides its answers, as JSON holds it (model, revision, sampling).

        Answers are kept by it. A judge whose code has changed needs another one (a version, say): it is not asked again
        what one of the same identity has answered.
        """
        return {"judge": type(self).__qualname__}

    def identity_about(self, question: Question) -> dict[str, Any]:
        """`identity`, with what else decides its answers to this question."""
        return self.identity()

    def answer(self, request: Request) -> Reply:
        """Answer one request.

        Raises:
            ConfigError: the class defines neither this nor `ask`.
        """
        raise ConfigError(f"the judge {type(self).__name__} defines neither answer nor ask: define one of them")

    def ask(self, requests: Iterable[Request], tell: Tell, keep: Keep = keep_nothing) -> None:
        """Answer all requests, and those that ``tell`` gives back.

        Whoever has told a reply calls ``keep`` before asking anything else: a process that is killed then loses no more
        than what it was asking.

        Raises:
            RunError: it makes no sense to go on; what was told is kept.
        """
        for request in requests:
            present: Request | None = request
            while present is not None:
                with foreign(f"the judge {type(self).__name__}, asked question {present.number},"):
                    reply = self.answer(present)
                if not isinstance(reply, Reply):
                    raise RunError(
                        f"the judge {type(self).__name__} answers {reply!r:.80}, expected a groundling.judges.Reply: "
                        "return Reply(text)"
                    )
                present = tell(present, reply)
            keep()

    def cost(self, prompt_tokens: float, completion_tokens: float) -> float | None:
        """The price of so many tokens, in the user's currency; None if the judge has none."""
        return None


class FigureJudge(ABC):
    """Labels whole datasets by figures beside the captions: nothing is asked, nothing is kept but the labels."""

    @abstractmethod
    def prefer(self, pairs: Pairs) -> NDArray[np.int8]:
        """int8 (N,): codes of `Preference`.

        Raises:
            ConfigError: the dataset lacks the figures.
        """


class JudgeRegistry(Registry[Judge | FigureJudge]):
    """Takes judges, and functions that make one from its arguments."""

    def _hint(self, id: str) -> str:
        if inspect.isfunction(self._factories.get(id)):
            return "; a function makes the judge: to judge, derive a class from groundling.judges.Judge with answer"
        return super()._hint(id)


judges = JudgeRegistry("judge")
