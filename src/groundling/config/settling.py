"""Nested values over the schema of the kind of world that they name."""

from collections.abc import Mapping
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from groundling.config.keys import SECTIONS, check_section_key, schema_of, types_of
from groundling.config.reading import Read
from groundling.config.types import check_values
from groundling.config.wording import one_line
from groundling.errors import ConfigError, UnusedKey
from groundling.io.documents import check_expansion
from groundling.registry import unknown
from groundling.worlds import kind, worlds


def settle(read: Read) -> DictConfig:
    """What was read, typed as the schema has it, and with the schema's values where it sets none. Not resolved.

    Raises:
        ConfigError: it names no kind of world, has a key that is none, or a value of the wrong type.
    """
    check_expansion(read.values, read.where)
    world = _world(read)
    hints = types_of(world)
    for name, value in read.values.items():
        if name not in hints:
            raise ConfigError(f"{read.where}: {unknown('config key', name, hints)}")
        if not _is_missing(value):  # which overrides may yet set
            check_values(name, _without_missing(value), hints[name])
    try:
        settled = OmegaConf.merge(schema_of(world), read.values)
    except OmegaConfBaseException as error:
        raise ConfigError(f"cannot read {read.where}: {one_line(error)}") from error
    assert isinstance(settled, DictConfig)
    return settled


def _world(read: Read) -> str:
    """The kind of world, all of whose keys in its own sections it has."""
    section = read.values.get("world", {})
    id = section.get("id") if isinstance(section, dict) else None
    if not isinstance(id, str) or id == "???":
        known = ", ".join(worlds)
        raise ConfigError(f"{read.where} does not say which kind of world it is for: give world.id, one of {known}")
    try:
        kind(id)
        for name in SECTIONS:
            section = read.values.get(name)
            for key in section if isinstance(section, Mapping) else ():  # what is no section is refused by its type
                check_section_key(name, str(key), id)
    except UnusedKey:
        raise
    except ConfigError as error:
        raise ConfigError(f"{read.where}: {error}") from error
    return id


def _without_missing(node: Any) -> Any:
    """Nested settings but for keys that are set nowhere, as OmegaConf writes them."""
    if isinstance(node, Mapping):
        return {name: _without_missing(one) for name, one in node.items() if not _is_missing(one)}
    return node


def _is_missing(value: Any) -> bool:
    return isinstance(value, str) and value == "???"
