"""A small network that reads captions of any length byte by byte, trained from scratch."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from groundling.errors import ConfigError
from groundling.judges.reward_models.message_network import padded_count
from groundling.judges.reward_models.reward_model import RewardModel, reward_models

_LENGTH_STEP = 64
_WIDTH = 5


@reward_models.register("characters")
class CharacterRewardModel(RewardModel):
    """What Motif's network is to NetHack's messages, for captions of any length in any script.

    A caption's UTF-8 is embedded byte by byte; blocks of a convolution of width 5, ReLU and max-pooling by 2 follow;
    then the greatest and the mean of each channel over all places, and an MLP. Padding changes nothing: its places are
    0 before each convolution and count in neither figure.

    Args:
        channels: Of the embedding and of every convolution.
        blocks: How many; each doubles what a place sees, 5 bytes at first.
        hidden_size: Of the MLP.
        max_bytes: A longer caption loses its middle, so that goal and action, or prompt and end, stay.

    Raises:
        ConfigError: a number is out of bounds.
    """

    id = "characters"

    def __init__(
        self, channels: int = 64, blocks: int = 4, hidden_size: int = 128, max_bytes: int = 4096
    ) -> None:
        for name, value in (
            ("channels", channels),
            ("blocks", blocks),
            ("hidden_size", hidden_size),
            ("max_bytes", max_bytes),
        ):
            if value < 1:
                raise ConfigError(f"{name} must be at least 1, got {value}")
        super().__init__(channels=channels, blocks=blocks, hidden_size=hidden_size, max_bytes=max_bytes)
        self.embedding = nn.Embedding(257, channels, padding_idx=0)  # byte b is b + 1
        self.convolutions = nn.ModuleList(
            nn.Conv1d(channels, channels, _WIDTH, padding=_WIDTH // 2) for _ in range(blocks)
        )
        self.head = nn.Sequential(nn.Linear(2 * channels, hidden_size), nn.ReLU(), nn.Linear(hidden_size, 1))

    def forward(self, captions: Sequence[str]) -> Tensor:
        x = self.embedding(self._encode(captions).to(self.device)).transpose(1, 2)  # (rows, channels, length)
        lengths = torch.tensor([len(self._bytes(caption)) for caption in captions], device=self.device)
        lengths = F.pad(lengths.clamp(min=1), (0, len(x) - len(captions)), value=1)  # (rows,)
        for convolution in self.convolutions:
            x = convolution(x * _inside(lengths, x.shape[2])).relu()
            x = F.max_pool1d(x * _inside(lengths, x.shape[2]), 2, ceil_mode=True)  # after ReLU 0 is the least
            lengths = (lengths + 1) // 2
        x = x * _inside(lengths, x.shape[2])
        pooled = torch.cat([x.amax(2), x.sum(2) / lengths[:, None]], dim=1)  # (rows, 2 * channels)
        output: Tensor = self.head(pooled)[: len(captions), 0]
        return output

    def _encode(self, captions: Sequence[str]) -> Tensor:
        """int64 (rows, length): bytes plus 1, 0 past a caption's end; both sizes rounded up to few."""
        encoded = [self._bytes(caption) for caption in captions]
        longest = max(map(len, encoded), default=1)
        length = -(-max(longest, 1) // _LENGTH_STEP) * _LENGTH_STEP
        rows = torch.zeros(padded_count(len(encoded)), length, dtype=torch.int64)
        for row, content in zip(rows, encoded, strict=False):
            row[: len(content)] = (
                torch.frombuffer(bytearray(content), dtype=torch.uint8).long() + 1 if content else 0
            )
        return rows

    def _bytes(self, caption: str) -> bytes:
        content = caption.encode("utf-8", "surrogatepass")
        if len(content) <= self.args["max_bytes"]:
            return content
        head = self.args["max_bytes"] // 2
        return content[:head] + content[len(content) - self.args["max_bytes"] + head :]


def _inside(lengths: Tensor, size: int) -> Tensor:
    """Float (rows, 1, size): 1 before a row's end, 0 from there on."""
    return (torch.arange(size, device=lengths.device) < lengths[:, None]).float()[:, None]
