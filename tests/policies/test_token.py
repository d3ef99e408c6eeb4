"""The token policy: whole texts and single tokens are equal to each other and to the plain computation."""

import itertools

import pytest
import torch

from groundling.algorithms import GRPO, Rollout, create
from groundling.errors import ConfigError, GroundlingError, RunError
from groundling.policies import TokenPolicy, TokenPrompt
from groundling.policies import token as token_policy
from groundling.policies.text_states import Written
from tests.lm.reference import plain_ids_log_probs
from tests.policies.writing import FAMILIES, ending_often, prompts, uniforms
from tests.thorough import some_of, thorough


@pytest.mark.parametrize("family", some_of(FAMILIES, ["gpt2", "bart"]))
def test_texts_have_the_log_probs_of_the_plain_computation(make_lm, family):
    lm = ending_often(make_lm(family))
    other = make_lm(family, seed=1)
    policy = TokenPolicy(lm, reference=other, generation={"max_new_tokens": 6})
    asked = prompts()
    written = policy.write(asked, uniforms(8, 6))
    lengths = [len(ids) for ids in written.token_ids()]
    assert min(lengths) < max(lengths)
    for column, (prompt, ids) in enumerate(zip(asked, written.token_ids(), strict=True)):
        with torch.no_grad():
            log_probs = plain_ids_log_probs(lm, list(prompt.ids), ids.tolist())
            reference = plain_ids_log_probs(other, list(prompt.ids), ids.tolist())
        length = len(ids)
        torch.testing.assert_close(written.log_probs[:length, column], log_probs, atol=1e-4, rtol=0)
        torch.testing.assert_close(written.kl[:length, column], log_probs - reference, atol=2e-4, rtol=0)
        assert written.mask[:, column].tolist() == [step < length for step in range(6)]
        assert written.dones[:, column].nonzero().tolist() == [[length - 1]]
        for tensor in (written.actions, written.log_probs, written.values, written.kl):
            assert not tensor[length:, column].any()


@pytest.mark.parametrize(
    ("family", "value"),
    some_of(itertools.product(FAMILIES, ["separate", "shared"]), [("llama", "separate"), ("t5", "shared")]),
)
def test_evaluate_agrees_with_write(make_lm, family, value):
    generation = {"top_k": 30, "top_p": 0.9, "min_new_tokens": 2, "temperature": 0.8}
    policy = TokenPolicy(ending_often(make_lm(family)), value=value, generation=generation)
    written = policy.write(prompts(), uniforms(8, 6))
    seen = policy.evaluate(written.observations, written.actions.T)
    torch.testing.assert_close(seen.log_probs, written.log_probs.T, atol=1e-4, rtol=0)
    torch.testing.assert_close(seen.values, written.values.T, atol=1e-4, rtol=0)
    mask = written.mask.T
    assert not seen.entropies[~mask].any() and not seen.log_distributions()[~mask].any()
    probabilities = seen.log_distributions()[mask].exp()
    torch.testing.assert_close(probabilities.sum(-1), torch.ones(int(mask.sum())))
    assert (probabilities > 0).sum(-1).max() <= 30
    expected = torch.special.entr(probabilities).sum(-1)
    torch.testing.assert_close(seen.entropies[mask], expected, atol=1e-4, rtol=0)
    loss = (seen.log_probs.exp() * seen.values).sum() + seen.entropies.sum()
    loss.backward()
    gradients = [p.grad for p in policy.parameters() if p.grad is not None]
    assert gradients and all(g.isfinite().all() for g in gradients)


def test_gradients_equal_those_of_texts_read_alone(make_lm):
    policy = TokenPolicy(ending_often(make_lm("gpt2")), generation={"top_k": 30})
    written = policy.write(prompts(4), uniforms(4, 6))

    def gradients(groups):
        policy.zero_grad()
        for rows in groups:
            seen = policy.evaluate([written.observations[i] for i in rows], written.actions.T[rows])
            (seen.log_probs.sum() + seen.values.square().sum() + seen.entropies.sum()).backward()
        return [p.grad.clone() for p in policy.parameters() if p.grad is not None]

    for together, alone in zip(gradients([[0, 1, 2, 3]]), gradients([[0], [1], [2], [3]]), strict=True):
        torch.testing.assert_close(together, alone, atol=1e-3, rtol=1e-4)


def test_unfiltered_log_probs_as_rl4lms_has_them(make_lm):
    lm = make_lm("gpt2")
    policy = TokenPolicy(lm, generation={"top_k": 3, "max_new_tokens": 4}, filtered_log_probs=False)
    asked = prompts()
    written = policy.write(asked, uniforms(8, 4))
    with torch.no_grad():
        expected = plain_ids_log_probs(lm, list(asked[0].ids), written.actions[:, 0].tolist())
        seen = policy.evaluate(written.observations, written.actions.T)
    torch.testing.assert_close(written.log_probs[:, 0], expected, atol=1e-4, rtol=0)
    torch.testing.assert_close(seen.log_probs, written.log_probs.T, atol=1e-4, rtol=0)


@pytest.mark.parametrize("generation", [{"temperature": 0.1}, {"min_new_tokens": 3}, {"top_k": 3}])
def test_demonstrated_texts_are_learnt_despite_filters_of_sampling(make_lm, generation):
    losses = []
    for settings in ({}, generation):
        policy = TokenPolicy(ending_often(make_lm("gpt2")), critic=False, generation=settings)
        texts = [Written(prompt.ids, 3, None) for prompt in prompts(2)]
        tokens, zero = torch.tensor([[5, 9, 8], [30, 8, 40]]).T, torch.zeros(3, 2)  # 8 ends a text
        counts = torch.ones(3, 2, dtype=torch.bool)
        rollout = Rollout(texts, tokens, zero, zero, zero, ~counts, zero[0], [], sequences=True, mask=counts)
        algorithm = create("supervised", learning_rate=1e-9)
        algorithm.setup(policy)
        losses.append(algorithm.update(policy, rollout, generator=torch.Generator())["loss"])
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)


@pytest.mark.parametrize("family", ["gpt2", *thorough("t5")])
def test_grpo_takes_the_penalty_before_any_filter(make_lm, family):
    lm, reference = make_lm(family), make_lm(family, seed=1)
    policy = TokenPolicy(
        lm, reference=reference, generation={"temperature": 0.5, "top_k": 30}, mask_type="topk", top_mask=200
    )
    asked = prompts()
    written = policy.write(asked, uniforms(8, 5))
    with torch.no_grad():  # the policy changes
        for parameter in lm.parameters():
            parameter.add_(0.03 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    ratios, raw = [], policy.evaluate(written.observations, written.actions.T).raw_log_probs()
    for row, (prompt, ids) in enumerate(zip(asked, written.token_ids(), strict=True)):
        with torch.no_grad():
            log_probs = plain_ids_log_probs(lm, list(prompt.ids), ids.tolist())
            ratios.append(log_probs - plain_ids_log_probs(reference, list(prompt.ids), ids.tolist()))
        torch.testing.assert_close(raw[row, : len(ids)], log_probs, atol=1e-4, rtol=0)
        assert not raw[row, len(ids) :].any()
    d = torch.cat(ratios)
    nothing = torch.zeros(written.mask.shape)
    rollout = Rollout(
        written.observations,
        written.actions,
        written.log_probs,
        nothing,
        nothing,
        written.dones,
        nothing[0],
        [],
        sequences=True,
        mask=written.mask,
        kl=written.kl,
        raw_log_probs=written.raw_log_probs,
    )
    grpo = GRPO(kl_coefficient=0.5, loss_type="bnpo", minibatch_size=1000)
    grpo.setup(policy)
    figures = grpo.update(policy, Rollout.concatenate([rollout]), generator=torch.Generator())
    assert figures["reference_kl"] == pytest.approx(((-d).exp() + d - 1).mean().item(), rel=1e-3)
    two = Rollout.concatenate([rollout, rollout])
    assert torch.equal(two.raw_log_probs, torch.cat([written.raw_log_probs] * 2, dim=1))


@pytest.mark.parametrize("family", ["gpt2", *thorough("t5")])
def test_out_of_memory_halves_the_texts_written_at_once_and_changes_nothing_else(make_lm, family, monkeypatch):
    def made():
        torch.manual_seed(0)  # initialises the value head
        lm = ending_often(make_lm(family))
        return TokenPolicy(lm, reference=make_lm(family, seed=1), generation={"top_k": 30})

    asked, numbers = prompts(7), uniforms(7, 6)
    whole = made().write(asked, numbers)
    read, rows, fits = token_policy.read_states, [], 3

    def too_small(lm, lines):
        if len(lines.counts) > fits:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate too much")
        return read(lm, lines)

    def logits_of(logits, chosen):
        rows.append(len(logits))
        return logits.log_softmax(-1).gather(1, chosen[:, None])[:, 0]

    monkeypatch.setattr(token_policy, "read_states", too_small)
    monkeypatch.setattr(token_policy, "_log_probs_of", logits_of)
    monkeypatch.setattr(token_policy, "_ROWS", 5)
    policy = made()
    with pytest.warns(UserWarning, match="CUDA out of memory: continuing with 3 texts at a time"):
        pieces = policy.write(asked, numbers)
    assert policy._texts_at_once == 3 and max(rows) == 5
    for name in ("actions", "mask", "dones"):
        assert torch.equal(getattr(pieces, name), getattr(whole, name))
    for name in ("log_probs", "raw_log_probs", "values", "kl"):
        torch.testing.assert_close(getattr(pieces, name), getattr(whole, name), atol=1e-4, rtol=0)
    for ours, theirs in zip(pieces.observations, whole.observations, strict=True):
        assert ours.prompt == theirs.prompt and ours.length == theirs.length
        assert torch.equal(ours.sets, theirs.sets)
    fits = 0
    with pytest.raises(RunError, match="to generate one text"), pytest.warns(UserWarning):
        policy.write(asked, numbers)


def test_a_text_depends_on_its_own_numbers_alone(make_lm):
    policy = TokenPolicy(make_lm("t5"))
    asked, numbers = prompts(), uniforms(8, 5)
    together = policy.write(asked, numbers)
    for column in (0, 3, 7):
        alone = policy.write([asked[column]], numbers[column : column + 1])
        assert torch.equal(alone.actions[:, 0], together.actions[:, column])


@pytest.mark.parametrize("value", ["shared", *thorough("separate")])
def test_saved_and_loaded_again(make_lm, tmp_path, value):
    from groundling.lm import LanguageModel

    def make(lm):
        return TokenPolicy(lm, value=value, mask_type="learned_top_k", top_mask=9, generation={"max_new_tokens": 4})

    policy = make(make_lm("gpt2"))
    with torch.no_grad():
        for number, parameter in enumerate(p for p in policy.parameters() if p.requires_grad):
            parameter.add_(0.01 * (number + 1))
    policy.save_pretrained(tmp_path)
    again = make(LanguageModel.from_pretrained(tmp_path))
    again.load_weights(tmp_path)
    asked, numbers = prompts(), uniforms(8, 4)
    before, after = policy.write(asked, numbers), again.write(asked, numbers)
    for name in ("actions", "log_probs", "values"):
        assert torch.equal(getattr(before, name), getattr(after, name))


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"generation": {"top_kk": 3}}, "unknown generation setting 'top_kk': did you mean 'top_k'"),
        ({"generation": {"temperature": 0}}, "temperature must be greater than 0"),
        ({"generation": {"top_p": 1.5}}, "top_p must be at most 1"),
        ({"generation": {"top_k": "many"}}, "top_k must be a whole number, got 'many'"),
        ({"generation": {"top_k": True}}, "top_k must be a whole number, got True"),
        ({"mask_type": "learned_top_p", "top_mask": 9}, "top_mask=9"),
        ({"mask_type": "topk", "top_mask": 0.9}, "top_mask=0.9"),
        ({"mask_type": "learned_top_k"}, r"mask_type=learned_top_k needs policy\.args\.top_mask"),
        ({"top_mask": 0.5}, r"top_mask=0\.5 does nothing without mask_type: set that"),
        ({"filtered_log_probs": False, "mask_type": "topk", "top_mask": 9}, "filtered_log_probs=false computes"),
        ({"mask_type": "topk", "top_mask": 9, "min_tokens_to_keep": 5}, "nothing without mask_type=learned_top_p"),
        ({"context_start_token": 0}, "context_start_token=0"),
    ],
)
def test_invalid_arguments_get_a_message(make_lm, arguments, message):
    with pytest.raises(ConfigError, match=message):
        TokenPolicy(make_lm("gpt2"), **arguments)


def test_invalid_prompts_get_a_message(make_lm):
    policy = TokenPolicy(make_lm("gpt2"))
    with pytest.raises(GroundlingError, match="prompt 1 is empty"):
        policy.write([TokenPrompt((3,)), TokenPrompt(())], uniforms(2, 4))
    with pytest.raises(GroundlingError, match="prompt 0 has 254 tokens and the text up to 4"):
        policy.write([TokenPrompt((3,) * 254)], uniforms(1, 4))
