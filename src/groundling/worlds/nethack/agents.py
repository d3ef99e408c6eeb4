"""Agents that play NetHack: at random, by rules, or by a policy."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import gymnasium
import numpy as np
import torch

from groundling.envs.nethack.observation import COLOURS, WINDOW, View, vector_features
from groundling.errors import ConfigError
from groundling.policies.nethack import NetHackObservations, NetHackPolicy
from groundling.policies.policy import Policy
from groundling.worlds.nethack.pairs import Act, ActForSeed, Observation, explorer_player, random_player
from groundling.worlds.world import Player

BASELINES: dict[str, ActForSeed] = {"random": random_player, "explorer": explorer_player}


class NetHackAgent(Protocol):
    """Plays in any number of envs."""

    def begin(self, env: int, seed: int) -> None:
        """Begin an episode in ``env``; its random draws may follow from ``seed``."""

    def act(self, envs: Sequence[int], observations: Sequence[Observation]) -> list[int]:
        """Choose an action for each of these envs, which show nle's arrays."""


class BaselineAgent:
    def __init__(self, act_for_seed: ActForSeed) -> None:
        self._act_for_seed = act_for_seed
        self._acts: dict[int, Act] = {}

    def begin(self, env: int, seed: int) -> None:
        self._acts[env] = self._act_for_seed(seed)

    def act(self, envs: Sequence[int], observations: Sequence[Observation]) -> list[int]:
        return [self._acts[env](shown) for env, shown in zip(envs, observations, strict=True)]


class PolicyAgent:
    """An agent that follows a policy, with a memory for each env; ``view``: the part of nle's arrays that it sees."""

    def __init__(self, policy: Policy, deterministic: bool = False, seed: int = 0, view: View | None = None) -> None:
        if not isinstance(policy, NetHackPolicy):
            raise ConfigError(f"{type(policy).__name__} does not play NetHack: set policy.id=nethack")
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


class PolicyActor:
    """A policy in a custom loop of a task, one episode after the other (`groundling.worlds.protocols.Actor`)."""

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
        """Begin an episode, and clear the memory."""
        self._agent.begin(0, 0)

    @property
    def probabilities(self) -> Mapping[str, float] | None:
        """None: the choice depends on the memory."""
        return None

    def act(self, observation: Any, info: Mapping[str, Any]) -> int:
        """Return an action's number for nle's arrays by name."""
        return self._agent.act([0], [observation])[0]


def features(observations: Sequence[Observation], view: View) -> NetHackObservations:
    """Return a policy's view of nle's arrays, as `groundling.envs.nethack.vector` gives it."""
    chars, colours = np.empty((2, len(observations), WINDOW, WINDOW), dtype=np.uint8)
    blstats = np.stack([o["blstats"] for o in observations])
    vector = np.empty(blstats.shape, dtype=np.float32)
    for i, (shown, (x, y)) in enumerate(zip(observations, blstats[:, :2].tolist(), strict=True)):
        view.windows(shown, x, y, chars[i], colours[i])
    vector_features(blstats, vector, view.vector)
    messages = np.stack([o["message"] for o in observations])
    return NetHackObservations(chars, colours & (COLOURS - 1), vector, messages)


def make_agent(player: Player, args: Mapping[str, Any], *, deterministic: bool, seed: int) -> NetHackAgent:
    """Return a player as an agent in many envs; ``args`` are the task's, ``seed`` is that of the draws."""
    if player.policy is None:
        return BaselineAgent(BASELINES[player.name])
    return PolicyAgent(player.policy, deterministic, seed, View.of(args))


def make_act_for_seed(player: Player, args: Mapping[str, Any], *, deterministic: bool) -> ActForSeed:
    """Return a player of single episodes, in which everything follows from the episode's seed."""
    if player.policy is None:
        return BASELINES[player.name]
    policy, shown = player.policy, View.of(args)
    PolicyAgent(policy)  # refuses other policies before anything is played

    def act_for_seed(seed: int) -> Act:
        agent = PolicyAgent(policy, deterministic, seed, shown)
        agent.begin(0, seed)
        return lambda observation: agent.act([0], [observation])[0]

    return act_for_seed


def mixed(players: Sequence[ActForSeed]) -> ActForSeed:
    """Draw each episode's player with the episode's seed."""
    return lambda seed: players[int(np.random.default_rng(seed).integers(len(players)))](seed)
