"""Which device is taken."""

from typing import Any

import pytest
import torch

from groundling.devices import find_device
from groundling.errors import ConfigError


def test_a_gpu_without_float64_is_passed_over_and_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Apple's, for which a stand-in answers here."""
    empty = torch.empty

    def without_float64(*size: int, dtype: Any = None, device: Any = None) -> torch.Tensor:
        if torch.device(device).type != "mps":
            return empty(*size, dtype=dtype, device=device)
        if dtype is torch.float64:
            raise TypeError("Cannot convert a MPS Tensor to float64 dtype")
        return empty(*size, dtype=dtype)

    monkeypatch.setattr(torch, "empty", without_float64)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available: torch.device("mps"))
    assert find_device("auto") == torch.device("cpu")
    with pytest.raises(ConfigError, match=r"device=mps has no float64, .* set device=cpu"):
        find_device("mps")
