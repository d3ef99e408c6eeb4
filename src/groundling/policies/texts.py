"""Prompts and the texts that are written to them, as the policy whose actions are tokens gives and takes them."""

from dataclasses import dataclass

from torch import Tensor

from groundling.lm.decoding import TokenSets


@dataclass(frozen=True, slots=True)
class TokenPrompt:
    """What a text is written to."""

    ids: tuple[int, ...]
    """Token ids, special ones included, without padding."""

    @classmethod
    def unpad(cls, ids: Tensor, mask: Tensor) -> list["TokenPrompt"]:
        """Of token ids and 0/1 mask, int64 ``(num_prompts, length)``, padded on either side."""
        return [
            cls(tuple(own[kept.bool()].tolist())) for own, kept in zip(ids.cpu(), mask.cpu(), strict=True)
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
    values: Tensor
    dones: Tensor
    """bool: at each text's last token, whether it is an end token or not."""
    mask: Tensor
    """bool: the token belongs to the text."""
    kl: Tensor | None
    """log π(token) - log π_ref(token) before any filter; None without a reference."""

    def token_ids(self) -> list[Tensor]:
        """The tokens of each text, int64 ``(length,)``."""
        return [own[: text.length] for own, text in zip(self.actions.T, self.observations, strict=True)]
