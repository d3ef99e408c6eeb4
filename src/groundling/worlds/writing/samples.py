"""A pool's samples, each checked when it is read."""

import warnings
from collections.abc import Iterator, Sequence
from typing import Any

from groundling.envs.text_generation import Sample, pools
from groundling.envs.text_generation.columns import FilePool
from groundling.envs.text_generation.pools import Split
from groundling.errors import ConfigError, GroundlingError, foreign
from groundling.worlds.writing.config import WritingConfig


def samples_of(config: WritingConfig, split: Split) -> Sequence[Sample]:
    """Return a split of a pool. The first sample is read now, the others when needed; both may raise
    `GroundlingError`.
    """
    pool = pools.create(config.pool, **config.args)
    asked = f"pool {config.pool!r}, asked for {split},"
    with foreign(asked):
        given = pool.prepare(split)
    if not (hasattr(given, "__len__") and hasattr(given, "__getitem__")):
        raise ConfigError(f"{asked} must give a list of Sample, got {given!r:.80}")
    samples = _Samples(given, asked)
    if len(samples):
        samples[0]
    return samples


def warn_about_shared_prompts(config: WritingConfig, training: Sequence[Sample], validated: bool) -> None:
    """Warn if a held-out split has training prompts. Only cheap splits are read: val if training measures it anyway
    (``validated``), and all splits of files.
    """
    pool = pools.create(config.pool, **config.args)
    splits: list[Split] = ["val", "test"] if isinstance(pool, FilePool) else ["val"] if validated else []
    trained = set(map(_question, training)) if splits else set()
    for split in splits if getattr(pool, "has_splits", True) else ():
        try:
            held_out = [_question(sample) for sample in samples_of(config, split)]
        except GroundlingError:  # raised again when the split is used
            continue
        if shared := [asked for asked in held_out if asked in trained]:
            warnings.warn(
                f"pool {config.pool!r}: {len(shared)} of {len(held_out)} {split} prompts are training prompts as well, "
                f"such as {shared[0][-1]!r:.80}: figures of {split} are partly of prompts that were trained on",
                stacklevel=2,
            )


def _question(sample: Sample) -> tuple[object, ...]:
    """Return everything that a sample's text answers; the prompt is last."""
    return sample.system, sample.earlier, sample.prompt


class _Samples(Sequence[Sample]):
    def __init__(self, given: Any, asked: str) -> None:
        self._given, self._asked = given, asked

    def __len__(self) -> int:
        return len(self._given)

    def __iter__(self) -> Iterator[Sample]:
        return (self[place] for place in range(len(self)))

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice):
            return [self[i] for i in range(*place.indices(len(self)))]
        with foreign(self._asked):
            sample = self._given[place]
        if not isinstance(sample, Sample):
            raise ConfigError(f"{self._asked} must give a list of Sample, got {sample!r:.80} at {place}")
        return sample
