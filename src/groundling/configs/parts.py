"""Overrides that put parts into a reward and take them out."""

from collections.abc import Mapping
from typing import Any

from omegaconf import DictConfig, OmegaConf

from groundling.errors import ConfigError
from groundling.rewards.part import RewardPartConfig

PART_ARGS = r"reward\.[\w-]+\.args"
"""The key of a part's arguments, as a regular expression."""


def add_part(reward: DictConfig, key: str, value: Any) -> None:
    """Make the part of the reward of which an override sets something, where it is not there or was taken out.

    Args:
        reward: The config's section, changed in place.
        key: The override's, whatever it is of.
        value: What it sets.

    Raises:
        ConfigError: it sets a whole part to what is none.
    """
    section, _, rest = key.partition(".")
    name = rest.partition(".")[0]
    if section != "reward" or not name or (name == rest and value is None):
        return
    if name == rest and not isinstance(value, Mapping):
        raise ConfigError(f"{key} must be a part, {{coefficient: 1, args: {{…}}}}, or null, got {value!r}")
    if reward.get(name) is None:
        reward[name] = OmegaConf.structured(RewardPartConfig)


def take_part_out(config: DictConfig, name: str) -> None:
    """Leave out a part of the reward, or all of them; what the world pays, too, which is one without being named.

    Args:
        config: Changed in place.
        name: The part's; empty for all.

    Raises:
        ConfigError: there is no such part.
    """
    if not name:
        config.reward = {"env": None}
    elif name == "env":
        config.reward[name] = None
    elif config.reward.pop(name, None) is None:
        raise ConfigError(
            f"cannot take reward.{name} out: the parts are {', '.join(config.reward) or 'env alone'}"
        )
