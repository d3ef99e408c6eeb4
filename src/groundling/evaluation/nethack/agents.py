"""Who plays NetHack: at random, by rules, or a policy; many envs at once."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch

from groundling.configs.schema import Config
from groundling.envs.nethack.observation import COLOURS, VECTOR_SCALE, vector_features, window
from groundling.errors import ConfigError
from groundling.evaluation.evaluate import Target
from groundling.judges.record import Act, Observation, Player, explorer_player, random_player
from groundling.policies.nethack import NetHackObservations, NetHackPolicy
from groundling.training.build import make_policy

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
        row_offset: 0 for features around the square above the hero's, as an env with ``compat=["crop"]`` shows them.
    """

    def __init__(
        self, policy: NetHackPolicy, deterministic: bool = False, seed: int = 0, row_offset: int = 1
    ) -> None:
        self._policy, self._deterministic, self._row_offset = policy, deterministic, row_offset
        self._generator = torch.Generator().manual_seed(seed)
        self._memories: dict[int, torch.Tensor] = {}  # by env, (memory_size,)

    def begin(self, env: int, seed: int) -> None:
        self._memories[env] = torch.zeros(self._policy.memory_size)

    def act(self, envs: Sequence[int], observations: Sequence[Observation]) -> list[int]:
        action = self._policy.act(
            features(observations, self._row_offset),
            memory=torch.stack([self._memories[env] for env in envs]),
            deterministic=self._deterministic,
            generator=self._generator,
        )
        assert action.memory is not None
        self._memories.update(zip(envs, action.memory, strict=True))
        actions: list[int] = action.actions.tolist()
        return actions


def features(observations: Sequence[Observation], row_offset: int = 1) -> NetHackObservations:
    """What a policy sees of nle's arrays, the same as `groundling.envs.nethack.vector` gives it."""
    heroes = [(int(o["blstats"][1]) + row_offset, int(o["blstats"][0])) for o in observations]
    chars, colours = (
        np.stack([window(o[key], *hero, fill=fill) for o, hero in zip(observations, heroes, strict=True)])
        for key, fill in (("tty_chars", ord(" ")), ("tty_colors", 0))
    )
    vector = np.empty((len(observations), len(VECTOR_SCALE)), dtype=np.float32)
    vector_features(np.stack([o["blstats"] for o in observations]), vector)
    messages = np.stack([o["message"] for o in observations])
    return NetHackObservations(chars, colours & (COLOURS - 1), vector, messages)


def make_agent(target: Target, name: str | None = None) -> Agent:
    """The agent that is called ``name`` when ``target`` is evaluated; by default the target itself.

    Raises:
        ConfigError: it does not play NetHack.
    """
    config, name = target.config, name or target.agent
    if name in PLAYERS:
        return Alone(PLAYERS[name])
    if name not in ("trained", "zero-shot"):
        raise ConfigError(
            f"{name} does not play NetHack: name random, explorer, or a run with policy.id=nethack"
        )
    policy = _policy(target, untrained=name == "zero-shot")
    return PolicyAgent(policy, config.evaluation.deterministic, config.seed, _row_offset(config))


def make_player(target: Target) -> Player:
    """The target as a player of single episodes, in which everything follows from the episode's seed.

    Raises:
        ConfigError: see `make_agent`.
    """
    if target.agent in PLAYERS:
        return PLAYERS[target.agent]
    make_agent(target)  # whatever is wrong is told now
    policy = _policy(target, untrained=target.agent == "zero-shot")

    def player(seed: int) -> Act:
        agent = PolicyAgent(policy, target.config.evaluation.deterministic, seed, _row_offset(target.config))
        agent.begin(0, seed)
        return lambda observation: agent.act([0], [observation])[0]

    return player


def mixed(players: Sequence[Player]) -> Player:
    """Each episode is one player's, drawn with the episode's seed."""
    return lambda seed: players[int(np.random.default_rng(seed).integers(len(players)))](seed)


def _policy(target: Target, untrained: bool) -> NetHackPolicy:
    policy = make_policy(target.config, None if untrained else target.checkpoint)
    if not isinstance(policy, NetHackPolicy):
        raise ConfigError(f"policy.id={target.config.policy.id} does not play NetHack: expected nethack")
    return policy


def _row_offset(config: Config) -> int:
    return 0 if "crop" in config.env.args.get("compat", ()) else 1
