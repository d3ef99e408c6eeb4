"""Overrides such as ``world.num_envs=16``: their grammar is Hydra's, their keys are the schema's."""

import re
import types
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, Union, get_args, get_origin, get_type_hints

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob, Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf, open_dict

from groundling.configs import trust
from groundling.configs.parts import PART_ARGS, add_part, take_part_out
from groundling.configs.renamed import check_renamed
from groundling.configs.schema import Config
from groundling.configs.types import check_values
from groundling.configs.used import SECTIONS, check_section_key, section_class
from groundling.documents import check_depth
from groundling.errors import ConfigError
from groundling.registry import unknown
from groundling.rewards.part import RewardPartConfig
from groundling.worlds import kind

_FREE = (
    "world.args",
    "model.lora",
    "policy.args",
    "algorithm.args",
    "evaluation.generation",
)
"""Keyword arguments that the components themselves check."""


def parse(overrides: Sequence[str]) -> list[Override]:
    """Read overrides.

    Raises:
        ConfigError: one that Hydra's grammar does not know, or an old key.
    """
    parsed = []
    for text in overrides:
        trust.check_plain(text, "an override")
        try:
            override = OverridesParser.create().parse_override(text)
        except (HydraException, RecursionError, ValueError) as error:
            raise ConfigError(
                f"cannot read the override {text!r:.200}: expected key=value, such as seed=2; quote a value that has "
                "special characters, as in 'name=\"né\"'"
            ) from error
        if override.package is not None:
            raise ConfigError(f"cannot read the override {text!r}: expected key=value, without @")
        check_written(text, override)
        check_renamed(
            None if override.is_delete() else override.value(), "an override", override.key_or_group
        )
        parsed.append(override)
    return parsed


def check_written(text: str, override: Override) -> None:
    """Check that an override gives what a config can hold, or several of those for several runs.

    Raises:
        ConfigError: it has one of the functions of Hydra's grammar that a config cannot hold, such as ``glob(*)``.
    """
    if override.is_delete() or (override.is_sweep_override() and not isinstance(override.value(), Glob)):
        return
    check_depth(override.value(), f"the override {text[:60]!r}")
    for key, value in trust.leaves(override.key_or_group, override.value()):
        if not isinstance(value, str | bool | int | float | None):
            raise ConfigError(
                f"{key}: {text!r:.200} has a function of Hydra's ({type(value).__name__}), and a setting holds texts, "
                "numbers, lists and mappings: write the value itself"
            )


def sweep(overrides: Sequence[str]) -> list[list[str]]:
    """Spread overrides such as ``seed=1,2,3`` or ``seed=range(1,4)`` into one list for each run.

    Raises:
        ConfigError: as `parse`.
    """
    runs: list[list[str]] = [[]]
    for text, override in zip(overrides, parse(overrides), strict=True):
        values = [text]
        if override.is_sweep_override():
            values = [f"{override.get_key_element()}={v}" for v in override.sweep_string_iterator()]
        runs = [[*run, value] for run in runs for value in values]
    return runs


def given(changes: Sequence[Override]) -> dict[str, Any]:
    """The values that overrides give, by dotted key."""
    setting = (change for change in changes if not change.is_delete())
    return {key: v for change in setting for key, v in trust.leaves(change.key_or_group, change.value())}


def apply(config: DictConfig, changes: Sequence[Override]) -> None:
    """Make the changes in ``config``, whose world is known, in their order.

    Raises:
        ConfigError: there is no such key, or nothing to be taken out.
    """
    for change in changes:
        key = change.key_or_group
        if change.is_sweep_override():
            raise ConfigError(f"{key} takes one value, got several: {change.input_line}")
        if not change.is_delete():
            put(config, key, change.value())
            continue
        check_key(key, config.world.id)
        with open_dict(config):
            _take_out(config, key)


def put(config: DictConfig, key: str, value: Any) -> None:
    """Set ``key``; a mapping is merged into what is there.

    Raises:
        ConfigError: there is no such key, or it would change the kind of world.
    """
    world = config.world.id
    inside = value if key in SECTIONS and isinstance(value, Mapping) else ()
    for name in [key, *(f"{key}.{one}" for one in inside)]:
        check_key(name, world)
    named = value if key == "world.id" else value.get("id", world) if key == "world" and inside else world
    if named != world:
        raise ConfigError(
            f"world.id={named}: the world here is {world}, and no override makes another kind of it: begin with an "
            f"experiment of a {named} world (`groundling list experiments`)"
        )
    hint = _hint(key, world)
    with open_dict(config):
        add_part(config.reward, key, value)
        check_values(key, value, hint)
        OmegaConf.update(config, key, value, merge=True)


def _take_out(config: DictConfig, key: str) -> None:
    """``~key``: empty a dict of free arguments, or take one of them, or a part of the reward, out."""
    if key in _FREE or re.fullmatch(PART_ARGS, key):
        OmegaConf.update(config, key, {}, merge=False)
    elif key == "reward" or (key.startswith("reward.") and key.count(".") == 1):
        take_part_out(config, key.partition(".")[2])
    else:
        parent, _, name = key.rpartition(".")
        free = parent.startswith(_FREE) or re.match(PART_ARGS, parent)
        if not free or name not in (OmegaConf.select(config, parent) or {}):
            raise ConfigError(
                f"cannot take {key} out: it is no part of the reward and no argument of {' or '.join(_FREE)} that is "
                "set"
            )
        del OmegaConf.select(config, parent)[name]


def _hint(key: str, world: str) -> Any:
    """The type of what a key that `check_key` lets pass names; Any of a free argument."""
    hint: Any = Config
    for name in key.split("."):
        if get_origin(hint) in (Union, types.UnionType):
            hint = next(one for one in get_args(hint) if one is not type(None))
        if get_origin(hint) is dict:
            hint = get_args(hint)[1]
        elif is_dataclass(hint) and name in SECTIONS and hint is Config:
            hint = section_class(name, kind(world))
        elif is_dataclass(hint):
            hint = get_type_hints(hint)[name]
        elif hint is Any or get_origin(hint) is list:
            return Any
        else:
            raise ConfigError(f"there is no {key}: what it is in is a single value, and has no keys")
    return hint


def check_key(key: str, world: str) -> None:
    """Name the nearest keys for one that a config of this kind of world does not have.

    Raises:
        UnusedKey: only other kinds of world have it.
        ConfigError: none has it.
    """
    section, _, rest = key.partition(".")
    if section in SECTIONS:
        if rest:
            check_section_key(section, rest.partition(".")[0], world)
        return
    node: Any = Config
    parts = key.split(".")
    for depth, part in enumerate(parts):
        if node is _PARTS:
            node = RewardPartConfig
            continue
        names = {f.name: f for f in fields(node)}
        if part not in names:
            prefix = "".join(p + "." for p in parts[:depth])
            raise ConfigError(unknown("config key", key, [prefix + name for name in names]))
        node = _PARTS if parts[: depth + 1] == ["reward"] else names[part].type
        if node is not _PARTS and not is_dataclass(node):
            break  # a value, or free keyword arguments that their component checks


_PARTS = object()
"""Stands for the mapping of a reward's parts, whose keys are free."""
