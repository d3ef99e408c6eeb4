"""A reward model's numbers, looked up by message: NetHack's messages repeat, so it is asked only for new ones."""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from groundling.judges.reward_models.reward_model import RewardModel


class RewardTable:
    """What ``model`` gives for each message that has come up, by the message's content id.

    A look-up costs some 0.04 µs a frame (`torch.searchsorted`; a dict takes three times as long), Motif's network on
    every frame some 500. When the model has learnt something new (`RewardModel.version`), all that it said before is
    forgotten.
    """

    def __init__(self, model: RewardModel) -> None:
        self.model = model
        self._version = model.version
        self._forget()

    def __call__(self, ids: Tensor, messages: Tensor) -> Tensor:
        """The model's reward of each message.

        Args:
            ids: int64, any shape, on the CPU: `groundling.envs.nethack.observation.message_id`.
            messages: uint8 (*shape of ids, 256), on the CPU; read only where an id has never come up.

        Returns:
            float32, of the shape of ``ids``, on the CPU; without gradients.
        """
        if self._version != self.model.version:
            self._version = self.model.version
            self._forget()
        flat = ids.flatten()
        places, known = self._find(flat)
        if not known.all():
            self._score(flat[~known], messages.reshape(len(flat), -1)[~known])
            places, _ = self._find(flat)
        return self._rewards[places].view(ids.shape)

    def __len__(self) -> int:
        """How many messages it knows."""
        return len(self._ids)

    def state_dict(self) -> dict[str, Tensor]:
        """``ids`` int64 (n,), ascending, ``rewards`` float32 (n,), and the model's ``version`` int64 ()."""
        return {"ids": self._ids, "rewards": self._rewards, "version": torch.tensor(self._version)}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Take up what `state_dict` gave; what another version of the model said is left out."""
        self._version = self.model.version
        self._forget()
        if int(state["version"]) == self._version:
            self._ids, self._rewards = state["ids"].cpu(), state["rewards"].cpu()

    def _find(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Of each id, its place, and whether it is there."""
        if not len(self._ids):
            return torch.zeros_like(ids), torch.zeros_like(ids, dtype=torch.bool)
        places = torch.searchsorted(self._ids, ids).clamp_(max=len(self._ids) - 1)
        return places, self._ids[places] == ids

    def _score(self, ids: Tensor, messages: Tensor) -> None:
        """Ask the model for messages that are new, each once."""
        new, first = np.unique(ids.numpy(), return_index=True)
        rewards = self.model.rewards(messages[torch.from_numpy(first)])
        places = np.searchsorted(self._ids.numpy(), new)
        self._ids = torch.from_numpy(np.insert(self._ids.numpy(), places, new))
        self._rewards = torch.from_numpy(np.insert(self._rewards.numpy(), places, rewards.numpy()))

    def _forget(self) -> None:
        self._ids, self._rewards = torch.zeros(0, dtype=torch.int64), torch.zeros(0)
