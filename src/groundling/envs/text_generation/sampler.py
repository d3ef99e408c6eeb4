"""The order of samples: a pure function of a seed and a count, so that a run resumes exactly."""

import hashlib
import warnings
from collections.abc import Sequence
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np

from groundling.envs.text_generation.pools import Sample
from groundling.errors import GroundlingError, RunError


class SampleOrder:
    """An endless order of a split's samples. The k-th sample depends on the seed and k alone. Each of several
    processes draws the whole batch and takes its share, so the order is that of one process.

    Args:
        replacement: Draw samples uniformly and independently, as the original does; otherwise in shuffled epochs.
    """

    def __init__(self, samples: Sequence[Sample], seed: int, replacement: bool = True) -> None:
        if not len(samples):
            raise GroundlingError("there are no samples to draw from")
        self.samples = samples
        self.seed = seed
        self.replacement = replacement
        self.drawn = 0
        self._epoch, self._shuffled = -1, np.zeros(0, np.int64)

    def draw(self, count: int) -> list[Sample]:
        first, self.drawn = self.drawn, self.drawn + count
        return [self.samples[self._index(k)] for k in range(first, self.drawn)]

    def state_dict(self) -> dict[str, Any]:
        return {"seed": self.seed, "drawn": self.drawn, "num_samples": len(self.samples), "samples": self._fingerprint}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Return to the position of `state_dict`; raise `RunError` for another number of samples: another order."""
        if state["num_samples"] != len(self.samples):
            raise RunError(
                f"the samples have changed: there were {state['num_samples']}, now there are {len(self.samples)}; "
                "give the run the data that it began with, or begin a new run"
            )
        if state.get("samples", self._fingerprint) != self._fingerprint:  # earlier checkpoints lack it
            warnings.warn(  # no error: a row that stopped the run may have been corrected
                f"the samples have changed: there are {len(self.samples)} as before, but not the same ones in the same "
                "order; continuing with these",
                stacklevel=2,
            )
        self.seed, self.drawn, self._epoch = state["seed"], state["drawn"], -1

    @cached_property
    def _fingerprint(self) -> str:
        """Hash of the samples' ids, prompts, references and earlier turns, in their order."""
        sha256 = hashlib.sha256()
        for sample in self.samples:
            system = [] if sample.system is None else [sample.system]
            for part in (sample.id, sample.prompt, *sample.references, *chain(*sample.earlier), *system):
                encoded = str(part).encode("utf-8", "surrogatepass")
                sha256.update(len(encoded).to_bytes(8, "big") + encoded)
            sha256.update(b"\xff" * 8)  # not a length: separates samples
        return sha256.hexdigest()

    def _index(self, k: int) -> int:
        if self.replacement:
            word = int(np.random.SeedSequence((self.seed, k)).generate_state(1, np.uint64)[0])
            return word * len(self.samples) >> 64  # uniform up to num_samples / 2⁶⁴
        epoch, place = divmod(k, len(self.samples))
        if epoch != self._epoch:
            self._epoch = epoch
            self._shuffled = np.random.default_rng((self.seed, epoch)).permutation(len(self.samples))
        return int(self._shuffled[place])
