import pytest
import torch
from torch import nn

from groundling.lm import ActionHead, ValueHead


def test_values_are_one_per_prompt_never_a_column():
    assert ValueHead(8)(torch.randn(5, 8)).shape == (5,)
    assert ValueHead(8)(torch.randn(1, 8)).shape == (1,)


def test_the_defaults_are_glams():
    layers = [type(layer) for layer in ValueHead(8).layers]
    assert layers == [nn.Linear, nn.Sigmoid, nn.Linear, nn.Sigmoid, nn.Linear]
    shapes = [tuple(p.shape) for p in ActionHead(8, 6).parameters() if p.ndim == 2]
    assert shapes == [(1024, 8), (1024, 1024), (6, 1024)]


@pytest.mark.parametrize("hidden_sizes", [(), (16,), (16, 4)])
def test_hidden_layers_are_an_option(hidden_sizes):
    head = ActionHead(8, 3, hidden_sizes)
    assert head(torch.randn(5, 8)).shape == (5, 3)
    assert sum(isinstance(layer, nn.Sigmoid) for layer in head.layers) == len(hidden_sizes)
