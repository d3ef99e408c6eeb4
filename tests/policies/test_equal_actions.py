"""Admissible actions with equal tokens are equally likely and equally frequent in all policies that write or score."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from groundling.envs.text_env import TextObservation
from groundling.lm import LanguageModel
from groundling.policies import ActionGeneratingPolicy, ActionScoringPolicy, ActionWritingPolicy, DRRNPolicy, Policy
from tests.lm.chat_tokenizers import tiny

_ACTIONS = ("press {", "wait", "press }", "press")
_SEEN = TextObservation("press", (("You see a button",),), (), _ACTIONS, {})
_DRAWS = 600


def _tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer with few words; like T5's, it has no braces."""
    words = ["<unk>", "</s>", "press", "wait", "You", "see", "a", "button", ":"]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", eos_token="</s>")


@pytest.fixture(scope="module")
def lm() -> LanguageModel:
    model = tiny(_tokenizer(), 1)
    with torch.no_grad():
        model.model.lm_head.weight *= 0.2
    return model


def _policy(kind: str, lm: LanguageModel, folder: Path) -> Policy:
    torch.manual_seed(0)
    args: dict[str, Any] = {"prompt": "brief", "value_hidden_sizes": (8,)}
    if kind == "drrn":
        lm.tokenizer.save_pretrained(folder)
        return DRRNPolicy(prompt="brief", tokenizer=str(folder))
    if kind == "scoring":
        return ActionScoringPolicy(lm, **args)
    return ActionWritingPolicy(lm, **args) if kind == "writing" else ActionGeneratingPolicy(lm, **args)


@pytest.mark.parametrize("kind", ["scoring", "writing", "generating", "drrn"])
def test_actions_with_equal_tokens_are_taken_as_often_as_reported(
    kind: str, lm: LanguageModel, tmp_path: Path
) -> None:
    policy = _policy(kind, lm, tmp_path)
    outputs = policy.outputs([_SEEN])
    assert outputs is not None
    reported = outputs.log_probs[0].exp()
    assert reported[0].item() == pytest.approx(reported[2].item()) and reported.min() > 0.02
    assert reported.sum().item() == pytest.approx(1, abs=1e-5)
    generator = torch.Generator().manual_seed(0)
    acted = policy.act([_SEEN] * _DRAWS, generator=generator)
    taken = acted.actions.bincount(minlength=4) / _DRAWS
    assert (taken - reported).abs().max() < 4 * (0.25 / _DRAWS) ** 0.5, (taken, reported)
    torch.testing.assert_close(acted.log_probs, reported.log()[acted.actions], atol=1e-5, rtol=1e-4)
    evaluated = policy.evaluate([_SEEN] * 4, torch.arange(4))
    torch.testing.assert_close(evaluated.log_probs, reported.log(), atol=1e-5, rtol=1e-4)
    # There is one number per row, and the row's action depends only on it.
    expected = torch.Generator().manual_seed(0)
    torch.rand(_DRAWS, dtype=torch.float64, generator=expected)
    assert torch.equal(generator.get_state(), expected.get_state())
    some = policy.act([_SEEN] * 20, generator=torch.Generator().manual_seed(0))
    assert some.actions.tolist() == acted.actions[:20].tolist()
    best = policy.act([_SEEN], deterministic=True).actions.item()
    assert best == (0 if kind == "generating" else int(reported.argmax()))  # generating selects the most likely tokens


def test_written_tokens_do_not_carry_the_share_of_an_action(lm: LanguageModel, tmp_path: Path) -> None:
    """Ratios of tokens refer to the written tokens; only the action's own probability contains its share."""
    policy = _policy("generating", lm, tmp_path)
    acted = policy.act([_SEEN] * 50, generator=torch.Generator().manual_seed(0))
    assert acted.turns is not None and acted.tokens is not None
    written = policy.evaluate(acted.turns, acted.tokens.ids).log_probs
    torch.testing.assert_close(written.detach(), acted.tokens.log_probs, atol=1e-5, rtol=0)
    shares = torch.tensor([math.log(2) if action in (0, 2) else 0.0 for action in acted.actions.tolist()])
    torch.testing.assert_close(acted.log_probs, written.sum(-1).detach() - shares, atol=1e-5, rtol=0)


@pytest.mark.parametrize("thought", [{}, {"thought_ends": ":", "max_thought_tokens": 1}])
def test_a_free_answer_in_shared_tokens_is_each_of_the_actions(lm: LanguageModel, thought: dict[str, Any]) -> None:
    policy = ActionGeneratingPolicy(
        lm,
        prompt="brief",
        value_hidden_sizes=(8,),
        guided=False,
        max_action_tokens=1,
        invalid_action="wait",
        **thought,
    )
    seen = TextObservation("press", (("You see a button",),), (), ("{", "wait", "}"), {})
    acted = policy.act([seen] * _DRAWS, generator=torch.Generator().manual_seed(0))
    assert acted.tokens is not None
    valid = acted.actions[~acted.tokens.invalid].bincount(minlength=3)
    assert valid[0] > 9 and valid[2] > 9 and abs(valid[0] - valid[2]) < 4 * (valid[0] + valid[2]) ** 0.5, valid
    for turn in (policy.rules.plain_turn(seen, 0), policy.rules.plain_turn(seen, 2)):
        answer = policy.rules.answer(seen.actions)
        for token in turn.tokens:
            answer.write(token) if not answer.ended else None
        assert not answer.invalid and answer.choices.equal(answer.action) == [0, 2]
