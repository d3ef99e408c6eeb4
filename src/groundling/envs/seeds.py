"""Episode seeds: training and held-out episodes have hashed seeds from two disjoint ranges. A seed's remainder does
not depend on its range, so an env that picks its task by ``seed % n`` has all n tasks in both splits.
"""

import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np

from groundling.envs.text_env import read_reset, read_text_step
from groundling.errors import foreign

SCHEME = "ranges"
"""Scheme of seeds, stored with evaluations: figures of different schemes are not comparable. Before 28 November 2026
training seeds were even, held-out seeds odd, and no scheme was stored."""
_SPLIT = 2**30  # Training seeds are below, held-out seeds at least this number and below 2³¹


def training_seed(run_seed: int, env_index: int, episode: int) -> int:
    """Return the seed of the ``episode``-th episode of a run's ``env_index``-th env, in [0, 2³⁰). It depends neither
    on the number of processes nor on the order in which envs finish.
    """
    return int(np.random.SeedSequence((run_seed, env_index, episode)).generate_state(1, np.uint32)[0]) % _SPLIT


def held_out_seed(episode: int) -> int:
    """Return the seed of the ``episode``-th held-out episode, in [2³⁰, 2³¹), the same for every run and agent."""
    # SeedSequence pads with zeros: (episode,) is (episode, 0, 0).
    return _SPLIT + int(np.random.SeedSequence((episode, 0, 0, 1)).generate_state(1, np.uint32)[0]) % _SPLIT


def is_held_out(seed: int) -> bool:
    """Return True for the seed of a held-out episode, for envs with separate games for evaluation."""
    return seed >= _SPLIT


_RESETS, _SECONDS = 200, 2.0  # limits on the resets of each split and on their seconds
_TASK_KEYS = (
    *("task", "task_id", "task_name", "game", "game_id", "gamefile", "extra.gamefile"),
    *("level", "level_id", "level_name", "variation", "variation_idx", "variationIdx"),
)  # info keys of the task in ALFWorld, ScienceWorld, TextWorld and others
_CHANCE = 0.001  # Upper bound on the probability of a false warning about tasks
_SHARE = 0.05  # Share of held-out beginnings met in training from which they are reported
_SHOWN = 3


def compare_splits(id: str, make: Callable[[], gymnasium.Env[Any, Any]]) -> list[str]:
    """Reset an env with seeds of both splits; warn about tasks of one split and beginnings that both have. Tasks are
    compared by the info's task ids, else by goals, else by first observations. ``id`` names the env in messages.
    """
    starts: tuple[list[str], list[str]] = ([], [])
    tasks: dict[str, tuple[Counter[str], Counter[str]]] = {}
    env, end = make(), time.monotonic() + _SECONDS
    try:
        for number in range(_RESETS):
            if number and time.monotonic() > end:
                break
            for split, seed in enumerate((training_seed(0, 0, number), held_out_seed(number))):
                with foreign(f"env {id}, as it was reset with seed {seed},"):
                    observation, info = read_reset(env.reset(seed=seed))
                shown = read_text_step(observation, info)
                current = {"current_task": getattr(env.unwrapped, "current_task", None)}  # BabyAI's
                ids = current | {key: info.get(key) for key in _TASK_KEYS}
                named = {key: str(value) for key, value in ids.items() if isinstance(value, str | int | np.integer)}
                named |= {"goal": shown.goal, "first observation": "\n".join(shown.descriptions)}
                for key, task in named.items():
                    tasks.setdefault(key, (Counter(), Counter()))[split][task] += 1
                starts[split].append(repr((named, shown.actions)))
    finally:
        env.close()
    resets, trained = len(starts[0]), set(starts[0])
    warnings = next(filter(None, (_one_sided(key, tasks[key], resets) for key in tasks)), [])
    repeated = sum(start in trained for start in starts[1])
    if repeated >= _SHARE * resets:
        warnings.append(
            f"{repeated} of {resets} held-out episodes begin as one of {resets} training episodes does (equal goal, "
            "observation and actions): if these are the same games, held-out success measures what was memorised; "
            "choose other games where groundling.envs.seeds.is_held_out(seed)"
        )
    return warnings


def _one_sided(key: str, met: tuple[Counter[str], Counter[str]], resets: int) -> list[str]:
    """Warn about tasks that only one split met, if this is unlikely by chance. If both splits had the same
    distribution, each of a task's k occurrences would be in either split with probability 1/2, so all in one with at
    most 2 · 2⁻ᵏ; with t tasks the probability that any is reported is at most t · 2 · 2⁻ᵏ.
    """
    warnings, count = [], len(met[0] + met[1])
    for split, own, other in (("training", *met), ("held-out", *met[::-1])):
        only = sorted(t for t, k in own.items() if t not in other and count * 2.0 ** (1 - k) < _CHANCE)
        if only:
            shown = ", ".join(f"{task!r:.60}" for task in only[:_SHOWN])
            more = f" and {len(only) - _SHOWN} more" if len(only) > _SHOWN else ""
            warnings.append(
                f"only {split} episodes have the {key} {shown}{more} ({resets} resets of each split): unless "
                "these are held out on purpose, choose tasks by self.np_random, so that both splits have the same tasks"
            )
    return warnings
