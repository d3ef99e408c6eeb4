"""The writer: whole texts and single tokens, proven equal to each other and to the plain computation."""

import copy
import itertools
from dataclasses import replace

import pytest
import torch

from groundling.algorithms import GRPO, Rollout, create
from groundling.errors import ConfigError, GroundlingError, RunError
from groundling.policies import TokenPolicy, TokenPrompt
from groundling.policies import token as token_policy
from groundling.policies.texts import Written
from tests.lm.families import VOCABULARY
from tests.lm.reference import plain_ids_log_probs, sets_of
from tests.thorough import some_of, thorough

FAMILIES = ["gpt2", "llama", "t5", "bart"]


def prompts(count=8, low=2, high=9, seed=0):
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(low, high, (count,), generator=generator).tolist()
    return [TokenPrompt(tuple(torch.randint(2, 300, (n,), generator=generator).tolist())) for n in lengths]


def uniforms(count, steps, seed=0):
    return torch.rand(count, steps, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def ending_often(lm):
    """The model with every seventh token as an end token, so that texts of all lengths come."""
    lm.model.generation_config.eos_token_id = list(range(1, VOCABULARY, 7))
    return lm


def observation(prompt, context, side, size=12):
    """As the token env gives it; ``side`` says where padding is."""
    arrays = {}
    for name, ids in (("prompt", prompt), ("context", context)):
        padding = [0] * (size - len(ids))
        marks = [1] * len(ids)
        arrays[f"{name}_ids"] = torch.tensor([*padding, *ids] if side == "left" else [*ids, *padding]).numpy()
        arrays[f"{name}_mask"] = torch.tensor([*padding, *marks] if side == "left" else [*marks, *padding]).numpy()
    return arrays


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


@pytest.mark.parametrize("family", some_of(FAMILIES, ["llama"]))
def test_stepping_token_by_token_is_the_same(make_lm, family):
    policy = TokenPolicy(ending_often(make_lm(family)), generation={"top_k": 30, "temperature": 1.3})
    for ends, min_new_tokens in ((True, 1), (False, 0)):
        policy.sampling = replace(policy.sampling, terminate_on_eos=ends, min_new_tokens=min_new_tokens)
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


@pytest.mark.parametrize(
    ("family", "value"),
    some_of(itertools.product(FAMILIES, ["separate", "shared"]), [("llama", "separate"), ("t5", "shared")]),
)
def test_evaluate_sees_what_was_written(make_lm, family, value):
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


def test_gradients_are_those_of_texts_read_alone(make_lm):
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
def test_texts_that_others_wrote_are_learnt_whatever_sampling_would_filter(make_lm, generation):
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


def test_nlpos_ratio_is_never_taken_without_its_mask(make_lm):
    lm = make_lm("gpt2")
    with pytest.raises(ConfigError, match="filtered_log_probs=false computes"):
        TokenPolicy(lm, filtered_log_probs=False, mask_type="topk", top_mask=12)


@pytest.mark.parametrize("family", ["gpt2", *thorough("t5")])
def test_grpo_takes_the_penalty_before_any_filter(make_lm, family):
    lm, reference = make_lm(family), make_lm(family, seed=1)
    policy = TokenPolicy(
        lm, reference=reference, generation={"temperature": 0.5, "top_k": 30}, mask_type="topk", top_mask=200
    )
    asked = prompts()
    written = policy.write(asked, uniforms(8, 5))
    with torch.no_grad():  # the policy moves on
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
    grpo = GRPO(kl_coefficient=0.5, mean_of_sequences=False, minibatch_size=1000)
    grpo.setup(policy)
    figures = grpo.update(policy, Rollout.concatenate([rollout]), generator=torch.Generator())
    assert figures["reference_kl"] == pytest.approx(((-d).exp() + d - 1).mean().item(), rel=1e-3)
    two = Rollout.concatenate([rollout, rollout])
    assert torch.equal(two.raw_log_probs, torch.cat([written.raw_log_probs] * 2, dim=1))


@pytest.mark.parametrize("family", ["gpt2", *thorough("t5")])
def test_too_little_memory_halves_what_is_written_at_once_and_changes_nothing_else(make_lm, family, monkeypatch):
    def made():
        torch.manual_seed(0)  # the value head
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
    with pytest.warns(UserWarning, match="CUDA out of memory: continuing with 3 texts written at once"):
        pieces = policy.write(asked, numbers)
    assert policy._texts_at_once == 3 and max(rows) == 5
    for name in ("actions", "mask", "dones"):
        assert torch.equal(getattr(pieces, name), getattr(whole, name))
    for name in ("log_probs", "raw_log_probs", "values", "kl"):
        torch.testing.assert_close(getattr(pieces, name), getattr(whole, name), atol=1e-4, rtol=0)
    for ours, theirs in zip(pieces.observations, whole.observations, strict=True):
        assert ours.prompt == theirs.prompt and ours.length == theirs.length
        assert torch.equal(ours.sets.counts, theirs.sets.counts)
    fits = 0
    with pytest.raises(RunError, match="to write one text"), pytest.warns(UserWarning):
        policy.write(asked, numbers)


def test_a_text_depends_on_its_own_numbers_alone(make_lm):
    policy = TokenPolicy(make_lm("t5"))
    asked, numbers = prompts(), uniforms(8, 5)
    together = policy.write(asked, numbers)
    for column in (0, 3, 7):
        alone = policy.write([asked[column]], numbers[column : column + 1])
        assert torch.equal(alone.actions[:, 0], together.actions[:, column])


# NLPO


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
    with torch.no_grad():  # the policy moves on, its mask model stays
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


def next_logits(lm, prompt, written):
    with torch.no_grad():
        if lm.is_encoder_decoder:
            start = lm.model.config.decoder_start_token_id
            output = lm.model(input_ids=torch.tensor([prompt]), decoder_input_ids=torch.tensor([[start, *written]]))
        else:
            output = lm.model(input_ids=torch.tensor([prompt + written]))
    return output.logits[0, -1]


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
    assert TokenPolicy(make_lm("gpt2")).refresh_mask is None


def test_a_mask_does_not_take_away_every_token(make_lm):
    """Where the likeliest token is an end token that cannot come yet, another is left."""
    lm = make_lm("gpt2")
    lm.model.generation_config.eos_token_id = list(range(1, VOCABULARY - 5))
    generation = {"min_new_tokens": 4, "max_new_tokens": 4}
    policy = TokenPolicy(lm, generation=generation, mask_type="topk", top_mask=1)
    written = policy.write(prompts(), uniforms(8, 4))
    assert written.mask.all() and written.log_probs.isfinite().all()
    assert all(t == 0 or t >= VOCABULARY - 5 for t in written.actions[:3].flatten().tolist())


# Parameters and files


def test_only_what_is_trained_has_gradients(make_lm):
    reference = make_lm("gpt2")
    policy = TokenPolicy(make_lm("gpt2"), reference=reference, mask_type="learned_top_k", top_mask=5)
    assert not any(p.requires_grad for p in reference.parameters())
    trained = sum(p.numel() for p in policy.parameters() if p.requires_grad)
    num_parameters = sum(p.numel() for p in policy.lm.parameters())
    assert trained == 2 * num_parameters + policy.lm.hidden_size
    shared = TokenPolicy(make_lm("gpt2"), value="shared")
    assert sum(p.numel() for p in shared.parameters()) == num_parameters + shared.lm.hidden_size


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


def test_weights_of_another_policy_are_refused(make_lm, tmp_path):
    TokenPolicy(make_lm("gpt2"), value="shared").save_pretrained(tmp_path)
    with pytest.raises(GroundlingError, match=r"value\.safetensors is not of this policy"):
        TokenPolicy(make_lm("gpt2")).load_weights(tmp_path)


def test_adapters_off_are_the_reference(make_lm, tmp_path):
    from groundling.lm import LanguageModel

    make_lm("llama").save_pretrained(tmp_path)
    lm = LanguageModel.from_pretrained(tmp_path, lora={"r": 2, "target_modules": ["q_proj"]})
    policy = TokenPolicy(lm, reference=lm, generation={"max_new_tokens": 4})
    asked, numbers = prompts(), uniforms(8, 4)
    assert not policy.write(asked, numbers).kl.abs().gt(1e-4).any()
    with torch.no_grad():
        for name, parameter in lm.named_parameters():
            if "lora_B" in name:
                parameter.normal_(generator=torch.Generator().manual_seed(0))
    written = policy.write(asked, numbers)
    with torch.no_grad():
        expected = plain_ids_log_probs(make_lm("llama"), list(asked[0].ids), written.actions[:, 0].tolist())
    torch.testing.assert_close((written.log_probs - written.kl)[:, 0], expected, atol=1e-4, rtol=0)
    assert written.kl.abs().max() > 1e-2


# Bad input


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"generation": {"top_kk": 3}}, "unknown generation setting 'top_kk': did you mean 'top_k'"),
        ({"generation": {"temperature": 0}}, "temperature must be greater than 0"),
        ({"generation": {"top_p": 1.5}}, "top_p must lie in"),
        ({"generation": {"top_k": "many"}}, "top_k must be of type int, got 'many'"),
        ({"generation": {"top_k": True}}, "top_k must be of type int, got True"),
        ({"generation": 5}, "generation must be settings"),
        ({"mask_type": "learned_top_p", "top_mask": 9}, "top_mask=9"),
        ({"mask_type": "topk", "top_mask": 0.9}, "top_mask=0.9"),
        ({"mask_type": "learned_top_k"}, r"mask_type=learned_top_k needs policy\.args\.top_mask"),
        ({"top_mask": 0.5}, r"policy\.args\.top_mask=0\.5 does nothing without a mask"),
        ({"min_tokens_to_keep": 5}, r"policy\.args\.min_tokens_to_keep=5 does nothing with mask_type=null"),
        ({"mask_type": "topk", "top_mask": 9, "min_tokens_to_keep": 5}, "nothing with mask_type=topk"),
        ({"context_start_token": 0}, "context_start_token=0"),
    ],
)
def test_what_cannot_be_is_told(make_lm, arguments, message):
    with pytest.raises(ConfigError, match=message):
        TokenPolicy(make_lm("gpt2"), **arguments)


def test_the_usual_values_of_a_mask_are_as_good_as_none(make_lm):
    usual = {"top_mask": 0.9, "min_tokens_to_keep": 100}
    assert TokenPolicy(make_lm("gpt2"), **usual).refresh_mask is None
    TokenPolicy(make_lm("gpt2"), mask_type="topk", top_mask=9, min_tokens_to_keep=100)
    for given in ({}, usual):
        mask = TokenPolicy(make_lm("gpt2"), mask_type="learned_top_p", **given)._decoder.mask
        assert (mask.top_mask, mask.min_tokens_to_keep) == (0.9, 100)


def test_prompts_that_cannot_be_read_are_told(make_lm):
    policy = TokenPolicy(make_lm("gpt2"))
    with pytest.raises(GroundlingError, match="prompt 1 is empty"):
        policy.write([TokenPrompt((3,)), TokenPrompt(())], uniforms(2, 4))
    with pytest.raises(GroundlingError, match="prompt 0 has 254 tokens, and the text 4"):
        policy.write([TokenPrompt((3,) * 254)], uniforms(1, 4))


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
