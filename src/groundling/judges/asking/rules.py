"""Judges without a model, which use a table of values for matching lines, or values recorded in the dataset."""

import re
from typing import Any

import numpy as np
from numpy.typing import NDArray

from groundling.errors import ConfigError, unknown
from groundling.judges.asking.judge import FigureJudge, Judge, Reply, Request, judges
from groundling.judges.asking.questions import Question, Table
from groundling.judges.preferences.pairs import Pairs, Preference

_Compiled = list[tuple[re.Pattern[str], float]]

_TIMES = re.compile(r" \(x(\d+)\)$")
_MAX_TIMES = 5  # further repetitions of a message are ignored


@judges.register("rules")
class RulesJudge(Judge):
    """Prefers the caption whose lines have the higher total value; equal values are a tie.

    Like a language model, it reads only the conversation. Its reply quotes the lines that contributed.

    Args:
        rules: Pairs of a regular expression and a value, replacing the goal's table; required if the goal has none.
    """

    effortless = True
    expected_seconds = 1e-4

    def __init__(self, rules: Table | None = None) -> None:
        self.rules = rules
        if rules:
            _compile(rules)

    def accepts(self, question: Question) -> str | None:
        tables = question.subject.rules
        if self.rules or question.goal in tables:
            return None
        return (
            f"the rules judge has no table for the goal {question.goal!r} of the world {question.world!r} "
            f"(available: {', '.join(tables) or 'none'}): pass your own, as in 'rules=[[\"you won\", 1.0]]'"
        )

    def identity(self) -> dict[str, Any]:
        return {"judge": "rules", "rules": self.rules}

    def identity_about(self, question: Question) -> dict[str, Any]:
        return {"judge": "rules", "rules": self.rules or question.subject.rules}

    def answer(self, request: Request) -> Reply:
        table = _compile(self.rules or request.question.subject.rules[request.question.goal])
        values, lines = [], []
        for number, caption in enumerate(request.captions, start=1):
            value, reasons = _value(caption, table)
            values.append(value)
            lines.append(f"{number} is worth {value:g}: {'; '.join(reasons) or 'nothing in it counts'}")
        if len(values) == 1:  # a score on a scale is expected
            low, *_, high = map(int, request.question.words)
            verdict = str(min(max(round(values[0]), low), high))
        else:
            first, second = values
            verdict = "tie" if abs(first - second) < 1e-9 else "1" if first > second else "2"
        return Reply("\n".join([*lines, f"Verdict: {verdict}"]))


def _value(caption: str, table: _Compiled) -> tuple[float, list[str]]:
    total, reasons = 0.0, []
    for line in caption.split("\n"):
        times = _TIMES.search(line)
        count = min(int(times[1][:3]), _MAX_TIMES) if times else 1
        for expression, value in table:
            if expression.search(line):
                total += value * count
                reasons.append(f'"{line}" {value * count:+g}')
    return total, reasons


def _compile(table: Table) -> _Compiled:
    try:
        return [(re.compile(expression, re.IGNORECASE), float(value)) for expression, value in table]
    except (re.error, TypeError, ValueError) as error:
        raise ConfigError(f"rules {table!r}: expected pairs of a regular expression and a number ({error})") from error


@judges.register("score")
class ScoreJudge(FigureJudge):
    """Prefers the segment with the higher recorded game score; equal scores are a tie."""

    def prefer(self, pairs: Pairs) -> NDArray[np.int8]:
        if "score" not in pairs.info:
            raise ConfigError(f"{pairs.folder}: {unknown('info', 'score', pairs.info)}")
        return _greater(pairs.info["score"], "score")


@judges.register("return")
class ReturnJudge(FigureJudge):
    """Prefers the segment with the higher sum of rewards; equal sums are a tie."""

    def prefer(self, pairs: Pairs) -> NDArray[np.int8]:
        return _greater(pairs.returns(), "return")


@judges.register("random")
class RandomJudge(FigureJudge):
    """Prefers one of the two segments at random; never returns a tie."""

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed

    def prefer(self, pairs: Pairs) -> NDArray[np.int8]:
        return np.random.default_rng(self.seed).integers(0, 2, len(pairs)).astype(np.int8)


def _greater(figures: NDArray, name: str) -> NDArray[np.int8]:
    """Return a label for each row of ``figures`` ``(N, 2)``, int8 ``(N,)``; ``name`` is used in error messages."""
    if (missing := np.isnan(figures).any(axis=1)).any():  # NaN would count as a tie
        raise ConfigError(
            f"{name} is NaN in {missing.sum()} of {len(figures)} pairs, first in pair {missing.argmax()}: record them "
            "again, or choose a different --judge"
        )
    first, second = figures[:, 0], figures[:, 1]
    labels = np.where(first > second, Preference.FIRST, np.where(second > first, Preference.SECOND, Preference.TIE))
    return labels.astype(np.int8)
