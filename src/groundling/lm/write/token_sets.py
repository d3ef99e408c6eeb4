"""Sets of tokens that filters and masks allowed for each token of a text, with a bit for each token of the vocabulary."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor


class SetKeeper:
    """Collects the sets of a batch of texts step by step, and returns them by text."""

    def __init__(self, num_texts: int) -> None:
        self.num_texts = num_texts
        self._waiting: list[Tensor] = []
        self._steps: list[tuple[int, Tensor]] = []
        self._bits: list[Tensor] = []

    def add(self, step: int, rows: Tensor, allowed: Tensor) -> None:
        """Add the sets of a step for the texts ``rows`` (rows,): bool (rows, vocabulary)."""
        self._steps.append((step, rows))
        self._waiting.append(allowed)

    def pack(self) -> None:
        """Pack all sets that were added, on the host, into 6 KiB each for GPT-2."""
        if self._waiting:
            packed = np.packbits(torch.cat(self._waiting).cpu().numpy(), axis=1, bitorder="little")
            self._bits += torch.from_numpy(packed).split([len(allowed) for allowed in self._waiting])
            self._waiting = []

    def sets(self, lengths: Tensor) -> list[Tensor] | None:
        """Return the sets of texts of ``lengths`` tokens, uint8 (length, vocabulary / 8); None if none were added."""
        self.pack()
        if not self._bits:
            return None
        whole = self._bits[0].new_zeros(
            self.num_texts, 1 + max(step for step, _ in self._steps), len(self._bits[0][0])
        )
        for (step, rows), bits in zip(self._steps, self._bits, strict=True):
            whole[rows.cpu(), step] = bits
        # Clones, because pickling a view copies the whole tensor.
        return [of_text[:length].clone() for of_text, length in zip(whole, lengths.tolist(), strict=True)]


def allowed_tokens(sets: Sequence[Tensor], vocabulary: int, device: torch.device) -> Tensor:
    """Return bool (tokens of all texts, vocabulary) on ``device``: the tokens that were allowed at each token."""
    bits = torch.cat(list(sets)).to(device)[:, :, None]
    return (bits & 2 ** torch.arange(8, dtype=torch.uint8, device=device)).bool().flatten(1)[:, :vocabulary]
