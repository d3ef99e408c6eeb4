from collections.abc import Sequence

import torch
from torch import Tensor, nn

from groundling.judges.reward_models.message_network import TableRewardModel
from groundling.judges.reward_models.reward_model import RewardModel


class Nested(RewardModel):
    """Has a buffer within a module, as a language model has its rotary frequencies."""

    id = "nested"

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.inner = nn.Module()
        self.inner.register_buffer("scale", torch.tensor(scale))

    def forward(self, captions: Sequence[str]) -> Tensor:
        return self.inner.scale * torch.tensor([float(len(caption)) for caption in captions])


def test_take_up_copies_everything() -> None:
    one, other = Nested(1.0), Nested(3.0)
    before = set(vars(one))
    one.take_up(other)
    assert set(vars(one)) == before  # and no attribute called "inner.scale"
    assert one.rewards(["four"]).item() == 3 * 4
    assert one.version == other.version


def test_take_up_a_table_of_another_size() -> None:
    one, other = TableRewardModel(), TableRewardModel()
    captions = ["a", "é", "鍵"]
    other.set(captions, torch.tensor([1.0, 2.0, 3.0]).numpy())
    one.take_up(other)
    assert one.rewards(captions).tolist() == [1.0, 2.0, 3.0]
