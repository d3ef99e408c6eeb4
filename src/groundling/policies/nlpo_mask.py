"""NLPO's mask (arXiv 2210.01241, section 4.2) from the arguments of `TokenPolicy`."""

from typing import Literal, get_args

import torch

from groundling.errors import ConfigError, unknown
from groundling.lm import LanguageModel
from groundling.lm.write.sampling import Mask

MaskType = Literal["learned_top_p", "learned_top_k", "topk"]
_TOP_P, _MIN_TOKENS = 0.9, 100  # Defaults of ``top_mask`` (of a top-p mask) and ``min_tokens_to_keep``


def make_mask(
    lm: LanguageModel, mask_type: MaskType | None, top_mask: float | None, min_tokens_to_keep: int | None
) -> Mask | None:
    """Make the mask, or None; raise `ConfigError` for values that are impossible or have no effect."""
    if mask_type is not None and mask_type not in get_args(MaskType):
        raise ConfigError(unknown("mask_type", mask_type, get_args(MaskType)))
    # The defaults stand in older configs and change nothing.
    if mask_type is None and top_mask not in (None, _TOP_P):
        raise ConfigError(
            f"policy.args.top_mask={top_mask} does nothing without a mask: set policy.args.mask_type, or leave "
            "top_mask out"
        )
    if mask_type != "learned_top_p" and min_tokens_to_keep not in (None, _MIN_TOKENS):
        raise ConfigError(
            f"policy.args.min_tokens_to_keep={min_tokens_to_keep} does nothing with "
            f"mask_type={mask_type or 'null'}: it belongs to mask_type=learned_top_p: set that, or leave "
            "min_tokens_to_keep out"
        )
    if mask_type is None:
        return None
    if top_mask is None and mask_type != "learned_top_p":
        raise ConfigError(f"mask_type={mask_type} needs policy.args.top_mask, the number of tokens that it allows")
    top_mask = _TOP_P if top_mask is None else top_mask
    min_tokens_to_keep = _MIN_TOKENS if min_tokens_to_keep is None else min_tokens_to_keep
    if mask_type == "learned_top_p" and not 0 < top_mask <= 1:
        raise ConfigError(f"top_mask={top_mask}: with mask_type=learned_top_p it must be a probability, in (0, 1]")
    if mask_type != "learned_top_p" and not (top_mask >= 1 and top_mask == int(top_mask)):
        raise ConfigError(f"top_mask={top_mask}: with mask_type={mask_type} it must be a number of tokens, at least 1")
    if min_tokens_to_keep < 1:
        raise ConfigError(f"min_tokens_to_keep must be at least 1, got {min_tokens_to_keep}")
    special = torch.tensor(sorted(lm.tokenizer.all_special_ids), dtype=torch.long, device=lm.device)
    return Mask(mask_type, top_mask, min_tokens_to_keep, special)
