"""Retrieval: a table of captions and their rewards."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file
from torch import Tensor

from groundling.judges.preferences.segments import caption_ids
from groundling.judges.reward_models.reward_model import WEIGHTS, RewardModel, reward_models
from groundling.judges.reward_models.training_pairs import TrainingPairs


@reward_models.register("table")
class TableRewardModel(RewardModel):
    """ONI's retrieval (arXiv 2410.23022): the label of a caption is its reward, the default that of all others.

    Trained on pairs, a caption's reward is the share of comparisons that its segment won; a tie counts one half.

    Args:
        default: Reward of captions outside the table; 0 in ONI.
    """

    id = "table"
    ids: Tensor  # int64 (size,), ascending: see `groundling.judges.preferences.segments.caption_ids`
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
        """Replace the table by the captions of all pairs."""
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
        """Add captions with their values ``(n,)`` to the table, or change their values."""
        # The newest of equal ids comes first.
        known = np.concatenate([caption_ids(captions)[::-1], self.ids.cpu().numpy()])
        worth = np.concatenate([values[::-1], self.values.cpu().numpy()]).astype(np.float32)
        distinct, first = np.unique(known, return_index=True)
        device = self.ids.device
        self.ids, self.values = (torch.from_numpy(distinct).to(device), torch.from_numpy(worth[first]).to(device))
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
