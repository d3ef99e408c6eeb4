"""The original's message network as a plain sequence of layers, and generated messages and pairs, for comparison."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from groundling.judges.preferences.pairs import decode_pairs
from groundling.judges.reward_models.distill import TrainingPairs
from groundling.judges.reward_models.models import MessageNetwork
from tests.judges.preferences.test_pairs import encode

WORDS = ("You", "see", "here", "kill", "the newt!", "hit", "a gold piece", "It's a wall", "$ - 3", "door", "stairs.")


class Transposed(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.transpose(1, 2)


def plain_network(network: MessageNetwork) -> nn.Sequential:
    """Return layers with the parameters of ``network`` that read all 256 bytes: int64 (n, 256) to float (n, 1)."""
    c, relu, pool = network.convolutions, nn.ReLU(), nn.MaxPool1d(3)
    first = [network.embedding, Transposed(), c[0], relu, pool, c[1], relu, pool]
    rest = [c[2], relu, c[3], relu, c[4], relu, c[5], relu, pool, nn.Flatten()]
    return nn.Sequential(*first, *rest, network.head)


def random_texts(count: int, seed: int) -> list[str]:
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(WORDS, size=rng.integers(0, 6))) for _ in range(count)]


def random_pairs(count: int, seed: int, length: int = 1, distinct: int = 30) -> TrainingPairs:
    """Return pairs of random segments, of which the one with more letters ``e`` is preferred; a fifth are ties."""
    rng = np.random.default_rng(seed)
    messages = encode(*random_texts(distinct, seed))[rng.integers(0, distinct, (count, 2, length))]
    letters = (messages == ord("e")).sum((2, 3))
    preferences = np.where(letters[:, 0] > letters[:, 1], 0, np.where(letters[:, 0] < letters[:, 1], 1, 2))
    preferences[rng.random(count) < 0.1] = 2
    return TrainingPairs.of(decode_pairs(messages), preferences)


def messages_of(pairs: TrainingPairs) -> NDArray[np.uint8]:
    """Return every message of every pair, uint8 (N, 2, L, 256)."""
    return encode(*pairs.captions)[pairs.indices.numpy()]


def gradients(network: nn.Module) -> list[Tensor]:
    return [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in network.parameters()]
