"""A judge without a model: a table of what lines are worth, NetHack's or yours, which says what it counted."""

import re
from typing import Any

from groundling.errors import ConfigError
from groundling.judges.asking import fence
from groundling.judges.asking.judge import Judge, Reply, Request, judges
from groundling.judges.asking.questions import Question

Table = list[tuple[str, float]]
"""Regular expressions (searched for, case ignored) and what a message is worth in which they are found."""

_FIGHT: Table = [
    (r"\byou (kill|destroy|dismember|dispatch)\b", 5.0),
    (r"\byou (hit|bite|kick|smite|stab|slash|punch)\b(?! (a wall|at empty space))", 1.0),
    (r"\bwelcome to experience level \d", 4.0),
    (r"\byou miss\b", 0.25),
    (r"\byou (hear the shrieks|murderer)|\byou murderer", -8.0),
]
_GOLD: Table = [
    (r"\$ - \d+ gold pieces?", 3.0),
    (r"\byou (find|remove|collect) .*gold", 3.0),
    (r"\byou see here .*gold pieces?", 1.0),
]
_DOWN: Table = [
    (r"\byou (descend|go down|walk down|climb down)\b.*stair", 6.0),
    (r"\byou fall through|\ba trap ?door opens|\byou (dig|fall into) a hole through", 5.0),
    (r"\bthere is a (staircase|ladder) down here", 2.0),
    (r"\byou (climb|go|walk) up\b.*stair", -2.0),
]
_DEATH: Table = [
    (r"\byou (die|starve|drown|choke|burn to death)\b|\bdo you want your possessions identified", -10.0),
    (r"\byou (faint|regain consciousness|are (fainting|beginning to feel (hungry|weak)|slowed))\b", -2.0),
]
_DISCOVERY: Table = [
    (r"\bthe door opens|\bwham|\bthis door is (locked|already open)", 0.5),
    (r"\byou (find|discover) ", 1.0),
    (r"\byou see here\b", 0.5),
    (r"^[a-zA-Z] - ", 1.0),  # something new in the inventory
    (r"\byou feel (stronger|tougher|agile|charismatic|wise|smarter|lucky|healthy|much better)", 2.0),
]
_STUCK: Table = [
    (r"\bit's (a wall|solid stone|an iron bar)|\bsolid rock\b|\byou (bump|stop)\b", -0.5),
    (r"\byou can't (go (up|down)|move|reach)|\bthere is nothing (here|to)|\bnothing happens", -0.5),
    (r"\byou (don't|do not) have (anything|that|enough)|\bnever mind|\bthat is a silly", -0.5),
    (r"\b(hits|bites|kicks|claws|butts)[.!]", -0.25),
    (r"\bkick at empty space|\bouch!|\bwhat a strange direction|\bunknown command", -0.5),
    (r"\breally attack the (peaceful|kitten|housecat|little dog|dog|pony)\b", -0.5),
]
WORLD = "nethack"
"""Whose messages the tables are about."""
TABLES: dict[str, Table] = {
    "defaultgoal": [*_FIGHT, *_GOLD, *_DOWN, *_DEATH, *_DISCOVERY, *_STUCK],
    "zeroknowledge": [*_DEATH, *_DISCOVERY, *_STUCK, *_FIGHT],
    "combat": [*_FIGHT, *_DEATH],
    "gold": _GOLD,
    "stairs": _DOWN,
}
"""By goal, what counts. Of an expression that is found the value counts, once for each time the message was shown."""

_TIMES = re.compile(r" \(x(\d+)\)$")
_MOST_TIMES = 5
"""A message that stood there longer than this counts no more."""


@judges.register("rules")
class RulesJudge(Judge):
    """Prefers the caption whose lines are worth more; equal ones are a tie.

    It reads nothing but the conversation, as a language model does, and tells what it counted, in the captions' words.

    Args:
        rules: Pairs of regular expression and value, in place of the goal's table; needed outside NetHack.

    Raises:
        ConfigError: an expression or a value is none.
    """

    effortless = True
    expected_seconds = 1e-4

    def __init__(self, rules: Table | None = None) -> None:
        self.rules = rules
        self._compiled = {
            goal: _compile(table) for goal, table in ([("", rules)] if rules else TABLES.items())
        }

    def accepts(self, question: Question) -> str | None:
        if self.rules or (question.world == WORLD and question.goal in TABLES):
            return None
        return (
            f"judge rules has tables for NetHack's goals ({', '.join(TABLES)}) and none for {question.goal!r} in the "
            f"world {question.world!r}: give yours, as in 'rules=[[\"you won\", 1.0]]'"
        )

    def identity(self) -> dict[str, Any]:
        return {"judge": "rules", "rules": self.rules or TABLES}

    def answer(self, request: Request) -> Reply:
        text = request.conversation[-1]["content"]
        worths, lines = [], []
        for number, caption in enumerate(fence.read_both(text), start=1):
            worth, reasons = self._worth(caption, request.goal)
            worths.append(worth)
            lines.append(f"{number} is worth {worth:g}: {'; '.join(reasons) or 'nothing in it counts'}")
        first, second = worths
        verdict = "tie" if abs(first - second) < 1e-9 else "1" if first > second else "2"
        return Reply("\n".join([*lines, f"Verdict: {verdict}"]))

    def _worth(self, caption: str, goal: str) -> tuple[float, list[str]]:
        total, reasons = 0.0, []
        table = self._compiled["" if self.rules else goal]
        for line in caption.split("\n"):
            times = _TIMES.search(line)
            count = min(int(times[1][:3]), _MOST_TIMES) if times else 1
            for expression, value in table:
                if expression.search(line):
                    total += value * count
                    reasons.append(f'"{line}" {value * count:+g}')
        return total, reasons


def _compile(table: Table) -> list[tuple[re.Pattern[str], float]]:
    try:
        return [(re.compile(expression, re.IGNORECASE), float(value)) for expression, value in table]
    except (re.error, TypeError, ValueError) as error:
        raise ConfigError(
            f"rules {table!r}: expected pairs of a regular expression and a number ({error})"
        ) from error
