"""Mark cases that only `make test-thorough` runs, because other tests compute most of the same."""

from collections.abc import Iterable
from typing import Any

import pytest

THOROUGH = pytest.mark.thorough
"""Mark of a test that `make test` omits."""


def thorough(*values: Any) -> list[Any]:
    """Return parameters that `make test` omits; tuples contain the values of several arguments."""
    return [pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=THOROUGH) for value in values]


def some_of(values: Iterable[Any], usual: Iterable[Any]) -> list[Any]:
    """Return all values as parameters, of which `make test` runs only the usual ones."""
    usual = list(usual)
    everything = list(values)
    assert all(one in everything for one in usual), f"of {usual} some are not in {everything}"
    return [one if one in usual else thorough(one)[0] for one in everything]


def one_in(count: int, values: Iterable[Any]) -> list[Any]:
    """Return all values as parameters, of which `make test` runs one in ``count``."""
    return [one if i % count == 0 else thorough(one)[0] for i, one in enumerate(values)]
