"""The writer: whole texts and single tokens, proven equal to each other and to the plain computation."""

import pytest
import torch

from groundling.policies import TokenPolicy, TokenPrompt
from tests.lm.reference import plain_ids_log_probs

FAMILIES = ["gpt2", "llama", "t5", "bart"]


def prompts(seed=0, count=8, low=2, high=9):
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(low, high, (count,), generator=generator).tolist()
    return [TokenPrompt(tuple(torch.randint(2, 300, (n,), generator=generator).tolist())) for n in lengths]


def uniforms(count, steps, seed=0):
    return torch.rand(count, steps, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("family", FAMILIES)
def test_texts_have_the_log_probs_of_the_plain_computation(make_lm, family):
    lm = make_lm(family)
    policy = TokenPolicy(lm, reference=make_lm(family, seed=1), generation={"max_new_tokens": 6})
    asked = prompts()
    written = policy.write(asked, uniforms(8, 6))
    for column, (prompt, ids) in enumerate(zip(asked, written.token_ids(), strict=True)):
        with torch.no_grad():
            own = plain_ids_log_probs(lm, list(prompt.ids), ids.tolist())
            reference = plain_ids_log_probs(policy.reference, list(prompt.ids), ids.tolist())
        length = len(ids)
        torch.testing.assert_close(written.log_probs[:length, column], own, atol=1e-4, rtol=0)
        torch.testing.assert_close(written.kl[:length, column], own - reference, atol=2e-4, rtol=0)
        assert written.mask[:, column].sum() == length
        assert written.dones[:, column].nonzero().tolist() == [[length - 1]]


@pytest.mark.parametrize("value", ["separate", "shared"])
@pytest.mark.parametrize("family", FAMILIES)
def test_evaluate_sees_what_was_written(make_lm, family, value):
    policy = TokenPolicy(
        make_lm(family), value=value, generation={"top_k": 5, "min_new_tokens": 2, "temperature": 0.8}
    )
    written = policy.write(prompts(), uniforms(8, 6))
    seen = policy.evaluate(written.observations, written.actions.T)
    for name in ("log_probs", "values"):
        torch.testing.assert_close(getattr(seen, name), getattr(written, name).T, atol=1e-4, rtol=0)
