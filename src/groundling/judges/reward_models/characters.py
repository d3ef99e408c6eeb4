"""A small convolutional network on the bytes of captions of any length, trained from scratch."""

import warnings
from collections.abc import Sequence
from typing import Annotated

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from groundling.fields import Ge
from groundling.judges.reward_models.message_network import padded_count
from groundling.judges.reward_models.reward_model import RewardModel, reward_models

_Size = Annotated[int, Ge(1)]
_EMBEDDING, _WIDTH, _POOL = 32, 7, 3
_LENGTH_STEP = 64
_TOGETHER = 64  # captions that are padded to one length; a batch is ordered by length


@reward_models.register("characters")
class CharacterRewardModel(RewardModel):
    """The counterpart of Motif's network for captions of any length in any script.

    An embedding (32) of the bytes in UTF-8; blocks of a convolution of width 7, ReLU and max-pooling by 3; maximum and
    mean of each channel over all places; an MLP. Padding is masked, so it changes nothing.

    Args:
        channels: Of every convolution.
        blocks: Number of blocks; with three, a place sees 79 bytes.
        hidden_size: Of the MLP.
        max_bytes: A longer caption loses its middle, so that goal and action, or prompt and end, are kept.
    """

    id = "characters"

    def __init__(
        self, channels: _Size = 64, blocks: _Size = 3, hidden_size: _Size = 128, max_bytes: _Size = 4096
    ) -> None:
        super().__init__(channels=channels, blocks=blocks, hidden_size=hidden_size, max_bytes=max_bytes)
        self.embedding = nn.Embedding(257, _EMBEDDING, padding_idx=0)  # byte b is b + 1
        widths = [_EMBEDDING, *[channels] * blocks]
        self.convolutions = nn.ModuleList(
            nn.Conv1d(wide_in, channels, _WIDTH, padding=_WIDTH // 2) for wide_in in widths[:-1]
        )
        self.head = nn.Sequential(nn.Linear(2 * channels, hidden_size), nn.ReLU(), nn.Linear(hidden_size, 1))

    def forward(self, captions: Sequence[str]) -> Tensor:
        written = [self._bytes(caption) for caption in captions]
        groups = [written[start : start + _TOGETHER] for start in range(0, len(written), _TOGETHER)]
        return torch.cat([self._read(group) for group in groups])

    def _read(self, written: Sequence[bytes]) -> Tensor:
        """Score captions of similar length, float32 ``(len(written),)``."""
        tokens = _tokens(written).to(self.device)  # (rows, length)
        lengths = (tokens > 0).sum(1).clamp(min=1)  # (rows,)
        x = self.embedding(tokens).transpose(1, 2)  # (rows, 32, length)
        for convolution in self.convolutions:
            x = convolution(x).relu() * _inside(lengths, x.shape[2])
            x = F.max_pool1d(x, _POOL, ceil_mode=True)  # after ReLU 0 is the least
            lengths = (lengths + _POOL - 1) // _POOL
        pooled = torch.cat([x.amax(2), x.sum(2) / lengths[:, None]], dim=1)  # (rows, 2 * channels)
        output: Tensor = self.head(pooled)[: len(written), 0]
        return output

    def _bytes(self, caption: str) -> bytes:
        content, most = caption.encode("utf-8", "surrogatepass"), self.args["max_bytes"]
        if len(content) <= most:
            return content
        warnings.warn(f"captions of more than {most} bytes lose their middle: raise max_bytes", stacklevel=2)
        return content[: most // 2] + content[len(content) - (most + 1) // 2 :]


def _tokens(written: Sequence[bytes]) -> Tensor:
    """Return int64 ``(rows, length)``: bytes + 1, padded with 0; few distinct sizes, as kernels are built for each."""
    length = -(-max(1, *map(len, written)) // _LENGTH_STEP) * _LENGTH_STEP
    tokens = torch.zeros(padded_count(len(written)), length, dtype=torch.int64)
    for row, content in zip(tokens, written, strict=False):
        row[: len(content)] = torch.tensor(list(content), dtype=torch.int64) + 1
    return tokens


def _inside(lengths: Tensor, size: int) -> Tensor:
    """Return float ``(rows, 1, size)``: 1 before a row's end, then 0."""
    return (torch.arange(size, device=lengths.device) < lengths[:, None]).float()[:, None]
