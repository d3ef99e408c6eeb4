"""Prompts and the texts that are written to them, as the policy whose actions are tokens gives and takes them."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from groundling.lm.write.token_sets import TokenSets


@dataclass(frozen=True, slots=True)
class TokenPrompt:
    """What a text is written to."""

    ids: tuple[int, ...]
    """Token ids, special ones included, without padding."""

    @classmethod
    def unpad(cls, ids: Tensor, mask: Tensor) -> list["TokenPrompt"]:
        """Of token ids and 0/1 mask, int64 ``(num_prompts, length)``, padded on either side."""
        return [
            cls(tuple(row[kept.bool()].tolist())) for row, kept in zip(ids.cpu(), mask.cpu(), strict=True)
        ]


@dataclass(frozen=True, slots=True)
class Written:
    """What a text was written on: the observation of a whole sequence of actions."""

    prompt: tuple[int, ...]
    """Token ids."""
    length: int
    """How many actions count: tokens of the text."""
    sets: TokenSets | None
    """What each token was drawn from, where filters or masks left tokens out."""


@dataclass(frozen=True, slots=True)
class Writing:
    """Texts, as a rollout of sequences holds them; tensors ``(num_tokens, num_texts)`` on the CPU, 0 after the end."""

    observations: list[Written]
    actions: Tensor
    """int64."""
    log_probs: Tensor
    values: Tensor | None
    """None without a value function."""
    dones: Tensor
    """bool: at each text's last token, whether it is an end token or not."""
    mask: Tensor
    """bool: the token belongs to the text."""
    kl: Tensor | None
    """log π(token) - log π_ref(token) before any filter; None without a reference."""
    raw_log_probs: Tensor
    """``log_probs`` before any filter or mask."""

    @classmethod
    def beside(cls, parts: Sequence["Writing"]) -> "Writing":
        """Several, of equally many tokens, as one."""

        def whole(tensors: Sequence[Tensor | None]) -> Tensor | None:
            given = [tensor for tensor in tensors if tensor is not None]
            return torch.cat(given, dim=1) if given else None

        if len(parts) == 1:
            return parts[0]
        observations = [text for part in parts for text in part.observations]
        names = [field.name for field in fields(cls) if field.name != "observations"]
        tensors: dict[str, Any] = {name: whole([getattr(part, name) for part in parts]) for name in names}
        return cls(observations, **tensors)

    def token_ids(self) -> list[Tensor]:
        """The tokens of each text, int64 ``(length,)``."""
        return [tokens[: text.length] for tokens, text in zip(self.actions.T, self.observations, strict=True)]
