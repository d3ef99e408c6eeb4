"""A judge without a model: a table of values of lines, the world's or the user's."""

import re
from typing import Any

from groundling.errors import ConfigError
from groundling.judges.asking.judge import Judge, Reply, Request, judges
from groundling.judges.asking.questions import Question, Table

_Compiled = list[tuple[re.Pattern[str], float]]

_TIMES = re.compile(r" \(x(\d+)\)$")
_MAX_TIMES = 5  # further repetitions of a message do not count


@judges.register("rules")
class RulesJudge(Judge):
    """Prefers the caption whose lines have the greater value; equal values are a tie.

    It reads only the conversation, as a language model does, and quotes the lines that it counted.

    Args:
        rules: Pairs of regular expression and value, in place of the goal's table; needed in worlds without tables.
    """

    effortless = True
    expected_seconds = 1e-4

    def __init__(self, rules: Table | None = None) -> None:
        self.rules = rules
        self._tables: dict[Question, _Compiled] = {}
        if rules:
            _compile(rules)

    def accepts(self, question: Question) -> str | None:
        tables = question.subject.rules
        if self.rules or question.goal in tables:
            return None
        known = f"has no tables for the world {question.world!r}"
        if tables:
            goals = ", ".join(tables)
            known = f"has tables for {goals} of the world {question.world!r}, and none for {question.goal!r}"
        return f"judge rules {known}: give yours, as in 'rules=[[\"you won\", 1.0]]'"

    def identity(self) -> dict[str, Any]:
        return {"judge": "rules", "rules": self.rules}

    def identity_about(self, question: Question) -> dict[str, Any]:
        return {"judge": "rules", "rules": self.rules or question.subject.rules}

    def answer(self, request: Request) -> Reply:
        question = request.question
        if question not in self._tables:
            self._tables[question] = _compile(self.rules or question.subject.rules[question.goal])
        values, lines = [], []
        for number, caption in enumerate(request.captions, start=1):
            value, reasons = _value(caption, self._tables[question])
            values.append(value)
            lines.append(f"{number} is worth {value:g}: {'; '.join(reasons) or 'nothing in it counts'}")
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
