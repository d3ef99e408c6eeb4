"""Overrides of settings, such as ``world.num_envs=16``, in Hydra's grammar."""

import functools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob, Override, RangeSweep
from hydra.errors import HydraException

from groundling.config.facts import check_plain, is_free
from groundling.config.schema import Config
from groundling.errors import ConfigError
from groundling.fields import leaves
from groundling.io.documents import check_depth

_MOST_RUNS = 10_000  # Largest number of runs of a sweep


@dataclass(frozen=True, slots=True)
class Change:
    """One key, set or removed."""

    key: str  # Dotted
    value: Any = None  # The new value; a mapping is merged into the present one
    takes_out: bool = False


Overrides = Sequence[str | Mapping[str, Any] | Change]  # Words in Hydra's grammar, values by dotted key, or changes


def parse(overrides: Overrides) -> list[Change]:
    """Parse overrides; raise `ConfigError` for bad grammar, a resolver, a sweep, or a value that no config can hold."""
    return [change for override in overrides for change in _changes(override)]


def _changes(override: str | Mapping[str, Any] | Change) -> Iterator[Change]:
    if isinstance(override, str):
        read_one = read(override)
        key = read_one.key_or_group
        if read_one.is_sweep_override():
            raise ConfigError(f"{key} takes one value, got several: {override}")
        yield Change(key, takes_out=True) if read_one.is_delete() else Change(key, read_one.value())
    else:
        values = {override.key: override.value} if isinstance(override, Change) else override
        check_plain(values, "an override")
        for key, value in values.items():
            yield Change(key, _plain(key, value), isinstance(override, Change) and override.takes_out)


def _plain(key: str, value: Any) -> Any:
    """Return a Python value as YAML would read it."""
    if isinstance(value, Mapping):
        return {str(name): _plain(key, one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(key, one) for one in value]
    if not isinstance(value, str | bool | int | float | None):
        raise ConfigError(
            f"{key}={value!r:.80} is not a value that a config can hold: give text, numbers, or lists and mappings of "
            "them"
        )
    return value


def given(changes: Iterable[Change]) -> dict[str, Any]:
    """Return the `leaves` that changes set."""
    return {key: value for one in changes if not one.takes_out for key, value in leaves(one.key, one.value)}


def apply(changes: Iterable[Change], values: dict[str, Any], model: type[Config], pays: bool, again: bool) -> None:
    """Apply changes, in order, to settings that are not resolved and include defaults.

    ``pays``: the world's own reward is a part by default. ``again``: the changes may have been made before, so a key
    to remove may be missing.
    """
    for one in changes:
        *parents, name = one.key.split(".")
        if parents == ["reward"] and (one.takes_out or one.value is None):
            _check_part(values["reward"], name, pays, again)
            values["reward"].pop(name, None)
            if not one.takes_out or (name == "env" and pays):
                values["reward"][name] = None
        elif one.takes_out:
            _take_out(values, one.key, model, pays, again)
        else:
            set_value(values, one.key, one.value)


def set_value(values: dict[str, Any], key: str, value: Any) -> None:
    """Set a dotted key of nested values; a mapping is merged into the present one."""
    node, (*parents, last) = values, key.split(".")
    for name in parents:
        if node.get(name) is None:
            node[name] = {}
        node = node[name]
        if not isinstance(node, dict):
            raise ConfigError(f"there is no {key}: the setting above it is a single value, and has no keys")
    _set(node, last, value)


def _set(node: dict[str, Any], name: str, value: Any) -> None:
    if isinstance(value, Mapping) and isinstance(node.get(name), dict):
        for inner, one in value.items():
            _set(node[name], str(inner), one)
    else:
        node[name] = merged({}, value) if isinstance(value, Mapping) else value


def merged(values: Mapping[str, Any], others: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``values`` updated by ``others``, recursively; neither is changed."""
    result: dict[str, Any] = {}
    for one in (values, others):
        for name, value in one.items():
            _set(result, str(name), value)
    return result


def _take_out(values: dict[str, Any], key: str, model: type[Config], pays: bool, again: bool) -> None:
    """Apply ``~key``: empty a mapping of free entries, or remove one entry, or all parts of the reward."""
    if key == "reward":
        values["reward"] = {"env": None} if pays else {}
        return
    above, _, name = key.rpartition(".")
    node: Any = values
    for one in above.split("."):
        node = node.get(one) if isinstance(node, dict) else None
    there = isinstance(node, dict) and name in node
    if there and is_free(model, above):
        del node[name]
    elif there and is_free(model, key):
        node[name] = {}
    elif there or not again:
        raise ConfigError(f"cannot take {key} out: it is no part of the reward and no argument that is set")


def _check_part(reward: Mapping[str, Any], name: str, pays: bool, again: bool) -> None:
    """Raise `ConfigError` if the part to remove is missing; the world's own is present without being named."""
    there = [one for one in dict.fromkeys([*(["env"] if pays else []), *reward]) if reward.get(one, {}) is not None]
    if name not in there and not again:
        named = "env alone" if there == ["env"] else ", ".join(there)
        parts = f"the parts are {named}" if there else "there is no part"
        raise ConfigError(f"cannot take reward.{name} out: {parts}")


@functools.lru_cache(1024)  # the parser takes a millisecond, and a study reads the same words for every run
def read(word: str) -> Override:
    """Parse one word; raise `ConfigError` for invalid grammar, a resolver, or a function of Hydra's."""
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
    return override


def check_written(word: str, override: Override) -> None:
    """Raise `ConfigError` if a value has a function of Hydra's grammar, such as ``glob(*)``, other than a sweep."""
    if override.is_delete() or (override.is_sweep_override() and not isinstance(override.value(), Glob)):
        return
    check_depth(override.value(), f"the override {word[:60]!r}")
    for key, value in leaves(override.key_or_group, override.value()):
        if not isinstance(value, str | bool | int | float | None):
            raise ConfigError(
                f"{key}: {word!r:.200} has a function of Hydra's ({type(value).__name__}), and a setting holds texts, "
                "numbers, lists and mappings: write the value itself"
            )


def sweep(words: Sequence[str]) -> list[list[str]]:
    """Expand words such as ``seed=1,2,3`` or ``seed=range(1,4)`` to one list for each run."""
    runs: list[list[str]] = [[]]
    for word in words:
        override, values = read(word), [word]
        if override.is_sweep_override():
            values = [f"{override.get_key_element()}={value}" for value in _swept(word, override)]
        check_runs(len(runs) * len(values), word)
        runs = [[*run, value] for run in runs for value in values]
    return runs


def check_runs(count: int, where: str) -> None:
    """Raise `ConfigError` if a sweep has too many runs; ``where`` begins the message."""
    if count > _MOST_RUNS:
        raise ConfigError(f"{where:.200} makes more than {_MOST_RUNS:,} runs: give fewer values")


def _swept(word: str, override: Override) -> Collection[str]:
    """Return the values of a sweep; at most one more than allowed."""
    sweep = override.value()
    try:
        if isinstance(sweep, RangeSweep) and sweep.start is not None and sweep.stop is not None:
            # A shuffled range is expanded before islice can limit it.
            check_runs(int(abs((sweep.stop - sweep.start) / sweep.step)), word)
        return list(islice(override.sweep_string_iterator(), _MOST_RUNS + 1))
    except (HydraException, ArithmeticError, ValueError) as error:
        raise ConfigError(
            f"{word:.200} has no values that runs could be made of ({error}): write seed=1,2,3 or seed=range(1,4)"
        ) from error
