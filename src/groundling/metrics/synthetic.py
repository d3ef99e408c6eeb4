"""Two synthetic tasks on which a text generator soon learns."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from groundling.fields import Ge
from groundling.metrics.metric import Figures, Meta, Metric, References, Texts, mean_of, metrics

_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")


@metrics.register("increasing_numbers")
@dataclass(kw_only=True)
class IncreasingNumbers(Metric):
    """Number of leading numbers that strictly increase, divided by the number of words."""

    min_tokens: Annotated[int, Ge(1)] = 20
    """A text has at least half as many words for the division."""

    def measure(self, prompts: Texts, generations: Texts, references: References, meta: Meta) -> Figures:
        words = [text.split() for text in generations]
        scores = [_num_increasing(text) / max(len(text), self.min_tokens / 2) for text in words]
        return {"synthetic/increasing_numbers_in_text": mean_of(scores)}


def _num_increasing(tokens: Sequence[str]) -> int:
    numbers = [number for number in map(_number, tokens) if number is not None]
    for index in range(1, len(numbers)):
        if not numbers[index] > numbers[index - 1]:  # not <=, which is False for NaN
            return index
    return len(numbers)


def _number(token: str) -> float | None:
    try:
        return float(token)
    except ValueError:
        return None


@metrics.register("dates")
@dataclass(kw_only=True)
class Dates(Metric):
    """1 if a text has a date, written year-month-day in digits (2020-01-31); else 0."""

    def measure(self, prompts: Texts, generations: Texts, references: References, meta: Meta) -> Figures:
        return {"synthetic/dates_in_text": mean_of([float(bool(_DATE.search(text))) for text in generations])}
