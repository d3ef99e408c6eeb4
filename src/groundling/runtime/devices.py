"""Device utilities (names, memory, shares among processes) and fast CPU layers."""

from __future__ import annotations

import functools
import os
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from groundling.errors import ConfigError


def find_device(name: str | torch.device) -> torch.device:
    """Return a device by name; "auto" is the accelerator if a usable one is available, else the CPU.

    Actions and tokens are sampled in float64, which Apple's GPUs (mps) do not support. If a machine runs several
    processes, each uses the GPU with the index ``LOCAL_RANK``, following torchrun's convention.
    """
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if name == "auto":
        name = "cpu" if accelerator is None or accelerator.type == "mps" else accelerator
    local_rank = launched("LOCAL_RANK", -1)
    if str(name) == "cuda" and local_rank >= 0 and torch.cuda.is_available():
        name = f"cuda:{local_rank % torch.cuda.device_count()}"
    there = "cpu" if accelerator is None else f"cpu, {accelerator}"
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise ConfigError(f"device={name} is not available on this machine: use one of {there}") from error
    if device.type == "meta":
        raise ConfigError(f"device={name} does not store data: use one of {there}")
    try:
        torch.empty(0, dtype=torch.float64, device=device)
    except TypeError:
        raise ConfigError(f"device={name} does not support float64, which sampling needs: set device=cpu") from None
    return device


def share_of_gpus() -> range:
    """Return this process's equal share of the machine's GPUs, by ``LOCAL_RANK`` and ``LOCAL_WORLD_SIZE``."""
    processes, count = launched("LOCAL_WORLD_SIZE", 1), torch.cuda.device_count()
    if not count or count % processes:
        raise ConfigError(
            f"model.device_map splits a machine's GPUs evenly among its {processes} processes, but there are {count} "
            "GPUs: start torchrun with a different --nproc-per-node, or remove the map"
        )
    each, rank = count // processes, launched("LOCAL_RANK", 0)
    return range(rank * each, (rank + 1) * each)


def free_memory(device: torch.device) -> int:
    """Return the number of bytes that this process can allocate on a device, within its ``ulimit -v``, if any."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    import resource

    import psutil  # a dependency of accelerate

    free, limit = psutil.virtual_memory().available, resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit != resource.RLIM_INFINITY:
        free = min(free, max(0, limit - psutil.Process().memory_info().vms))
    return int(free)


def launched(name: str, default: int) -> int:
    """Return an integer that a launcher sets in the environment, such as ``RANK``; raise `ConfigError` if invalid."""
    text = os.environ.get(name)
    if text is None:
        return default
    least = int(name.endswith("SIZE"))
    if not text.isdecimal() or int(text) < least:
        raise ConfigError(
            f"the environment variable {name}={text!r:.40} must be an integer of at least {least}: start several "
            f"processes with torchrun, accelerate launch or --slurm, or remove it with `unset {name}`"
        )
    return int(text)


_CACHED_SHAPES = "64"  # Matmul shapes that oneDNN and PyTorch each cache, half a MiB per shape; the default is 1,024
_LEAST_WEIGHTS = 2**14  # For smaller matrices, MKL is faster due to oneDNN's operator overhead: 8 vs 15 µs at 64³
_LEAST_PRODUCTS = 2**22  # With gradients, a layer is a Python function, whose overhead dominates for small products


def configure() -> None:
    """Set the kernel options of this process; called by commands before they build a model, never on import."""
    # The cache sizes are read at the first matrix product; sizes set by the user are kept.
    for name in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):
        os.environ.setdefault(name, _CACHED_SHAPES)
    # cuDNN plans attention separately for each shape, and the lengths of texts change at every step: in bfloat16 on an
    # H200, this planning took three quarters of the demo's time.
    torch.backends.cuda.enable_cudnn_sdp(False)


class FastLinear(nn.Linear):
    """`torch.nn.Linear`, computed with `linear`."""

    def forward(self, input: Tensor) -> Tensor:
        return linear(input, self.weight, self.bias)


class FastGRU(nn.GRU):
    """Single-layer `torch.nn.GRU` that uses `linear`'s kernel on CPUs; weight gradients are products over all steps.

    Second-order gradients need PyTorch's kernel, as on CUDA: use ``torch.backends.cudnn.flags(enabled=False)``.
    """

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__(input_size, hidden_size)

    def forward(self, input: Tensor, hx: Tensor | None = None) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        """Return all states (length, batch, hidden_size) and the last one (1, batch, hidden_size)."""
        fused = torch.backends.cudnn.enabled and not torch.compiler.is_compiling()
        weights = self.all_weights[0]  # for the input and the state, and their biases
        if hx is None or not fused or not _suits(input, weights[0]):
            return super().forward(input, hx)
        states: Tensor = _GRU.apply(input, hx[0], *weights)
        return states, states[-1:]


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Compute `F.linear`, up to rounding, with the fastest available kernel; gradients of any order are supported."""
    if torch.compiler.is_compiling() or not _suits(x, weight):
        return F.linear(x, weight, bias)
    if not torch.is_grad_enabled():
        y: Tensor = _onednn_linear()(x, weight, bias)
        if torch.jit.is_tracing() and not y.is_inference():  # inference tensors have no version
            y.made_of = (x, weight, bias, y._version)  # type: ignore[attr-defined]  # for `activated`
        return y
    if x.numel() * len(weight) < _LEAST_PRODUCTS:
        return F.linear(x, weight, bias)
    return _Linear.apply(x, weight, bias)


def activated(y: Tensor, activation: str, algorithm: str = "") -> Tensor | None:
    """Fuse a linear layer and its activation (named as in oneDNN) into one kernel, given the layer's output.

    This works only in a trace, which then drops the separate layer as unused, and only for `linear`'s outputs. In all
    other cases, return None. For GPT-2 at 1,040 x 256 x 1,024, the fused kernel takes 3.0 instead of 7.2 ms.
    """
    *made_of, version = getattr(y, "made_of", (None,))
    if not made_of or y._version != version:  # not `linear`'s output, or changed in place
        return None
    fused: Tensor = _onednn_linear()(*made_of, activation, algorithm)
    return fused


class _Linear(torch.autograd.Function):
    """A linear layer whose gradients are computed by the same kernel."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _onednn_linear()(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        # Second-order gradients, as in TRPO's curvature, need differentiable operators.
        product = F.linear if torch.is_grad_enabled() else _onednn_linear()
        rows, inputs = gradient.flatten(0, -2).contiguous(), x.flatten(0, -2).contiguous()
        of_x, of_weight, of_bias = ctx.needs_input_grad
        return (
            product(rows, weight.t(), None).view(x.shape) if of_x else None,
            _gradient_of_weight(product, rows, inputs, weight) if of_weight else None,
            rows.sum(0) if of_bias else None,
        )


class _GRU(torch.autograd.Function):
    """h' = (1 - z) n + z h with r, z = σ(x + h) and n = tanh(x + r h), where x and h are linear in input and state."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, first: Tensor, of_input: Tensor, of_state: Tensor, input_bias: Tensor, state_bias: Tensor
    ) -> Tensor:
        product, size = _onednn_linear(), first.shape[-1]
        from_input = product(x, of_input, input_bias).split([2 * size, size], -1)  # (length, batch, 3 sizes)
        states, gates, candidates, shares = [first], [], [], []
        for step in range(len(x)):
            to_gates, to_candidate = product(states[-1], of_state, state_bias).split([2 * size, size], -1)
            gates.append((from_input[0][step] + to_gates).sigmoid_())
            reset, keep = gates[-1].chunk(2, -1)
            candidates.append(torch.addcmul(from_input[1][step], reset, to_candidate).tanh_())
            shares.append(to_candidate)
            states.append(torch.lerp(candidates[-1], states[-1], keep))
        if any(ctx.needs_input_grad):
            kept = [torch.stack(parts) for parts in (states, gates, candidates, shares)]
            ctx.save_for_backward(x, of_input, of_state, *kept)
            return kept[0][1:]
        return torch.stack(states[1:])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, of_input, of_state, states, gates, candidates, shares = ctx.saved_tensors
        product, before, size = _onednn_linear(), states[:-1], states.shape[-1]
        reset, keep = gates.chunk(2, -1)
        # Derivatives of the state with respect to each sum
        to_candidate = (1 - keep) * (1 - candidates * candidates)
        to_reset = to_candidate * shares * reset * (1 - reset)
        to_keep = (before - candidates) * keep * (1 - keep)
        of_sums = torch.empty(*gradient.shape[:-1], 3 * size)  # gradients of the state's product
        of_candidates = torch.empty_like(to_candidate)
        later = torch.zeros_like(states[0])
        for step in reversed(range(len(x))):
            state_gradient = gradient[step] + later
            torch.mul(state_gradient, to_candidate[step], out=of_candidates[step])
            torch.cat(
                [state_gradient * to_reset[step], state_gradient * to_keep[step], of_candidates[step] * reset[step]],
                dim=-1,
                out=of_sums[step],
            )
            later = product(of_sums[step], of_state.t(), None).addcmul_(state_gradient, keep[step])
        in_inputs = torch.cat([of_sums[..., : 2 * size], of_candidates], dim=-1)
        rows, input_rows = of_sums.flatten(0, 1), in_inputs.flatten(0, 1)
        return (
            product(in_inputs, of_input.t(), None) if ctx.needs_input_grad[0] else None,
            later if ctx.needs_input_grad[1] else None,
            _gradient_of_weight(product, input_rows, x.flatten(0, 1), of_input),
            _gradient_of_weight(product, rows, before.flatten(0, 1), of_state),
            input_rows.sum(0),
            rows.sum(0),
        )


def _gradient_of_weight(product: Callable[..., Tensor], rows: Tensor, inputs: Tensor, weight: Tensor) -> Tensor:
    """Compute ``rows.T @ inputs`` for (num_rows, outputs) and (num_rows, inputs) with as few copies as possible."""
    # The operator copies a transposed first argument; autograd copies gradients whose strides are not the weight's.
    transposed = weight.stride(0) == 1
    if rows.numel() + transposed * weight.numel() <= inputs.numel() + (not transposed) * weight.numel():
        return product(rows.t(), inputs.t(), None)
    return product(inputs.t(), rows.t(), None).t()


@functools.cache
def _onednn_linear() -> Any:
    """Return oneDNN's operator as a scripted function, since a trace cannot contain its empty list of scalars."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TorchScript is deprecated, but no alternative runs without Python
        return torch.jit.CompilationUnit("""
def linear(x: Tensor, weight: Tensor, bias: Optional[Tensor], activation: str = "none", algorithm: str = ""):
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, activation, [], algorithm)
""").linear


def _suits(x: Tensor, weight: Tensor) -> bool:
    return (
        x.device.type == "cpu"
        and x.dtype == weight.dtype == torch.float32
        and weight.numel() >= _LEAST_WEIGHTS
        and x.shape[-1] == weight.shape[1]  # otherwise, PyTorch raises an error
        and not torch.is_autocast_enabled("cpu")
        and onednn_is_faster()
    )


@functools.cache
def onednn_is_faster() -> bool:
    """Return True if oneDNN is faster than PyTorch's default for large float32 layers on this processor."""
    # This depends on the processor type rather than on a measurement, so that a resumed run computes the same results.
    processor: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    amd = str(processor.get("cpu_name", "")).startswith("AMD")
    return amd and bool(processor.get("avx512_f")) and torch.backends.mkldnn.is_available()
