"""ActionPreferences of an untrained policy."""

import math
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from groundling.envs.text_env import TextObservation
from groundling.evaluation.preferences import ActionPreferences, preferences
from groundling.policies.prompt_policy import PromptPolicy

_LISTS = (("go", "take the red key"), ("go", "wait", "take the red key"), ("take a key", "take a hat"))


class _Likes(PromptPolicy):
    """A policy whose probabilities depend on the number of words in an action."""

    def __init__(self, by_words: dict[int, float]) -> None:
        super().__init__()
        self.by_words = by_words

    def save_pretrained(self, folder: Path) -> None:
        raise NotImplementedError

    def load_weights(self, folder: Path) -> None:
        raise NotImplementedError

    def forward(self, observations: Sequence[TextObservation]) -> tuple[Tensor, Tensor]:
        rows = torch.full((len(observations), max(len(o.actions) for o in observations)), -torch.inf)
        for row, observation in zip(rows, observations, strict=True):
            liked = torch.tensor([self.by_words[len(action.split())] for action in observation.actions])
            row[: len(liked)] = (liked / liked.sum()).log()
        return rows, torch.zeros(len(rows))


def _asked(by_words: dict[int, float]) -> ActionPreferences:
    return preferences(_Likes(by_words), [TextObservation("", (("",),), (), actions, {}) for actions in _LISTS])


def test_the_share_of_short_actions_and_of_their_probability() -> None:
    asked = _asked({1: 3.0, 3: 1.0, 4: 1.0})
    assert [len(row) for row in asked.probabilities] == [2, 3, 2]
    assert asked.uniform_entropy == pytest.approx((2 * math.log(2) + math.log(3)) / 3)
    assert asked.short.lists == 2  # the third list has actions of equal length
    assert asked.short.probability == pytest.approx((3 / 4 + 6 / 7) / 2)
    assert asked.short.share == pytest.approx((1 / 2 + 2 / 3) / 2)
    asked = _asked({1: 1.0, 3: 1.0, 4: 1.0})
    assert asked.entropy == pytest.approx(asked.uniform_entropy) and not asked.short.are_nearly_all


def test_few_short_actions_may_have_nearly_all_of_the_probability() -> None:
    many = tuple(f"take the red key from drawer {number}" for number in range(4))
    observation = TextObservation("", (("",),), (), ("go", *many), {})
    for liking, expected in ((1000.0, True), (10.0, False)):
        asked = preferences(_Likes({1: liking, 7: 1.0}), [observation])
        assert asked.short.are_nearly_all == expected
    observation = TextObservation("", (("",),), (), ("go", "wait", "look", many[0]), {})
    assert not preferences(_Likes({1: 1000.0, 7: 1.0}), [observation]).short.are_nearly_all  # most are short


def test_common_actions_that_would_hardly_be_explored_are_named() -> None:
    assert _asked({1: 1.0, 3: 1.0, 4: 0.05}).rare == {}
    assert _asked({1: 1.0, 3: 1.0, 4: 0.001}).rare == {"take the red key": pytest.approx(0.00075, rel=1e-2)}
    assert _asked({1: 0.001, 3: 1.0, 4: 1.0}).rare.keys() == {"go"}, "wait stands in one list of three"
    observation = TextObservation("", (("",),), (), ("go", *(f"take key {n}" for n in range(20))), {})
    assert preferences(_Likes({1: 0.001, 3: 1.0}), [observation]).rare == {}, "in long lists many are unlikely"
