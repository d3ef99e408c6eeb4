"""A checkpoint of a different policy is refused with one line, and the policy is not changed."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from groundling.errors import ConfigError
from groundling.lm import LanguageModel
from groundling.policies import ActionHeadPolicy, ActionScoringPolicy, ActionWritingPolicy, Policy, SymbolicPolicy


def _symbolic(num_actions: int) -> Policy:
    return SymbolicPolicy(num_actions, channels=8, hidden_size=8, recurrence=1)


def _action_head(num_actions: int) -> Policy:
    return ActionHeadPolicy(LanguageModel.from_pretrained("starter"), num_actions, hidden_sizes=(8,))


def _action_scoring(width: int) -> Policy:
    return ActionScoringPolicy(LanguageModel.from_pretrained("starter"), value_hidden_sizes=(width,))


def _action_writing(width: int) -> Policy:
    return ActionWritingPolicy(LanguageModel.from_pretrained("starter"), value_hidden_sizes=(width,))


@pytest.mark.parametrize("make", [_symbolic, _action_head, _action_scoring, _action_writing])
def test_weights_of_another_shape(make: Callable[[int], Policy], tmp_path: Path) -> None:
    make(3).save_pretrained(tmp_path)
    other = make(6)
    before = {name: weight.clone() for name, weight in other.state_dict().items()}
    with pytest.raises(ConfigError, match=r"does not match this policy: .* the number of actions is the same"):
        other.load_weights(tmp_path)
    assert all(torch.equal(weight, before[name]) for name, weight in other.state_dict().items())
