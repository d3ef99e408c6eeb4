"""The two tasks made up to see a text generator learn."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from groundling.errors import ConfigError
from groundling.metrics.metric import Meta, Metric, MetricResult, mean_of, metrics

_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")


@metrics.register("increasing_numbers")
@dataclass(kw_only=True)
class IncreasingNumbers(Metric):
    """How much of a text is numbers that increase."""

    min_tokens: int = 20
    """A text of fewer than half as many words counts as one of half as many."""

    def __post_init__(self) -> None:
        """Raise `ConfigError` unless ``min_tokens`` is positive."""
        super().__post_init__()
        if self.min_tokens < 1:
            raise ConfigError(f"min_tokens must be at least 1, got {self.min_tokens}")

    def measure(
        self,
        prompts: Sequence[str],
        generations: Sequence[str],
        references: Sequence[Sequence[str]],
        meta: Meta | None,
    ) -> dict[str, MetricResult]:
        """``synthetic/increasing_numbers_in_text``: strictly increasing numbers from the first one on, by words."""
        scores = [_num_increasing(text.split()) / max(len(text.split()), self.min_tokens / 2) for text in generations]
        return {"synthetic/increasing_numbers_in_text": mean_of(scores)}


def _num_increasing(tokens: Sequence[str]) -> int:
    numbers = [number for number in map(_number, tokens) if number is not None]
    for index in range(1, len(numbers)):
        if not numbers[index] > numbers[index - 1]:  # not <=: NaN increases nothing
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
    """Whether a text holds a date, written year-month-day in digits (2020-01-31)."""

    def measure(
        self,
        prompts: Sequence[str],
        generations: Sequence[str],
        references: Sequence[Sequence[str]],
        meta: Meta | None,
    ) -> dict[str, MetricResult]:
        """``synthetic/dates_in_text``: 1 or 0."""
        return {"synthetic/dates_in_text": mean_of([float(bool(_DATE.search(text))) for text in generations])}
