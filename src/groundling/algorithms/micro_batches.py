"""Micro-batches: how the processes share a minibatch, and what each computes at once."""

from collections.abc import Hashable, Iterator, Sequence

import torch
from torch import Tensor

from groundling.policies.policy import Work
from groundling.runtime.processes import Processes


def micro_batches(indices: Tensor, size: int, work: Sequence[Work] | None, processes: Processes) -> Iterator[Tensor]:
    """Cut this process's share of a minibatch's ``indices`` into pieces of at most ``size``.
    Each element is in one piece of one process. With ``work``, elements of similar length are put together, to save
    padding; those of one key into one process, unless another would get none; and the steps of a conversation into one
    piece.
    """
    if work is None:
        share = indices[processes.rank :: processes.size]
        yield from share.split(size) if len(share) else ()  # split gives one piece of an empty tensor
        return
    together: dict[Hashable, list[int]] = {}
    for index in sorted(indices.tolist(), key=lambda i: work[i].tokens):
        together.setdefault(work[index].key, []).append(index)
    even = max(1, len(indices) // processes.size)
    groups = [alike[first : first + even] for alike in together.values() for first in range(0, len(alike), even)]
    piece: list[int] = []
    for group in groups[processes.rank :: processes.size]:
        if piece and work[group[0]].text is not None and len(piece) + len(group) > size:
            yield torch.tensor(piece)
            piece = []
        for index in group:
            if len(piece) == size:
                yield torch.tensor(piece)
                piece = []
            piece.append(index)
    if piece:
        yield torch.tensor(piece)


def max_micro_batches(indices: Tensor, size: int, work: Sequence[Work] | None, processes: Processes) -> int:
    """Largest number of `micro_batches` that any process has."""
    everyone = [Processes(rank, processes.size) for rank in range(processes.size)]
    return max(len(list(micro_batches(indices, size, work, process))) for process in everyone)
