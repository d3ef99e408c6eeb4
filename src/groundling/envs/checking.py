"""Trying a text env before anything is trained in it: what it tells, and whether equal seeds give equal episodes."""

import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from groundling.envs.make import TextEnvMaker, name_actions
from groundling.envs.observation import TextObservation
from groundling.envs.vector import Episode, TextVectorEnv
from groundling.errors import ConfigError


@dataclass
class Played:
    """What random play in an env has shown."""

    episodes: list[Episode] = field(default_factory=list)
    steps: int = 0
    seconds: float = 0.0
    """Of resets and steps."""
    fewest_actions: int = 0
    most_actions: int = 0
    distinct_actions: int = 0
    shown: list[TextObservation] = field(default_factory=list)
    """The first observation, and one in the middle of an episode, with its past."""


def check_env(
    id: str,
    args: Mapping[str, Any],
    actions: Sequence[str] | None = None,
    *,
    history: int = 3,
    num_episodes: int = 3,
    max_steps: int = 10_000,
    seed: int = 0,
) -> Played:
    """Play random episodes in an env twice, as training would and as a resumed training would.

    Args:
        id: What Gymnasium knows the env by.
        args: Its keyword arguments.
        actions: Names for all its actions; None: it lists them, or is BabyAI's.
        history: How many observations are shown at most.
        num_episodes: How many are played.
        max_steps: An episode that is longer is taken to have no end.
        seed: Of the random actions; the env's own seeds are 0, 2, 4, ….

    Raises:
        ConfigError: it cannot be trained in; the message says what to mend.
        RunError: it breaks at some step, or equal seeds give unequal episodes.
    """
    names = name_actions(id, args, given=actions)

    def make() -> TextVectorEnv:
        return TextVectorEnv(
            TextEnvMaker.of(id, **args), 1, names.names, lambda env, episode: 2 * episode, history
        )

    played, rng, distinct = Played(), np.random.default_rng(seed), set[str]()
    envs = make()
    started = time.monotonic()
    observation = envs.reset()[0]
    played.shown.append(observation)
    while len(played.episodes) < num_episodes:
        count = len(observation.actions)
        played.fewest_actions = min(played.fewest_actions or count, count)
        played.most_actions = max(played.most_actions, count)
        distinct.update(observation.actions)
        step = envs.step([int(rng.integers(count))])
        _check_reward(id, step.rewards[0])
        played.steps += 1
        played.episodes += step.episodes
        observation = step.observations[0]
        if len(played.shown) == 1 and not step.episodes and len(observation.descriptions) == min(history, 3):
            played.shown.append(observation)
        if played.steps > max_steps * (1 + len(played.episodes)):
            raise ConfigError(
                f"{id}: an episode has not ended after {max_steps:,} steps: end it (terminated), or give it a limit "
                "(truncated; gymnasium.register takes max_episode_steps)"
            )
    played.seconds, played.distinct_actions = time.monotonic() - started, len(distinct)
    _play_again(id, make(), played.episodes, envs.state_dict())
    envs.close()
    return played


def _play_again(
    id: str, envs: TextVectorEnv, episodes: Sequence[Episode], state: list[dict[str, Any]]
) -> None:
    """Play the same episodes in a new env, then bring it to where the first one stands, as a resumed run does."""
    envs.reset()
    for before in episodes:
        for action in before.actions:
            step = envs.step([action])
            if step.episodes:
                break
        if not step.episodes or (again := step.episodes[0]) != before:
            raise ConfigError(
                f"{id}: seed {before.seed} and the same {len(before.actions)} actions gave another episode the second "
                f"time: a run could not be resumed exactly. Draw everything from self.np_random, which "
                f"super().reset(seed=seed) seeds, and list actions in a fixed order ({_difference(before, again)})"
            )
    envs.load_state_dict(json.loads(json.dumps(state)))
    envs.close()


def _difference(before: Episode, again: Episode) -> str:
    for name in ("mission", "episode_return", "actions", "success"):
        one, other = getattr(before, name), getattr(again, name)
        if one != other:
            return f"{name} was {one!r:.60}, then {other!r:.60}"
    return "it ended at another step"


def _check_reward(id: str, reward: Any) -> None:
    if not math.isfinite(reward):
        raise ConfigError(f"{id} gave the reward {reward}: expected a finite number")
