"""Judges and waiting functions for tests of online judging."""

import time
from collections.abc import Callable, Sequence

from groundling.judges.asking.judge import Judge, Reply, Request
from groundling.judges.asking.questions import Question

PATIENCE = 20.0


QUESTION = Question(world="nethack")


def until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "it never came about"
        time.sleep(0.002)


def fits(text: str) -> float:
    return float("e" in text)


def judge_labels(questions: Sequence[tuple[str, ...]], contexts: Sequence[str]) -> list[float | None]:
    """Messages with an "e" deserve a reward; of two messages, the one with more of them is preferred."""
    if len(questions[0]) == 1:
        return [fits(text) for (text,) in questions]
    counts = [(a.count("e"), b.count("e")) for a, b in questions]
    return [1.0 if a > b else 0.0 if a < b else 0.5 for a, b in counts]


class Scripted(Judge):
    """Returns scripted replies, and records the conversations."""

    def __init__(self, *replies: Reply) -> None:
        self.replies, self.asked = list(replies), []

    def answer(self, request: Request) -> Reply:
        self.asked.append(request.conversation)
        return self.replies.pop(0)
