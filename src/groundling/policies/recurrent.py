"""Recurrent policies: networks over symbols or glyphs, with an actor and a critic on the hidden state."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from groundling.policies.policy import Action, Evaluated, Policy, Segment


class RecurrentPolicy(Policy):
    """An actor and a critic on the hidden state of a recurrent network.

    Subclasses set `memory_size` and `recurrence`, and implement `features`, `step` and `unroll`.

    Attributes:
        actor: Maps hidden states ``(..., hidden_size)`` to logits ``(..., num_actions)``.
        critic: Maps hidden states ``(..., hidden_size)`` to values ``(..., 1)``.
    """

    actor: nn.Module
    critic: nn.Module

    @abstractmethod
    def features(self, observations: Sequence[Sequence[Any]]) -> Tensor:
        """Return the features of the observations in all parts, ``(total, num_features)``."""

    @abstractmethod
    def step(self, features: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Return the hidden states and memory after a step, given the features and the memory ``(batch, size)``."""

    @abstractmethod
    def unroll(self, features: Tensor, memory: Tensor, starts: Tensor) -> Tensor:
        """Return the hidden states ``(batch, length, hidden_size)`` over segments in which episodes may start.
        ``features`` are ``(batch, length, num_features)``; ``memory`` ``(batch, memory_size)`` is the initial memory.
        ``starts`` is bool ``(batch, length)`` on the CPU; where it is True, the memory is reset to 0 before the step.
        """

    def act(
        self,
        observations: Sequence[Any],
        *,
        memory: Tensor | None = None,
        deterministic: bool = False,
        generator: torch.Generator | None = None,
    ) -> Action:
        with torch.no_grad():
            hidden, memory = self._step(observations, memory)
            log_probs, values = self._heads(hidden)  # (batch, num_actions), (batch,)
        return Action.choose(log_probs, values, deterministic=deterministic, generator=generator, memory=memory.cpu())

    def evaluate(self, observations: Sequence[Segment], actions: Tensor) -> Evaluated:
        features = self.features([segment.observations for segment in observations])
        memory = torch.stack([segment.memory for segment in observations]).to(self.device)
        starts = torch.stack([segment.starts for segment in observations])
        hidden = self.unroll(features.unflatten(0, actions.shape), memory, starts)
        log_probs, values = self._heads(hidden)
        return Evaluated.of(log_probs, actions, values)

    def values(self, observations: Sequence[Any], memory: Tensor | None = None) -> Tensor:
        with torch.no_grad():
            return self._heads(self._step(observations, memory)[0])[1]

    def _step(self, observations: Sequence[Any], memory: Tensor | None) -> tuple[Tensor, Tensor]:
        if memory is None:
            memory = torch.zeros(len(observations), self.memory_size)
        return self.step(self.features([observations]), memory.to(self.device))

    def _heads(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        return self.actor(hidden).log_softmax(-1), self.critic(hidden)[..., 0]
