"""Retrieval: a table of messages and what each is worth."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file
from torch import Tensor

from groundling.judges.reward_models.messages import message_ids
from groundling.judges.reward_models.reward_model import WEIGHTS, RewardModel, reward_models
from groundling.judges.reward_models.training_pairs import TrainingPairs


@reward_models.register("table")
class TableRewardModel(RewardModel):
    """ONI's retrieval (arXiv 2410.23022): a message that was labelled has that reward, any other the default.

    Trained on pairs, a message is worth the share of its comparisons that its segment won, a tie counting one half.

    Args:
        default: The reward of a message that is not in the table; 0 in ONI.
    """

    id = "table"
    ids: Tensor
    """int64 (size,), ascending: see `groundling.judges.reward_models.messages.message_ids`."""
    values: Tensor
    """float32 (size,)."""

    def __init__(self, default: float = 0.0) -> None:
        super().__init__(default=default)
        self.default = default
        self.register_buffer("ids", torch.zeros(0, dtype=torch.int64))
        self.register_buffer("values", torch.zeros(0))

    def forward(self, messages: Tensor) -> Tensor:
        if not len(self.ids):
            return torch.full((len(messages),), self.default)
        wanted = torch.from_numpy(message_ids(messages.cpu().numpy())).to(self.ids.device)
        places = torch.searchsorted(self.ids, wanted).clamp(max=len(self.ids) - 1)
        return torch.where(self.ids[places] == wanted, self.values[places], self.default)

    def fit(self, pairs: TrainingPairs) -> None:
        """Put the messages of all pairs into the table, in place of what was there."""
        shares = pairs.targets[..., None].expand_as(pairs.indices).flatten()  # (N * 2 * L,)
        flat, size = pairs.indices.flatten(), len(pairs.messages)
        counts = torch.bincount(flat, minlength=size)
        won = torch.bincount(flat, weights=shares.double(), minlength=size)
        seen = counts > 0
        self.ids, self.values = self.ids[:0], self.values[:0]
        self.set(message_ids(pairs.messages[seen].numpy()), (won[seen] / counts[seen]).float().numpy())

    def set(self, ids: NDArray[np.int64], values: NDArray[np.floating]) -> None:
        """Put messages into the table; of one that is there already the value changes.

        Args:
            ids: (n,), as `message_ids` gives them.
            values: (n,).
        """
        known = np.concatenate([ids[::-1], self.ids.cpu().numpy()])  # of equal ids the newest comes first
        worth = np.concatenate([values[::-1], self.values.cpu().numpy()]).astype(np.float32)
        distinct, first = np.unique(known, return_index=True)
        device = self.ids.device
        self.ids, self.values = (
            torch.from_numpy(distinct).to(device),
            torch.from_numpy(worth[first]).to(device),
        )
        self.mark_changed()

    @property
    def device(self) -> torch.device:
        return self.ids.device

    @classmethod
    def _load(cls, folder: Path, args: Mapping[str, Any]) -> Self:
        model = cls(**args)
        tensors = load_file(folder / WEIGHTS)
        model.ids, model.values = tensors["ids"], tensors["values"]
        return model
