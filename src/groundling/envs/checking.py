"""Check a text env before training: its observations, its reproducibility, and its training and held-out episodes."""

import json
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NoReturn
from unittest import mock

import gymnasium
import numpy as np

from groundling.envs.make import TextEnvMaker, name_actions
from groundling.envs.objects import register_env
from groundling.envs.seeds import held_out_seed, training_seed
from groundling.envs.text_env import Reader, TextObservation, read_reset, read_text_step
from groundling.envs.text_episode import TextEpisode, random_action
from groundling.envs.vector import TextVectorEnv, UnequalEpisode
from groundling.errors import ConfigError, foreign, warn_caller

_KEPT = 16  # Number of observations kept for computing a model's action probabilities

_Refuse = Callable[[TextEpisode, str], NoReturn]
_Hashes = dict[str, int]  # Hashes of an observation's parts, by name


@dataclass
class RandomEpisodes:
    """Results of random play in an env."""

    episodes: list[TextEpisode] = field(default_factory=list)
    steps: int = 0
    seconds: float = 0.0  # time spent in resets and steps
    fewest_actions: int = 0
    most_actions: int = 0
    texts: dict[str, dict[str, None]] = field(default_factory=lambda: {"goals": {}, "actions": {}, "observations": {}})
    """Distinct strings by kind, in the order of their first occurrence."""
    shown: dict[int, TextObservation] = field(default_factory=dict)
    """The first observation and a later one with its history, keyed by the number of preceding steps."""
    choices: list[TextObservation] = field(default_factory=list)  # some observations with more than one action
    unequal: str = ""  # how a server's episodes with the same seed differ; empty if they do not
    resumed_after: int = 0  # steps after which an episode was continued in a new env; 0 if none was
    doubts: list[str] = field(default_factory=list)  # warnings about probable mistakes
    hashes: list[list[_Hashes]] = field(default_factory=list)  # before each step of each episode


def check_env(
    id: Any,
    args: Mapping[str, Any] = {},
    actions: Sequence[str] | None = None,
    *,
    goal: str | Reader | None = None,
    history: int | None = 3,
    num_episodes: int = 3,
    max_steps: int = 10_000,
    seed: int = 0,
) -> RandomEpisodes:
    """Play random training episodes of an env, replay them in this and another process, and compare both splits.

    Args:
        id: A registered id, an env class, a function that creates an env, or an env, which is copied; another process
            must be able to import it.
        args: Arguments of the env.
        actions: Names of all actions; None if the env has its own names, or is a BabyAI env.
        goal: See `groundling.envs.TextEnv`.
        history: Maximum number of observations shown; None for all.
        num_episodes: Number of episodes.
        max_steps: Number of steps after which an episode is assumed to be endless.

    Raises:
        ConfigError: The env is unsuitable for training, or the same seed produces different episodes. (A server's
            episodes may differ; ``unequal`` then describes the difference.)
        ForeignError: The env raises an exception.
        RunError: The env returns an invalid value at a step.
    """
    id = id if isinstance(id, str) else register_env(id)
    names = name_actions(id, args, given=actions)
    maker = replace(TextEnvMaker.of(id, **args), goal=goal)

    def make(num_envs: int = 1, num_workers: int = 0, last: int = 0) -> TextVectorEnv:
        on_loss: Callable[[str], None] = _refuse_loss
        if not num_workers:
            on_loss = warn_caller  # in this process, only a server can be lost
        return TextVectorEnv(
            maker,
            num_envs,
            names.names,
            lambda env, episode: training_seed(0, env, abs(last - episode)),
            history,
            num_workers=num_workers,
            warn=on_loss,
        )

    with closing(make()) as envs:
        remote = envs.remote
        played = _play(id, envs, history, num_episodes, max_steps, np.random.default_rng(seed))
    again = list(zip(played.episodes, played.hashes, strict=True))
    if remote:  # one session at a time, since a server may allow only one
        try:
            _play_again(partial(_refuse, id, "when replayed in another session", ""), make(), again)
        except UnequalEpisodes as error:
            played.unequal = error.difference
    else:
        backwards = partial(make, num_envs=2, last=len(played.episodes) - 1)
        when = "when replayed in reverse order alongside another env in the same process"
        played.resumed_after = _play_again(partial(_refuse, id, when, ""), backwards(), again[::-1], backwards)
        before = os.environ.get("PYTHONHASHSEED")
        other = "2" if before == "1" else "1"
        with mock.patch.dict(os.environ, PYTHONHASHSEED=other):
            elsewhere = f"when replayed in another process with PYTHONHASHSEED={other}"
            _play_again(partial(_refuse, id, elsewhere, _ADVICE_ON_ORDER), make(num_workers=1), again)
    for what, kind in (("a goal", "goals"), ("an action", "actions")):
        texts = played.texts[kind]
        if any(not text.strip() for text in texts) and [*texts] != [""]:  # without goals, all are empty
            played.doubts.append(f"{what} is empty, so a model has nothing to read there")
        if broken := sorted(t for t in texts if len(t.strip().splitlines()) > 1 or "\n" in t):
            doubt = f"{what} has line breaks, which separate the parts of a prompt: {broken[0]!r:.80}"
            played.doubts.append(doubt)
    played.doubts += compare_splits(id, maker)
    return played


def _play(
    id: str, envs: TextVectorEnv, history: int | None, num_episodes: int, max_steps: int, rng: np.random.Generator
) -> RandomEpisodes:
    played, hashes = RandomEpisodes(), list[_Hashes]()
    started = time.monotonic()
    observation = envs.reset()[0]
    while len(played.episodes) < num_episodes:
        taken, count = len(hashes), len(observation.actions)
        is_full = taken > 0 and len(observation.descriptions) == min(history or 3, 3)
        if not played.shown or (len(played.shown) == 1 and is_full):
            played.shown[taken] = observation
        if count > 1 and len(played.choices) < _KEPT:
            played.choices.append(observation)
        played.fewest_actions = min(played.fewest_actions or count, count)
        played.most_actions = max(played.most_actions, count)
        played.texts["goals"][observation.goal] = None
        played.texts["actions"].update(dict.fromkeys(observation.actions))
        played.texts["observations"]["\n".join(observation.descriptions[-1])] = None
        hashes.append(_hashes(observation))
        step = envs.step([random_action(observation, rng.integers)])
        played.steps += 1
        if step.episodes:
            played.episodes += step.episodes
            played.hashes.append(hashes)
            hashes = []
        observation = step.observations[0]
        if played.steps > max_steps * (1 + len(played.episodes)):
            raise ConfigError(
                f"{id}: an episode has not ended after {max_steps:,} steps: end it (terminated), or set a time limit "
                "(truncated; pass max_episode_steps to gymnasium.register)"
            )
    played.seconds = time.monotonic() - started
    return played


class UnequalEpisodes(ConfigError):
    """The same seed and actions produced different episodes."""

    def __init__(self, message: str, difference: str) -> None:
        super().__init__(message)
        self.difference = difference


def _refuse(id: str, when: str, advice: str, before: TextEpisode, difference: str) -> NoReturn:
    raise UnequalEpisodes(
        f"{id}: seed {before.seed} and the same {before.length} actions produced a different episode {when}, so a run "
        f"cannot be resumed exactly. {advice}Sample everything from self.np_random, which super().reset(seed=seed) "
        "seeds (the random module is shared by all envs in a process), carry nothing over from earlier episodes, and "
        f"list actions in a fixed order ({difference})",
        difference,
    )


_ADVICE_ON_ORDER = (
    "The order of a set of strings depends on Python's hash seed, which differs between processes: sort sets with "
    "sorted(…), and use hashlib instead of hash(). "
)


def _refuse_loss(text: str) -> NoReturn:
    raise ConfigError(f"the env works in this process but not in a new one, so runs could not be resumed: {text}")


def _play_again(
    refuse: _Refuse,
    envs: TextVectorEnv,
    episodes: Sequence[tuple[TextEpisode, list[_Hashes]]],
    make: Callable[[], TextVectorEnv] | None = None,
) -> int:
    """Replay episodes in the first of ``envs`` while the others play randomly, then close them all. With ``make``,
    also finish the longest episode in new envs, and return the number of steps before that; otherwise, return 0.
    """
    rng, resumed_after = np.random.default_rng(1), 0
    longest = max((episode for episode, _ in episodes), key=lambda episode: episode.length)

    def step(action: int | str) -> list[TextEpisode]:
        others = [random_action(one, rng.integers) for one in envs.observations()[1:]]
        return [one for one in envs.step([action, *others]).episodes if one.env_index == 0]

    try:
        envs.reset()
        for before, hashes in episodes:
            for taken, action in enumerate(before.actions):
                seen = envs.observations()[0]
                for part, hashed in _hashes(seen).items():
                    if hashed != hashes[taken][part]:
                        refuse(before, f"after {taken} steps its {part} differed, now {getattr(seen, part)!r:.80}")
                if taken < before.length - 1 and step(action):
                    refuse(before, f"it ended after {taken + 1} steps")
            if make is not None and before is longest and before.length > 1:
                resumed_after = before.length - 1
                with closing(make()) as resumed:
                    try:
                        resumed.load_state_dict(json.loads(json.dumps(envs.state_dict())))
                    except UnequalEpisode:
                        present = (each.observations()[0] for each in (envs, resumed))
                        was, now = ((one.goal, one.descriptions[-1], one.actions) for one in present)
                        refuse(before, f"it showed {was!r:.160}, but in a new env {now!r:.160}")
                    last: list[int | str | None] = [before.actions[-1], *[None] * (envs.num_envs - 1)]
                    _compare_end(refuse, resumed.step(last).episodes, before)
            _compare_end(refuse, step(before.actions[-1]), before)
    finally:
        envs.close()
    return resumed_after


def _hashes(observation: TextObservation) -> _Hashes:
    return {part: hash(getattr(observation, part)) for part in ("goal", "descriptions", "actions")}


def _compare_end(refuse: _Refuse, ended: Sequence[TextEpisode], before: TextEpisode) -> None:
    for name in ("mission", "episode_return", "actions", "success") if ended else ():
        one, other = getattr(before, name), getattr(ended[0], name)
        if one != other:
            refuse(before, f"{name} was {one!r:.60}, then {other!r:.60}")
    # BabyAI's task is only available in the env's own process.
    if not ended or replace(ended[0], task=before.task, number=before.number) != before:
        refuse(before, "it ended at a different step")


_RESETS, _SECONDS = 200, 2.0  # limits on the number of resets per split and their total duration
_TASK_KEYS = (
    *("task", "task_id", "task_name", "game", "game_id", "gamefile", "extra.gamefile"),
    *("level", "level_id", "level_name", "variation", "variation_idx", "variationIdx"),
)  # info keys that identify the task in ALFWorld, ScienceWorld, TextWorld and others
_CHANCE = 0.001  # Upper bound on the probability of a false warning about tasks
_SHARE = 0.05  # Minimum share of held-out starts also seen in training that triggers a warning
_SHOWN = 3


def compare_splits(id: str, make: Callable[[], gymnasium.Env[Any, Any]]) -> list[str]:
    """Reset an env with seeds of both splits, and return warnings about tasks that occur in only one split and about
    starts that occur in both. Tasks are compared by task id, goal or first observation. ``id`` is used in messages.
    """
    starts: tuple[list[str], list[str]] = ([], [])
    tasks: dict[str, tuple[Counter[str], Counter[str]]] = {}
    env, end = make(), time.monotonic() + _SECONDS
    try:
        for number in range(_RESETS):
            if number and time.monotonic() > end:
                break
            for split, seed in enumerate((training_seed(0, 0, number), held_out_seed(number))):
                with foreign(f"env {id}, while being reset with seed {seed},"):
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
            f"{repeated} of {resets} held-out episodes start exactly like one of {resets} training episodes (same "
            "goal, observation and actions): if these are the same games, held-out success measures memorisation; "
            "choose different games if groundling.envs.seeds.is_held_out(seed)"
        )
    return warnings


def _one_sided(key: str, met: tuple[Counter[str], Counter[str]], resets: int) -> list[str]:
    """Return warnings about tasks that occurred in only one split if chance is an unlikely cause. If the splits had the
    same distribution, each of a task's k occurrences would be in either split with probability 1/2, and all of them in
    one split with probability at most 2 · 2⁻ᵏ. For t tasks, the probability of any warning is at most t · 2 · 2⁻ᵏ.
    """
    warnings, count = [], len(met[0] + met[1])
    for split, own, other in (("training", *met), ("held-out", *met[::-1])):
        only = sorted(t for t, k in own.items() if t not in other and count * 2.0 ** (1 - k) < _CHANCE)
        if only:
            shown = ", ".join(f"{task!r:.60}" for task in only[:_SHOWN])
            more = f" and {len(only) - _SHOWN} more" if len(only) > _SHOWN else ""
            warnings.append(
                f"only {split} episodes have the {key} {shown}{more} ({resets} resets of each split): unless they are "
                "deliberately held out, choose tasks with self.np_random, so that both splits have the same tasks"
            )
    return warnings
