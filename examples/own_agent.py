"""A custom agent for text worlds: GLAM's agent with a different value head and a frozen encoder.

groundling train demo model.path=starter --import examples.own_agent policy.id=frozen_encoder ~policy.args
"""

from torch import Tensor, nn

from groundling.policies import ActionScoringPolicy, TrainedModel, policies


class SuccessHead(nn.Module):
    """Predict values between 0 and the reward for success (1 times reward.env.args.scale)."""

    def __init__(self, hidden_size: int, most: float) -> None:
        super().__init__()
        self.linear, self.most = nn.Linear(hidden_size, 1), most

    def forward(self, states: Tensor) -> Tensor:
        return self.most * self.linear(states).sigmoid()[:, 0]  # (batch, hidden_size) to (batch,)


@policies.register("frozen_encoder")
class FrozenEncoderPolicy(ActionScoringPolicy):
    """Train only the decoder: optimizers skip frozen weights, here those of the encoder and its embeddings.

    Acting, learning, checkpoints and evaluation are inherited.
    """

    def __init__(self, lm: TrainedModel, most: float = 20.0) -> None:
        super().__init__(lm)
        self.value_head = SuccessHead(lm.hidden_size, most).to(lm.device)
        lm.model.get_encoder().requires_grad_(False)
