"""Sampling and caching in policies that read a prompt."""

import math
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from groundling.envs.text_env import TextObservation
from groundling.lm import LanguageModel
from groundling.policies import ActionHeadPolicy, ActionScoringPolicy, ActionWritingPolicy, DRRNPolicy, Policy
from groundling.policies.policy import sample_categorical
from groundling.policies.prompt_policy import PromptPolicy

_ACTIONS = ("turn left", "go forward", "drop")


def _see(sentence: str, actions: tuple[str, ...] = _ACTIONS) -> TextObservation:
    return TextObservation("go to the red ball", ((sentence,),), (), actions, {})


@pytest.fixture(scope="module")
def policies() -> dict[str, Policy]:
    torch.manual_seed(0)
    lm = LanguageModel.from_pretrained("starter")
    return {
        "scoring": ActionScoringPolicy(lm, value_hidden_sizes=(8,)),
        "writing": ActionWritingPolicy(lm, value_hidden_sizes=(8,)),
        "head": ActionHeadPolicy(lm, 3, hidden_sizes=(8,)),
        "drrn": DRRNPolicy(),
    }


@pytest.mark.parametrize("name", ["scoring", "writing", "head", "drrn"])
def test_cached_outputs_are_those_computed_again(policies: dict[str, Policy], name: str) -> None:
    policy = policies[name]
    shown = [_see("You see a wall"), _see("You see a key"), _see("You see a wall")]
    plain = policy.outputs(shown)
    assert plain is not None
    with policy.unchanged():
        for asked in ([0], [0, 1, 2], [2, 1]):
            outputs = policy.outputs([shown[i] for i in asked])
            assert outputs is not None
            torch.testing.assert_close(outputs.log_probs, plain.log_probs[asked], atol=1e-5, rtol=0)
            torch.testing.assert_close(outputs.values, plain.values[asked], atol=1e-5, rtol=0)


class _Counting(PromptPolicy):
    """Counts the observations that it computes; its values decrease with this count."""

    computed = 0

    def forward(self, observations: Sequence[TextObservation]) -> tuple[Tensor, Tensor]:
        self.computed += len(observations)
        most = max(len(o.actions) for o in observations)
        rows = torch.full((len(observations), most), -torch.inf)
        for row, o in zip(rows, observations, strict=True):
            row[: len(o.actions)] = -torch.tensor(len(o.actions)).log()
        return rows, torch.full((len(observations),), -float(self.computed))


def test_equal_observations_are_computed_once_while_the_weights_do_not_change() -> None:
    policy = _Counting()
    wall, key, fewer = _see("You see a wall"), _see("You see a key"), _see("You see a wall", _ACTIONS[:2])
    with policy.unchanged():
        policy.act([wall, wall, key])
        assert policy.computed == 2
        outputs = policy.outputs([fewer, key, wall])  # different actions make a different prompt
        assert policy.computed == 3
        assert outputs.values.tolist() == [-3.0, -2.0, -2.0]
        assert outputs.log_probs.isinf().tolist() == [[False, False, True], [False] * 3, [False] * 3]
    policy.act([wall])
    assert policy.computed == 4  # the weights may have changed
    with policy.unchanged():
        policy.act([wall])
    assert policy.computed == 5


def test_frequencies_follow_the_probabilities() -> None:
    probabilities = torch.tensor([0.5, 0.3, 0.0, 0.2])
    log_probs = probabilities.log().expand(20_000, 4)
    drawn = sample_categorical(log_probs, torch.Generator().manual_seed(0))
    counts = torch.bincount(drawn, minlength=4) / 20_000
    assert counts[2] == 0
    assert torch.allclose(counts, probabilities, atol=0.02)


def test_a_row_does_not_depend_on_other_rows() -> None:
    torch.manual_seed(0)
    log_probs = torch.randn(8, 5).log_softmax(-1)
    all_rows = sample_categorical(log_probs, torch.Generator().manual_seed(3))
    changed = log_probs.clone()
    changed[4:] = -math.log(5)
    assert torch.equal(all_rows[:4], sample_categorical(changed, torch.Generator().manual_seed(3))[:4])


def test_inadmissible_actions_at_either_end_are_never_drawn() -> None:
    log_probs = torch.tensor([[-math.inf, 0.0, -math.inf]]).expand(5000, 3)
    assert (sample_categorical(log_probs, torch.Generator().manual_seed(0)) == 1).all()
