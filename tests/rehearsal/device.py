"""A device "rehearsal", whose tensors use CPU memory, but behave and mix with CPU tensors only as CUDA's do.

Importing this module names PyTorch's spare backend for the whole process, which cannot be undone, and makes it the
accelerator that ``auto`` finds. Only separate processes (`tests.rehearsal`) import it, never those of other tests.

A tensor of the device is a `Rehearsed`, which wraps the CPU tensor ``held``. Computations with it are dispatched to
`_run`, which refuses what a GPU would refuse, records the traffic between host and device, and computes the rest on
the CPU, with its kernels and random numbers. Factories (``device="rehearsal"``) and autocast's casts are handled by
kernels that are registered for the backend, so no mode need be entered in any thread.
"""

import functools
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree
from torch.utils._mode_utils import no_dispatch
from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend

from tests.rehearsal.events import note

NAME = "rehearsal"


class _Backend(_DummyBackendModule):
    """The functions that PyTorch calls on ``torch.rehearsal``."""

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16]

    def is_bf16_supported(self) -> bool:
        return False

    def get_rng_state(self, device: object = None) -> Tensor:
        return torch.empty(0, dtype=torch.uint8)  # it uses the CPU's random numbers

    def set_rng_state(self, state: Tensor, device: object = None) -> None:
        """Do nothing: the device has no generator."""


_setup_privateuseone_for_python_backend(NAME, backend_module=_Backend())
_apply = torch.nn.Module._apply


def _swap(module: torch.nn.Module, *args: Any, **options: Any) -> torch.nn.Module:
    """Move a module's weights by swapping, which is required because their class changes, even for tied weights."""
    before = torch.__future__.get_swap_module_params_on_conversion()
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        return _apply(module, *args, **options)
    finally:
        torch.__future__.set_swap_module_params_on_conversion(before)


torch.nn.Module._apply = _swap  # type: ignore[method-assign]
DEVICE, _CPU = torch.device(NAME, 0), torch.device("cpu")


class Rehearsed(Tensor):
    """A tensor of the device."""

    held: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, held: Tensor) -> "Rehearsed":
        layout = {"strides": held.stride(), "storage_offset": held.storage_offset()}
        made: Rehearsed = torch.Tensor._make_wrapper_subclass(
            cls, held.size(), dtype=held.dtype, device=DEVICE, **layout
        )
        made.held = held
        return made

    def __init__(self, held: Tensor) -> None:
        """The wrapper is made by `__new__`."""

    def __repr__(self, *, tensor_contents: object = None) -> str:
        return f"{self.held!r} on {self.device}"

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return _run(func, args, kwargs or {})

    def __format__(self, spec: str) -> str:
        note("to host", "format")
        return format(self.held, spec)

    def tolist(self) -> Any:
        note("to host", "tolist")
        return self.held.tolist()

    def numpy(self, *, force: bool = False) -> Any:
        _refuse(
            TypeError,
            f"can't convert {self.device} device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host "
            "memory first.",
            "numpy",
        )

    def untyped_storage(self) -> torch.UntypedStorage:
        return self.held.untyped_storage()  # savers recognise tied tensors by their address


# Computation

_aten = torch.ops.aten
_INDEXING = {_aten.index.Tensor, _aten._unsafe_index.Tensor, _aten.index_put.default, _aten.index_put_.default}
_INDEXING |= {_aten._index_put_impl_.default, _aten._unsafe_index_put.default}
_COPIES = {_aten.copy_.default, _aten._copy_from.default, _aten._to_copy.default}
_TAKES_LENGTHS = {_aten._pack_padded_sequence.default, _aten._pack_padded_sequence_backward.default}
"""Operators that accept and return lengths on the host along with tensors on the device."""
_TAKES_NUMBERS = {_aten.fill_.Tensor, _aten.masked_fill.Tensor, _aten.masked_fill_.Tensor, _aten.where.self}
_TAKES_NUMBERS |= {_aten.full_like.default}
"""Operators that accept numbers on the host, as do all elementwise operators."""
_WAITS = {_aten.nonzero.default, _aten.masked_select.default, _aten.repeat_interleave.Tensor, _aten.bincount.default}
_WAITS |= {_aten._unique2.default, _aten.unique_dim.default, _aten.unique_consecutive.default, _aten.equal.default}
"""Operators for which the host waits, because the result or its size depends on the values."""
_BY_ARGUMENT = {_aten.repeat_interleave.Tensor: "output_size"}
"""Operators that do not wait if this argument specifies the size."""


def _run(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Compute an operator with a tensor or result on the device."""
    flat, spec = _pytree.tree_flatten((args, kwargs))
    tensors = [x for x in flat if isinstance(x, Tensor)]
    wrappers = {id(x.held): x for x in tensors if isinstance(x, Rehearsed)}
    on_device = _result_on_device(func, args, kwargs, bool(wrappers))
    _check_mixing(func, args, tensors)
    _check_generators(func, flat, on_device)
    _note_traffic(func, args, kwargs, tensors, on_device)
    if func is _aten._fused_sdp_choice.default:
        return 0  # attention by plain products, which the CPU's kernels do not decompose
    if func is _aten._copy_from.default:
        return args[1].copy_(args[0])
    on_host = _pytree.tree_unflatten([_on_host(x) for x in flat], spec)
    result = func(*on_host[0], **on_host[1])
    if torch.Tag.inplace_view in func.tags:  # such as `unsqueeze_`: the wrapper's shape changes too
        with no_dispatch(), torch._C._IncludeDispatchKeyGuard(torch._C.DispatchKey.Meta):
            func(*args, **kwargs)
    if not on_device:
        return result
    if func is _aten._pack_padded_sequence.default:
        return Rehearsed(result[0]), result[1]
    return _pytree.tree_map(lambda x: _wrapped(func, x, wrappers), result)


def _on_host(x: Any) -> Any:
    if isinstance(x, Rehearsed):
        return x.held
    return _CPU if isinstance(x, torch.device) else x


def _wrapped(func: Any, x: Any, wrappers: dict[int, Rehearsed]) -> Any:
    """Wrap a result as a tensor of the device; a tensor that was modified in place is returned itself."""
    if not isinstance(x, Tensor):
        return x
    written = wrappers.get(id(x))
    if written is None:
        return Rehearsed(x)
    if written.shape != x.shape or written.stride() != x.stride():
        raise NotImplementedError(f"{func} changes the shape of a tensor in place, which is not rehearsed")
    return written


def _result_on_device(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], any_on_device: bool) -> bool:
    if func is _aten.copy_.default:
        return isinstance(args[0], Rehearsed)
    named = kwargs.get("device")
    return any_on_device if named is None else torch.device(named).type == NAME


def _check_mixing(func: Any, args: tuple[Any, ...], tensors: list[Tensor]) -> None:
    """Raise an error like CUDA's if devices are mixed, except in copies, indices and host numbers."""
    strangers = [x for x in tensors if not isinstance(x, Rehearsed)]
    if not strangers or len(strangers) == len(tensors) or func in _COPIES or func in _TAKES_LENGTHS:
        return
    if func in _INDEXING:
        if not isinstance(args[0], Rehearsed):
            _refuse(
                RuntimeError,
                "indices should be either on cpu or on the same device as the indexed tensor (cpu)",
                str(func),
            )
        strangers = [x for x in args[2:3] if isinstance(x, Tensor) and not isinstance(x, Rehearsed)]
    numbers = func in _TAKES_NUMBERS or func in _INDEXING or torch.Tag.pointwise in func.tags
    written = args[0] if func._schema.is_mutable else None
    if not all(numbers and x.dim() == 0 and x is not written for x in strangers):
        _refuse(
            RuntimeError,
            f"Expected all tensors to be on the same device, but found at least two devices, {DEVICE} and cpu! "
            f"(in {func})",
            str(func),
        )


def _check_generators(func: Any, flat: list[Any], on_device: bool) -> None:
    if on_device and any(isinstance(x, torch.Generator) for x in flat):
        _refuse(RuntimeError, f"Expected a '{NAME}' device type for generator but found 'cpu'", str(func))


def _note_traffic(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], tensors: list[Tensor], on_device: bool
) -> None:
    name = str(func).removeprefix("aten.").removesuffix(".default")
    if func is _aten._local_scalar_dense.default:
        note("to host", name)
    elif func in _COPIES:
        source = args[0] if func is not _aten.copy_.default else args[1]
        from_device = isinstance(source, Rehearsed)
        if func is _aten._copy_from.default:
            on_device = isinstance(args[1], Rehearsed)
        if from_device != on_device:
            note("to device" if on_device else "to host", name)
    elif func in _INDEXING:
        indices = [x for x in args[1] if x is not None]
        for index in indices:
            if not isinstance(index, Rehearsed):
                note("to device", name)
            elif index.dtype in (torch.bool, torch.uint8):
                note("wait", name)
        if any(isinstance(value, Tensor) and not value.dim() for value in args[2:3]):
            note("to device", name)  # the number in `x[indices] = number`, which CUDA reads from host memory
    elif func in _WAITS and kwargs.get(_BY_ARGUMENT.get(func, "")) is None:
        note("wait", name)


def _refuse(error: type[Exception], message: str, operator: str) -> None:
    note("refused", operator)  # a caller that probes an operator ignores the error
    raise error(message)


# Operators that PyTorch dispatches to the backend, below tensor subclasses

_ASKED_FOR = ["empty.memory_format", "empty_strided", "arange", "arange.start", "arange.start_step", "linspace", "eye"]
_ASKED_FOR += ["eye.m", "randperm", "randperm.generator", "_to_copy", "copy_", "_copy_from", "_local_scalar_dense"]
_ASKED_FOR += ["detach", "silu_backward"]  # PyTorch would compute the latter with other operators
_KERNELS = torch.library.Library("aten", "IMPL")


def _operator(name: str) -> Any:
    packet, _, overload = name.partition(".")
    return getattr(getattr(_aten, packet), overload or "default")


def _register(name: str) -> None:
    operator = _operator(name)
    _KERNELS.impl(name, lambda *args, **kwargs: _run(operator, args, kwargs), "PrivateUse1")


for _name in _ASKED_FOR:
    _register(_name)

# Recurrent cells, for which only accelerators have kernels; they are composed, so that they have gradients


def _plus(sums: Tensor, bias: Tensor | None) -> Tensor:
    return sums if bias is None else sums + bias


def _fused_gru_cell(
    of_input: Tensor, of_state: Tensor, state: Tensor, input_bias: Any = None, state_bias: Any = None
) -> tuple[Tensor, Tensor]:
    of_input = _plus(of_input, input_bias)
    x, h = of_input.chunk(3, 1), _plus(of_state, state_bias).chunk(3, 1)
    reset, keep = (h[0] + x[0]).sigmoid(), (h[1] + x[1]).sigmoid()
    candidate = (x[2] + h[2] * reset).tanh()
    return (state - candidate) * keep + candidate, of_input


def _fused_lstm_cell(
    of_input: Tensor, of_state: Tensor, cell: Tensor, input_bias: Any = None, state_bias: Any = None
) -> tuple[Tensor, Tensor, Tensor]:
    of_input = _plus(of_input, input_bias)
    taken, kept, candidate, shown = (_plus(of_state, state_bias) + of_input).chunk(4, 1)
    cell = kept.sigmoid() * cell + taken.sigmoid() * candidate.tanh()
    return shown.sigmoid() * cell.tanh(), cell, of_input


_KERNELS.impl("_thnn_fused_gru_cell", _fused_gru_cell, "AutogradPrivateUse1")
_KERNELS.impl("_thnn_fused_lstm_cell", _fused_lstm_cell, "AutogradPrivateUse1")

# Autocast for the operators in use, by CUDA's lists (https://docs.pytorch.org/docs/stable/amp.html#cuda-op-specific-behavior)

_IN_BFLOAT16 = ["linear", "matmul", "mm", "bmm", "addmm", "baddbmm", "scaled_dot_product_attention", "conv2d"]
_IN_BFLOAT16 += ["convolution", "gru_cell", "lstm_cell"]
_IN_FLOAT32 = ["softmax.int", "log_softmax.int", "layer_norm", "group_norm", "cumsum", "exp", "log", "logsumexp"]
_IN_FLOAT32 += ["pow.Tensor_Scalar", "rsqrt", "sum", "sum.dim_IntList", "norm.Scalar", "nll_loss", "mse_loss"]
_IN_THE_WIDEST = ["cat", "stack", "addcmul", "addcdiv", "index_put", "dot"]


def _register_cast(name: str, to: torch.dtype | None) -> None:
    """Make autocast cast this operator's floating-point tensors to this type; None: the widest of its arguments."""
    operator = _operator(name)

    @functools.wraps(operator)
    def cast(*args: Any, **kwargs: Any) -> Any:
        flat, spec = _pytree.tree_flatten((args, kwargs))
        floats = [x for x in flat if isinstance(x, Tensor) and x.is_floating_point()]
        wanted = to or functools.reduce(torch.promote_types, {x.dtype for x in floats})
        with torch._C._ExcludeDispatchKeyGuard(_AUTOCAST):
            flat = [x.to(wanted) if isinstance(x, Tensor) and x.is_floating_point() and x.dim() else x for x in flat]
            cast_args, cast_kwargs = _pytree.tree_unflatten(flat, spec)
            return operator(*cast_args, **cast_kwargs)

    _KERNELS.impl(name, cast, "AutocastPrivateUse1")


_OTHERS = torch.library.Library("_", "IMPL")
_OTHERS.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")  # are not changed
_AUTOCAST = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastPrivateUse1)
for _names, _dtype in ((_IN_BFLOAT16, torch.bfloat16), (_IN_FLOAT32, torch.float32), (_IN_THE_WIDEST, None)):
    for _name in _names:
        _register_cast(_name, _dtype)
