"""Several processes, one run: each steps its share of the envs and computes its share of every minibatch."""

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
_BUCKET = 2**24
"""Elements that are summed over processes in one go: 64 MiB of float32."""
_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""By the bytes of an element: as what its bits are summed."""
_TIMEOUT = timedelta(hours=12)
"""How long processes wait for one that works alone, as the main one does while it writes a checkpoint or measures a
validation split: PyTorch's own limit, 10 minutes on GPUs, would end the run. Where a process dies, torchrun or srun
ends the others at once."""


@dataclass(frozen=True)
class Processes:
    """The processes of a run, as torchrun, ``accelerate launch`` or SLURM started them; by default this one alone."""

    rank: int = 0
    size: int = 1
    _compared: dict[int, weakref.ref[Tensor]] = field(default_factory=dict, repr=False, compare=False)
    """By their ids, the parameters that were found to be the same on all processes."""

    @classmethod
    def join(cls, device: str) -> "Processes":
        """Meet the other processes: gloo on CPUs, NCCL on GPUs. Alone if no launcher set ``WORLD_SIZE``.

        They stay together until this process ends, through all runs of a sweep.

        Raises:
            RunError: they do not find each other.
        """
        size = launched("WORLD_SIZE", 1)
        if size == 1:
            return cls()
        for name in ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
            launched(name, 0)
        # Its functions' defaults name the group that there is when it is imported, and would hold it (see `_leave`).
        importlib.import_module("torch.distributed.nn.functional")
        from accelerate import PartialState

        met_before = distributed.is_initialized()
        own = find_device(device)
        state = PartialState(cpu=own.type == "cpu", timeout=_TIMEOUT)
        if state.num_processes != size:
            raise RunError(
                f"WORLD_SIZE={size} processes were started, but {state.num_processes} met on {device}"
            )
        if own.type == "cuda":  # accelerate takes the GPU of the rank, which may be in another's share
            torch.cuda.set_device(own)
        if not met_before:
            atexit.register(_leave)
        return cls(state.process_index, size)

    @property
    def is_main(self) -> bool:
        """Whether this process writes, logs and shows what all of them do."""
        return self.rank == 0

    def share(self, count: int) -> slice:
        """Which of ``count`` things in a row are this process's."""
        return slice(count * self.rank // self.size, count * (self.rank + 1) // self.size)

    def gather(self, value: T) -> list[T]:
        """Every process's value, in the order of their ranks."""
        if self.size == 1:
            return [value]
        values: list[T | None] = [None] * self.size
        distributed.all_gather_object(values, value)
        return values  # type: ignore[return-value]

    def map(self, work: Callable[[S], T], things: Sequence[S]) -> list[T]:
        """What ``work`` gives for each of ``things``; each process does its share of them, and all get everything."""
        done = self.gather([work(thing) for thing in things[self.share(len(things))]])
        return [result for part in done for result in part]

    def agree(self, value: T) -> T:
        """The main process's value, on all; also where they wait for each other."""
        if self.size == 1:
            return value
        values = [value]
        distributed.broadcast_object_list(values, src=0)
        return values[0]

    def from_main(self, work: Callable[[], T]) -> T:
        """What ``work`` gives, which the main process does alone; a `GroundlingError` is raised on all, so that none
        waits for one that has ended.
        """
        if self.size == 1:
            return work()
        done: tuple[T | None, tuple[type[GroundlingError], str] | None] = None, None
        cause: BaseException | None = None
        if self.is_main:
            try:
                done = work(), None
            except GroundlingError as error:
                done, cause = (None, (type(error), str(error))), error.__cause__
        value, met = self.agree(done)
        if met is not None:
            raise met[0](met[1]) from cause
        return value  # type: ignore[return-value]

    def sum_gradients(self, parameters: Iterable[Tensor]) -> None:
        """Put the sum of all processes' gradients into each of theirs.

        Where a process has none, it counts as 0; where no process has one there is none after it either, so that an
        optimiser leaves the weights that one process would leave.

        Those of parameters in parts have been summed in the backward pass.

        Raises:
            RunError: the processes began with different weights, which would stay so.
        """
        if self.size == 1:
            return
        whole = [p for p in parameters if not in_parts(p)]
        self._compare(whole)
        for bucket in _buckets(whole):
            absent = [p.grad is None for p in bucket]
            gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in bucket]
            present = [g.new_full((1,), not none) for g, none in zip(gradients, absent, strict=True)]
            flat = torch.cat([*(g.flatten() for g in gradients), *present])
            distributed.all_reduce(flat)
            *totals, counts = flat.split([*(g.numel() for g in gradients), len(bucket)])
            for parameter, total, none, count in zip(bucket, totals, absent, counts, strict=True):
                # The device is asked only by a process that has none.
                parameter.grad = None if none and not count else total.view_as(parameter)

    def _compare(self, parameters: list[Tensor]) -> None:
        """Raise `RunError` where a parameter that comes for the first time differs between the processes."""
        new = [p for p in parameters if (seen := self._compared.get(id(p))) is None or seen() is not p]
        if not new:
            return
        sums = [int(p.detach().view(_BITS[p.element_size()]).sum(dtype=torch.int64)) for p in new]
        for parameter, everyones in zip(new, zip(*self.gather(sums), strict=True), strict=True):
            if len(set(everyones)) > 1:
                raise RunError(
                    f"a weight of shape {tuple(parameter.shape)} differs between the {self.size} processes, and would "
                    "stay so: call torch.manual_seed with one number in all of them before weights are drawn"
                )
        self._compared.update({id(p): weakref.ref(p) for p in new})

    def sum_figures(self, figures: dict[str, float]) -> dict[str, float]:
        """The sum over all processes of each figure; a process that has none of a name counts as 0."""
        rows = self.gather(figures)
        names = dict.fromkeys(name for row in rows for name in row)
        return {name: sum(row.get(name, 0.0) for row in rows) for name in names}


def _leave() -> None:
    # Only when nothing holds the group are gloo's threads waited for. One that still lets go of a tensor while Python
    # ends aborts the process, whose run has long been done. Policies of runs that have ended may hold it, in cycles.
    gc.collect()
    distributed.destroy_process_group()


def in_parts(tensor: Tensor) -> bool:
    """Whether it is a `DTensor`, of which each process has a part; asked so that runs of one need not import it."""
    return hasattr(tensor, "full_tensor")


def _buckets(parameters: Iterable[Tensor]) -> Iterator[list[Tensor]]:
    """Neighbours of one dtype on one device, about `_BUCKET` elements together."""
    bucket: list[Tensor] = []
    for parameter in parameters:
        full = sum(p.numel() for p in bucket) + parameter.numel() > _BUCKET
        if bucket and (full or (parameter.dtype, parameter.device) != (bucket[0].dtype, bucket[0].device)):
            yield bucket
            bucket = []
        bucket.append(parameter)
    if bucket:
        yield bucket
