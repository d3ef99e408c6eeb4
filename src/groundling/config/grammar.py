"""Words such as ``world.num_envs=16``, one by one: their grammar is Hydra's."""

import functools
import re
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob, Override, RangeSweep
from hydra.errors import HydraException

from groundling.config.renamed import check_renamed
from groundling.config.trust import check_plain, leaves
from groundling.errors import ConfigError
from groundling.io.documents import check_depth

_MOST_RUNS = 10_000
"""Of a sweep."""


def sweep(words: Sequence[str]) -> list[list[str]]:
    """Spread words such as ``seed=1,2,3`` or ``seed=range(1,4)`` into one list for each run.

    Raises:
        ConfigError: as `read`, or a sweep without an end, or with more runs than anybody waits for.
    """
    runs: list[list[str]] = [[]]
    for word in words:
        override, values = read(word), [word]
        if override.is_sweep_override():
            values = [f"{override.get_key_element()}={value}" for value in _values(word, override)]
        check_runs(len(runs) * len(values), word)
        runs = [[*run, value] for run in runs for value in values]
    return runs


def check_runs(count: int, where: str) -> None:
    """Raise `ConfigError` if a sweep has too many runs; ``where`` begins the message."""
    if count > _MOST_RUNS:
        raise ConfigError(f"{where:.200} makes more than {_MOST_RUNS:,} runs: give fewer values")


def _values(word: str, override: Override) -> list[str]:
    """Those of a sweep, one more than there may be at most."""
    sweep = override.value()
    try:
        if isinstance(sweep, RangeSweep) and sweep.start is not None and sweep.stop is not None:
            # Shuffled, it is listed at once.
            check_runs(int(abs((sweep.stop - sweep.start) / sweep.step)), word)
        return list(islice(override.sweep_string_iterator(), _MOST_RUNS + 1))
    except (HydraException, ArithmeticError, ValueError) as error:
        raise ConfigError(
            f"{word:.200} has no values that runs could be made of ({error}): write seed=1,2,3 or seed=range(1,4)"
        ) from error


@functools.lru_cache(1024)  # the parser takes a millisecond, and a study reads the same words for every run
def read(word: str) -> Override:
    """Read one word.

    Raises:
        ConfigError: Hydra's grammar does not know it, it has a resolver, a function that a config cannot hold, or an
            old key.
    """
    check_plain(word, "an override")
    try:
        override = OverridesParser.create().parse_override(word)
    except (HydraException, RecursionError, ValueError) as error:
        raise ConfigError(
            f"cannot read the override {word!r:.200}: expected key=value, such as seed=2; quote a value that has "
            "special characters, as in 'name=\"né\"'"
        ) from error
    if override.package is not None:
        raise ConfigError(f"cannot read the override {word!r}: expected key=value, without @")
    check_written(word, override)
    check_renamed(None if override.is_delete() else override.value(), "an override", override.key_or_group)
    return override


def write(key: str, value: Any) -> str:
    """The word that sets ``key`` to a value of Python's, which `read` gives back.

    Args:
        key: Dotted, such as ``training.steps``.
        value: Text, number, bool, None, or lists and mappings of these.

    Raises:
        ConfigError: it is something else.
    """
    return f"{key}={_written(key, value)}"


def _written(key: str, value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool | int | float):
        return repr(value).lower()
    if isinstance(value, str):
        # Backslashes escape only where a quotation mark or the end follows.
        return '"' + re.sub(r'(\\*)("|\Z)', lambda m: m[1] * 2 + ("\\" + m[2] if m[2] else ""), value) + '"'
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{name}: {_written(key, one)}" for name, one in value.items()) + "}"
    if isinstance(value, Sequence):
        return "[" + ", ".join(_written(key, one) for one in value) + "]"
    raise ConfigError(
        f"{key}={value!r:.80} is not a value that a config can hold: give text, numbers, or lists and mappings of them"
    )


def check_written(word: str, override: Override) -> None:
    """Check that a word gives what a config can hold, or several of those for several runs.

    Raises:
        ConfigError: it has one of the functions of Hydra's grammar that a config cannot hold, such as ``glob(*)``.
    """
    if override.is_delete() or (override.is_sweep_override() and not isinstance(override.value(), Glob)):
        return
    check_depth(override.value(), f"the override {word[:60]!r}")
    for key, value in leaves(override.key_or_group, override.value()):
        if not isinstance(value, str | bool | int | float | None):
            raise ConfigError(
                f"{key}: {word!r:.200} has a function of Hydra's ({type(value).__name__}), and a setting holds texts, "
                "numbers, lists and mappings: write the value itself"
            )
