import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from groundling.judges.reward_models import MotifRewardModel, TableRewardModel
from groundling.judges.reward_models.messages import message_ids
from groundling.judges.reward_models.reward_model import RewardModel
from groundling.rewards.table import RewardTable
from tests.judges.reward_models.reward_reference import make_messages, random_texts


class Counting(RewardModel):
    """A message's worth is its length; notes how many it is asked for."""

    id = "test-counting"

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("bonus", torch.zeros(()))
        self.asked: list[int] = []

    def forward(self, messages: Tensor) -> Tensor:
        self.asked.append(len(messages))
        return (messages != 0).sum(1) + self.bonus


def _batch(texts: list[str]) -> tuple[Tensor, Tensor]:
    messages = make_messages(texts)
    return torch.from_numpy(message_ids(messages)), torch.from_numpy(messages)


def test_the_model_is_asked_once_for_each_new_message() -> None:
    model = Counting()
    table = RewardTable(model)
    assert table(*_batch(["aa", "b", "aa", ""])).tolist() == [2, 1, 2, 0]
    assert table(*_batch(["b", "aa"])).tolist() == [1, 2]
    assert table(*_batch(["ccc", "b", "ccc", "dddd"])).tolist() == [3, 1, 3, 4]
    assert model.asked == [3, 2]
    assert len(table) == 5


def test_shapes_are_kept() -> None:
    ids, messages = _batch(["a", "bb", "ccc", "a", "bb", ""])
    found = RewardTable(Counting())(ids.view(2, 3), messages.view(2, 3, 256))
    assert found.dtype == torch.float32
    assert found.tolist() == [[1, 2, 3], [1, 2, 0]]


def test_what_the_model_has_learnt_since_counts() -> None:
    model = Counting()
    table = RewardTable(model)
    batch = _batch(["a", "bb"])
    assert table(*batch).tolist() == [1, 2]
    model.bonus.fill_(10)
    model.mark_changed()
    assert table(*batch).tolist() == [11, 12]
    assert len(table) == 2
    labels = TableRewardModel()
    table = RewardTable(labels)
    assert table(*batch).tolist() == [0, 0]
    labels.set(batch[0][1:].numpy(), np.ones(1))
    assert table(*batch).tolist() == [0, 1]


def test_its_state_comes_back_unless_the_model_is_another() -> None:
    model = Counting()
    table = RewardTable(model)
    batch = _batch(["a", "bb", "ccc"])
    table(*batch)
    state = {name: tensor.clone() for name, tensor in table.state_dict().items()}
    assert {name: tensor.dtype for name, tensor in state.items()} == {
        "ids": torch.int64,
        "rewards": torch.float32,
        "version": torch.int64,
    }
    again = Counting()
    resumed = RewardTable(again)
    resumed.load_state_dict(state)
    assert resumed(*batch).tolist() == [1, 2, 3]
    assert again.asked == []
    other = Counting()
    other.bonus.fill_(1)
    other.mark_changed()
    resumed = RewardTable(other)
    resumed.load_state_dict(state)
    assert resumed(*batch).tolist() == [2, 3, 4]
    assert other.asked == [3]


@given(st.lists(st.lists(st.integers(0, 40), min_size=1, max_size=30), min_size=1, max_size=8))
@settings(max_examples=30, deadline=None)
def test_any_sequence_of_batches_is_scored_as_by_the_model(batches: list[list[int]]) -> None:
    texts = random_texts(41, 0)
    model = Counting()
    table = RewardTable(model)
    for batch in batches:
        ids, messages = _batch([texts[i] for i in batch])
        assert table(ids, messages).tolist() == [len(texts[i]) for i in batch]
    assert sum(model.asked) == len({texts[i] for batch in batches for i in batch})


def test_motif_s_network_through_the_table() -> None:
    torch.manual_seed(0)
    model = MotifRewardModel()
    ids, messages = _batch(random_texts(300, 5))
    assert torch.allclose(RewardTable(model)(ids, messages), model.rewards(messages), atol=1e-6)
