"""Block attention of T5's encoder on long prompts, compared with Transformers' attention."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import MT5Config, MT5ForConditionalGeneration, T5Config, T5ForConditionalGeneration

from groundling.lm import LanguageModel, kernels
from groundling.lm.kernels import LONG, reads_in_blocks, use_block_attention
from groundling.lm.write.decoding import Decoder
from groundling.lm.write.sampling import Sampling
from tests.thorough import thorough

LENGTH = 1029


@pytest.fixture(scope="module")
def starter() -> LanguageModel:
    return LanguageModel.from_pretrained("starter")


def encoder(kind: str, in_blocks: bool) -> Any:
    config, model = {"t5": (T5Config, T5ForConditionalGeneration), "mt5": (MT5Config, MT5ForConditionalGeneration)}[
        kind
    ]
    torch.manual_seed(0)
    sizes = {"vocab_size": 60, "d_model": 32, "d_ff": 64, "d_kv": 8, "num_heads": 4, "num_layers": 2}
    made = model._from_config(config(**sizes, dropout_rate=0.0), attn_implementation="eager").get_encoder()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.normal_(std=0.3)
    if in_blocks:
        use_block_attention(made)
    return made


def padded(batch: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    tokens = torch.randint(1, 60, (batch, length), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(tokens)
    mask[-1, length // 2 :] = 0
    return tokens, mask


@contextmanager
def largest_tensor() -> Iterator[list[int]]:
    """Yield a list of the number of elements of the largest tensor created within this context."""
    largest = [0]

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            made = func(*args, **(kwargs or {}))
            if isinstance(made, torch.Tensor):
                largest[0] = max(largest[0], made.untyped_storage().nbytes() // made.element_size())
            return made

    with Watch():
        yield largest


@pytest.mark.parametrize(("kind", "batch"), [("t5", 2), *thorough(("t5", 1), ("mt5", 1), ("mt5", 2))])
def test_states_equal_those_of_transformers(kind: str, batch: int) -> None:
    tokens, mask = padded(batch, LENGTH)
    with torch.no_grad():
        one, other = (
            encoder(kind, in_blocks)(input_ids=tokens, attention_mask=mask).last_hidden_state * mask[..., None]
            for in_blocks in (False, True)
        )
    torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", ["t5", *thorough("mt5")])
def test_unpadded_prompts_create_no_quadratic_tensors(kind: str) -> None:
    tokens, _ = padded(2, LENGTH)
    plain = encoder(kind, in_blocks=False)
    with torch.no_grad(), largest_tensor() as numbers:
        states = encoder(kind, in_blocks=True)(input_ids=tokens).last_hidden_state
        largest = numbers[0]
        torch.testing.assert_close(states, plain(input_ids=tokens).last_hidden_state, atol=1e-5, rtol=1e-5)
    assert largest <= 2 * LENGTH * 64  # the widest layer
    assert numbers[0] >= 2 * 4 * LENGTH**2  # in Transformers: texts, heads, queries, keys


def test_a_padded_batch_is_encoded_without_a_quadratic_mask(starter: LanguageModel) -> None:
    tokens, mask = padded(2, LENGTH)
    with largest_tensor() as numbers, torch.no_grad():
        states = starter.backbone.encode(tokens, mask)
        alone = starter.backbone.encode(tokens[1:, : LENGTH // 2], mask[1:, : LENGTH // 2])
    torch.testing.assert_close(states[1:, : LENGTH // 2], alone, atol=1e-4, rtol=1e-4)
    assert numbers[0] <= 2 * LENGTH * 512  # the widest layer; attention scores would need 2 x 8 x length^2


def test_padding_costs_no_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens, _ = padded(4, LENGTH)
    mask = torch.zeros_like(tokens)
    mask[0, :40] = mask[1, -500:] = mask[2, 100:700] = 1  # the last row contains only padding
    lengths = []
    fused = kernels.F.scaled_dot_product_attention

    def watched(query: torch.Tensor, *rest: Any, **options: Any) -> torch.Tensor:
        lengths.append(query.shape[2])
        return fused(query, *rest, **options)

    monkeypatch.setattr(kernels.F, "scaled_dot_product_attention", watched)
    with torch.no_grad():
        plain, read = (
            encoder("t5", in_blocks)(input_ids=tokens, attention_mask=mask).last_hidden_state
            for in_blocks in (False, True)
        )
    torch.testing.assert_close(read * mask[..., None], plain * mask[..., None], atol=1e-5, rtol=1e-5)
    assert read.isfinite().all()
    assert lengths == [40, 500, 600] * 2  # once for each of two layers


def test_generation_from_long_prompts_equals_that_of_fused_attention(starter: LanguageModel) -> None:
    generator = torch.Generator().manual_seed(3)
    prompts = [torch.randint(5, 900, (length,), generator=generator).tolist() for length in (2 * LONG, LONG + 7)]
    uniforms = torch.rand(2, 4, dtype=torch.float64, generator=generator)
    generated = Decoder(starter)(prompts, Sampling(), uniforms)
    plain = LanguageModel.from_pretrained("starter", attention="sdpa")
    expected = Decoder(plain)(prompts, Sampling(), uniforms)
    assert torch.equal(generated.tokens, expected.tokens)
    torch.testing.assert_close(generated.log_probs, expected.log_probs, atol=1e-4, rtol=1e-4)


def test_short_prompts_and_gradients_are_read_as_usual(starter: LanguageModel) -> None:
    encoder = starter.model.get_encoder()
    assert not reads_in_blocks(encoder, torch.zeros(1, LONG, dtype=torch.long))
    with torch.no_grad():
        reads = [reads_in_blocks(encoder, torch.zeros(1, length, dtype=torch.long)) for length in (LONG - 1, LONG)]
    assert reads == [False, True]


def test_short_prompts_and_half_precision_use_t5s_own_attention(starter: LanguageModel) -> None:
    plain = LanguageModel.from_pretrained("starter", attention="sdpa").backbone
    with torch.no_grad():
        tokens, mask = padded(2, LONG - 1)
        short, expected = (one.encode(tokens, mask)[0] for one in (starter.backbone, plain))
        torch.testing.assert_close(short, expected, atol=1e-4, rtol=1e-4)
        tokens, mask = padded(2, LONG + 5)  # short, because bfloat16 is slow on some CPUs
        with torch.autocast("cpu", dtype=torch.bfloat16):
            half = starter.backbone.encode(tokens, mask)
        assert (half[0] - plain.encode(tokens, mask)[0]).abs().max() < 0.5
