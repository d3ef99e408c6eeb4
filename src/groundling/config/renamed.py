"""Keys that configs once had, and what they are called now."""

from typing import Any

from groundling.config.trust import leaves
from groundling.errors import ConfigError

_NOW = {
    "env.reward_scale": "reward.env.args.scale",
    "env.id": "world.env",
    "env.args.max_prompt_length": "world.max_prompt_length",
    "env.args.prompt_truncation_side": "world.prompt_truncation_side",
    "env.num_envs": "world.num_envs (world.num_texts where a pool is written to)",
    "env": "world",
    "data.path": "world.dataset",
    "pool.id": "world.pool",
    "pool": "world",
    "nethack.num_workers": "world.num_workers",
    "nethack.ahead": "world.ahead",
    "training.steps_per_update": "world.num_steps (world.num_tokens where a pool is written to)",
    "training.probes": "world.probes",
    "training.entropy_floor": "world.entropy_floor",
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
_MOST = 10
"""Keys that a message tells."""


def check_renamed(values: Any, where: str, key: str = "") -> None:
    """Check nested settings for keys that are called otherwise now.

    Args:
        values: Below ``key``; a mapping, or the value of one key.
        where: Where they stand, for the message: a file, or an override.
        key: Dotted; empty for a whole config.

    Raises:
        ConfigError: there are some; the message has their new names.
    """
    renamed: dict[str, str] = {}
    for leaf in [*(leaf for leaf, _ in leaves(key, values)), key]:
        old = next((old for old in _NOW if leaf == old or leaf.startswith(f"{old}.")), None)
        # Of a mapping that is set, its keys are told, and not the mapping too.
        if old is not None and not any(one.startswith(f"{leaf}.") for one in renamed):
            renamed[leaf] = f"the key {leaf} is now {_NOW[old]}{leaf[len(old) :]}"
    if renamed:
        more = f", and {len(renamed) - _MOST} more" if len(renamed) > _MOST else ""
        raise ConfigError(f"{where}: {', '.join(list(renamed.values())[:_MOST])}{more}")
