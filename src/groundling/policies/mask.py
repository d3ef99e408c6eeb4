"""NLPO's mask (arXiv 2210.01241, section 4.2), from a policy's arguments."""

from typing import Literal, get_args

import torch

from groundling.errors import ConfigError
from groundling.lm import LanguageModel
from groundling.lm.sampling import Mask
from groundling.registry import unknown

MaskType = Literal["learned_top_p", "learned_top_k", "topk"]


def make_mask(
    lm: LanguageModel, mask_type: MaskType | None, top_mask: float, min_tokens_to_keep: int
) -> Mask | None:
    """What `TokenPolicy` describes; None for no mask.

    Raises:
        ConfigError: one of them cannot be.
    """
    if mask_type is None:
        return None
    if mask_type not in get_args(MaskType):
        raise ConfigError(unknown("mask_type", mask_type, get_args(MaskType)))
    if mask_type == "learned_top_p" and not 0 < top_mask <= 1:
        raise ConfigError(f"top_mask={top_mask}: of learned_top_p it is a probability, in (0, 1]")
    if mask_type != "learned_top_p" and not (top_mask >= 1 and top_mask == int(top_mask)):
        raise ConfigError(f"top_mask={top_mask}: of {mask_type} it is a number of tokens, at least 1")
    if min_tokens_to_keep < 1:
        raise ConfigError(f"min_tokens_to_keep must be at least 1, got {min_tokens_to_keep}")
    special = torch.tensor(sorted(lm.tokenizer.all_special_ids), dtype=torch.long, device=lm.device)
    return Mask(mask_type, top_mask, min_tokens_to_keep, special)
