"""Compute on the CPU in the same way as on an accelerator, for a bitwise comparison.

On CPUs, the library batches differently, traces decoding steps and uses other kernels, which only affects rounding.
"""

import contextlib
import warnings
from collections.abc import Iterator
from unittest import mock

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from groundling.lm.read import batching, tree_reader
from groundling.lm.write import steps
from groundling.runtime import devices


@contextlib.contextmanager
def computed_alike() -> Iterator[None]:
    """Make the CPU compute like an accelerator."""
    accelerators = batching.Batching.for_device(torch.device("cuda"))
    with (
        warnings.catch_warnings(action="ignore"),  # warnings about the next line are irrelevant here
        torch.backends.mkldnn.flags(enabled=False),
        mock.patch.object(batching.Batching, "for_device", lambda device: accelerators),
        mock.patch.object(steps, "_AT_ONCE_ON_CPU", steps._AT_ONCE),
        mock.patch.object(tree_reader, "_NODES_AT_ONCE", batching.TOKENS_AT_ONCE),
        mock.patch.object(steps.Stepper, "_trace", lambda self, prompts: None),
        mock.patch.object(devices, "onednn_is_faster", lambda: False),
        sdpa_kernel(SDPBackend.MATH),
    ):
        yield
