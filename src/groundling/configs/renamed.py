"""Keys that configs once had, and what they are called now."""

from typing import Any

from groundling.configs.trust import leaves
from groundling.errors import ConfigError

_NOW = {
    "env.reward_scale": "reward.env.args.scale",
    "reward.id": "the name of a part, reward.ID={}",
    "reward.args": "reward.ID.args",
    "nethack.reward_model": "reward.reward_model.args.path",
    "nethack.reward.extrinsic_coefficient": "reward.env.coefficient",
    "nethack.reward.reward_scale": "reward.env.args.scale",
    "nethack.reward.reward_clip": "reward.env.args.clip",
    "nethack.reward.intrinsic_coefficient": "reward.reward_model.coefficient",
    "nethack.reward": "reward.reward_model.args",
    "nethack.online": "reward.reward_model.args.online",
}
"""By old key, or its beginning; the more special ones first."""


def check_renamed(values: Any, where: str, key: str = "") -> None:
    """Check nested settings for keys that are called otherwise now.

    Args:
        values: Below ``key``; a mapping, or the value of one key.
        where: Where they stand, for the message: a file, or an override.
        key: Dotted; empty for a whole config.

    Raises:
        ConfigError: there is one; the message has its new name.
    """
    for leaf in [key, *(leaf for leaf, _ in leaves(key, values))]:
        for old, now in _NOW.items():
            if leaf == old or leaf.startswith(f"{old}."):
                raise ConfigError(f"{where}: the key {leaf} is now {now}{leaf[len(old) :]}")
