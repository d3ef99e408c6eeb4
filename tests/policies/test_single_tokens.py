"""The writer token by token, as the token env shows it."""

import pytest
import torch

from groundling.errors import ConfigError
from groundling.policies import TokenPolicy
from tests.policies.writing import FAMILIES, ending_often, observation, prompts, uniforms
from tests.thorough import some_of, thorough


@pytest.mark.parametrize("family", some_of(FAMILIES, ["llama"]))
def test_stepping_token_by_token_is_the_same(make_lm, family):
    policy = TokenPolicy(ending_often(make_lm(family)), generation={"top_k": 30, "temperature": 1.3})
    for ends, min_new_tokens in ((True, 1), (False, 0)):
        policy.sampling = policy.sampling.model_copy(
            update={"terminate_on_eos": ends, "min_new_tokens": min_new_tokens}
        )
        asked, numbers = prompts(100), uniforms(100, 6)
        written = policy.write(asked, numbers)
        for side in ("left", "right"):
            check_steps(policy, asked, numbers, written, side)
        lengths = written.mask.sum(0)
        if ends:
            assert lengths.min() == 2 and (lengths < 6).float().mean() > 0.3
        else:
            assert (lengths == 6).all()


def check_steps(policy, asked, numbers, written, side):
    contexts = [[] for _ in asked]
    for step in range(numbers.shape[1]):
        observations = [observation(p.ids, c, side) for p, c in zip(asked, contexts, strict=True)]
        with pytest.MonkeyPatch.context() as patch:  # the same numbers step by step
            patch.setattr("torch.rand", lambda *_, step=step, **__: numbers[:, step : step + 1])
            action = policy.act(observations)
        counts = written.mask[step]
        assert torch.equal(action.actions[counts], written.actions[step][counts])
        for name in ("log_probs", "values"):
            expected = getattr(written, name)[step][counts]
            torch.testing.assert_close(getattr(action, name)[counts], expected, atol=1e-4, rtol=0)
        for context, token in zip(contexts, action.actions.tolist(), strict=True):
            context.append(token)
    torch.testing.assert_close(policy.values(observations), action.values)


def test_single_tokens_cannot_be_trained_with_sets_that_are_not_kept(make_lm):
    policy = TokenPolicy(make_lm("gpt2"), generation={"top_k": 3})
    with pytest.raises(ConfigError, match="filtered_log_probs=false"):
        policy.evaluate([observation([3, 4], [], "left")], torch.tensor([5]))


@pytest.mark.parametrize("family", ["t5", *thorough("gpt2")])
def test_single_tokens_are_evaluated_as_texts_are(make_lm, family):
    policy = TokenPolicy(make_lm(family), generation={"temperature": 0.7, "min_new_tokens": 2})
    asked = prompts(3)
    written = policy.write(asked, uniforms(3, 4))
    whole = policy.evaluate(written.observations, written.actions.T)
    for step in range(4):
        observations = [
            observation(p.ids, written.actions[:step, column].tolist(), "left") for column, p in enumerate(asked)
        ]
        counts = written.mask[step]
        single = policy.evaluate(observations, written.actions[step])
        for name in ("log_probs", "entropies", "values"):
            expected = getattr(whole, name)[:, step][counts]
            torch.testing.assert_close(getattr(single, name)[counts], expected, atol=1e-4, rtol=0)
        expected = whole.log_distributions()[:, step][counts]
        torch.testing.assert_close(single.log_distributions()[counts], expected, atol=1e-4, rtol=0)
        assert [w.tokens for w in policy.work(observations)] == [len(p.ids) + step for p in asked]
