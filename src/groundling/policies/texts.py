"""Prompts and written texts, as `TokenPolicy` takes and returns them."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class TokenPrompt:
    """A prompt to write a text to."""

    ids: tuple[int, ...]  # token ids, special ones included, without padding

    @classmethod
    def unpad(cls, ids: Tensor, mask: Tensor) -> list["TokenPrompt"]:
        """Make prompts of padded token ids and their 0/1 mask, int64 ``(num_prompts, length)``."""
        return [cls(tuple(row[kept.bool()].tolist())) for row, kept in zip(ids.cpu(), mask.cpu(), strict=True)]


@dataclass(frozen=True, slots=True)
class Written:
    """The observation of a whole text, whose tokens are the actions."""

    prompt: tuple[int, ...]  # token ids
    length: int  # number of tokens of the text
    sets: Tensor | None  # the tokens that each one was drawn from, if filters or masks left any out


@dataclass(frozen=True, slots=True)
class Writing:
    """Written texts as a rollout holds them: tensors ``(num_tokens, num_texts)`` on the CPU, 0 after a text's end."""

    observations: list[Written]
    actions: Tensor  # int64
    log_probs: Tensor
    values: Tensor | None  # None without a value function
    dones: Tensor  # bool: True at each text's last token, an end token or not
    mask: Tensor  # bool: the token belongs to the text
    kl: Tensor | None  # log π(token) - log π_ref(token) before filters; None without a reference
    raw_log_probs: Tensor  # log_probs before filters and masks

    @classmethod
    def concatenate(cls, parts: Sequence["Writing"]) -> "Writing":
        """Concatenate texts of one ``num_tokens``."""
        if len(parts) == 1:
            return parts[0]
        tensors: dict[str, Any] = {}
        for name in (field.name for field in fields(cls) if field.name != "observations"):
            columns = [getattr(part, name) for part in parts]
            tensors[name] = None if columns[0] is None else torch.cat(columns, dim=1)
        return cls([text for part in parts for text in part.observations], **tensors)

    def token_ids(self) -> list[Tensor]:
        """Return the tokens of each text, int64 ``(length,)``."""
        return [tokens[: text.length] for tokens, text in zip(self.actions.T, self.observations, strict=True)]
