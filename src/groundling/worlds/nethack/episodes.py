"""Play NetHack's held-out episodes."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import gymnasium
import numpy as np
import torch

from groundling.envs.nethack import TASKS, make_task, recording_in
from groundling.envs.nethack.observation import COLOURS, WINDOW, View, vector_features
from groundling.envs.seeds import held_out_seed, training_seed
from groundling.errors import ConfigError
from groundling.policies.nethack import NetHackObservations, NetHackPolicy
from groundling.policies.policy import Policy
from groundling.worlds.episode import Episode
from groundling.worlds.nethack.frames import MessageScores
from groundling.worlds.nethack.pairs import Act, ActForSeed, Observation, explorer_player, random_player
from groundling.worlds.protocols import Actor
from groundling.worlds.world import Player

BASELINES: dict[str, ActForSeed] = {"random": random_player, "explorer": explorer_player}


class BaselineAgent:
    """A rule-based or random agent in any number of envs."""

    def __init__(self, act_for_seed: ActForSeed) -> None:
        self._act_for_seed = act_for_seed
        self._acts: dict[int, Act] = {}

    def begin(self, env: int, seed: int) -> None:
        """Start an episode in ``env``; ``seed`` determines the agent's random numbers."""
        self._acts[env] = self._act_for_seed(seed)

    def act(self, envs: Sequence[int], observations: Sequence[Observation]) -> list[int]:
        """Choose an action for each of these envs; ``observations`` are nle's arrays."""
        return [self._acts[env](shown) for env, shown in zip(envs, observations, strict=True)]


class PolicyAgent:
    """An agent that follows a policy, with a memory for each env; ``view`` selects its part of nle's arrays."""

    def __init__(self, policy: Policy, deterministic: bool = False, seed: int = 0, view: View | None = None) -> None:
        if not isinstance(policy, NetHackPolicy):
            raise ConfigError(f"{type(policy).__name__} cannot play NetHack: set policy.id=nethack")
        self._policy, self._deterministic, self._view = policy, deterministic, view or View()
        self._generator = torch.Generator().manual_seed(seed)
        self._memories: dict[int, torch.Tensor] = {}  # by env, (memory_size,)

    def begin(self, env: int, seed: int) -> None:
        self._memories[env] = torch.zeros(self._policy.memory_size)

    def act(self, envs: Sequence[int], observations: Sequence[Observation]) -> list[int]:
        action = self._policy.act(
            features(observations, self._view),
            memory=torch.stack([self._memories[env] for env in envs]),
            deterministic=self._deterministic,
            generator=self._generator,
        )
        assert action.memory is not None
        self._memories.update(zip(envs, action.memory, strict=True))
        return list(action.actions.tolist())


class PolicyActor(Actor):
    """A policy in a custom loop. It reports no action probabilities, because its choices depend on its memory."""

    def __init__(
        self, policy: Policy, task: str, args: Mapping[str, Any], deterministic: bool, generator: torch.Generator
    ) -> None:
        seed = int(torch.randint(2**31, (), generator=generator))
        self._agent = PolicyAgent(policy, deterministic, seed, View.of(args))
        self._task, self._args = task, args
        self.reset()

    def make_env(self, **args: Any) -> gymnasium.Env[Any, Any]:
        return gymnasium.make(self._task, **{**self._args, **args})

    def reset(self) -> None:
        self._agent.begin(0, 0)

    def act(self, observation: Any, info: Mapping[str, Any]) -> int:
        """Return the index of the chosen action; the observation maps names to nle's arrays."""
        return self._agent.act([0], [observation])[0]


def features(observations: Sequence[Observation], view: View) -> NetHackObservations:
    """Return a policy's view of nle's arrays, in the format of `groundling.envs.nethack.vector`."""
    chars, colours = np.empty((2, len(observations), WINDOW, WINDOW), dtype=np.uint8)
    blstats = np.stack([o["blstats"] for o in observations])
    vector = np.empty(blstats.shape, dtype=np.float32)
    for i, (shown, (x, y)) in enumerate(zip(observations, blstats[:, :2].tolist(), strict=True)):
        view.windows(shown, x, y, chars[i], colours[i])
    vector_features(blstats, vector, view.vector)
    messages = np.stack([o["message"] for o in observations])
    return NetHackObservations(chars, colours & (COLOURS - 1), vector, messages)


def make_agent(
    player: Player, args: Mapping[str, Any], *, deterministic: bool, seed: int
) -> BaselineAgent | PolicyAgent:
    """Return an agent that plays as ``player`` in many envs, given the task's ``args`` and a seed for sampling."""
    if player.policy is None:
        return BaselineAgent(BASELINES[player.name])
    return PolicyAgent(player.policy, deterministic, seed, View.of(args))


def make_act_for_seed(player: Player, args: Mapping[str, Any], *, deterministic: bool) -> ActForSeed:
    """Return a function that creates an agent for a single episode, whose seed determines all random choices."""
    make_agent(player, args, deterministic=deterministic, seed=0)  # rejects other policies before anything is played

    def act_for_seed(seed: int) -> Act:
        agent = make_agent(player, args, deterministic=deterministic, seed=seed)
        agent.begin(0, seed)
        return lambda observation: agent.act([0], [observation])[0]

    return act_for_seed


def mixed(players: Sequence[ActForSeed]) -> ActForSeed:
    """Return a player that uses an episode's seed to choose which of ``players`` plays it."""
    return lambda seed: players[int(np.random.default_rng(seed).integers(len(players)))](seed)


_NAMES = {"dlvl": "depth", "xlvl": "experience_level", "scout": "squares"}  # keyed by nle's and Motif's names
_FIGURES = (
    *("success", "return", "score", "depth", "gold", "experience_level"),
    *("length", "messages", "squares", "intrinsic_return", "turns"),
)  # reported metrics, in this order


@dataclass
class Game:
    number: int
    actions: list[int] = field(default_factory=list)
    messages: Counter[bytes] = field(default_factory=Counter)  # number of times each was shown before an action
    figures: dict[str, float] = field(default_factory=dict)  # at the end of the game: `_FIGURES` and end_status

    @property
    def seed(self) -> int:
        return held_out_seed(self.number)


def play(
    agent: BaselineAgent | PolicyAgent,
    task: str,
    args: Mapping[str, Any],
    num_episodes: int,
    num_envs: int,
    seed: int = 0,
    scores: MessageScores | None = None,
) -> Iterator[Game]:
    """Play the first ``num_episodes`` held-out episodes, and yield each when it ends. Every env plays a fixed share of
    them, so that short episodes are not favoured. ``seed`` seeds the baselines.
    """
    envs = [make_task(task, **recording_in(args, f"env-{env:04}")) for env in range(min(num_envs, num_episodes))]
    present: dict[int, Game] = {}
    shown: dict[int, Any] = {}

    def begin(env: int, number: int) -> None:
        if number < num_episodes:
            present[env] = Game(number)
            shown[env], _ = envs[env].reset(seed=present[env].seed)
            agent.begin(env, training_seed(seed, 0, number))

    try:
        for env in range(len(envs)):
            begin(env, env)
        while present:
            playing = list(present)
            actions = agent.act(playing, [shown[env] for env in playing])
            for env, action in zip(playing, actions, strict=True):
                game = present[env]
                game.messages[shown[env]["message"].tobytes()] += 1
                game.actions.append(action)
                shown[env], reward, terminated, truncated, info = envs[env].step(action)
                game.figures["return"] = game.figures.get("return", 0.0) + reward
                if terminated or truncated:
                    _finish(game, task, info, scores)
                    del present[env]
                    yield game
                    begin(env, game.number + len(envs))
    finally:
        for one in envs:
            one.close()


def _finish(game: Game, task: str, info: Mapping[str, Any], scores: MessageScores | None) -> None:
    figures = game.figures
    figures |= {_NAMES.get(k, k): float(v) for k, v in info.items() if k != "is_ascended"}
    figures["length"], figures["messages"] = float(len(game.actions)), float(len(game.messages))
    if TASKS[task]["goal"] != "score":
        figures["success"] = float(figures["return"] > 0)
    if scores is not None:
        figures["intrinsic_return"] = scores.intrinsic_return(game.messages)


def episode_of(game: Game) -> Episode:
    figures = {name: game.figures[name] for name in _FIGURES if name in game.figures}
    about: dict[str, str | int] = {"seed": game.seed}
    if "end_status" in game.figures:
        about["end_status"] = int(game.figures["end_status"])
    return Episode(figures, game.number, about, game)
