"""A writer in somebody's own program."""

from collections.abc import Mapping
from typing import Any

import gymnasium
import torch

from groundling.envs.text_generation import Sample
from groundling.errors import ConfigError
from groundling.policies.token import TokenPolicy
from groundling.worlds.world import World
from groundling.worlds.writing.config import WritingConfig, WritingEvaluation
from groundling.worlds.writing.parts import make_prompt_encoder
from groundling.worlds.writing.validation import write


class WritingActor:
    """A policy that writes to a prompt as it does when it is evaluated.

    Args:
        world: Whose prompts are read so, by its settings.
        policy: Writes.
        generator: Draws the tokens.
    """

    def __init__(
        self,
        world: World[WritingConfig, WritingEvaluation],
        policy: TokenPolicy,
        generator: torch.Generator,
    ) -> None:
        self._policy, self._generator = policy, generator
        self._encode = make_prompt_encoder(world.config, policy)
        self._num_tokens, self._generation = world.config.num_tokens, world.evaluation.generation

    def make_env(self, **args: Any) -> gymnasium.Env[Any, Any]:
        """Nothing.

        Raises:
            ConfigError: always.
        """
        raise ConfigError("a writer acts in no env: give `act` a prompt")

    def reset(self) -> None:
        """Nothing is remembered."""

    @property
    def probabilities(self) -> Mapping[str, float] | None:
        """None: there are too many texts."""
        return None

    def act(self, observation: Any, info: Mapping[str, Any]) -> str:
        """The text that is written to a prompt.

        Raises:
            ConfigError: the prompt is no text.
        """
        if not isinstance(observation, str):
            raise ConfigError(f"expected a prompt, a text, got {observation!r:.80}")
        encoded = self._encode([Sample("prompt", observation)])
        (ids,) = write(self._policy, encoded, self._num_tokens, self._generation, self._generator)
        return self._policy.lm.continuation(encoded[0].ids).append(*ids)
