"""Cached states of frozen layers produce the results of the plain pass."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from groundling.lm import LanguageModel
from groundling.lm.read.tree_reader import num_frozen
from tests.thorough import one_in

MODULES = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
ACTIONS = ["turn left", "turn right", "go forward"]
PROMPTS = [
    "Goal of the agent: go to the red ball. You see a wall 2 steps forward",
    "Goal of the agent: go to the red ball. You see a blue key 3 steps left, You see a wall 2 steps forward",
    "Goal of the agent: go to",
    "You see a green box 1 step right",
    "Goal of the agent: go to the red ball. You see a wall 2 steps forward",
]


@pytest.fixture
def upper(make_lm: Callable[..., LanguageModel]) -> Callable[..., LanguageModel]:
    """Return `upper(family, layers=(1,))`, which makes a tiny two-layer model with non-zero LoRA on some layers."""

    def make(family: str, layers: tuple[int, ...] = (1,)) -> LanguageModel:
        lora = {"r": 2, "target_modules": MODULES, "layers_to_transform": list(layers)}
        lm = make_lm(family).with_new_adapter(lora)
        torch.manual_seed(1)
        for name, weight in lm.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(weight, std=0.3)
        return lm

    return make


def _off(lm: LanguageModel) -> LanguageModel:
    """Return a copy without a cache."""
    plain = lm.copy()
    plain._scorer.tree._is_exact_above = dict.fromkeys(range(9), False)
    return plain


def _frozen(lm: LanguageModel) -> Any:
    return lm._scorer.tree.frozen


def _is_on(lm: LanguageModel) -> bool:
    return lm._scorer.tree.has_frozen_layers


@pytest.mark.parametrize("family", one_in(3, ["llama", "qwen2", "qwen3"]))
@pytest.mark.parametrize("repeat", [1, 12])  # attention is fused for prompts of more than 128 tokens
def test_scores_states_and_gradients_are_those_of_the_plain_pass(
    family: str, repeat: int, upper: Callable[..., LanguageModel]
) -> None:
    lm = upper(family)
    prompts = [" ".join([prompt[:40]] * (repeat - 1) + [prompt]) for prompt in PROMPTS]

    def results(model: LanguageModel, guided: bool) -> list[Tensor]:
        scores = model.score_guided(prompts, ACTIONS) if guided else model.score_candidates(prompts, ACTIONS)
        states = model.encode(prompts)
        loss = (scores.log_probs * torch.arange(3.0)).sum() + scores.state.sin().sum() + states.cos().sum()
        weights = [p for p in model.parameters() if p.requires_grad]
        return [scores.log_probs, scores.state, states, *torch.autograd.grad(loss, weights)]

    for guided in (True, False):
        for _ in range(2):  # also with cached states
            for one, other in zip(results(lm, guided), results(_off(lm), guided), strict=True):
                largest = other.abs().max().item()  # gradients are sums whose terms may cancel
                torch.testing.assert_close(one, other, atol=1e-4 * (1 + largest), rtol=0)
    assert _is_on(lm) and _frozen(lm).num_bytes > 0


def test_cached_states_stay_within_their_memory_and_the_oldest_go_first(upper: Callable[..., LanguageModel]) -> None:
    lm = upper("llama")
    assert _is_on(lm)
    frozen, texts = _frozen(lm), [f"step {number}" for number in range(5)]
    with torch.no_grad():
        lm.score(texts[:1], ACTIONS)
        frozen.max_bytes = 3 * frozen.num_bytes
        lm.score(texts[1:3], ACTIONS)
        first = next(iter(frozen.states))
        lm.score(texts[:1], ACTIONS)  # used once more
        expected = _off(lm).score(texts, ACTIONS)
        lm.score(texts[3:4], ACTIONS)
        assert first in frozen.states and len(frozen.states) == 3
        scores = lm.score(texts, ACTIONS)
    assert frozen.num_bytes == sum(states.nbytes for states in frozen.states.values()) <= frozen.max_bytes
    torch.testing.assert_close(scores, expected)


def test_loaded_weights_clear_the_cache(upper: Callable[..., LanguageModel]) -> None:
    lm = upper("llama")
    with torch.no_grad():
        lm.score(PROMPTS, ACTIONS)
        other = {name: weight + 0.1 for name, weight in lm.model.state_dict().items()}
        lm.model.load_state_dict(other)
        torch.testing.assert_close(lm.score(PROMPTS, ACTIONS), _off(lm).score(PROMPTS, ACTIONS))


def test_training_the_adapter_keeps_the_cache_and_a_copy_has_its_own(upper: Callable[..., LanguageModel]) -> None:
    lm = upper("llama")
    optimizer = torch.optim.SGD([p for p in lm.parameters() if p.requires_grad], lr=0.1)
    torch.stack(lm.score(PROMPTS, ACTIONS)).sum().backward()
    kept = dict(_frozen(lm).states)
    optimizer.step()
    with torch.no_grad():
        scores = lm.score(PROMPTS, ACTIONS)
        torch.testing.assert_close(scores, _off(lm).score(PROMPTS, ACTIONS))
    assert all(_frozen(lm).states[key] is states for key, states in kept.items())
    assert not _frozen(copy.deepcopy(lm)).states


def test_cached_states_are_bitwise_those_of_each_prompt_alone(upper: Callable[..., LanguageModel]) -> None:
    """A resumed run starts with an empty cache."""
    lm = upper("llama")
    with torch.no_grad():
        lm.score(PROMPTS, ACTIONS)
        together = dict(_frozen(lm).states)
        for prompt in PROMPTS:
            again = lm.copy()
            again.score([prompt], ACTIONS)
            ((key, states),) = _frozen(again).states.items()
            assert torch.equal(states, together[key])


def test_it_is_off_where_the_first_layer_learns(
    upper: Callable[..., LanguageModel], make_lm: Callable[..., LanguageModel]
) -> None:
    assert num_frozen(upper("llama").backbone.body) == 1
    for lm in (upper("llama", (0, 1)), make_lm("llama")):
        assert num_frozen(lm.backbone.body) == 0 and not _is_on(lm)
        lm.score(PROMPTS, ACTIONS)
        assert not _frozen(lm).states


@pytest.mark.parametrize("family", ["t5", "gpt2", "opt", "mistral", "gemma2", "bloom", "mamba"])
@pytest.mark.filterwarnings("ignore:.*which is slower")
def test_other_families_cache_nothing(family: str, make_lm: Callable[..., LanguageModel]) -> None:
    lm = make_lm(family)
    layers = getattr(lm.backbone.body, "layers", None)
    for weight in [*lm.model.get_input_embeddings().parameters(), *(layers[0].parameters() if layers else ())]:
        weight.requires_grad_(False)
    assert not _is_on(lm)
    lm.score(PROMPTS, ACTIONS)
    assert not _frozen(lm).states


def test_inference_mode_caches_nothing_that_gradients_would_need(upper: Callable[..., LanguageModel]) -> None:
    lm = upper("llama")
    with torch.inference_mode():
        lm.score(PROMPTS, ACTIONS)
    torch.stack(lm.score(PROMPTS, ACTIONS)).sum().backward()
    assert _is_on(lm)
