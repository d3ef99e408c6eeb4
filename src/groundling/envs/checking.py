"""Trying a text env before anything is trained in it: what it tells, and whether equal seeds give equal episodes."""

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np

from groundling.envs.make import TextEnvMaker, name_actions
from groundling.envs.observation import TextObservation
from groundling.envs.vector import Episode, TextVectorEnv
from groundling.errors import ConfigError

_MORE_EPISODES = 100
"""Played at most beyond those asked for, to find one of several steps: only such a one can be resumed in its middle."""
_KEPT = 16
"""Observations that are kept for a model to be asked about."""


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
    choices: list[TextObservation] = field(default_factory=list)
    """Some of those with a choice among several actions, in the order in which they came."""
    resumed_after: int = 0
    """Steps after which an episode was left and gone on with in a new env; 0: none had more than one step."""


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
        num_episodes: How many are played; more if each of these ends with its first step.
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
    while len(played.episodes) < num_episodes or _needs_longer(played.episodes, num_episodes):
        count = len(observation.actions)
        played.fewest_actions = min(played.fewest_actions or count, count)
        played.most_actions = max(played.most_actions, count)
        distinct.update(observation.actions)
        if count > 1 and len(played.choices) < _KEPT:
            played.choices.append(observation)
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
    envs.close()
    _play_again(id, make, played)
    return played


def _needs_longer(episodes: Sequence[Episode], asked: int) -> bool:
    return all(episode.length == 1 for episode in episodes) and len(episodes) < asked + _MORE_EPISODES


def _play_again(id: str, make: Callable[[], TextVectorEnv], played: Played) -> None:
    """Play the same episodes in a new env; leave the longest before its last step, and end it in one more new env."""
    envs = make()
    envs.reset()
    longest = max(played.episodes, key=lambda episode: episode.length)
    for before in played.episodes:
        for action in before.actions[:-1]:
            if envs.step([action]).episodes:
                _refuse(id, before, "it ended at another step")
        if before is longest and before.length > 1:
            resumed = make()
            resumed.load_state_dict(json.loads(json.dumps(envs.state_dict())))
            _end(id, resumed, before)
            resumed.close()
            played.resumed_after = before.length - 1
        _end(id, envs, before)
    envs.close()


def _end(id: str, envs: TextVectorEnv, before: Episode) -> None:
    """Take an episode's last step, and compare what it was."""
    ended = envs.step([before.actions[-1]]).episodes
    if not ended:
        _refuse(id, before, "it ended at another step")
    if ended[0] != before:
        _refuse(id, before, _difference(before, ended[0]))


def _refuse(id: str, before: Episode, difference: str) -> NoReturn:
    raise ConfigError(
        f"{id}: seed {before.seed} and the same {len(before.actions)} actions gave another episode the second "
        f"time: a run could not be resumed exactly. Draw everything from self.np_random, which "
        f"super().reset(seed=seed) seeds, and list actions in a fixed order ({difference})"
    )


def _difference(before: Episode, again: Episode) -> str:
    for name in ("mission", "episode_return", "actions", "success"):
        one, other = getattr(before, name), getattr(again, name)
        if one != other:
            return f"{name} was {one!r:.60}, then {other!r:.60}"
    return "it ended at another step"


def _check_reward(id: str, reward: Any) -> None:
    if not math.isfinite(reward):
        raise ConfigError(f"{id} gave the reward {reward}: expected a finite number")
