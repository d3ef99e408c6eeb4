"""A judge without a model: a table of what lines are worth, the world's or yours, which says what it counted."""

import re
from typing import Any

from groundling.errors import ConfigError
from groundling.judges.asking import quoting as fence
from groundling.judges.asking.judge import Judge, Reply, Request, judges
from groundling.judges.asking.questions import Question
from groundling.judges.asking.subjects import Table, find_subject

_Compiled = list[tuple[re.Pattern[str], float]]

_TIMES = re.compile(r" \(x(\d+)\)$")
_MOST_TIMES = 5
"""A message that stood there longer than this counts no more."""


@judges.register("rules")
class RulesJudge(Judge):
    """Prefers the caption whose lines are worth more; equal ones are a tie.

    It reads nothing but the conversation, as a language model does, and tells what it counted, in the captions' words.

    Args:
        rules: Pairs of regular expression and value, in place of the goal's table; needed in worlds that have none.

    Raises:
        ConfigError: an expression or a value is none.
    """

    effortless = True
    expected_seconds = 1e-4

    def __init__(self, rules: Table | None = None) -> None:
        self.rules = rules
        self._given = _compile(rules) if rules else None
        self._of_goals: dict[tuple[str, str], _Compiled] = {}  # by world and goal

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
        text = request.conversation[-1]["content"]
        worths, lines, table = [], [], self._table(request)
        for number, caption in enumerate(fence.read_both(text), start=1):
            worth, reasons = _worth(caption, table)
            worths.append(worth)
            lines.append(f"{number} is worth {worth:g}: {'; '.join(reasons) or 'nothing in it counts'}")
        first, second = worths
        verdict = "tie" if abs(first - second) < 1e-9 else "1" if first > second else "2"
        return Reply("\n".join([*lines, f"Verdict: {verdict}"]))

    def _table(self, request: Request) -> _Compiled:
        if self._given is not None:
            return self._given
        key = (request.world, request.goal)
        if key not in self._of_goals:
            self._of_goals[key] = _compile(find_subject(request.world).rules[request.goal])
        return self._of_goals[key]


def _worth(caption: str, table: _Compiled) -> tuple[float, list[str]]:
    total, reasons = 0.0, []
    for line in caption.split("\n"):
        times = _TIMES.search(line)
        count = min(int(times[1][:3]), _MOST_TIMES) if times else 1
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
