"""Multi-process runs: each process steps its share of the envs and computes its share of every minibatch."""

import atexit
import gc
import importlib
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TypeVar

import torch
from torch import Tensor, distributed

from groundling.errors import GroundlingError, RunError
from groundling.runtime.devices import find_device, launched

S = TypeVar("S")
T = TypeVar("T")
_BUCKET = 2**24  # Elements that are summed over processes in one call: 64 MiB of float32
_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # By element size, for weight checksums
_TIMEOUT = timedelta(hours=12)
"""Maximum wait for the main process while it writes a checkpoint or evaluates a split; PyTorch's default on GPUs is 10
minutes. If a process dies, torchrun or srun terminates the others immediately."""


@dataclass(frozen=True)
class Processes:
    """The processes of a run, as started by torchrun, ``accelerate launch`` or SLURM; by default, only this one."""

    rank: int = 0
    size: int = 1
    _compared: dict[int, weakref.ref[Tensor]] = field(default_factory=dict, repr=False, compare=False)
    """Parameters found to be equal on all processes, by id."""

    @classmethod
    def join(cls, device: str) -> "Processes":
        """If a launcher set ``WORLD_SIZE``, join the group (Gloo on CPUs, NCCL on GPUs) until this process ends."""
        size = launched("WORLD_SIZE", 1)
        if size == 1:
            return cls()
        for name in ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
            launched(name, 0)
        # Imported before the group exists; else default arguments of its functions keep the group alive (see `_leave`).
        importlib.import_module("torch.distributed.nn.functional")
        from accelerate import PartialState

        was_initialized = distributed.is_initialized()
        found = find_device(device)
        state = PartialState(cpu=found.type == "cpu", timeout=_TIMEOUT)
        if state.num_processes != size:
            raise RunError(f"WORLD_SIZE={size}, but {state.num_processes} processes joined the group on {device}")
        if found.type == "cuda":  # Accelerate selects the GPU by rank, and may pick that of another process
            torch.cuda.set_device(found)
        if not was_initialized:
            atexit.register(_leave)
        return cls(state.process_index, size)

    @property
    def is_main(self) -> bool:
        """True for the process that writes, logs and prints."""
        return self.rank == 0

    def share(self, count: int) -> slice:
        """Return this process's share of a sequence of ``count`` items."""
        return slice(count * self.rank // self.size, count * (self.rank + 1) // self.size)

    def gather(self, value: T) -> list[T]:
        """Return every process's value, ordered by rank."""
        if self.size == 1:
            return [value]
        values: list[T | None] = [None] * self.size
        distributed.all_gather_object(values, value)
        return values  # type: ignore[return-value]

    def map(self, work: Callable[[S], T], items: Sequence[S]) -> list[T]:
        """Apply a function to items; each process computes its share, and all of them return all results."""
        done = self.gather([work(item) for item in items[self.share(len(items))]])
        return [result for part in done for result in part]

    def from_main(self, work: Callable[[], T]) -> T:
        """Call a function only in the main process; all processes return its result or raise its `GroundlingError`."""
        if self.size == 1:
            return work()
        done: tuple[T | None, tuple[type[GroundlingError], str] | None] = None, None
        cause: BaseException | None = None
        if self.is_main:
            try:
                done = work(), None
            except GroundlingError as error:
                done, cause = (None, (type(error), str(error))), error.__cause__
        results = [done]
        distributed.broadcast_object_list(results, src=0)  # the others wait for it
        value, failure = results[0]
        if failure is not None:
            raise failure[0](failure[1]) from cause
        return value  # type: ignore[return-value]

    def sum_gradients(self, parameters: Iterable[Tensor]) -> None:
        """Replace gradients with their sums over all processes; raise `RunError` if the weights differ.

        A missing gradient counts as 0; if no process has one, it stays missing, so that the optimizer skips the
        parameter as it would in a single process. Gradients of sharded parameters are summed in the backward pass.
        """
        if self.size == 1:
            return
        whole = [p for p in parameters if not in_parts(p)]
        self._compare(whole)
        for bucket in _buckets(whole):
            missing = [p.grad is None for p in bucket]
            gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in bucket]
            present = [g.new_full((1,), not none) for g, none in zip(gradients, missing, strict=True)]
            flat = torch.cat([*(g.flatten() for g in gradients), *present])
            distributed.all_reduce(flat)
            *totals, counts = flat.split([*(g.numel() for g in gradients), len(bucket)])
            for parameter, total, none, count in zip(bucket, totals, missing, counts, strict=True):
                # Reading the count synchronises with the device, so it is read only where a gradient is missing.
                parameter.grad = None if none and not count else total.view_as(parameter)

    def _compare(self, parameters: list[Tensor]) -> None:
        """Raise `RunError` if a parameter seen for the first time differs between the processes."""
        new = [p for p in parameters if (seen := self._compared.get(id(p))) is None or seen() is not p]
        if not new:
            return
        sums = [int(p.detach().view(_BITS[p.element_size()]).sum(dtype=torch.int64)) for p in new]
        for parameter, all_sums in zip(new, zip(*self.gather(sums), strict=True), strict=True):
            if len(set(all_sums)) > 1:
                raise RunError(
                    f"a weight of shape {tuple(parameter.shape)} differs between the {self.size} processes: call "
                    "torch.manual_seed with the same seed in all of them before initialising weights"
                )
        self._compared.update({id(p): weakref.ref(p) for p in new})

    def sum_figures(self, figures: dict[str, float]) -> dict[str, float]:
        """Sum each metric over all processes; a missing one counts as 0."""
        rows = self.gather(figures)
        names = dict.fromkeys(name for row in rows for name in row)
        return {name: sum(row.get(name, 0.0) for row in rows) for name in names}


def _leave() -> None:
    # Gloo's threads are joined only when nothing references the group; a thread that frees a tensor while Python exits
    # aborts the process. Policies of finished runs may still refer to the group through reference cycles.
    gc.collect()
    distributed.destroy_process_group()


def in_parts(tensor: Tensor) -> bool:
    """Return True for a `DTensor`, which is sharded over the processes, without importing its class."""
    return hasattr(tensor, "full_tensor")


def _buckets(parameters: Iterable[Tensor]) -> Iterator[list[Tensor]]:
    """Yield groups of consecutive parameters with the same dtype and device, of about `_BUCKET` elements each."""
    bucket: list[Tensor] = []
    for parameter in parameters:
        full = sum(p.numel() for p in bucket) + parameter.numel() > _BUCKET
        if bucket and (full or (parameter.dtype, parameter.device) != (bucket[0].dtype, bucket[0].device)):
            yield bucket
            bucket = []
        bucket.append(parameter)
    if bucket:
        yield bucket
