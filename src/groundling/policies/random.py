"""The baseline that every learner must beat: uniform over the admissible actions."""

import math
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from groundling.envs.observation import TextObservation
from groundling.policies.policy import Action, Evaluation, Outputs, Policy, policies


@policies.register("random")
class RandomPolicy(Policy):
    """Chooses uniformly among the admissible actions; has no weights and values everything at 0."""

    needs = frozenset({"words"})
    trainable = False

    def __init__(self) -> None:
        super().__init__()

    def act(
        self,
        observations: Sequence[TextObservation],
        *,
        memory: Tensor | None = None,
        deterministic: bool = False,
        generator: torch.Generator | None = None,
    ) -> Action:
        values = torch.zeros(len(observations))
        return Action.choose(self._log_probs(observations), values, deterministic=False, generator=generator)

    def evaluate(self, observations: Sequence[TextObservation], actions: Tensor) -> Evaluation:
        return Evaluation.of(self._log_probs(observations), actions, torch.zeros(len(actions)))

    def values(self, observations: Sequence[TextObservation], memory: Tensor | None = None) -> Tensor:
        return torch.zeros(len(observations))

    def outputs(self, observations: Sequence[TextObservation]) -> Outputs:
        return Outputs(self._log_probs(observations), self.values(observations))

    def save_pretrained(self, folder: Path) -> None:
        """Nothing to write."""

    def load_weights(self, folder: Path) -> None:
        """Nothing to read."""

    def _log_probs(self, observations: Sequence[TextObservation]) -> Tensor:
        sizes = torch.tensor([len(o.actions) for o in observations])
        admissible = torch.arange(int(sizes.max())) < sizes[:, None]  # (batch, num_actions)
        return torch.where(admissible, -sizes[:, None].float().log(), -math.inf)
