"""What a run is held against: the same on the CPU, computed as on an accelerator.

On CPUs the library batches otherwise, traces its decoding steps and takes kernels of the CPU's own. All that changes
rounding and nothing else, which other tests show; without it both compute the same to the last bit.
"""

import contextlib
import warnings
from collections.abc import Iterator
from unittest import mock

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from groundling.lm.read import batching, tree_reader
from groundling.lm.write import steps
from groundling.runtime import kernels


@contextlib.contextmanager
def computed_alike() -> Iterator[None]:
    """Within this context what is computed on the CPU is computed as on an accelerator."""
    accelerators = batching.Batching.for_device(torch.device("cuda"))
    with (
        warnings.catch_warnings(action="ignore"),  # of the next line, which means nothing here
        torch.backends.mkldnn.flags(enabled=False),
        mock.patch.object(batching.Batching, "for_device", lambda device: accelerators),
        mock.patch.object(steps, "_AT_ONCE_ON_CPU", steps._AT_ONCE),
        mock.patch.object(tree_reader, "_NODES_AT_ONCE", batching.TOKENS_AT_ONCE),
        mock.patch.object(steps.Stepper, "_trace", lambda self, prompts: None),
        mock.patch.object(kernels, "onednn_is_faster", lambda: False),
        sdpa_kernel(SDPBackend.MATH),
    ):
        yield
