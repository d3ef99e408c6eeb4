"""The machine and kernels with which figures were measured."""

from __future__ import annotations

import os
import platform
import time
from importlib import metadata
from typing import Any

import torch

from groundling.runtime.devices import onednn_is_faster


def seconds(device: str = "cpu") -> float:
    """Return the CPU seconds of the process, which other jobs hardly affect; with a GPU, the synchronised wall time."""
    if device == "cpu":
        return time.process_time()
    torch.cuda.synchronize()
    return time.perf_counter()


def machine(device: str = "cpu") -> dict[str, Any]:
    """Return a description of the machine, for results files."""
    return {
        "device": "cpu" if device == "cpu" else torch.cuda.get_device_name(device),
        "processor": torch.cpu.get_capabilities().get("cpu_name") or platform.machine(),
        "vectors": torch.backends.cpu.get_cpu_capability(),
        "kernels": "oneDNN" if onednn_is_faster() else "PyTorch's choice",
        "cores": sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "threads": torch.get_num_threads(),
        "load": os.getloadavg(),
        "python": platform.python_version(),
        **{name: metadata.version(name) for name in ("torch", "transformers")},
    }
