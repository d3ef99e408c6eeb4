"""Models of values: separate weights, a separate adapter, or the policy's states."""

import copy

import pytest
import torch

from groundling.errors import ConfigError, GroundlingError
from groundling.lm import LanguageModel
from groundling.lm.load.adapters import merge_adapters
from groundling.policies import TokenPolicy
from tests.lm.reference import plain_ids_log_probs
from tests.policies.writing import ending_often, prompts, uniforms
from tests.thorough import THOROUGH, thorough

LORA = {"r": 2, "target_modules": "all-linear"}


@pytest.fixture
def make_policy(make_lm, tmp_path):
    """Return `make_policy(family, adapter=True, …)`; with an adapter, the reference is the model without it."""

    def make(family, adapter=True, gradient_checkpointing=False, **arguments):
        folder = tmp_path / family
        if not folder.exists():
            ending_often(make_lm(family)).save_pretrained(folder)
        options = {"lora": LORA} if adapter else {}
        with torch.random.fork_rng():
            torch.manual_seed(0)
            lm = LanguageModel.from_pretrained(folder, gradient_checkpointing=gradient_checkpointing, **options)
            reference = lm if adapter else LanguageModel.from_pretrained(folder)
            generation = {"max_new_tokens": 5}
            return TokenPolicy(lm, reference, **{"value": "lora", "generation": generation, **arguments})

    return make


def moved(module, by=0.05):
    """Change the trained weights of a module, always by the same amount."""
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.requires_grad:
                parameter.add_(by * torch.randn(parameter.shape, generator=generator))


def write(policy):
    return policy.write(prompts(), uniforms(8, 5))


def gradients(policy, part):
    """Return the gradients of a loss on `part`, by name."""
    policy.zero_grad()
    written = write(policy)
    seen = policy.evaluate(written.observations, written.actions.T)
    getattr(seen, part).square().sum().backward()
    return {name: p.grad.clone() for name, p in policy.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("family", ["llama", *thorough("bart")])
def test_each_adapter_changes_its_own_part_alone(make_policy, family):
    policy = make_policy(family)
    before = write(policy)
    assert not before.kl.abs().gt(1e-4).any()
    moved(policy.value_lm)
    values_moved = write(policy)
    for name in ("actions", "log_probs", "kl"):
        assert torch.equal(getattr(before, name), getattr(values_moved, name))
    assert (before.values - values_moved.values)[before.mask].abs().min() > 1e-4
    moved(policy.lm)
    both_moved = write(policy)
    assert both_moved.kl.abs().max() > 1e-2  # the reference has neither adapter
    # The decoder uses the policy's adapter, and the values equal those of the same texts with the other adapter.
    ids = both_moved.token_ids()[0]
    with torch.no_grad():
        log_probs = plain_ids_log_probs(policy.lm, list(prompts()[0].ids), ids.tolist())
        seen = policy.evaluate(values_moved.observations, values_moved.actions.T)
    torch.testing.assert_close(both_moved.log_probs[: len(ids), 0], log_probs, atol=1e-4, rtol=0)
    torch.testing.assert_close(seen.values, values_moved.values.T, atol=1e-5, rtol=0)


def test_merging_the_adapter_changes_no_value(make_policy):
    policy = make_policy("llama")
    moved(policy)
    before = write(policy)
    merge_adapters(policy)  # both adapters use the same weights
    after = write(policy)
    assert torch.equal(after.values, before.values) and torch.equal(after.log_probs, before.log_probs)


@THOROUGH
@pytest.mark.parametrize(
    ("family", "checkpointing"), [("bart", True), *thorough(("bart", False), ("llama", True), ("llama", False))]
)
def test_gradients_reach_their_own_adapter_alone(make_policy, family, checkpointing):
    policy = make_policy(family, gradient_checkpointing=checkpointing)
    moved(policy)
    of_values, of_choice = gradients(policy, "values"), gradients(policy, "log_probs")
    trained = {name for name, p in policy.named_parameters() if p.requires_grad}
    assert of_values.keys() | of_choice.keys() == trained
    assert all("lora_" in name or name.startswith("value_head.") for name in trained)
    assert {name.split(".")[0] for name in of_values} == {"value_lm", "value_head"}
    assert {name.split(".")[0] for name in of_choice} == {"lm"}
    assert all(g.abs().max() > 0 for g in (of_values | of_choice).values())
    if checkpointing:  # the recomputation in the backward pass uses the same adapter
        plain = make_policy(family)
        moved(plain)
        for part, actual in (("values", of_values), ("log_probs", of_choice)):
            for name, expected in gradients(plain, part).items():
                torch.testing.assert_close(actual[name], expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    ("family", "value"), [("bart", "lora"), ("llama", "separate"), *thorough(("bart", "separate"), ("llama", "lora"))]
)
def test_frozen_weights_are_shared(make_policy, family, value):
    policy = make_policy(family, value=value, mask_type="learned_top_k", top_mask=9)
    whole = sum(p.numel() for p in policy.lm.parameters())
    adapter = sum(p.numel() for p in policy.lm.parameters() if p.requires_grad)
    # In addition to the policy, there are an adapter for values, their head, and an adapter for the mask model.
    assert sum(p.numel() for p in policy.parameters()) == whole + 2 * adapter + policy.lm.hidden_size
    again = copy.deepcopy(policy)
    assert sum(p.numel() for p in again.parameters()) == whole + 2 * adapter + policy.lm.hidden_size


@pytest.mark.parametrize("family", ["llama", *thorough("bart")])
def test_the_adapter_of_a_fully_trained_policy_is_on_the_reference(make_policy, family):
    policy = make_policy(family, adapter=False, value_lora=LORA)
    trained = [name for name, p in policy.value_lm.named_parameters() if p.requires_grad]
    assert trained and all("lora_" in name for name in trained)
    before = write(policy)
    reference = {p.data_ptr() for p in policy.reference._lm.parameters()}
    frozen = [p for p in policy.value_lm.parameters() if not p.requires_grad]
    assert frozen and all(p.data_ptr() in reference for p in frozen)
    moved(policy.value_lm)
    after = write(policy)
    assert torch.equal(before.kl, after.kl) and torch.equal(before.log_probs, after.log_probs)
    assert not torch.equal(before.values, after.values)
    moved(policy.lm)
    seen = policy.evaluate(after.observations, after.actions.T)
    torch.testing.assert_close(seen.values, after.values.T, atol=1e-5, rtol=0)
    assert {name.split(".")[0] for name in gradients(policy, "values")} == {"value_lm", "value_head"}


@pytest.mark.parametrize(
    "family, adapter, lora",
    [
        ("bart", True, None),
        *thorough(("llama", True, {"r": 3, "target_modules": ["q_proj"]})),
        ("llama", False, {"r": 3}),
    ],
)
def test_saved_and_loaded_again(make_policy, family, adapter, lora, tmp_path):
    policy = make_policy(family, adapter, value_lora=lora)
    ranks = {p.shape[0] for n, p in policy.value_lm.named_parameters() if "lora_A" in n}
    assert ranks == {3 if lora else 2}
    moved(policy)
    saved = tmp_path / "saved"
    saved.mkdir()
    policy.save_pretrained(saved)
    lm = LanguageModel.from_pretrained(saved)
    reference = lm if adapter else LanguageModel.from_pretrained(tmp_path / family)
    generation = {"max_new_tokens": 5}
    again = TokenPolicy(lm, reference, value="lora", value_lora=lora, generation=generation)
    again.load_weights(saved)
    before, after = write(policy), write(again)
    for name in ("actions", "log_probs", "values", "kl"):
        assert torch.equal(getattr(before, name), getattr(after, name))
    other = TokenPolicy(lm, reference, value="lora", value_lora={"r": 3, "target_modules": ["v_proj"]})
    with pytest.raises(GroundlingError, match=r"value\.safetensors does not match this policy"):
        other.load_weights(saved)


def test_invalid_arguments_get_a_message(make_lm, make_policy):
    with pytest.raises(ConfigError, match=r"value=lora needs frozen weights .* model\.lora"):
        TokenPolicy(make_lm("llama"), value="lora")
    with pytest.raises(ConfigError, match="does nothing without value=lora"):
        make_policy("llama", value="separate", value_lora=LORA)
    with pytest.raises(GroundlingError, match="LoRA settings cannot be used"):
        make_policy("llama", value_lora={"rank": 3})
