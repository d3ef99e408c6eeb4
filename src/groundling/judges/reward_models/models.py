"""Reward models: Motif's message network, a similar network for any caption, a language model and a table."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional as F

from groundling.errors import ConfigError, warn_caller
from groundling.fields import Ge, Lt
from groundling.judges.preferences.pairs import caption_ids
from groundling.judges.reward_models.distill import TrainingPairs
from groundling.judges.reward_models.reward_model import WEIGHTS, RewardModel, reward_models

MESSAGE_LENGTH = 256  # length of a NetHack message in bytes
_SMALLEST_BATCH = 8
_LENGTH_STEP = 16
_POOL = 3
_CONVOLUTIONS = ((32, 7, True), (64, 7, True), (64, 3, False), (64, 3, False), (64, 3, False), (64, 3, True))
"""Input channels, width, and whether max-pooling follows."""


def padded_count(count: int) -> int:
    """Round up to 8, 12, 16, 24, 32, 48, ...: oneDNN builds kernels for each size, which costs more than padding."""
    size = _SMALLEST_BATCH
    while size < count:
        size = size * 4 // 3 if size & (size - 1) else size * 3 // 2
    return size


class MessageNetwork(nn.Module):
    """The message encoder of NLE's torchbeast baseline with a reward head, as in Motif; 306,945 parameters.

    Bytes are embedded in 32 dimensions (NUL as zeros) and pass through convolutions with 64 channels (widths 7, 7, 3,
    3, 3, 3; ReLU after each; max-pooling by 3 after the first, second and last) and linear layers 320-128-256-512-1
    with ReLU in between. Linear layers have orthogonal initial weights and zero bias; others use PyTorch's defaults.

    Beyond a message's last byte (about the 80th of 256), the output of every layer becomes constant. Only the
    positions up to that point and one more are computed; repeating the last one as needed yields the same result.
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
        """Return the scores, float32 ``(n,)``, of messages, uint8 ``(n, 256)`` on any device."""
        messages = messages.to(self.embedding.weight.device)
        used = messages.any(0).nonzero()
        count, end = len(messages), int(used[-1]) + 1 if len(used) else 0  # from index `end` on, all messages are NUL
        rows = padded_count(count)
        # Rounding leaves only a few distinct lengths, as for batch sizes.
        end = min(-(-end // _LENGTH_STEP) * _LENGTH_STEP, MESSAGE_LENGTH)
        length, kept = MESSAGE_LENGTH, min(end + 1, MESSAGE_LENGTH)
        x = F.pad(messages[:, :kept].int(), (0, 0, 0, rows - count))
        x = self.embedding(x).transpose(1, 2)  # (rows, 32, kept)
        for convolution, (_, width, pooled) in zip(self.convolutions, _CONVOLUTIONS, strict=True):
            # `length` is the length in the full computation; outputs from index `end` on are equal.
            length -= width - 1
            x = convolution(_constant_tail(x, min(end + 1, length) + width - 1)).relu()
            if pooled:
                length, end = length // _POOL, -(-end // _POOL)
                x = F.max_pool1d(_constant_tail(x, _POOL * min(end + 1, length)), _POOL)
        x = _constant_tail(x, length)  # (rows, 64, 5)
        output: Tensor = self.head(x.flatten(1))[:count, 0]
        return output


def _constant_tail(x: Tensor, length: int) -> Tensor:
    """Cut ``x`` ``(n, channels, m)`` to ``length``, or pad it by repeating its last position."""
    missing = length - x.shape[2]
    return F.pad(x, (0, missing), mode="replicate") if missing > 0 else x[:, :, :length]


def encode(captions: Sequence[str], model: str) -> Tensor:
    """Return messages as uint8 ``(n, 256)``, NUL-padded; ``model`` is the reward model's id, for error messages."""
    rows = []
    for caption in captions:
        row = caption.encode("latin-1", "ignore")
        if len(row) != len(caption) or len(row) > MESSAGE_LENGTH:
            raise ConfigError(
                f"--model {model} reads NetHack messages of at most {MESSAGE_LENGTH} Latin-1 characters, but "
                f"{caption!r:.80} is not one: use --model characters or --model language_model"
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
class ClassifierRewardModel(MotifRewardModel):
    """ONI's classifier (Zheng et al. 2024, arXiv 2410.23022): a message's reward is 1 or 0.

    The network is Motif's; its output is a logit. For training on pairs, messages of the preferred segment are
    labelled 1, messages of the other segment 0, and messages of ties 0.5. Online, a judge labels each message.

    Args:
        threshold: The reward is 1 if the predicted probability is greater than this.
    """

    id = "classifier"
    gives_labels = True

    def __init__(self, threshold: Annotated[float, Ge(0), Lt(1)] = 0.5) -> None:
        super().__init__()
        self.args["threshold"] = self.threshold = threshold

    def loss(self, scores: Tensor, targets: Tensor, mask: Tensor) -> Tensor:
        """Return the binary cross-entropy of the messages, labelled by their segment's target or individually."""
        labels = targets[..., None].expand_as(scores)[mask]
        return F.binary_cross_entropy_with_logits(scores[mask], labels)

    def _reward(self, captions: Sequence[str]) -> Tensor:
        return (torch.sigmoid(self(captions)) > self.threshold).float()


_Size = Annotated[int, Ge(1)]
_EMBEDDING, _WIDTH = 32, 7
_CHARACTERS_STEP = 64
_TOGETHER = 64  # captions padded to the same length; batches are sorted by length


@reward_models.register("characters")
class CharacterRewardModel(RewardModel):
    """A network like Motif's for captions of any length in any script.

    UTF-8 bytes are embedded in 32 dimensions and pass through blocks of a convolution of width 7, ReLU and max-pooling
    by 3. An MLP maps the maximum and mean of each channel to the reward. Padding is masked and has no effect.

    Args:
        channels: Number of channels of every convolution.
        blocks: Number of blocks; with three, the receptive field is 79 bytes.
        hidden_size: Hidden size of the MLP.
        max_bytes: Longer captions are cut in the middle, which keeps the goal and action, or the prompt and ending.
    """

    id = "characters"

    def __init__(
        self, channels: _Size = 64, blocks: _Size = 3, hidden_size: _Size = 128, max_bytes: _Size = 4096
    ) -> None:
        super().__init__(channels=channels, blocks=blocks, hidden_size=hidden_size, max_bytes=max_bytes)
        self.embedding = nn.Embedding(257, _EMBEDDING, padding_idx=0)  # byte b has index b + 1
        widths = [_EMBEDDING, *[channels] * blocks]
        self.convolutions = nn.ModuleList(
            nn.Conv1d(wide_in, channels, _WIDTH, padding=_WIDTH // 2) for wide_in in widths[:-1]
        )
        self.head = nn.Sequential(nn.Linear(2 * channels, hidden_size), nn.ReLU(), nn.Linear(hidden_size, 1))

    def forward(self, captions: Sequence[str]) -> Tensor:
        groups = [captions[start : start + _TOGETHER] for start in range(0, len(captions), _TOGETHER)]
        return torch.cat([self._read(group) for group in groups])

    def _read(self, captions: Sequence[str]) -> Tensor:
        """Return the scores, float32 ``(len(captions),)``, of captions of similar length."""
        written = [self._bytes(caption) for caption in captions]
        # Rounding leaves only a few distinct sizes, because kernels are built for each.
        length = -(-max(1, *map(len, written)) // _CHARACTERS_STEP) * _CHARACTERS_STEP
        padded = [list(content) + [-1] * (length - len(content)) for content in written]
        tokens = torch.zeros(padded_count(len(written)), length, dtype=torch.int64)  # (rows, length): bytes + 1, or 0
        tokens[: len(written)] = torch.tensor(padded) + 1
        tokens = tokens.to(self.device)
        lengths = (tokens > 0).sum(1).clamp(min=1)  # (rows,)
        x = self.embedding(tokens).transpose(1, 2)  # (rows, 32, length)
        for convolution in self.convolutions:
            inside = torch.arange(x.shape[2], device=self.device) < lengths[:, None]  # (rows, length)
            x = convolution(x).relu() * inside.float()[:, None]
            x = F.max_pool1d(x, _POOL, ceil_mode=True)  # after ReLU, 0 is the minimum
            lengths = (lengths + _POOL - 1) // _POOL
        pooled = torch.cat([x.amax(2), x.sum(2) / lengths[:, None]], dim=1)  # (rows, 2 * channels)
        output: Tensor = self.head(pooled)[: len(written), 0]
        return output

    def _bytes(self, caption: str) -> bytes:
        content, most = caption.encode("utf-8", "surrogatepass"), self.args["max_bytes"]
        if len(content) <= most:
            return content
        warn_caller(f"captions of more than {most} bytes are cut in the middle: increase max_bytes")
        return content[: most // 2] + content[len(content) - (most + 1) // 2 :]


_FOLDER = "language_model"


@reward_models.register("language_model")
class LanguageRewardModel(RewardModel):
    """An MLP head on a language model's hidden state after reading the caption (`LanguageModel.encode`).

    Args:
        path: A folder, a hub id, or a bundled model: "starter" (encoder-decoder) or "starter-causal".
        train_language_model: If false, only the head is trained.
        hidden_sizes: Widths of the head's hidden layers.
        prompt: Template of the text that the model reads; ``{caption}`` stands for the caption.
        lora: Keyword arguments of `peft.LoraConfig`, to train only an adapter. Requires the `lora` extra.
    """

    id = "language_model"

    def __init__(
        self,
        path: str = "starter",
        train_language_model: bool = True,
        hidden_sizes: Sequence[int] = (256,),
        prompt: str = "{caption}",
        lora: Mapping[str, Any] | None = None,
    ) -> None:
        if "{caption}" not in prompt:
            raise ConfigError(f"prompt {prompt!r} has no {{caption}}: add it where the caption belongs")
        super().__init__(
            path=path,
            train_language_model=train_language_model,
            hidden_sizes=list(hidden_sizes),
            prompt=prompt,
            lora=None if lora is None else dict(lora),
        )
        from groundling.lm import LanguageModel, ValueHead  # slow to import
        from groundling.runtime import devices

        devices.configure()
        self.lm = LanguageModel.from_pretrained(path, lora=lora)
        if not train_language_model:
            self.lm.requires_grad_(False)
        self.head = ValueHead(self.lm.hidden_size, hidden_sizes=tuple(hidden_sizes))

    def forward(self, captions: Sequence[str]) -> Tensor:
        texts = [self.args["prompt"].replace("{caption}", self.lm.mask(caption)) for caption in captions]
        with self.lm.autocast():
            states = self.lm.encode(texts)  # (n, hidden_size) float32
        output: Tensor = self.head(states)
        return output

    @property
    def device(self) -> torch.device:
        device: torch.device = self.lm.device
        return device

    def _save_weights(self, folder: Path) -> None:
        self.lm.save_pretrained(folder / _FOLDER)
        save_file(self.head.state_dict(), folder / WEIGHTS)

    @classmethod
    def _load(cls, folder: Path, args: Mapping[str, Any]) -> Self:
        # An adapter in the folder is also loaded.
        model = cls(**{**args, "path": str(folder / _FOLDER), "lora": None})
        model.args = dict(args)
        model.head.load_state_dict(load_file(folder / WEIGHTS))
        return model


@reward_models.register("table")
class TableRewardModel(RewardModel):
    """ONI's retrieval method (arXiv 2410.23022): a caption's reward is its label, or the default if it has none.

    After training on pairs, a caption's reward is the fraction of comparisons that its segment won; ties count as 1/2.

    Args:
        default: Reward for captions that are not in the table; 0 in ONI.
    """

    id = "table"
    ids: Tensor  # int64 (size,), ascending: see `groundling.judges.preferences.pairs.caption_ids`
    values: Tensor  # float32 (size,)

    def __init__(self, default: float = 0.0) -> None:
        super().__init__(default=default)
        self.default = default
        self.register_buffer("ids", torch.zeros(0, dtype=torch.int64))
        self.register_buffer("values", torch.zeros(0))

    def forward(self, captions: Sequence[str]) -> Tensor:
        if not len(self.ids):
            return torch.full((len(captions),), self.default, device=self.ids.device)
        wanted = torch.from_numpy(caption_ids(captions)).to(self.ids.device)
        places = torch.searchsorted(self.ids, wanted).clamp(max=len(self.ids) - 1)
        return torch.where(self.ids[places] == wanted, self.values[places], self.default)

    def fit(self, pairs: TrainingPairs) -> None:
        """Replace the table with the captions of all pairs."""
        mask = pairs.mask()
        shares = pairs.targets[..., None].expand_as(pairs.indices)[mask]  # (num_captions,), with multiplicity
        flat, size = pairs.indices[mask], len(pairs.captions)
        counts = torch.bincount(flat, minlength=size)
        won = torch.bincount(flat, weights=shares.double(), minlength=size)
        seen = counts > 0
        self.ids, self.values = self.ids[:0], self.values[:0]
        captions = [pairs.captions[place] for place in seen.nonzero()[:, 0].tolist()]
        self.set(captions, (won[seen] / counts[seen]).float().numpy())

    def set(self, captions: Sequence[str], values: NDArray[np.floating]) -> None:
        """Add captions with values ``(n,)`` to the table, replacing existing values."""
        # Among equal ids, the newest comes first.
        known = np.concatenate([caption_ids(captions)[::-1], self.ids.cpu().numpy()])
        worth = np.concatenate([values[::-1], self.values.cpu().numpy()]).astype(np.float32)
        distinct, first = np.unique(known, return_index=True)
        device = self.ids.device
        self.ids, self.values = torch.from_numpy(distinct).to(device), torch.from_numpy(worth[first]).to(device)
        self.mark_changed()
