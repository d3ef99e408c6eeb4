"""An agent of a text world in somebody's own loop."""

from collections.abc import Mapping
from typing import Any

import gymnasium
import torch

from groundling.envs.make import TextEnvMaker
from groundling.envs.observation import TextObservation
from groundling.envs.slot import Slot
from groundling.envs.text_env import ACTIONS, read_text_step
from groundling.errors import ConfigError
from groundling.policies.policy import Policy
from groundling.worlds.text.config import TextConfig
from groundling.worlds.text.envs import known_actions_of


class TextActor:
    """A policy that remembers of the present episode what its prompt quotes.

    Args:
        config: The section ``world``: the env whose actions it chooses among, and how much it remembers.
        policy: Chooses.
        deterministic: The likeliest action, instead of one that is drawn.
        generator: Draws them.

    The env need not be registered in this process; without it, and without ``world.actions``, actions are texts.
    """

    def __init__(
        self, config: TextConfig, policy: Policy, deterministic: bool, generator: torch.Generator
    ) -> None:
        self._policy, self._deterministic, self._generator = policy, deterministic, generator
        self._history = config.history
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
        """A new env of its world."""
        config = self._config
        return TextEnvMaker.of(config.env, **{**config.args, "language": config.language, **args})()

    def reset(self) -> None:
        """An episode begins."""
        self._slot = Slot.remembering(self._history)
        self._memory = self._policy.initial_memory(1)
        self._shown: dict[str, float] | None = None

    @property
    def probabilities(self) -> Mapping[str, float] | None:
        """Of the actions at the last `act`; None of a policy whose choice depends on more than what it is shown."""
        return self._shown

    def act(self, observation: Any, info: Mapping[str, Any]) -> int | str:
        """Choose an action.

        Args:
            observation: As the env gives it, or a `TextObservation`, which brings its own past.
            info: As the env gives it; nothing beside a `TextObservation`.

        Returns:
            What the env's ``step`` takes: an action's number, or its text where the env takes texts.

        Raises:
            ConfigError: the env tells no goal, no descriptions or no actions.
        """
        seen = observation if isinstance(observation, TextObservation) else self._observe(observation, info)
        with torch.no_grad():
            action = self._policy.act(
                [seen], memory=self._memory, deterministic=self._deterministic, generator=self._generator
            )
            outputs = self._policy.outputs([seen])
        self._memory = action.memory
        self._shown = None
        if outputs is not None:
            self._shown = dict(zip(seen.actions, outputs.log_probs[0].exp().tolist(), strict=False))
        place = int(action.actions[0])
        self._slot.past_actions.append(seen.actions[place])
        if self._names is None:
            self._slot.past_choices.append(seen.actions)
        return seen.actions[place] if self._last is None else min(place, self._last)

    def _observe(self, observation: Any, info: Mapping[str, Any]) -> TextObservation:
        slot = self._slot
        shown = read_text_step(observation, info, slot.goal or None, has_lists=self._names is None)
        actions = self._names if shown.actions is None else shown.actions
        if actions is None:
            raise ConfigError(
                f"info lists no admissible actions: expected a list of texts, as {', '.join(ACTIONS)}"
            )
        slot.goal = shown.goal
        slot.descriptions.append(shown.descriptions)
        raw = observation if isinstance(observation, Mapping) else {}
        return TextObservation(
            slot.goal,
            tuple(slot.descriptions),
            tuple(slot.past_actions),
            actions,
            raw,
            tuple(slot.past_choices),
        )
