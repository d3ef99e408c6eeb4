"""Preference pairs as reward models are trained on them: distinct messages, and which of them each segment holds."""

import math
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from groundling.envs.nethack.observation import message_id
from groundling.errors import ConfigError
from groundling.judges.reward_models.messages import message_ids

_TARGETS = np.array([[1, 0], [0, 1], [0.5, 0.5], [np.nan, np.nan]], dtype=np.float32)
"""By the code of a preference (first, second, tie, unknown), the probability that each segment is preferred."""
_ROWS_READ = 16_384
"""Pairs whose messages are read at once from a memory-mapped file."""


@dataclass(frozen=True)
class TrainingPairs:
    """N annotated pairs of segments of L messages each; all on the CPU.

    NetHack's messages repeat: a million of random play are some thousand distinct ones. A labelled message, as ONI's
    classifier is trained on, is a "pair" of one side with one message: indices (N, 1, 1), targets (N, 1).
    """

    messages: Tensor
    """uint8 (num_distinct, 256), the shortest first."""
    indices: Tensor
    """int64 (N, 2, L): which of ``messages``."""
    targets: Tensor
    """float32 (N, 2): the probability that each of the two segments is preferred; rows sum to 1."""

    @classmethod
    def of(
        cls,
        messages: NDArray[np.uint8],
        preferences: NDArray[np.integer],
        soft: NDArray[np.floating] | None = None,
    ) -> Self:
        """From a dataset's arrays; pairs without an answer are left out.

        Args:
            messages: uint8 (N, 2, L, 256), maybe memory-mapped.
            preferences: (N,), codes of `Preference`: 0 first, 1 second, 2 tie, 3 unknown.
            soft: float (N, 3), a judge's probabilities of first, second and tie; NaN where only the code is known. A
                tie counts one half for each side.

        Raises:
            ConfigError: no pair has an answer.
        """
        annotated = np.flatnonzero(preferences != 3)
        if not len(annotated):
            raise ConfigError(
                f"none of the {len(preferences)} pairs has an answer: run `groundling annotate` first"
            )
        targets = _TARGETS[preferences[annotated]]
        if soft is not None:
            told = soft[annotated]
            shares = told[:, :2] + told[:, 2:] / 2
            shares = shares / shares.sum(-1, keepdims=True)  # probabilities come rounded
            targets = np.where(np.isnan(shares), targets, shares).astype(np.float32)
        distinct, indices = _distinct(messages, annotated)
        return cls(torch.from_numpy(distinct), torch.from_numpy(indices), torch.from_numpy(targets))

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, rows: Tensor) -> "TrainingPairs":
        """The pairs of these numbers."""
        return TrainingPairs(self.messages, self.indices[rows], self.targets[rows])

    def counts(self) -> Tensor:
        """int64 (num_distinct,): how often each message occurs in the pairs."""
        return torch.bincount(self.indices.flatten(), minlength=len(self.messages))

    def split(self, validation_fraction: float, seed: int) -> "tuple[TrainingPairs, TrainingPairs]":
        """Training and validation pairs, so that no pair of segments is in both, in whichever order.

        The share is one of the *distinct* pairs: of all pairs few contents make up the most, and a share of those alone
        would leave none of the rare messages to train on. Distinct pairs are put into an order that follows from their
        contents and the seed alone, and the first are held out with all their repetitions; but never more than the same
        share of all pairs, so that one which repeats more often than that is trained on.

        Args:
            validation_fraction: From 0 to less than 1.
            seed: Another one gives another split.

        Raises:
            ConfigError: one side would be empty.
        """
        hashes = _content_hashes(self.messages.numpy(), self.indices.numpy(), seed)
        distinct, group, counts = np.unique(hashes, return_inverse=True, return_counts=True)
        held_out, room = np.zeros(len(distinct), dtype=bool), int(validation_fraction * len(self))
        left = math.ceil(validation_fraction * len(distinct))
        for number, count in enumerate(counts.tolist()):
            if left and count <= room:
                held_out[number] = True
                room -= count
                left -= 1
        rows = torch.from_numpy(held_out[group])
        sides = self[(~rows).nonzero()[:, 0]], self[rows.nonzero()[:, 0]]
        if not len(sides[0]) or (validation_fraction > 0 and not len(sides[1])):
            raise ConfigError(
                f"validation_fraction={validation_fraction} leaves {len(sides[0])} pairs to train on and "
                f"{len(sides[1])} to validate on, of {len(self)}: collect and annotate more pairs"
            )
        return sides


def _distinct(
    messages: NDArray[np.uint8], rows: NDArray[np.intp]
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """The distinct messages (num_distinct, 256) of some rows, shortest first; and those rows as indices (n, 2, L)."""
    ids = np.empty((len(rows), *messages.shape[1:3]), dtype=np.int64)
    known: dict[int, NDArray[np.uint8]] = {}
    for start in range(0, len(rows), _ROWS_READ):
        chunk = messages[rows[start : start + _ROWS_READ]]  # (n, 2, L, 256)
        ids[start : start + _ROWS_READ] = own = message_ids(chunk)
        new, first = np.unique(own, return_index=True)
        flat = chunk.reshape(-1, chunk.shape[-1])
        for id, place in zip(new.tolist(), first.tolist(), strict=True):
            if id not in known:
                known[id] = flat[place].copy()
    keys, indices = np.unique(ids, return_inverse=True)
    distinct = np.stack([known[key] for key in keys.tolist()])
    order = np.lexsort((keys, np.count_nonzero(distinct, axis=1)))  # by length, then by id
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.arange(len(order))
    return distinct[order], rank[indices.reshape(ids.shape)]


def _content_hashes(messages: NDArray[np.uint8], indices: NDArray[np.int64], seed: int) -> NDArray[np.uint64]:
    """One number per pair (N,), which follows from the two segments, in whichever order, and the seed.

    A segment is its messages in their order, without the empty ones and without repetitions, so that captions that
    differ only in how often something was told are one here.
    """
    ids = message_ids(messages)[indices].view(np.uint64)  # (N, 2, L)
    segments = np.zeros(ids.shape[:2], dtype=np.uint64)
    last = np.zeros_like(segments)
    empty = np.int64(message_id(b"")).view(np.uint64)
    for step in range(ids.shape[2]):
        now = ids[..., step]
        told = (now != empty) & (now != last)
        segments = np.where(told, _mixed(segments ^ now), segments)
        last = np.where(now != empty, now, last)
    unordered = _mixed(segments[:, 0]) + _mixed(segments[:, 1])
    salt = _mixed(np.array([seed], dtype=np.uint64))
    return _mixed(unordered ^ salt)


def _mixed(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """SplitMix64: a bijection that spreads what differs over all bits."""
    z = x + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))
