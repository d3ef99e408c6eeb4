"""Cache of a reward model's outputs by caption, since captions repeat."""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from groundling.judges.reward_models.reward_model import RewardModel


class RewardTable:
    """Output of ``model`` for each caption so far, by an id of its content; emptied when the model changes."""

    def __init__(self, model: RewardModel) -> None:
        self.model = model
        self._version = model.version
        self._rewards: dict[int, float] = {}

    def __call__(self, ids: Tensor, read: Callable[[Sequence[int]], Sequence[str]]) -> Tensor:
        """Reward captions by unique ids, int64 on the CPU: float32 of their shape, on the CPU, no gradients.
        ``read`` returns the captions at places of the flattened ids; it is called for new ids only.
        """
        if self._version != self.model.version:
            self._version = self.model.version
            self._rewards.clear()
        flat = ids.flatten().tolist()
        new = {id: place for place, id in reversed(list(enumerate(flat))) if id not in self._rewards}
        if new:
            order = sorted(new)
            rewards = self.model.rewards(read([new[id] for id in order]))
            self._rewards |= zip(order, rewards.tolist(), strict=True)
        return torch.tensor([self._rewards[id] for id in flat], dtype=torch.float32).view(ids.shape)

    def state_dict(self) -> dict[str, Tensor]:
        """``ids`` int64 (n,), ascending, ``rewards`` float32 (n,), and the model's ``version`` int64 ()."""
        ids = torch.tensor(sorted(self._rewards), dtype=torch.int64)
        rewards = torch.tensor([self._rewards[id] for id in ids.tolist()], dtype=torch.float32)
        return {"ids": ids, "rewards": rewards, "version": torch.tensor(self._version)}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore what `state_dict` returned, unless the model has changed."""
        if int(state["version"]) == self.model.version:
            self._rewards = dict(zip(state["ids"].tolist(), state["rewards"].tolist(), strict=True))
