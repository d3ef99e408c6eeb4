"""Datasets, a judge and shortcuts for annotation tests."""

import argparse
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from groundling.cli.annotate import add_parser
from groundling.judges import (
    Annotation,
    AnnotationSummary,
    Judge,
    MessagePairs,
    Pairs,
    Question,
    Reply,
    Request,
    fence,
)
from tests.judges.asking.chat_server import verdict
from tests.judges.preferences.test_pairs import encode

QUESTION = Question(world="nethack")
Rows = list[tuple[str, str]]
ROWS: Rows = [("a", "bb"), ("bb", "a"), ("ccc", "ccc"), ("", "a"), ("bb", "a"), ("", ""), ("a", "bb"), ("ccc", "bb")]


def dataset(folder: Path, rows: Iterable[tuple[str, str]] = ROWS) -> MessagePairs:
    rows = list(rows)
    messages = encode(*(text for row in rows for text in row)).reshape(len(rows), 2, 1, 256)
    return MessagePairs.create(folder, {"message": messages})


def longer(rows: Iterable[tuple[str, str]]) -> list[int]:
    """Return the labels of a judge that prefers the longer caption."""
    return [2 if len(a) == len(b) else 0 if len(a) > len(b) else 1 for a, b in rows]


class LongerJudge(Judge):
    """Prefers the longer caption, or always returns ``bias``, and records the captions of each request."""

    def __init__(self, bias: str | None = None) -> None:
        self.bias = bias
        self.asked: list[tuple[str, str]] = []

    def answer(self, request: Request) -> Reply:
        first, second = fence.read_all(request.conversation[1]["content"])
        self.asked.append((first, second))
        return Reply(f"Verdict: {self.bias or verdict(first, second)}", prompt_tokens=10, completion_tokens=2)


def annotate(
    pairs: Pairs, judge: Judge, name: str = "mine", question: Question = QUESTION, **how: Any
) -> AnnotationSummary:
    """Annotate all pairs, or a chunk of them."""
    chunk = {key: how.pop(key) for key in ("chunk", "chunks") if key in how}
    return Annotation(pairs, judge, question, **how).run(name, **chunk)


def command(*words: str | Path) -> int:
    """Run `groundling annotate` in this process, without catching its errors."""
    parser = argparse.ArgumentParser()
    add_parser(parser.add_subparsers())
    arguments = parser.parse_args(["annotate", *map(str, words)])
    status: int = arguments.run(arguments)
    return status
