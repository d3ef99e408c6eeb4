"""Which sample comes next: a pure function of a seed and a count, so that a run resumes exactly."""

import hashlib
import warnings
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from groundling.envs.text_generation.pools import Sample
from groundling.errors import GroundlingError, RunError


class SampleOrder:
    """An endless order of a split's samples.

    The k-th drawn sample depends on the seed and k alone. Of several processes each draws the whole batch and takes its
    share, so that the order is that of one process.

    Args:
        samples: The split.
        seed: Of the order.
        replacement: Draw each uniformly and independently of the others, as the original does; if not, in epochs that
            have every sample once, each shuffled anew.

    Raises:
        GroundlingError: there are no samples.
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
        """The next `count` samples."""
        first, self.drawn = self.drawn, self.drawn + count
        return [self.samples[self._index(k)] for k in range(first, self.drawn)]

    def state_dict(self) -> dict[str, Any]:
        """Everything that the rest of the order depends on, as JSON holds it."""
        return {
            "seed": self.seed,
            "drawn": self.drawn,
            "num_samples": len(self.samples),
            "samples": self._fingerprint,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state_dict` was taken.

        Raises:
            RunError: the split had another number of samples then, so that this would be another order.
        """
        if state["num_samples"] != len(self.samples):
            raise RunError(
                f"the samples have changed: there were {state['num_samples']}, now there are {len(self.samples)}; "
                "give the run the data that it began with, or begin a new run"
            )
        if state.get("samples", self._fingerprint) != self._fingerprint:  # earlier checkpoints do not tell
            warnings.warn(  # no error: a row that stopped the run may have been mended
                f"the samples have changed: there are {len(self.samples)} as before, but not the same ones in the same "
                "order; going on with these",
                stacklevel=2,
            )
        self.seed, self.drawn, self._epoch = state["seed"], state["drawn"], -1

    @cached_property
    def _fingerprint(self) -> str:
        """Of the samples' ids, prompts, references and what was said before, in their order."""
        sha256 = hashlib.sha256()
        for sample in self.samples:
            before = [text for turn in sample.earlier for text in turn]
            system = [] if sample.system is None else [sample.system]
            for part in (sample.id, sample.prompt, *sample.references, *before, *system):
                encoded = str(part).encode("utf-8", "surrogatepass")
                sha256.update(len(encoded).to_bytes(8, "big") + encoded)
            sha256.update(b"\xff" * 8)  # no length: the next sample's
        return sha256.hexdigest()

    def _index(self, k: int) -> int:
        if self.replacement:
            word = int(np.random.SeedSequence((self.seed, k)).generate_state(1, np.uint64)[0])
            return word * len(self.samples) >> 64  # even but for one part in 2⁶⁴ / num_samples
        epoch, place = divmod(k, len(self.samples))
        if epoch != self._epoch:
            self._epoch = epoch
            self._shuffled = np.random.default_rng((self.seed, epoch)).permutation(len(self.samples))
        return int(self._shuffled[place])
