"""Motif's message network, and the two reward models that use it."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from groundling.errors import ConfigError
from groundling.fields import Ge, Lt
from groundling.judges.reward_models.reward_model import RewardModel, reward_models

MESSAGE_LENGTH = 256  # bytes of a message in NetHack
_SMALLEST_BATCH = 8
_LENGTH_STEP = 16
_POOL = 3
_CONVOLUTIONS = ((32, 7, True), (64, 7, True), (64, 3, False), (64, 3, False), (64, 3, False), (64, 3, True))
"""Channels in, width, and whether max-pooling follows."""


def padded_count(count: int) -> int:
    """Round up to 8, 12, 16, 24, 32, 48, ...: oneDNN builds kernels for each size, which costs more than padding."""
    size = _SMALLEST_BATCH
    while size < count:
        size = size * 4 // 3 if size & (size - 1) else size * 3 // 2
    return size


class MessageNetwork(nn.Module):
    """The message encoder of NLE's torchbeast baseline with a reward head, as in Motif; 306,945 parameters.

    A byte embedding of 32 (NUL is 0), convolutions of 64 channels (widths 7, 7, 3, 3, 3, 3; ReLU after each;
    max-pooling by 3 after the first, the second and the last), and linear layers 320-128-256-512-1 with ReLU between
    them, initialised orthogonal with bias 0 (the others by PyTorch's defaults).

    After a message's last byte (some 80 of 256), every layer's output is constant from some place on. Only the places
    before it and one more are computed; the last is repeated where more are needed. Results are those of 256 bytes.
    """

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(256, 32, padding_idx=0)
        self.convolutions = nn.ModuleList(nn.Conv1d(channels, 64, width) for channels, width, _ in _CONVOLUTIONS)
        layers: list[nn.Module] = []
        for wide_in, wide_out in pairwise((5 * 64, 128, 256, 512, 1)):
            linear = nn.Linear(wide_in, wide_out)
            nn.init.orthogonal_(linear.weight)
            nn.init.zeros_(linear.bias)
            layers += [linear, nn.ReLU()]
        self.head = nn.Sequential(*layers[:-1])

    def forward(self, messages: Tensor) -> Tensor:
        """Score messages, uint8 ``(n, 256)`` on any device; float32 ``(n,)``."""
        messages = messages.to(self.embedding.weight.device)
        count, end = len(messages), _end(messages)  # from place `end` on, all messages are NUL
        rows = padded_count(count)
        # Few distinct lengths, like batch sizes.
        end = min(-(-end // _LENGTH_STEP) * _LENGTH_STEP, MESSAGE_LENGTH)
        length, kept = MESSAGE_LENGTH, min(end + 1, MESSAGE_LENGTH)
        x = F.pad(messages[:, :kept].int(), (0, 0, 0, rows - count))
        x = self.embedding(x).transpose(1, 2)  # (rows, 32, kept)
        for convolution, (_, width, pooled) in zip(self.convolutions, _CONVOLUTIONS, strict=True):
            # `length` is the whole computation's; outputs from place `end` on are equal.
            length -= width - 1
            x = convolution(_constant_tail(x, min(end + 1, length) + width - 1)).relu()
            if pooled:
                length, end = length // _POOL, -(-end // _POOL)
                x = F.max_pool1d(_constant_tail(x, _POOL * min(end + 1, length)), _POOL)
        x = _constant_tail(x, length)  # (rows, 64, 5)
        output: Tensor = self.head(x.flatten(1))[:count, 0]
        return output


def _end(messages: Tensor) -> int:
    """Return the place after the last byte that is not NUL in any of the messages."""
    used = messages.any(0).nonzero()
    return int(used[-1]) + 1 if len(used) else 0


def _constant_tail(x: Tensor, length: int) -> Tensor:
    """Cut ``x`` ``(n, channels, m)`` to ``length``, or repeat its last place up to it."""
    missing = length - x.shape[2]
    return F.pad(x, (0, missing), mode="replicate") if missing > 0 else x[:, :, :length]


def encode(captions: Sequence[str], model: str) -> Tensor:
    """Return messages as uint8 ``(n, 256)``, NUL-padded; ``model`` is the reader's id, for error messages."""
    rows = []
    for caption in captions:
        row = caption.encode("latin-1", "ignore")
        if len(row) != len(caption) or len(row) > MESSAGE_LENGTH:
            raise ConfigError(
                f"--model {model} reads NetHack's messages, of at most {MESSAGE_LENGTH} one-byte characters, and "
                f"{caption!r:.80} is no such message: take --model characters or language_model"
            )
        rows.append(row.ljust(MESSAGE_LENGTH, b"\0"))
    return torch.frombuffer(bytearray(b"".join(rows)), dtype=torch.uint8).view(len(rows), MESSAGE_LENGTH)


@reward_models.register("motif")
class MotifRewardModel(RewardModel):
    """Motif's reward model (Klissarov et al. 2023, arXiv 2310.00166): a convolutional network on a message's bytes."""

    id = "motif"
    reads_messages = True

    def __init__(self) -> None:
        super().__init__()
        self.network = MessageNetwork()

    def forward(self, captions: Sequence[str]) -> Tensor:
        output: Tensor = self.network(encode(captions, self.id))
        return output


@reward_models.register("classifier")
class ClassifierRewardModel(RewardModel):
    """ONI's classifier (Zheng et al. 2024, arXiv 2410.23022): a message's reward is 1 or 0.

    The network is Motif's; its output is a logit. Trained on pairs, the messages of the preferred segment are labelled
    1, those of the other 0, those of a tie 0.5; trained online, a judge labels each message.

    Args:
        threshold: The reward is 1 if the probability is above it.
    """

    id = "classifier"
    gives_labels = True
    reads_messages = True

    def __init__(self, threshold: Annotated[float, Ge(0), Lt(1)] = 0.5) -> None:
        super().__init__(threshold=threshold)
        self.threshold = threshold
        self.network = MessageNetwork()

    def forward(self, captions: Sequence[str]) -> Tensor:
        output: Tensor = self.network(encode(captions, self.id))
        return output

    def loss(self, scores: Tensor, targets: Tensor, mask: Tensor) -> Tensor:
        """Binary cross-entropy of each message with its segment's share of the preference, or its label."""
        labels = targets[..., None].expand_as(scores)[mask]
        return F.binary_cross_entropy_with_logits(scores[mask], labels)

    def _reward(self, captions: Sequence[str]) -> Tensor:
        return (torch.sigmoid(self(captions)) > self.threshold).float()
