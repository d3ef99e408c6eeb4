"""Cache of a reward model's outputs by caption, since captions repeat."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from groundling.judges.preferences.segments import caption_ids
from groundling.judges.reward_models.reward_model import RewardModel


class RewardTable:
    """Output of ``model`` for each caption so far, by an id of its content.

    A look-up takes some 0.04 µs a frame (`torch.searchsorted`; a dict takes three times as long), Motif's network some
    500. It is emptied when the model changes (`RewardModel.version`).
    """

    def __init__(self, model: RewardModel) -> None:
        self.model = model
        self._version = model.version
        self._forget()

    def __call__(self, ids: Tensor, read: Callable[[Sequence[int]], Sequence[str]]) -> Tensor:
        """Reward captions.

        Args:
            ids: Unique id of each caption, int64 of any shape, on the CPU.
            read: Returns the captions at places of the flattened ids; called for new ids only.

        Returns:
            Float32, of the shape of ``ids``, on the CPU, without gradients.

        Raises:
            ConfigError: the model cannot read a caption.
        """
        if self._version != self.model.version:
            self._version = self.model.version
            self._forget()
        flat = ids.flatten()
        places, known = self._find(flat)
        if not known.all():
            self._score(flat, known, read)
            places, _ = self._find(flat)
        return self._rewards[places].view(ids.shape)

    def rewards(self, captions: Sequence[str]) -> Tensor:
        """Reward captions given as texts: float32 ``(n,)``, on the CPU, without gradients."""
        ids = torch.from_numpy(caption_ids(captions))
        return self(ids, lambda places: [captions[place] for place in places])

    def __len__(self) -> int:
        """Number of captions."""
        return len(self._ids)

    def state_dict(self) -> dict[str, Tensor]:
        """``ids`` int64 (n,), ascending, ``rewards`` float32 (n,), and the model's ``version`` int64 ()."""
        return {"ids": self._ids, "rewards": self._rewards, "version": torch.tensor(self._version)}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore what `state_dict` returned, unless the model has changed."""
        self._version = self.model.version
        self._forget()
        if int(state["version"]) == self._version:
            self._ids, self._rewards = state["ids"].cpu(), state["rewards"].cpu()

    def _find(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Place of each id, and a bool that is True if it is in the table."""
        if not len(self._ids):
            return torch.zeros_like(ids), torch.zeros_like(ids, dtype=torch.bool)
        places = torch.searchsorted(self._ids, ids).clamp_(max=len(self._ids) - 1)
        return places, self._ids[places] == ids

    def _score(self, ids: Tensor, known: Tensor, read: Callable[[Sequence[int]], Sequence[str]]) -> None:
        """Add the captions that are not in the table, each once."""
        unknown = np.flatnonzero(~known.numpy())
        new, first = np.unique(ids.numpy()[unknown], return_index=True)
        rewards = self.model.rewards(read(unknown[first].tolist()))
        places = np.searchsorted(self._ids.numpy(), new)
        self._ids = torch.from_numpy(np.insert(self._ids.numpy(), places, new))
        self._rewards = torch.from_numpy(np.insert(self._rewards.numpy(), places, rewards.numpy()))

    def _forget(self) -> None:
        self._ids, self._rewards = torch.zeros(0, dtype=torch.int64), torch.zeros(0)
