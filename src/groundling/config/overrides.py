"""Overrides of settings, such as ``world.num_envs=16``, in Hydra's grammar."""

import functools
from collections.abc import Iterable, Mapping, Sequence
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

_MOST_RUNS = 10_000  # Maximum number of runs in a sweep


@dataclass(frozen=True, slots=True)
class Change:
    """A change to one key, which is set or removed."""

    key: str  # The dotted key
    value: Any = None  # The new value; a mapping is merged into the existing one
    takes_out: bool = False


Overrides = Sequence[str | Mapping[str, Any] | Change]  # Strings in Hydra's grammar, values by dotted key, or changes


def parse(overrides: Overrides) -> list[Change]:
    """Parse overrides; raise `ConfigError` for invalid grammar, a resolver, a sweep, or an unsupported value."""
    changes = []
    for override in overrides:
        if isinstance(override, str):
            word = read(override)
            if word.is_sweep_override():
                raise ConfigError(f"{word.key_or_group} accepts a single value, got several: {override}")
            is_delete = word.is_delete()
            changes.append(Change(word.key_or_group, None if is_delete else word.value(), is_delete))
            continue
        values = {override.key: override.value} if isinstance(override, Change) else override
        check_plain(values, "an override")
        takes_out = isinstance(override, Change) and override.takes_out
        changes += [Change(key, _plain(key, value), takes_out) for key, value in values.items()]
    return changes


def _plain(key: str, value: Any) -> Any:
    """Return a Python value as YAML would read it."""
    if isinstance(value, Mapping):
        return {str(name): _plain(key, one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(key, one) for one in value]
    if not isinstance(value, str | bool | int | float | None):
        raise ConfigError(f"{key}={value!r:.80} is not a value that a config can contain: use strings or numbers")
    return value


def given(changes: Iterable[Change]) -> dict[str, Any]:
    """Return the `leaves` that changes set."""
    return {key: value for one in changes if not one.takes_out for key, value in leaves(one.key, one.value)}


def apply(changes: Iterable[Change], values: dict[str, Any], model: type[Config], pays: bool, again: bool) -> None:
    """Apply changes in order to unresolved settings that include the defaults.

    ``pays`` is True if the world's own reward is a part by default. ``again`` is True if the changes may have been
    applied before, so a key to remove may be missing.
    """
    for one in changes:
        above, _, name = one.key.rpartition(".")
        reward = values["reward"]
        if above == "reward" and (one.takes_out or one.value is None):
            parts = dict.fromkeys([*(["env"] if pays else []), *reward])
            there = [part for part in parts if reward.get(part, {}) is not None]
            if name not in there and not again:
                named = "env alone" if there == ["env"] else ", ".join(there)
                parts_are = f"the reward consists of {named}" if there else "the reward has no parts"
                raise ConfigError(f"cannot remove reward.{name}: {parts_are}")
            reward.pop(name, None)
            if not one.takes_out or (name == "env" and pays):
                reward[name] = None
        elif one.key == "reward" and one.takes_out:
            values["reward"] = {"env": None} if pays else {}
        elif one.takes_out:
            _take_out(values, above, name, model, again)
        else:
            set_value(values, one.key, one.value)


def set_value(values: dict[str, Any], key: str, value: Any) -> None:
    """Set a dotted key in nested values; a mapping is merged into the existing one."""
    node, (*parents, last) = values, key.split(".")
    for name in parents:
        if node.get(name) is None:
            node[name] = {}
        node = node[name]
        if not isinstance(node, dict):
            raise ConfigError(f"{key} does not exist: the setting above it is a single value without keys")
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


def _take_out(values: dict[str, Any], above: str, name: str, model: type[Config], again: bool) -> None:
    """Apply ``~above.name``: empty a mapping with arbitrary keys, or remove one of its keys."""
    key = f"{above}.{name}".lstrip(".")
    node: Any = values
    for one in above.split("."):
        node = node.get(one) if isinstance(node, dict) else None
    there = isinstance(node, dict) and name in node
    if there and is_free(model, above):
        del node[name]
    elif there and is_free(model, key):
        node[name] = {}
    elif there or not again:
        raise ConfigError(f"cannot remove {key}: it is neither a part of the reward nor an argument that is set")


@functools.lru_cache(1024)  # parsing takes a millisecond, and a study repeats the same overrides for every run
def read(word: str) -> Override:
    """Parse one override; raise `ConfigError` for invalid grammar, a resolver or a Hydra function."""
    check_plain(word, "an override")
    try:
        override = OverridesParser.create().parse_override(word)
    except (HydraException, RecursionError, ValueError) as error:
        raise ConfigError(
            f"cannot read the override {word!r:.200}: expected key=value, such as seed=2; quote values with "
            "special characters, as in 'name=\"né\"'"
        ) from error
    if override.package is not None:
        raise ConfigError(f"cannot read the override {word!r}: expected key=value, without @")
    if override.is_delete() or (override.is_sweep_override() and not isinstance(override.value(), Glob)):
        return override
    check_depth(override.value(), f"the override {word[:60]!r}")
    for key, value in leaves(override.key_or_group, override.value()):
        if not isinstance(value, str | bool | int | float | None):
            raise ConfigError(f"{key}: {word!r:.200} uses a Hydra function: write the value itself")
    return override


def sweep(words: Sequence[str]) -> list[list[str]]:
    """Expand overrides such as ``seed=1,2,3`` or ``seed=range(1,4)`` into one list per run."""
    runs: list[list[str]] = [[]]
    for word in words:
        override, values = read(word), [word]
        if override.is_sweep_override():
            swept = override.value()
            try:
                if isinstance(swept, RangeSweep) and swept.start is not None and swept.stop is not None:
                    # A shuffled range is expanded before islice can limit it.
                    check_runs(int(abs((swept.stop - swept.start) / swept.step)), word)
                texts = list(islice(override.sweep_string_iterator(), _MOST_RUNS + 1))
            except (HydraException, ArithmeticError, ValueError) as error:
                raise ConfigError(f"{word:.200} has no values ({error}): write seed=1,2 or seed=range(1,3)") from error
            values = [f"{override.get_key_element()}={text}" for text in texts]
        check_runs(len(runs) * len(values), word)
        runs = [[*run, value] for run in runs for value in values]
    return runs


def check_runs(count: int, where: str) -> None:
    """Raise `ConfigError` if a sweep has too many runs; ``where`` starts the message."""
    if count > _MOST_RUNS:
        raise ConfigError(f"{where:.200} results in more than {_MOST_RUNS:,} runs: use fewer values")
