"""A policy for the numbers in `examples.own_world`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import examples.own_world  # noqa: F401  (registers the world)
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from groundling.policies import Action, Evaluated, Policy, register


@register("counting_policy")
class CountingPolicy(Policy):
    """Linear functions of the number."""

    needs = frozenset({"number"})

    def __init__(self) -> None:
        super().__init__()
        self.choice, self.value = nn.Linear(1, 2), nn.Linear(1, 1)

    def _see(self, observations: Sequence[int]) -> tuple[Tensor, Tensor]:
        seen = torch.tensor(observations, dtype=torch.float32)[:, None]
        return self.choice(seen).log_softmax(-1), self.value(seen)[:, 0]

    @torch.no_grad()
    def act(self, observations: Sequence[int], **options: Any) -> Action:
        options.pop("memory", None)
        deterministic, generator = options.get("deterministic", False), options.get("generator")
        return Action.choose(*self._see(observations), deterministic=deterministic, generator=generator)

    def evaluate(self, observations: Sequence[int], actions: Tensor) -> Evaluated:
        log_probs, values = self._see(observations)
        return Evaluated.of(log_probs, actions, values)

    @torch.no_grad()
    def values(self, observations: Sequence[int], memory: Tensor | None = None) -> Tensor:
        return self._see(observations)[1]

    def save_pretrained(self, folder: Path) -> None:
        save_file(self.state_dict(), folder / "counting.safetensors")

    def load_weights(self, folder: Path) -> None:
        self.load_state_dict(load_file(folder / "counting.safetensors"))
