"""NLPO's token mask."""

import copy

import pytest
import torch

from groundling.policies import TokenPolicy
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
