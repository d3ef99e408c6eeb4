"""Who plays NetHack: at random, by rules, or a policy; many envs at once."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import gymnasium
import numpy as np
import torch

from groundling.envs.nethack.observation import COLOURS, WINDOW, View, vector_features
from groundling.errors import ConfigError
from groundling.policies.nethack import NetHackObservations, NetHackPolicy
from groundling.policies.policy import Policy
from groundling.worlds.nethack.pairs import Act, Observation, Player, explorer_player, random_player

PLAYERS: dict[str, Player] = {"random": random_player, "explorer": explorer_player}
"""Those that need no run."""


class Agent(Protocol):
    """Plays in any number of envs."""

    def begin(self, env: int, seed: int) -> None:
        """An episode begins in ``env``; whatever is left to chance in it may follow from ``seed``."""

    def act(self, envs: Sequence[int], observations: Sequence[Observation]) -> list[int]:
        """Choose an action for each of these envs, which show nle's arrays."""


class Alone:
    """An agent that plays every episode on its own, by rules."""

    def __init__(self, player: Player) -> None:
        self._player = player
        self._acts: dict[int, Act] = {}

    def begin(self, env: int, seed: int) -> None:
        self._acts[env] = self._player(seed)

    def act(self, envs: Sequence[int], observations: Sequence[Observation]) -> list[int]:
        return [self._acts[env](shown) for env, shown in zip(envs, observations, strict=True)]


class PolicyAgent:
    """An agent that follows a policy, with a memory for each env.

    Args:
        policy: Chooses the actions.
        deterministic: The likeliest ones, instead of drawing them.
        seed: Of the draws.
        view: What it is shown.
    """

    def __init__(
        self,
        policy: NetHackPolicy,
        deterministic: bool = False,
        seed: int = 0,
        view: View | None = None,
    ) -> None:
        self._policy, self._deterministic, self._view = policy, deterministic, view or View()
        self._generator = torch.Generator().manual_seed(seed)
        self._memories: dict[int, torch.Tensor] = {}  # by env, (memory_size,)
        self._fresh: set[int] = set()  # envs whose episode has only begun, and memory with it

    def begin(self, env: int, seed: int) -> None:
        self._fresh.add(env)

    def act(self, envs: Sequence[int], observations: Sequence[Observation]) -> list[int]:
        fresh, self._fresh = self._fresh, set()
        nothing = torch.zeros(self._policy.memory_size)
        action = self._policy.act(
            features(observations, self._view),
            memory=torch.stack([nothing if env in fresh else self._memories[env] for env in envs]),
            deterministic=self._deterministic,
            generator=self._generator,
        )
        assert action.memory is not None
        self._memories.update(zip(envs, action.memory, strict=True))
        actions: list[int] = action.actions.tolist()
        return actions


class PolicyActor:
    """A policy in somebody's own loop of a task, one episode after the other (see `groundling.worlds.world.Actor`)."""

    def __init__(
        self,
        policy: Policy,
        task: str,
        args: Mapping[str, Any],
        deterministic: bool,
        generator: torch.Generator,
    ) -> None:
        seed = int(torch.randint(2**31, (), generator=generator))
        self._agent = PolicyAgent(_playing(policy), deterministic, seed, View.of(args))
        self._task, self._args = task, args
        self.reset()

    def make_env(self, **args: Any) -> gymnasium.Env[Any, Any]:
        """A new env of its task."""
        return gymnasium.make(self._task, **{**self._args, **args})

    def reset(self) -> None:
        """An episode begins, and with it memory."""
        self._agent.begin(0, 0)

    @property
    def probabilities(self) -> Mapping[str, float] | None:
        """None: its choice depends on its memory."""
        return None

    def act(self, observation: Any, info: Mapping[str, Any]) -> int:
        """The number of an action, for nle's arrays by name."""
        return self._agent.act([0], [observation])[0]


def features(observations: Sequence[Observation], view: View) -> NetHackObservations:
    """What a policy sees of nle's arrays, the same as `groundling.envs.nethack.vector` gives it."""
    chars, colours = np.empty((2, len(observations), WINDOW, WINDOW), dtype=np.uint8)
    blstats = np.stack([o["blstats"] for o in observations])
    vector = np.empty(blstats.shape, dtype=np.float32)
    for i, (shown, (x, y)) in enumerate(zip(observations, blstats[:, :2].tolist(), strict=True)):
        view.windows(shown, x, y, chars[i], colours[i])
    vector_features(blstats, vector, view.vector)
    messages = np.stack([o["message"] for o in observations])
    return NetHackObservations(chars, colours & (COLOURS - 1), vector, messages)


def make_agent(
    name: str,
    policy: Policy | None,
    args: Mapping[str, Any],
    *,
    deterministic: bool,
    seed: int,
) -> Agent:
    """The agent that is called ``name``: one of `PLAYERS`, or one that follows ``policy``.

    Args:
        name: What it is called.
        policy: None of those that need none.
        args: The task's.
        deterministic: Take the likeliest action.
        seed: Of the draws.

    Raises:
        ConfigError: the policy does not play NetHack.
    """
    if policy is None:
        return Alone(PLAYERS[name])
    return PolicyAgent(_playing(policy), deterministic, seed, View.of(args))


def make_player(name: str, policy: Policy | None, args: Mapping[str, Any], *, deterministic: bool) -> Player:
    """The same as a player of single episodes, in which everything follows from the episode's seed.

    Raises:
        ConfigError: as `make_agent`.
    """
    if policy is None:
        return PLAYERS[name]
    followed = _playing(policy)

    def player(seed: int) -> Act:
        agent = PolicyAgent(followed, deterministic, seed, View.of(args))
        agent.begin(0, seed)
        return lambda observation: agent.act([0], [observation])[0]

    return player


def mixed(players: Sequence[Player]) -> Player:
    """Each episode is one player's, drawn with the episode's seed."""
    return lambda seed: players[int(np.random.default_rng(seed).integers(len(players)))](seed)


def _playing(policy: Policy) -> NetHackPolicy:
    if not isinstance(policy, NetHackPolicy):
        raise ConfigError(f"{type(policy).__name__} does not play NetHack: set policy.id=nethack")
    return policy
