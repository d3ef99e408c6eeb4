import copy

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from groundling.judges.reward_models.message_network import (
    ClassifierRewardModel,
    MessageNetwork,
    MotifRewardModel,
    padded_count,
)
from tests.judges.reward_models.reward_reference import gradients, make_messages, plain_network, random_texts


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
    messages = torch.from_numpy(make_messages([*texts, "You see here a gold piece."[:longest]]))
    expected = plain_network(network)(messages.long())[:, 0]
    assert torch.allclose(network(messages), expected, atol=1e-6, rtol=0)


def test_skipping_the_padding_changes_no_gradient() -> None:
    torch.manual_seed(0)
    network = MessageNetwork().double()
    plain = copy.deepcopy(network)
    messages = torch.from_numpy(make_messages(random_texts(20, 0)))
    network(messages).square().sum().backward()
    plain_network(plain)(messages.long()).square().sum().backward()
    for ours, expected in zip(gradients(network), gradients(plain), strict=True):
        assert torch.allclose(ours, expected, atol=1e-12)
    assert gradients(network)[0].abs().max() > 0


@given(st.lists(st.text(st.characters(min_codepoint=1, max_codepoint=255), max_size=255), max_size=12))
@settings(max_examples=25, deadline=None)
def test_any_bytes_any_number_of_rows(texts: list[str]) -> None:
    torch.manual_seed(0)
    network = MessageNetwork()
    messages = torch.from_numpy(make_messages(texts)) if texts else torch.zeros(0, 256, dtype=torch.uint8)
    with torch.no_grad():
        expected = plain_network(network)(messages.long())[:, 0] if texts else torch.zeros(0)
        assert torch.allclose(network(messages), expected, atol=2e-6)


def test_few_batch_sizes() -> None:
    assert [padded_count(n) for n in (0, 1, 8, 9, 13, 17, 25, 100, 129, 1000, 1025)] == (
        [8, 8, 8, 12, 16, 24, 32, 128, 192, 1024, 1536]
    )
    assert all(n <= padded_count(n) <= max(8, 1.5 * n) for n in range(1, 3000))
    assert len({padded_count(n) for n in range(1, 2049)}) == 17


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
