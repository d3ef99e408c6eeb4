"""Heads on a prompt's state, by default as in GLAM (arXiv 2302.02662): two hidden layers of 1024 with sigmoids."""

from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor, nn

from groundling.errors import GroundlingError


def _mlp(sizes: Sequence[int], bias: bool = True) -> nn.Sequential:
    if min(sizes) < 1:
        raise GroundlingError(f"a head's layers need at least 1 unit each, got sizes {list(sizes[1:-1])}")
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(sizes[:-1]):
        layers += [nn.Linear(inputs, outputs), nn.Sigmoid()]
    return nn.Sequential(*layers, nn.Linear(sizes[-2], sizes[-1], bias=bias))


class ValueHead(nn.Module):
    """Computes the value of each prompt's state.

    Args:
        hidden_size: `LanguageModel.hidden_size`.
        hidden_sizes: Widths of hidden layers; empty: a linear head.
        bias: Give the last layer a bias.
    """

    def __init__(self, hidden_size: int, hidden_sizes: Sequence[int] = (1024, 1024), bias: bool = True) -> None:
        super().__init__()
        self.layers = _mlp([hidden_size, *hidden_sizes, 1], bias)

    def forward(self, state: Tensor) -> Tensor:
        """Return values (num_prompts,) of states (num_prompts, hidden_size)."""
        # Never (num_prompts, 1): that would broadcast against returns (num_prompts,), as in the released GLAM trainer.
        return self.layers(state).squeeze(-1)


class ActionHead(nn.Module):
    """Computes logits of a fixed set of actions instead of scoring texts (GLAM's NPAE and action-head ablations)."""

    def __init__(self, hidden_size: int, num_actions: int, hidden_sizes: Sequence[int] = (1024, 1024)) -> None:
        super().__init__()
        self.layers = _mlp([hidden_size, *hidden_sizes, num_actions])

    def forward(self, state: Tensor) -> Tensor:
        """Return logits (num_prompts, num_actions) of states (num_prompts, hidden_size)."""
        return self.layers(state)
