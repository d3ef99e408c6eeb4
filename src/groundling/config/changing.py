"""Changes to a config whose kind of world is known: keys are set, arguments and parts of the reward taken out."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict

from groundling.config.keys import SECTIONS, check_key, type_of
from groundling.config.overrides import Change
from groundling.config.types import check_values
from groundling.errors import ConfigError
from groundling.rewards.part import RewardPartConfig
from groundling.worlds import kind

_FREE = ("world.args", "model.lora", "policy.args", "algorithm.args", "cloning.args", "evaluation.generation")
"""Keyword arguments that the components themselves check."""
_PART_ARGS = r"reward\.[\w-]+\.args"
"""The key of a part's arguments, as a regular expression."""


def change(settled: DictConfig, changes: Sequence[Change], again: bool = False) -> None:
    """Make the changes in ``settled``, in their order.

    Args:
        settled: The config.
        changes: What to change.
        again: They may have been made before, so that nothing is left to be taken out.

    Raises:
        ConfigError: there is no such key, a value of the wrong type, or nothing to be taken out.
    """
    for one in changes:
        if again and _is_taken_out(settled, one):
            continue
        if one.takes_out:
            check_key(one.key, settled.world.id)
            with open_dict(settled):
                _take_out(settled, one.key)
        else:
            _put(settled, one.key, one.value)


def _put(settled: DictConfig, key: str, value: Any) -> None:
    """Set ``key``; a mapping is merged into what is there."""
    world = settled.world.id
    if key == "world" and not isinstance(value, Mapping):  # nor what names one: its kind must be known
        raise ConfigError(f"world must be a mapping of its keys, {{name: value}}, got {value!r}")
    inside = value if key in SECTIONS and isinstance(value, Mapping) else ()
    for name in [key, *(f"{key}.{one}" for one in inside)]:
        check_key(name, world)
    named = value if key == "world.id" else value.get("id", world) if key == "world" and inside else world
    if named != world:
        raise ConfigError(
            f"world.id={named}: the world here is {world}, and an override cannot change its kind: begin with an "
            f"experiment of a {named} world (`groundling list experiments`)"
        )
    hint = type_of(key, world)
    with open_dict(settled):
        if value is None and re.fullmatch(r"reward\.[^.]+", key):
            _check_there(settled, key.partition(".")[2])
        _add_part(settled.reward, key, value)
        check_values(key, value, hint)
        OmegaConf.update(settled, key, value, merge=True)


def _add_part(reward: DictConfig, key: str, value: Any) -> None:
    """Make the part of the reward of which a change sets something, where it is not there or was taken out."""
    section, _, rest = key.partition(".")
    name = rest.partition(".")[0]
    if section != "reward" or not name or (name == rest and value is None):
        return
    if name == rest and not isinstance(value, Mapping):
        raise ConfigError(f"{key} must be a part, {{coefficient: 1, args: {{…}}}}, or null, got {value!r}")
    if reward.get(name) is None:
        reward[name] = OmegaConf.structured(RewardPartConfig)


def _take_out(settled: DictConfig, key: str) -> None:
    """``~key``: empty a dict of free arguments, or take one of them, or a part of the reward, out."""
    if key in _FREE or re.fullmatch(_PART_ARGS, key):
        OmegaConf.update(settled, key, {}, merge=False)
    elif key == "reward" or (key.startswith("reward.") and key.count(".") == 1):
        _take_part_out(settled, key.partition(".")[2])
    else:
        parent, _, name = key.rpartition(".")
        free = parent.startswith(_FREE) or re.match(_PART_ARGS, parent)
        if not free or name not in (OmegaConf.select(settled, parent) or {}):
            raise ConfigError(
                f"cannot take {key} out: it is no part of the reward and no argument of {' or '.join(_FREE)} that is "
                "set"
            )
        del OmegaConf.select(settled, parent)[name]


def _is_taken_out(settled: DictConfig, one: Change) -> bool:
    """Whether a change takes out a part of the reward, or an argument, that is not there."""
    parent, _, name = one.key.rpartition(".")
    if parent == "reward" and (one.takes_out or one.value is None):
        return settled.reward.get(name) is None and not (name == "env" and "env" not in settled.reward)
    is_argument = one.takes_out and one.key not in _FREE and not re.fullmatch(_PART_ARGS, one.key)
    return bool(is_argument and parent and name not in (OmegaConf.select(settled, parent) or {}))


def _take_part_out(settled: DictConfig, name: str) -> None:
    """Leave out a part of the reward, or all of them (``""``); what the world pays, too, is one without being named."""
    if not name:
        settled.reward = {"env": None} if _pays(settled) else {}
        return
    _check_there(settled, name)
    if name == "env" and _pays(settled):
        settled.reward[name] = None
    else:
        del settled.reward[name]


def _check_there(settled: DictConfig, name: str) -> None:
    """Raise `ConfigError` where a part that is to be taken out is none."""
    there = ["env"] if _pays(settled) else []
    there += [one for one, part in settled.reward.items() if part is not None and one not in there]
    if name not in there:
        named = "env alone" if there == ["env"] else ", ".join(there)
        parts = f"the parts are {named}" if there else "there is no part"
        raise ConfigError(f"cannot take reward.{name} out: {parts}")


def _pays(settled: DictConfig) -> bool:
    """Whether what the world itself pays is a part of the reward without being named."""
    return "env" in kind(settled.world.id).offers.evidence
