"""An agent of a text world in a custom loop."""

from collections.abc import Mapping
from typing import Any

import gymnasium
import torch

from groundling.envs.make import TextEnvMaker
from groundling.envs.observation import TextObservation
from groundling.envs.text_env import ACTIONS, read_text_step
from groundling.envs.text_episode import EpisodeState
from groundling.errors import ConfigError
from groundling.policies.policy import Policy
from groundling.worlds.text.config import TextConfig
from groundling.worlds.text.episodes import known_actions_of


class TextActor:
    """A policy that remembers the part of the present episode that its prompt quotes. The env need not be registered
    in this process; without it, and without ``world.actions``, actions are texts.
    """

    def __init__(self, config: TextConfig, policy: Policy, deterministic: bool, generator: torch.Generator) -> None:
        self._policy, self._deterministic, self._generator = policy, deterministic, generator
        known = known_actions_of(config)
        self._names, self._config = known.names, config
        # Names past an env's last action are its last one, as in `TextVectorEnv`; None: it takes texts.
        self._last = None if known.most is None else known.most - 1
        if config.env in gymnasium.registry:
            env = self.make_env()
            space = env.action_space
            env.close()
            self._last = int(space.n) - 1 if isinstance(space, gymnasium.spaces.Discrete) else None
        self.reset()

    def make_env(self, **args: Any) -> gymnasium.Env[Any, Any]:
        config = self._config
        return TextEnvMaker.of(config.env, **{**config.args, "language": config.language, **args})()

    def reset(self) -> None:
        self._state = EpisodeState(self._config.history)
        self._memory = self._policy.initial_memory(1)
        self._probabilities: dict[str, float] | None = None

    @property
    def probabilities(self) -> Mapping[str, float] | None:
        """Probabilities of the actions at the last `act`; None if the choice depends on more than the observation."""
        return self._probabilities

    def act(self, observation: Any, info: Mapping[str, Any]) -> int | str:
        """Choose an action.

        Args:
            observation: The env's observation, or a `TextObservation`, which has its own past.
            info: The env's info; empty with a `TextObservation`.

        Returns:
            The argument of the env's ``step``: an action's number, or its text if the env takes texts.

        Raises:
            ConfigError: The env gives no goal, no descriptions or no actions.
        """
        is_given = isinstance(observation, TextObservation)
        seen = observation if is_given else self._observe(observation, info)
        with torch.no_grad():
            action = self._policy.act(
                [seen], memory=self._memory, deterministic=self._deterministic, generator=self._generator
            )
            outputs = self._policy.outputs([seen])
        self._memory = action.memory
        self._probabilities = None
        if outputs is not None:
            probabilities = outputs.log_probs[0].exp().tolist()
            self._probabilities = dict(zip(seen.actions, probabilities, strict=False))
        place = int(action.actions[0])
        if not is_given:
            self._state.take(place, keep_choices=self._names is None)
        return seen.actions[place] if self._last is None else min(place, self._last)

    def _observe(self, observation: Any, info: Mapping[str, Any]) -> TextObservation:
        shown = read_text_step(observation, info, self._state.goal or None, has_lists=self._names is None)
        actions = self._names if shown.actions is None else shown.actions
        if actions is None:
            raise ConfigError(f"info lists no admissible actions: expected a list of texts, as {', '.join(ACTIONS)}")
        self._state.show(observation, shown, actions)
        return self._state.observation()
