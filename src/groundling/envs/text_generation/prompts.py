"""Prompts as padded token ids, for the env and for batched sampling."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from groundling.envs.text_generation.pools import Sample
from groundling.errors import ConfigError, GroundlingError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Side = Literal["left", "right"]


def encode_prompts(
    samples: Sequence[Sample],
    tokenizer: PreTrainedTokenizerBase,
    max_prompt_length: int,
    truncation_side: Side = "left",
    add_special_tokens: bool = True,
) -> tuple[Tensor, Tensor]:
    """Tokenize prompts, padded on the left; return ids and 0/1 mask, int64 ``(len(samples), max_prompt_length)``.

    Longer prompts are truncated, with a warning; special tokens stay. ``truncation_side``: ``left`` keeps the end of a
    prompt, ``right`` its beginning.

    Raises:
        ConfigError: A length without room for a prompt.
        GroundlingError: An empty prompt, or a tokenizer without padding token.
    """
    specials = tokenizer.num_special_tokens_to_add() if add_special_tokens else 0
    if max_prompt_length <= specials:
        raise ConfigError(
            f"max_prompt_length={max_prompt_length}: a prompt needs at least 1 token besides the {specials} special "
            "ones that the tokenizer adds"
        )
    padding_id(tokenizer)
    side_before, tokenizer.truncation_side = tokenizer.truncation_side, truncation_side
    try:
        encoded = tokenizer(
            [sample.prompt for sample in samples],
            add_special_tokens=add_special_tokens,
            padding="max_length",
            padding_side="left",
            truncation=True,
            max_length=max_prompt_length,
            return_attention_mask=True,
            return_tensors="pt",
        )
    finally:
        tokenizer.truncation_side = side_before
    if any(one.overflowing for one in encoded.encodings or ()):  # only tokenizers in Rust have it
        warnings.warn(
            f"prompts of more than {max_prompt_length} tokens are cut (on the {truncation_side}): to have them read "
            "whole, raise world.max_prompt_length",
            stacklevel=2,
        )
    ids, mask = encoded["input_ids"].long(), encoded["attention_mask"].long()
    if any(sample.data for sample in samples):
        _read_data_as_text(samples, tokenizer, truncation_side, ids, mask)
    empty = (mask.sum(1) <= specials).nonzero()
    if len(empty):
        raise GroundlingError(
            f"sample {samples[int(empty[0])].id} has an empty prompt: give it a text, or leave it out of the pool"
        )
    return ids, mask


def _read_data_as_text(
    samples: Sequence[Sample], tokenizer: PreTrainedTokenizerBase, side: Side, ids: Tensor, mask: Tensor
) -> None:
    """Encode prompts whose data spells control tokens again, into their rows of ``ids`` and ``mask``."""
    from groundling.tokenization.encoding import TextEncoder  # slow to import

    encoder = TextEncoder(tokenizer)
    for row, sample in enumerate(samples):
        if spelled := set().union(*map(encoder.spelled, sample.data)):
            warnings.warn(
                f"data of the pool spells control tokens ({', '.join(sorted(spelled))}), which are read as plain text: "
                "write those of a template into prompt_prefix and prompt_suffix, or set world.chat=true",
                stacklevel=3,
            )
            text = encoder.mask_parts(sample.prompt, sample.data)
            plain = torch.tensor(encoder.encode(text, True, ids.shape[1], side))
            ids[row], mask[row] = padding_id(tokenizer), 0
            ids[row, -len(plain) :], mask[row, -len(plain) :] = plain, 1


def padding_id(tokenizer: PreTrainedTokenizerBase) -> int:
    if tokenizer.pad_token_id is None:
        if tokenizer.eos_token_id is None:
            raise GroundlingError(
                "the tokenizer has neither a padding token nor an end token to take its place: name another one by "
                "model.tokenizer=FOLDER, or give it one with tokenizer.add_special_tokens and save it"
            )
        raise GroundlingError(
            "the tokenizer has no padding token: set tokenizer.pad_token = tokenizer.eos_token (attention "
            "masks tell padding and end apart)"
        )
    return int(tokenizer.pad_token_id)
