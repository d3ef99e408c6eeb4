"""Written turns: the tokens of an agent's answer at each step, and what each token was chosen among."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from groundling.envs.observation import TextObservation
from groundling.lm.read.answers import Among


@dataclass(frozen=True, slots=True)
class Turn:
    """An observation and the answer written to it."""

    observation: TextObservation
    tokens: tuple[int, ...]
    among: tuple[Among, ...]  # the tokens that each one was chosen among; a single one was no choice
    text: str = ""

    @property
    def counted(self) -> list[bool]:
        """The tokens to learn from: those with a choice, and the first, whose value is the turn's."""
        return [place == 0 or ids is None or len(ids) > 1 for place, ids in enumerate(self.among)]


@dataclass
class TurnTokens:
    """The tokens of turns: tensors ``(..., num_tokens)`` on the CPU, padded with 0; float32 unless said otherwise."""

    ids: Tensor  # int64
    log_probs: Tensor  # of the distribution that each token was drawn from; 0 where there was no choice
    values: Tensor  # before each token that counts
    mask: Tensor  # bool: the token counts (`Turn.counted`)
    invalid: Tensor  # bool (...): the answer names no admissible action
    kl: Tensor | None = None  # log π - log π_ref

    @classmethod
    def of(
        cls,
        turns: Sequence[Turn],
        log_probs: Sequence[Sequence[float]],
        values: Sequence[Sequence[float]],
        invalid: Sequence[bool],
    ) -> "TurnTokens":
        """Pad turns to ``(num_turns, num_tokens)``."""

        def padded(columns: Iterable[Sequence[Any]], dtype: torch.dtype) -> Tensor:
            return pad_sequence([torch.tensor(row, dtype=dtype) for row in columns], batch_first=True)

        return cls(
            padded((turn.tokens for turn in turns), torch.long),
            padded(log_probs, torch.float32),
            padded(values, torch.float32),
            padded((turn.counted for turn in turns), torch.bool),
            torch.tensor(invalid, dtype=torch.bool),
        )

    @classmethod
    def none(cls, num_turns: int) -> "TurnTokens":
        nothing = torch.zeros(num_turns, 0)
        return cls(nothing.long(), nothing, nothing, nothing.bool(), torch.zeros(num_turns, dtype=torch.bool))

    @classmethod
    def joined(cls, parts: Sequence["TurnTokens"], dim: int) -> "TurnTokens":
        """Concatenate along a dimension other than the tokens', padded to the longest turn."""
        longest = max(part.ids.shape[-1] for part in parts)

        def join(name: str) -> Tensor | None:
            tensors = [getattr(part, name) for part in parts]
            if tensors[0] is None:
                return None
            if name != "invalid":
                tensors = [F.pad(tensor, (0, longest - tensor.shape[-1])) for tensor in tensors]
            return torch.cat(tensors, dim)

        return cls(**{field.name: join(field.name) for field in fields(cls)})  # type: ignore[arg-type]

    def as_steps(self, num_steps: int) -> "TurnTokens":
        """Reshape turns in the order of steps to ``(num_steps, num_envs, num_tokens)``."""
        tensors: dict[str, Any] = {
            name: None if tensor is None else tensor.unflatten(0, (num_steps, -1))
            for name, tensor in vars(self).items()
        }
        return TurnTokens(**tensors)
