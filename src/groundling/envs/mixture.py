"""A mixture of text envs, for agents that are trained in several worlds and tested in others (arXiv 2603.12011)."""

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np

from groundling.envs.make import is_server, make_text_env, name_actions
from groundling.envs.seeds import is_held_out
from groundling.envs.text_env import read_reset, read_step, read_text_step
from groundling.errors import ConfigError, unknown


class Mixture(gymnasium.Env[str, str]):
    """Plays each episode in one of several text envs, selected uniformly at random by the episode's seed.

    ``info["task"]`` is the name of the env, so that evaluations also report each env separately.

    Args:
        envs: Maps names to ``env`` (an id) and the env's arguments, as in ``{coin: {env: Coin-v0, level: 3}}``.
        train: Names of the envs in which training episodes are played; if None, all. Held-out episodes use all envs.

    Raises:
        ConfigError: An env, an argument or a name does not exist, or an env does not list its actions.
    """

    observation_space = action_space = gymnasium.spaces.Text(100_000)

    def __init__(self, envs: Mapping[str, Mapping[str, Any]], train: Sequence[str] | None = None) -> None:
        for name, settings in envs.items():
            if not isinstance(settings, Mapping) or not isinstance(settings.get("env"), str):
                raise ConfigError(f"the env {name} must be a mapping such as {{env: ID}}, got {settings!r:.80}")
            if is_server(settings["env"]):
                raise ConfigError(
                    f"{settings['env']} cannot be part of a mixture: only world.env may specify a server"
                )
        self._settings = {name: dict(one) for name, one in sorted(envs.items())}
        self._train = [*self._settings] if train is None else sorted(train)
        if not self._train:
            raise ConfigError("train is empty: name at least one of envs" if envs else "envs is empty: add an env")
        if strange := [name for name in self._train if name not in envs]:
            raise ConfigError(unknown("env in train", strange[0], envs))
        self._names = {name: self._name_actions(name) for name in self._settings}  # None if the env lists its actions
        self._made: dict[str, gymnasium.Env[Any, Any]] = {}

    def _name_actions(self, name: str) -> tuple[str, ...] | None:
        args = dict(self._settings[name])
        if (names := name_actions(args.pop("env"), args).names) == ():
            raise ConfigError(f"the env {name} accepts any text as an action: use envs that list their actions")
        return names

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        seed = int(self.np_random.integers(2**30)) if seed is None else seed
        names = [*self._settings] if is_held_out(seed) else self._train
        # A separate random stream, because the env itself is seeded with ``seed``.
        self._name = names[int(np.random.default_rng((seed, 1)).integers(len(names)))]
        if self._name not in self._made:
            args = dict(self._settings[self._name])
            self._made[self._name] = make_text_env(args.pop("env"), **args)
        self._goal: str | None = None
        return self._read(*read_reset(self._made[self._name].reset(seed=seed, options=options)))

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        env = self._made[self._name]
        chosen: Any = action
        if isinstance(env.action_space, gymnasium.spaces.Discrete):  # BabyAI's last action has several names
            chosen = min(self._listed.index(action), int(env.action_space.n) - 1)
        observation, reward, terminated, truncated, info = read_step(env.step(chosen))
        observation, info = self._read(observation, info)
        return observation, reward, terminated, truncated, info

    def close(self) -> None:
        for env in self._made.values():
            env.close()

    def _read(self, observation: Any, info: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        names = self._names[self._name]
        shown = read_text_step(observation, info, self._goal, has_lists=names is None)
        self._goal, self._listed = shown.goal, list(names or shown.actions or ())
        read = {"goal": shown.goal, "descriptions": list(shown.descriptions), "actions": self._listed}
        return "\n".join(shown.descriptions), {**info, **read, "task": self._name}
