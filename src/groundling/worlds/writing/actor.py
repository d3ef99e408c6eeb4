"""A writer in a custom program."""

from collections.abc import Mapping
from typing import Any

import gymnasium
import torch

from groundling.envs.text_generation import Sample
from groundling.errors import ConfigError
from groundling.policies.token import TokenPolicy
from groundling.worlds.world import World
from groundling.worlds.writing.config import make_prompt_encoder
from groundling.worlds.writing.measures import write


class WritingActor:
    """A policy that writes to a prompt as in evaluation."""

    def __init__(self, world: World, policy: TokenPolicy, generator: torch.Generator) -> None:
        self._policy, self._generator = policy, generator
        self._encode = make_prompt_encoder(world.config, policy)
        self._num_tokens, self._generation = world.config.num_tokens, world.evaluation.generation

    def make_env(self, **args: Any) -> gymnasium.Env[Any, Any]:
        """Raise `ConfigError`: a writer acts in no env."""
        raise ConfigError("a writer acts in no env: give `act` a prompt")

    def reset(self) -> None:
        """Do nothing: a writer has no memory."""

    @property
    def probabilities(self) -> Mapping[str, float] | None:
        """None: there are too many possible texts."""
        return None

    def act(self, observation: Any, info: Mapping[str, Any]) -> str:
        """Write a text to a prompt; raise `ConfigError` if the prompt is not a string."""
        if not isinstance(observation, str):
            raise ConfigError(f"expected a prompt, a text, got {observation!r:.80}")
        encoded = self._encode([Sample("prompt", observation)])
        (ids,) = write(self._policy, encoded, self._num_tokens, self._generation, self._generator)
        return self._policy.lm.continuation(encoded[0].ids).append(*ids)
