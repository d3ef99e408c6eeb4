"""Cache of a reward model's outputs."""

from collections.abc import Sequence

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from groundling.judges.preferences.pairs import caption_ids
from groundling.judges.reward_models.reward_model import RewardModel
from groundling.rewards.reward_model_part import RewardTable
from tests.judges.reward_models.reward_reference import random_texts


class Counting(RewardModel):
    """Rewards a caption by its length; records the sizes of its batches."""

    id = "test-counting"

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("bonus", torch.zeros(()))
        self.asked: list[int] = []

    def forward(self, captions: Sequence[str]) -> Tensor:
        self.asked.append(len(captions))
        return torch.tensor([float(len(caption)) for caption in captions]) + self.bonus


def _rewards(table: RewardTable, captions: Sequence[str]) -> Tensor:
    return table(torch.from_numpy(caption_ids(captions)), lambda places: [captions[place] for place in places])


def test_a_changed_model_rewards_again() -> None:
    model = Counting()
    table = RewardTable(model)
    batch = ["a", "bb"]
    assert _rewards(table, batch).tolist() == [1, 2]
    model.bonus.fill_(10)
    model.mark_changed()
    assert _rewards(table, batch).tolist() == [11, 12]


def test_the_state_is_restored_unless_the_model_changed() -> None:
    model = Counting()
    table = RewardTable(model)
    batch = ["a", "bb", "ccc"]
    _rewards(table, batch)
    state = {name: tensor.clone() for name, tensor in table.state_dict().items()}
    assert {name: tensor.dtype for name, tensor in state.items()} == {
        "ids": torch.int64,
        "rewards": torch.float32,
        "version": torch.int64,
    }
    again = Counting()
    resumed = RewardTable(again)
    resumed.load_state_dict(state)
    assert _rewards(resumed, batch).tolist() == [1, 2, 3]
    assert again.asked == []
    other = Counting()
    other.bonus.fill_(1)
    other.mark_changed()
    resumed = RewardTable(other)
    resumed.load_state_dict(state)
    assert _rewards(resumed, batch).tolist() == [2, 3, 4]
    assert other.asked == [3]


@given(st.lists(st.lists(st.integers(0, 40), min_size=1, max_size=30), min_size=1, max_size=8))
@settings(max_examples=30, deadline=None)
def test_any_sequence_of_batches_is_scored_as_by_the_model(batches: list[list[int]]) -> None:
    texts = random_texts(41, 0)
    model = Counting()
    table = RewardTable(model)
    for batch in batches:
        captions = [texts[i] for i in batch]
        scores = _rewards(table, captions)
        assert scores.dtype == torch.float32 and scores.tolist() == [len(texts[i]) for i in batch]
    assert sum(model.asked) == len({texts[i] for batch in batches for i in batch})
