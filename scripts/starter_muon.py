"""Muon in float32, for CPUs that compute bfloat16 slowly."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)


class Muon(torch.optim.Optimizer):
    """Momentum with orthogonalised matrices (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon/).

    `torch.optim.Muon` computes in bfloat16, one matrix at a time. This optimizer batches matrices of the same shape, in
    their own precision. Steps are scaled to the root mean square of AdamW's (Liu et al. 2025, arXiv 2502.16982).
    """

    def __init__(
        self, params: Iterable[Tensor], lr: float = 1e-3, momentum: float = 0.95, weight_decay: float = 0.01
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Perform one step; all parameters must be matrices."""
        for group in self.param_groups:
            shapes: dict[tuple[int, int], list[tuple[Tensor, Tensor]]] = {}
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                state = self.state[weight]
                if not state:
                    state["average"] = torch.zeros_like(weight)
                average = state["average"]
                average.lerp_(weight.grad, 1 - group["momentum"])
                update = weight.grad.lerp(average, group["momentum"])
                rows, columns = sorted(weight.shape)
                shapes.setdefault((rows, columns), []).append((weight, update))
            for shape, pairs in shapes.items():
                wide = torch.stack([update if update.shape == shape else update.T for _, update in pairs])
                scale = group["lr"] * 0.2 * math.sqrt(shape[1])
                for (weight, _), step in zip(pairs, orthogonal(wide), strict=True):
                    weight.mul_(1 - group["lr"] * group["weight_decay"])
                    weight.sub_(step if weight.shape == shape else step.T, alpha=scale)


def orthogonal(matrices: Tensor, steps: int = 5) -> Tensor:
    """Approximate the nearest matrices with orthonormal rows; the shape is (count, rows, columns), rows <= columns."""
    a, b, c = _COEFFICIENTS
    x = matrices / (matrices.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(steps):
        square = x @ x.mT
        x = a * x + (b * square + c * square @ square) @ x
    return x
