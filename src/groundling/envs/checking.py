"""Checking a text env before training: what it shows, equal episodes for equal seeds, and its two splits."""

import json
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NoReturn

import numpy as np

from groundling.envs.make import TextEnvMaker, name_actions
from groundling.envs.observation import TextObservation
from groundling.envs.seeds import training_seed
from groundling.envs.splits import compare_splits
from groundling.envs.vector import TextEpisode, TextVectorEnv, UnequalEpisode
from groundling.errors import ConfigError

_MORE_EPISODES = 100
"""Played at most beyond those asked for, to find one of several steps: only such a one can be resumed in its middle."""
_KEPT = 16
"""Observations that are kept for a model to be asked about."""


_View = dict[str, int]
"""Hashes of what an observation shows, by the name of each part."""


@dataclass
class Played:
    """What random play in an env has shown."""

    episodes: list[TextEpisode] = field(default_factory=list)
    steps: int = 0
    seconds: float = 0.0
    """Of resets and steps."""
    fewest_actions: int = 0
    most_actions: int = 0
    texts: dict[str, dict[str, None]] = field(
        default_factory=lambda: {"goals": {}, "actions": {}, "observations": {}}
    )
    """Distinct texts by kind, in the order in which they were met."""
    shown: dict[int, TextObservation] = field(default_factory=dict)
    """The first observation, and one in the middle of an episode, with its past; by the steps taken before it."""
    choices: list[TextObservation] = field(default_factory=list)
    """Some of those with a choice among several actions, in the order in which they came."""
    resumed_after: int = 0
    """Steps after which an episode was left and gone on with in a new env; 0: none had more than one step."""
    doubts: list[str] = field(default_factory=list)
    """What can be trained with, and is probably not meant."""
    views: list[list["_View"]] = field(default_factory=list)
    """Of each episode, what it showed before each of its steps."""


def check_env(
    id: str,
    args: Mapping[str, Any],
    actions: Sequence[str] | None = None,
    *,
    history: int | None = 3,
    num_episodes: int = 3,
    max_steps: int = 10_000,
    seed: int = 0,
) -> Played:
    """Play random training episodes of an env, play them again here and in another process, and compare both splits.

    Args:
        id: What Gymnasium knows the env by.
        args: Its keyword arguments.
        actions: Names for all its actions; None: it lists them, or is BabyAI's.
        history: How many observations are shown at most; None: all.
        num_episodes: How many are played; more if each of these ends with its first step.
        max_steps: An episode that is longer is taken to have no end.
        seed: Of the random actions.

    Raises:
        ConfigError: it cannot be trained in, or equal seeds give unequal episodes; the message says what to mend.
        ForeignError: it raises.
        RunError: it breaks at some step.
    """
    names = name_actions(id, args, given=actions)
    maker = TextEnvMaker.of(id, **args)

    def make(num_envs: int = 1, num_workers: int = 0, last: int = 0) -> TextVectorEnv:
        return TextVectorEnv(
            maker,
            num_envs,
            names.names,
            lambda env, episode: training_seed(0, env, abs(last - episode)),
            history,
            num_workers=num_workers,
            warn=_refuse_loss,
        )

    played, rng, views = Played(), np.random.default_rng(seed), list[_View]()
    envs = make()
    started = time.monotonic()
    observation = envs.reset()[0]
    while len(played.episodes) < num_episodes or _needs_longer(played.episodes, num_episodes):
        taken, count = len(views), len(observation.actions)
        is_full = taken > 0 and len(observation.descriptions) == min(history or 3, 3)
        if not played.shown or (len(played.shown) == 1 and is_full):
            played.shown[taken] = observation
        if count > 1 and len(played.choices) < _KEPT:
            played.choices.append(observation)
        played.fewest_actions = min(played.fewest_actions or count, count)
        played.most_actions = max(played.most_actions, count)
        for kind, texts in (
            ("goals", [observation.goal]),
            ("actions", observation.actions),
            ("observations", ["\n".join(observation.descriptions[-1])]),
        ):
            played.texts[kind].update(dict.fromkeys(texts))
        views.append(_view(observation))
        step = envs.step([int(rng.integers(count))])
        _check_reward(id, step.rewards[0])
        played.steps += 1
        if step.episodes:
            played.episodes += step.episodes
            played.views.append(views)
            views = []
        observation = step.observations[0]
        if played.steps > max_steps * (1 + len(played.episodes)):
            raise ConfigError(
                f"{id}: an episode has not ended after {max_steps:,} steps: end it (terminated), or give it a limit "
                "(truncated; gymnasium.register takes max_episode_steps)"
            )
    played.seconds = time.monotonic() - started
    envs.close()
    backwards = partial(make, num_envs=2, last=len(played.episodes) - 1)
    again = list(zip(played.episodes, played.views, strict=True))
    when = "the second time, in reverse order and next to another env in one process"
    played.resumed_after = _play_again(_Refusal(id, when), backwards(), again[::-1], backwards)
    with _other_hash_seed() as hash_seed:
        elsewhere = f"in another process, with PYTHONHASHSEED={hash_seed}"
        _play_again(_Refusal(id, elsewhere, _MEND_ORDER), make(num_workers=1), again)
    played.doubts = [*_doubts(played.texts), *compare_splits(id, maker)]
    return played


def _needs_longer(episodes: Sequence[TextEpisode], asked: int) -> bool:
    return all(episode.length == 1 for episode in episodes) and len(episodes) < asked + _MORE_EPISODES


@dataclass(frozen=True)
class _Refusal:
    """Raises the error of an episode that was another one when it was played again."""

    id: str
    when: str
    mend: str = ""

    def __call__(self, before: TextEpisode, difference: str) -> NoReturn:
        raise ConfigError(
            f"{self.id}: seed {before.seed} and the same {before.length} actions gave another episode {self.when}: a "
            f"run could not be resumed exactly. {self.mend}Draw everything from self.np_random, which "
            "super().reset(seed=seed) seeds (all envs of a process share the module random), take nothing from the "
            f"episodes before, and list actions in a fixed order ({difference})"
        )


_MEND_ORDER = (
    "Python orders sets of texts by the hash seed, which each process draws: sort what comes from a set, as in "
    "sorted(…), and use hashlib in place of hash(). "
)


@contextmanager
def _other_hash_seed() -> Iterator[str]:
    """Start the processes of the block with another PYTHONHASHSEED than this one's; gives it."""
    own = os.environ.get("PYTHONHASHSEED")
    os.environ["PYTHONHASHSEED"] = other = "2" if own == "1" else "1"
    try:
        yield other
    finally:
        if own is None:
            del os.environ["PYTHONHASHSEED"]
        else:
            os.environ["PYTHONHASHSEED"] = own


def _refuse_loss(text: str) -> NoReturn:
    raise ConfigError(
        f"the env was played in this process, and not in another one, as a resumed run needs: {text}"
    )


def _play_again(
    refuse: _Refusal,
    envs: TextVectorEnv,
    episodes: Sequence[tuple[TextEpisode, list[_View]]],
    make: Callable[[], TextVectorEnv] | None = None,
) -> int:
    """Play episodes in the first of ``envs``, next to random play in the others, and close them.

    Args:
        refuse: Raises if an episode differs.
        envs: Their first one begins with these episodes.
        episodes: As they were played, in this order.
        make: Makes such envs; if given, the longest episode is also ended in new ones.

    Returns:
        The steps after which that was, or 0.
    """
    rng, resumed_after = np.random.default_rng(1), 0
    longest = max((episode for episode, _ in episodes), key=lambda episode: episode.length)

    def step(action: int) -> list[TextEpisode]:
        others = [int(rng.integers(len(one.actions))) for one in envs.observations()[1:]]
        return [one for one in envs.step([action, *others]).episodes if one.env_index == 0]

    try:
        envs.reset()
        for before, views in episodes:
            for taken, action in enumerate(before.actions):
                shown = envs.observations()[0]
                if different := [
                    part for part, hashed in _view(shown).items() if hashed != views[taken][part]
                ]:
                    part = different[0]
                    refuse(
                        before, f"after {taken} steps its {part} differed: {getattr(shown, part)!r:.80} now"
                    )
                if taken < before.length - 1 and step(action):
                    refuse(before, f"it ended after {taken + 1} steps")
            if make is not None and before is longest and before.length > 1:
                resumed_after = before.length - 1
                resumed = make()
                _resume(refuse, resumed, envs, before)
                _end(
                    refuse, resumed.step([before.actions[-1], *[None] * (envs.num_envs - 1)]).episodes, before
                )
                resumed.close()
            _end(refuse, step(before.actions[-1]), before)
    finally:
        envs.close()
    return resumed_after


def _resume(refuse: _Refusal, resumed: TextVectorEnv, envs: TextVectorEnv, before: TextEpisode) -> None:
    """Bring new envs to where ``envs`` are, in the middle of an episode, as a resumed training does."""
    try:
        resumed.load_state_dict(json.loads(json.dumps(envs.state_dict())))
    except UnequalEpisode:
        one, other = envs.observations()[0], resumed.observations()[0]
        for part in _view(one):
            if getattr(one, part) != getattr(other, part):
                was, now = getattr(one, part), getattr(other, part)
                refuse(before, f"its {part}: {was!r:.60}, and in a new env {now!r:.60}")
        refuse(before, "in a new env it ended at another step")


def _view(observation: TextObservation) -> _View:
    return {part: hash(getattr(observation, part)) for part in ("goal", "descriptions", "actions")}


def _doubts(texts: Mapping[str, Iterable[str]]) -> list[str]:
    doubts = []
    for what, kind in (("a goal", "goals"), ("an action", "actions")):
        if any(not text.strip() for text in texts[kind]):
            doubts.append(f"{what} is empty: a model reads nothing there")
        if broken := sorted(t for t in texts[kind] if len(t.strip().splitlines()) > 1 or "\n" in t):
            doubts.append(f"{what} has line breaks, which a prompt has between its parts: {broken[0]!r:.80}")
    return doubts


def _end(refuse: _Refusal, ended: Sequence[TextEpisode], before: TextEpisode) -> None:
    """Compare an episode with the one that has ended."""
    if not ended:
        refuse(before, "it ended at another step")
    # BabyAI's task is known in the env's process alone.
    if replace(ended[0], task=before.task, number=before.number) != before:
        refuse(before, _difference(before, ended[0]))


def _difference(before: TextEpisode, again: TextEpisode) -> str:
    for name in ("mission", "episode_return", "actions", "success"):
        one, other = getattr(before, name), getattr(again, name)
        if one != other:
            return f"{name} was {one!r:.60}, then {other!r:.60}"
    return "it ended at another step"


def _check_reward(id: str, reward: Any) -> None:
    if not math.isfinite(reward):
        raise ConfigError(f"{id} gave the reward {reward}: expected a finite number")
