"""Which keys a config of each kind of world has, and of which types their values are."""

import types
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, Union, get_args, get_origin, get_type_hints

from omegaconf import DictConfig, OmegaConf

from groundling.config.schema import Config
from groundling.errors import ConfigError, UnusedKey
from groundling.registry import unknown
from groundling.rewards.part import RewardPartConfig
from groundling.worlds import World, kind, worlds

SECTIONS = ("world", "evaluation")
"""The sections of which each kind of world has keys of its own."""
_PARTS = object()
"""Stands for the mapping of a reward's parts, whose keys are free."""


def schema_of(world: str) -> DictConfig:
    """A config of this kind of world as the schema has it, in which nothing is set; to be merged, not changed."""
    return _schema_of(tuple(_section_class(section, kind(world)) for section in SECTIONS))


@cache
def _schema_of(section_classes: tuple[type, ...]) -> DictConfig:
    schema: DictConfig = OmegaConf.structured(Config)
    for section, section_class in zip(SECTIONS, section_classes, strict=True):
        schema[section] = OmegaConf.structured(section_class)
    return schema


def types_of(world: str) -> dict[str, Any]:
    """By section or key of the root, its type in this kind of world."""
    return {**get_type_hints(Config), **{section: _section_class(section, kind(world)) for section in SECTIONS}}


def type_of(key: str, world: str) -> Any:
    """The type of what a key that `check_key` lets pass names; Any of a free argument.

    Raises:
        ConfigError: the key leads into a single value.
    """
    hint: Any = Config
    for name in key.split("."):
        if get_origin(hint) in (Union, types.UnionType):
            hint = next(one for one in get_args(hint) if one is not type(None))
        if get_origin(hint) is dict:
            hint = get_args(hint)[1]
        elif hint is Config:
            hint = types_of(world)[name]
        elif is_dataclass(hint):
            hint = get_type_hints(hint)[name]
        elif hint is Any or get_origin(hint) is list:
            return Any
        else:
            raise ConfigError(f"there is no {key}: the setting above it is a single value, and has no keys")
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


def check_section_key(section: str, name: str, world: str) -> None:
    """Check that a kind of world has a key.

    Args:
        section: One of `SECTIONS`.
        name: The key, without its section.
        world: The kind of world.

    Raises:
        UnusedKey: only other kinds have it.
        ConfigError: none has it.
    """
    names = {one: [f.name for f in fields(_section_class(section, kind(one)))] for one in worlds}
    if name in names[world]:
        return
    key, here = f"{section}.{name}", [f"{section}.{one}" for one in names[world]]
    users = [one for one in names if name in names[one]]
    if users:
        owners = f"{' and '.join(users)} world{'s' if len(users) > 1 else ''}"
        raise UnusedKey(
            key,
            f"{key} does nothing in {kind(world).offers.name}, it is a key of {owners}: leave it out. The keys here "
            f"are {', '.join(here)}",
        )
    raise ConfigError(unknown("config key", key, here))


def _section_class(section: str, world: type[World]) -> type[Any]:
    """The dataclass of one of `SECTIONS` in a kind of world."""
    return world.config_class if section == "world" else world.evaluation_class
