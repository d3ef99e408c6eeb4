"""A custom policy: a language model that generates text, with its own value function.

groundling train rl4lms/increasing_numbers_ppo --import examples.own_policy policy.id=bounded ~policy.args
"""

from collections.abc import Mapping
from typing import Any

from torch import nn

from groundling.policies import ReferenceModel, TokenPolicy, TrainedModel, policies


@policies.register("bounded")
class BoundedPolicy(TokenPolicy):
    """Predict values in [0, 1], the range of most text metrics, from the policy's hidden states."""

    def __init__(
        self,
        lm: TrainedModel,
        reference: ReferenceModel = None,
        generation: Mapping[str, Any] | None = None,
        width: int = 32,
    ) -> None:
        super().__init__(lm, reference, value="shared", generation=generation)
        self.value_head = nn.Sequential(
            nn.Linear(lm.hidden_size, width), nn.Tanh(), nn.Linear(width, 1), nn.Sigmoid(), nn.Flatten(0)
        ).to(lm.device)  # (num_tokens, hidden_size) to (num_tokens,)
