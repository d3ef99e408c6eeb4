"""Playing held-out episodes, and what they come to."""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import torch

from groundling.envs.babyai_text import Expert, ExpertError
from groundling.envs.first_interaction import FirstInteraction
from groundling.envs.observation import TextObservation
from groundling.envs.seeds import held_out_seed
from groundling.envs.vector import Episode, Step, TextVectorEnv
from groundling.policies.policy import Policy


@dataclass(frozen=True, slots=True)
class Choice:
    """What a player does in some envs."""

    actions: Sequence[int]
    log_probs: Sequence[float] | None = None
    """Of the actions; None of a player that has no probabilities."""


Player = Callable[[TextVectorEnv, Sequence[int], Sequence[TextObservation]], Choice]
"""Chooses an action for each of the envs with these indices, which show these observations."""
Witness = Callable[[Sequence[int], Sequence[TextObservation], Choice, Step], None]
"""Sees which envs were stepped, what they showed, what was chosen there, and what it gave."""


@dataclass(frozen=True)
class Summary:
    """What an agent's episodes come to."""

    episodes: int
    success_rate: float
    success_low: float
    """Lower end of the 95 % Wilson interval of the success rate."""
    success_high: float
    return_mean: float
    return_std: float
    episode_length: float
    first_episodes: int | None = None
    """Episodes that tell which thing was first dealt with; None, as in all of the following: there are none."""
    first_named: float | None = None
    """Share of these in which it was the named thing, among all of them."""
    first_named_low: float | None = None
    """Lower end of its 95 % Wilson interval."""
    first_named_high: float | None = None
    first_other: float | None = None
    first_none: float | None = None
    """Share in which nothing was dealt with."""
    first_precision: float | None = None
    """Of those in which something was, the share in which it was the named thing; None: there are none."""
    first_chance: float | None = None
    """What a blind choice among the things would make of ``first_precision``; None: the env does not tell."""


def held_out_seed_of(num_envs: int) -> Callable[[int, int], int]:
    """Deals the held-out episodes to ``num_envs`` envs: episode k is the same, whatever their number."""
    return lambda env, episode: held_out_seed(episode * num_envs + env)


def play(
    player: Player,
    envs: TextVectorEnv,
    num_episodes: int,
    on_episode: Callable[[], None] = lambda: None,
    on_step: Witness = lambda indices, observations, choice, step: None,
) -> list[Episode]:
    """Play the first ``num_episodes`` episodes of ``envs``, in their order.

    Every env plays its own share to the end, so that short episodes are not counted more often than long
    ones, as they would be if the first to finish were taken.
    """
    observations = envs.reset()
    finished: dict[int, Episode] = {}
    present = {i: i for i in range(envs.num_envs) if i < num_episodes}  # env -> number of its episode
    while present:
        indices = list(present)
        shown = [observations[i] for i in indices]
        choice = player(envs, indices, shown)
        chosen = dict(zip(indices, choice.actions, strict=True))
        step = envs.step([chosen.get(i) for i in range(envs.num_envs)])
        on_step(indices, shown, choice, step)
        observations = step.observations
        for episode in step.episodes:
            env, number = episode.env_index, present[episode.env_index]
            finished[number] = episode
            on_episode()
            present[env] = number + envs.num_envs
            if present[env] >= num_episodes:
                del present[env]
    return [finished[k] for k in sorted(finished)]


@contextmanager
def policy_player(policy: Policy, deterministic: bool, seed: int) -> Iterator[Player]:
    """A player that follows ``policy``, drawing its actions with ``seed`` unless deterministic.

    As long as it plays, the policy's weights must not change.
    """
    generator = torch.Generator().manual_seed(seed)
    memories: dict[int, torch.Tensor] = {}  # env -> (memory_size,)

    def choose(
        envs: TextVectorEnv, indices: Sequence[int], observations: Sequence[TextObservation]
    ) -> Choice:
        memory = policy.initial_memory(len(indices))  # (len(indices), memory_size), or None
        starts = envs.at_start()
        for row, env in enumerate(indices):
            if memory is not None and not starts[env]:
                memory[row] = memories[env]
        action = policy.act(observations, memory=memory, deterministic=deterministic, generator=generator)
        if action.memory is not None:
            memories.update(zip(indices, action.memory, strict=True))
        return Choice(action.actions.tolist(), action.log_probs.tolist())

    with policy.unchanged():
        yield choose


@contextmanager
def expert_player() -> Iterator[Player]:
    """A player that follows BabyAI's bot, which sees the whole state of the env.

    It raises `ExpertError` where the bot does not know the env, or wants an action that the env's actions lack.
    """
    experts: dict[int, Expert] = {}

    def choose(
        envs: TextVectorEnv, indices: Sequence[int], observations: Sequence[TextObservation]
    ) -> Choice:
        if not envs.envs:
            raise ExpertError("the expert sees the whole env, which a worker has: set env.num_workers=0")
        experts.update({i: Expert(envs.envs[i]) for i in indices if i not in experts})
        actions = [experts[i].act() for i in indices]
        assert envs.actions is not None  # those of BabyAI's
        if max(actions) >= len(envs.actions):
            raise ExpertError(
                f"the expert wants action {max(actions)} of the env, and env.actions names 0 to "
                f"{len(envs.actions) - 1} ({', '.join(envs.actions)}): name more of them"
            )
        return Choice(actions)

    yield choose


def summarise(episodes: Sequence[Episode]) -> Summary:
    """Success rate with its 95 % Wilson interval, return and length of ``episodes``, and what was first dealt with."""
    count = len(episodes)
    returns = torch.tensor([e.episode_return for e in episodes], dtype=torch.float64)
    successes = sum(e.success for e in episodes)
    low, high = wilson_interval(successes, count)
    return Summary(
        episodes=count,
        success_rate=successes / count,
        success_low=low,
        success_high=high,
        return_mean=returns.mean().item(),
        return_std=returns.std(correction=0).item(),
        episode_length=sum(len(e.actions) for e in episodes) / count,
        **_first_interactions([e.first for e in episodes if e.first is not None]),
    )


def _first_interactions(firsts: Sequence[FirstInteraction]) -> dict[str, Any]:
    """The figures of `Summary` that begin with ``first``."""
    if not firsts:
        return {}
    counts = Counter(first.target for first in firsts)
    low, high = wilson_interval(counts["named"], len(firsts))
    dealt, chances = len(firsts) - counts["none"], [f.chance for f in firsts if f.chance is not None]
    return {
        "first_episodes": len(firsts),
        "first_named": counts["named"] / len(firsts),
        "first_named_low": low,
        "first_named_high": high,
        "first_other": counts["other"] / len(firsts),
        "first_none": counts["none"] / len(firsts),
        "first_precision": counts["named"] / dealt if dealt else None,
        "first_chance": fmean(chances) if chances else None,
    }


def wilson_interval(successes: int, count: int, z: float = 1.959964) -> tuple[float, float]:
    """Wilson's score interval of a proportion (Wilson 1927); 95 % by default.

    Raises:
        ValueError: ``count`` is not positive, or ``successes`` not between 0 and ``count``.
    """
    if count <= 0 or not 0 <= successes <= count:
        raise ValueError(f"expected 0 <= successes <= count and count > 0, got {successes} of {count}")
    p = successes / count
    centre = p + z * z / (2 * count)
    spread = z * math.sqrt(p * (1 - p) / count + z * z / (4 * count * count))
    scale = 1 + z * z / count
    return max(0.0, (centre - spread) / scale), min(1.0, (centre + spread) / scale)
