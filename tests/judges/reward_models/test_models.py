"""Reward models: Motif's network, the classifier, the characters model, and copying weights."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from groundling.errors import ConfigError
from groundling.judges.reward_models import CharacterRewardModel, load_reward_model
from groundling.judges.reward_models.distill import TrainingPairs, evaluate, segment_scores, train_epoch
from groundling.judges.reward_models.models import (
    ClassifierRewardModel,
    MessageNetwork,
    MotifRewardModel,
    TableRewardModel,
)
from groundling.judges.reward_models.reward_model import RewardModel
from tests.judges.preferences.test_pairs import encode
from tests.judges.reward_models.reward_reference import plain_network, random_texts


def test_the_network_has_the_originals_parameters_layer_by_layer() -> None:
    network = MessageNetwork()
    sizes = [p.numel() for p in network.parameters()]
    assert sizes == [
        *(256 * 32,),
        *(64 * 32 * 7, 64, 64 * 64 * 7, 64),
        *(64 * 64 * 3, 64) * 4,
        *(320 * 128, 128, 128 * 256, 256, 256 * 512, 512, 512, 1),
    ]
    assert sum(sizes) == 306_945


def test_linear_layers_begin_orthogonal_and_nul_is_zero() -> None:
    network = MessageNetwork()
    assert torch.equal(network.embedding.weight[0], torch.zeros(32))
    linear = [layer for layer in network.head if isinstance(layer, nn.Linear)]
    assert [layer.bias.abs().max().item() for layer in linear] == [0.0] * 4
    for layer in linear:
        weight = layer.weight if layer.out_features <= layer.in_features else layer.weight.T
        assert torch.allclose(weight @ weight.T, torch.eye(len(weight)), atol=1e-5)


@pytest.mark.parametrize("longest", [0, 1, 15, 16, 17, 77, 100, 249, 250, 255, 256])
def test_skipping_the_padding_changes_nothing(longest: int) -> None:
    torch.manual_seed(0)
    network = MessageNetwork()
    texts = ["".join(chr(33 + (7 * i + n) % 90) for n in range(i)) for i in (0, 1, longest // 2, longest)]
    messages = torch.from_numpy(encode(*texts, "You see here a gold piece."[:longest]))
    expected = plain_network(network)(messages.long())[:, 0]
    assert torch.allclose(network(messages), expected, atol=1e-6, rtol=0)


def test_rewards_are_scored_in_chunks_without_gradients() -> None:
    torch.manual_seed(0)
    model = MotifRewardModel()
    messages = random_texts(1500, 1)
    rewards = model.rewards(messages)
    assert rewards.dtype == torch.float32
    assert rewards.shape == (1500,)
    assert not rewards.requires_grad
    assert torch.allclose(rewards[1400:], model(messages[1400:]), atol=1e-6)
    assert model.rewards(messages[:0]).shape == (0,)


def test_the_classifier_gives_ones_above_its_threshold() -> None:
    torch.manual_seed(0)
    messages = ["a", "You kill the newt!", "It's a wall"]
    model = ClassifierRewardModel()
    for parameter in model.network.head[-1].parameters():
        nn.init.zeros_(parameter)
    for bias, threshold, expected in ((0.1, 0.5, 1.0), (-0.1, 0.5, 0.0), (1.0, 0.8, 0.0), (1.5, 0.8, 1.0)):
        model.network.head[-1].bias.data.fill_(bias)  # σ(1) = 0.731, σ(1.5) = 0.818
        model.threshold = threshold
        assert model.rewards(messages).tolist() == [expected] * 3
    scores = torch.tensor([[[0.0, 2.0], [-1.0, 0.5]]])  # one pair of two segments of two messages
    expected_loss = -np.mean(
        [np.log(0.5), np.log(1 / (1 + np.exp(-2.0))), np.log(1 / (1 + np.exp(-1.0))), np.log(1 / (1 + np.exp(0.5)))]
    )
    assert model.loss(scores, torch.tensor([[1.0, 0.0]]), torch.ones(1, 2, 2).bool()).item() == pytest.approx(
        expected_loss, abs=1e-6
    )


def make() -> CharacterRewardModel:
    torch.manual_seed(0)
    return CharacterRewardModel(channels=8, hidden_size=8, max_bytes=200)


@given(st.lists(st.text(max_size=90), min_size=2, max_size=70))
@settings(max_examples=20, deadline=None)
def test_a_reward_does_not_depend_on_other_captions(captions: list[str]) -> None:
    model = make()
    alone = torch.cat([model.rewards([caption]) for caption in captions])
    assert torch.allclose(model.rewards(captions), alone, atol=1e-6)


def test_every_part_of_a_caption_counts_but_the_middle_of_a_long_one() -> None:
    model = make()
    short, long = "take the red key", "a" * 100 + "鍵" * 100 + "b" * 100
    others = ["Take the red key", "take the red keys", "take the rid key"]
    assert all(model.rewards([short]) != model.rewards([other]) for other in others)
    assert model.rewards([long]) == model.rewards([long.replace("鍵", "x")])
    assert model.rewards([long]) != model.rewards([long[:-1] + "c"]) != model.rewards([long])


def test_motifs_network_refuses_other_captions() -> None:
    for text in ("é鍵", "a" * 257):
        with pytest.raises(ConfigError, match="--model characters"):
            MotifRewardModel().rewards([text])


def _pairs(count: int) -> TrainingPairs:
    """Return segments of different lengths; the one with the larger share of "take" is preferred."""
    generator = torch.Generator().manual_seed(0)
    draw = lambda most: int(torch.randint(most, (), generator=generator))  # noqa: E731
    templates = ("take the {} key", "go past the {} key")
    colors = ("red", "grün", "鍵")
    segments = [
        [[templates[draw(2)].format(colors[draw(3)]) for _ in range(1 + draw(3))] for _ in "ab"] for _ in range(count)
    ]
    shares = [[sum("take" in one for one in side) / len(side) for side in pair] for pair in segments]
    labels = torch.tensor([2 if a == b else int(b > a) for a, b in shares]).numpy()
    return TrainingPairs.of(segments, labels)


def test_segments_of_unequal_lengths_are_compared_by_their_means() -> None:
    model, pairs = make(), _pairs(20)
    loss = model.loss(segment_scores(model, pairs), pairs.targets, pairs.mask())
    by_hand = torch.zeros(())
    for indices, target in zip(pairs.indices, pairs.targets, strict=True):
        means = [model([pairs.captions[i] for i in side if i >= 0]).mean() for side in indices]
        by_hand = by_hand - (torch.stack(means).log_softmax(0) * target).sum() / len(pairs)
    assert loss.item() == pytest.approx(by_hand.item(), abs=1e-6)
    expected = torch.autograd.grad(by_hand, list(model.parameters()))
    for ours, theirs in zip(torch.autograd.grad(loss, list(model.parameters())), expected, strict=True):
        assert torch.allclose(ours, theirs, atol=1e-6)


def test_a_rule_is_learnt_from_texts_in_any_script_and_saved(tmp_path: Path) -> None:
    training, validation = _pairs(200).split(0.2, 0)
    model = make()
    optimizer, order = torch.optim.Adam(model.parameters(), lr=1e-2), torch.Generator().manual_seed(0)
    for _ in range(6):
        train_epoch(model, optimizer, training, 32, order)
    assert evaluate(model, validation)["accuracy"] > 0.95
    model.save(tmp_path)
    again = load_reward_model(tmp_path)
    assert torch.equal(again.rewards(training.captions), model.rewards(training.captions))


class Nested(RewardModel):
    """Has a buffer within a module, like the rotary frequencies of a language model."""

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
    assert set(vars(one)) == before  # and no attribute with the name "inner.scale"
    assert one.rewards(["four"]).item() == 3 * 4
    assert one.version == other.version


def test_take_up_a_table_of_another_size() -> None:
    one, other = TableRewardModel(), TableRewardModel()
    captions = ["a", "é", "鍵"]
    other.set(captions, torch.tensor([1.0, 2.0, 3.0]).numpy())
    one.take_up(other)
    assert one.rewards(captions).tolist() == [1.0, 2.0, 3.0]
