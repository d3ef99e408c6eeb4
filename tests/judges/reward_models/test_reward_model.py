import torch
from torch import Tensor, nn

from groundling.judges.reward_models.message_table import TableRewardModel
from groundling.judges.reward_models.messages import message_ids
from groundling.judges.reward_models.reward_model import RewardModel


class Nested(RewardModel):
    """Has a buffer within a module, as a language model has its rotary frequencies."""

    id = "nested"

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.inner = nn.Module()
        self.inner.register_buffer("scale", torch.tensor(scale))

    def forward(self, messages: Tensor) -> Tensor:
        return self.inner.scale * messages.float().sum(-1)


def test_taking_up_another_model_leaves_nothing_beside_it() -> None:
    one, other = Nested(1.0), Nested(3.0)
    before = set(vars(one))
    one.take_up(other)
    assert set(vars(one)) == before  # and no attribute called "inner.scale"
    assert one.rewards(torch.ones(1, 256, dtype=torch.uint8)).item() == 3 * 256
    assert one.version == other.version


def test_a_table_takes_up_one_of_another_size() -> None:
    one, other = TableRewardModel(), TableRewardModel()
    messages = torch.randint(1, 255, (3, 256), dtype=torch.uint8)
    other.set(message_ids(messages.numpy()), torch.tensor([1.0, 2.0, 3.0]).numpy())
    one.take_up(other)
    assert one.rewards(messages).tolist() == [1.0, 2.0, 3.0]
