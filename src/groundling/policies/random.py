"""The uniform random baseline."""

from collections.abc import Sequence

import torch
from torch import Tensor

from groundling.envs.text_env import TextObservation
from groundling.policies.policy import Action, Evaluated, Outputs, Policy, policies


@policies.register("random")
class RandomPolicy(Policy):
    """Chooses uniformly among the admissible actions, even if asked for the likeliest; all values are 0."""

    needs = frozenset({"words"})
    trainable = False

    def act(
        self,
        observations: Sequence[TextObservation],
        *,
        memory: Tensor | None = None,
        deterministic: bool = False,
        generator: torch.Generator | None = None,
    ) -> Action:
        return Action.choose(*self.outputs(observations), generator=generator)

    def evaluate(self, observations: Sequence[TextObservation], actions: Tensor) -> Evaluated:
        log_probs, values = self.outputs(observations)
        return Evaluated.of(log_probs, actions, values)

    def values(self, observations: Sequence[TextObservation], memory: Tensor | None = None) -> Tensor:
        return torch.zeros(len(observations))

    def outputs(self, observations: Sequence[TextObservation]) -> Outputs:
        sizes = torch.tensor([len(o.actions) for o in observations])
        admissible = torch.arange(int(sizes.max())) < sizes[:, None]  # (batch, num_actions)
        log_probs = torch.where(admissible, -sizes[:, None].float().log(), -torch.inf)
        return Outputs(log_probs, self.values(observations))
