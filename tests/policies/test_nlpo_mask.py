"""NLPO's token mask."""

import copy
from pathlib import Path

import pytest
import torch

from groundling.envs.text_env import TextObservation, WorldSpec
from groundling.policies import ActionGeneratingPolicy, TokenPolicy
from tests.lm.families import VOCABULARY
from tests.lm.reference import sets_of
from tests.policies.writing import next_logits, prompts, uniforms
from tests.thorough import thorough


@pytest.mark.parametrize("mask_type, top_mask", [("learned_top_p", 0.5), ("learned_top_k", 12), ("topk", 12)])
@pytest.mark.parametrize(
    ("family", "stepped"), [("gpt2", True), *thorough(("t5", False), ("gpt2", False), ("t5", True))]
)
def test_texts_obey_the_mask(make_lm, stepped, family, mask_type, top_mask):
    lm = make_lm(family)
    least = 3 if mask_type == "learned_top_p" else None
    policy = TokenPolicy(lm, mask_type=mask_type, top_mask=top_mask, min_tokens_to_keep=least)
    policy._decoder._stepper._checked = stepped
    special = set(lm.tokenizer.all_special_ids)
    with torch.no_grad():  # the policy changes, but its mask model does not
        for parameter in lm.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    asked = prompts(4)
    written = policy.write(asked, uniforms(4, 5))
    judge = policy.mask_lm or lm
    for prompt, ids, text in zip(asked, written.token_ids(), written.observations, strict=True):
        sets = sets_of(text, lm)
        for step, (token, allowed) in enumerate(zip(ids.tolist(), sets, strict=True)):
            scores = next_logits(judge, list(prompt.ids), ids[:step].tolist()).softmax(-1)
            order = scores.argsort(descending=True).tolist()
            if mask_type == "learned_top_p":
                count = max(3, int((scores[order].cumsum(0) <= top_mask).sum()) + 1)
            else:
                count = 12
            assert allowed == set(order[:count]) | special
            assert token in allowed
    seen = policy.evaluate(written.observations, written.actions.T)
    torch.testing.assert_close(seen.log_probs, written.log_probs.T, atol=1e-4, rtol=0)


def test_refreshing_makes_the_mask_model_the_policy(make_lm):
    policy = TokenPolicy(make_lm("gpt2"), mask_type="learned_top_p")
    before = copy.deepcopy(policy.mask_lm.state_dict())
    with torch.no_grad():
        for parameter in policy.lm.parameters():
            parameter.add_(0.1)
    assert all(torch.equal(before[n], p) for n, p in policy.mask_lm.state_dict().items())
    policy.refresh_mask()
    for late, present in zip(policy.mask_lm.parameters(), policy.lm.parameters(), strict=True):
        assert torch.equal(late, present) and not late.requires_grad


def test_a_mask_does_not_take_away_every_token(make_lm):
    """If the most likely token is a banned end token, another token is allowed."""
    lm = make_lm("gpt2")
    lm.model.generation_config.eos_token_id = list(range(1, VOCABULARY - 5))
    generation = {"min_new_tokens": 4, "max_new_tokens": 4}
    policy = TokenPolicy(lm, generation=generation, mask_type="topk", top_mask=1)
    written = policy.write(prompts(), uniforms(8, 4))
    assert written.mask.all() and written.log_probs.isfinite().all()
    assert all(t == 0 or t >= VOCABULARY - 5 for t in written.actions[:3].flatten().tolist())


_FREE = {"guided": False, "max_action_tokens": 5}
_SEEN = [TextObservation(f"go to the {c} ball", (("You see a wall",),), (), ("go", "go left"), {}) for c in "abcd"]


def _changed_writer(lm, **args):
    """Return a policy that has changed since its mask model was copied."""
    torch.manual_seed(0)
    policy = ActionGeneratingPolicy(lm, value_hidden_sizes=(8,), prompt="brief", **args)
    with torch.no_grad():
        for parameter in lm.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    return policy


@pytest.mark.parametrize(
    ("family", "mask_type", "top_mask"),
    [("gpt2", "learned_top_p", 0.5), ("t5", "learned_top_k", 12), *thorough(("gpt2", "topk", 12))],
)
def test_written_actions_obey_the_mask(make_lm, family, mask_type, top_mask):
    lm = make_lm(family)
    least = {"min_tokens_to_keep": 3} if mask_type == "learned_top_p" else {}
    policy = _changed_writer(lm, mask_type=mask_type, top_mask=top_mask, **least, **_FREE)
    with policy.unchanged():
        action = policy.act(_SEEN, generator=torch.Generator().manual_seed(2))
    asked = lm.prompt_tokens(policy.read(_SEEN))
    for prompt, turn in zip(asked, action.turns, strict=True):
        for step, (token, allowed) in enumerate(zip(turn.tokens, turn.among, strict=True)):
            scores = next_logits(policy.mask_lm or lm, list(prompt), list(turn.tokens[:step])).softmax(-1)
            order = scores.argsort(descending=True).tolist()
            above = int((scores[order].cumsum(0) <= top_mask).sum())
            count = max(3, above + 1) if mask_type == "learned_top_p" else 12
            assert {*allowed} == {*order[:count], *lm.tokenizer.all_special_ids} and token in allowed
    seen = policy.evaluate(action.turns, action.tokens.ids)
    torch.testing.assert_close(seen.log_probs, action.tokens.log_probs, atol=1e-4, rtol=0)
    assert seen.entropies.max() > 0


def test_guided_tokens_are_not_masked_and_demonstrations_neither(make_lm):
    lm = make_lm("gpt2")
    thinks = {"thought_ends": "so", "max_thought_tokens": 3}
    masked = _changed_writer(lm, mask_type="topk", top_mask=2, **thinks)
    (turn,) = masked.act(_SEEN[:1], generator=torch.Generator().manual_seed(0)).turns
    special = {*lm.tokenizer.all_special_ids}
    assert all(len({*among} - special) <= 2 for among in turn.among[: turn.tokens.index(turn.tokens[-1])])
    free = _changed_writer(make_lm("gpt2"), **_FREE)
    masked = _changed_writer(make_lm("gpt2"), mask_type="topk", top_mask=1, **_FREE)
    cloned = [one.evaluate(_SEEN, torch.tensor([0, 1, 0, 1])).log_probs for one in (free, masked)]
    assert cloned[0].equal(cloned[1]) and cloned[1].isfinite().all()


def test_several_end_tokens_count_once(make_lm):
    lm = make_lm("gpt2")
    lm.model.generation_config.eos_token_id = [1, 5, 9]
    policy = _changed_writer(lm, mask_type="topk", top_mask=300, **_FREE)
    action = policy.act(_SEEN, generator=torch.Generator().manual_seed(0))
    assert all(len({*among} & {1, 5, 9}) == 1 for turn in action.turns for among in turn.among)
    seen = policy.evaluate(action.turns, action.tokens.ids)
    torch.testing.assert_close(seen.log_probs, action.tokens.log_probs, atol=1e-4, rtol=0)


def test_a_writers_mask_model_is_saved(make_lm, tmp_path: Path):
    policy = _changed_writer(make_lm("gpt2"), mask_type="learned_top_k", top_mask=9, **_FREE)
    policy.save_pretrained(tmp_path)
    other = ActionGeneratingPolicy(
        make_lm("gpt2", seed=3), value_hidden_sizes=(8,), mask_type="learned_top_k", top_mask=9, **_FREE
    )
    other.load_weights(tmp_path)
    assert all(a.equal(b) for a, b in zip(policy.mask_lm.parameters(), other.mask_lm.parameters(), strict=True))
    other.refresh_mask()
    assert all(a.equal(b) for a, b in zip(other.lm.parameters(), other.mask_lm.parameters(), strict=True))


@pytest.mark.parametrize(
    ("args", "action", "refused"),
    [
        ({}, "choice", True),
        ({"guided": False}, "choice", False),
        ({"thought_ends": "so"}, "choice", False),
        ({}, "free_text", False),
    ],
)
def test_a_mask_without_tokens_to_mask_is_refused(args, action, refused):
    reason = ActionGeneratingPolicy.unused_argument(
        {"mask_type": "topk", "top_mask": 9, **args}, WorldSpec("a world", frozenset({"words"}), action)
    )
    assert (reason is not None) == refused and (not refused or "mask_type=topk does nothing" in reason)
