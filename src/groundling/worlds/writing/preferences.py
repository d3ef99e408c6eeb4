"""Rollouts of a pool's preferences between texts, for DPO and KTO."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from groundling.algorithms.algorithm import Algorithm
from groundling.algorithms.rollout import Rollout
from groundling.envs.text_generation import Sample, SampleOrder
from groundling.errors import ConfigError
from groundling.policies.policy import Policy
from groundling.worlds.episode import Episode
from groundling.worlds.writing.collect import Column, References, as_writer
from groundling.worlds.writing.config import PromptEncoder


class PreferencePairs(References):
    """Collects pairs in adjacent columns, the chosen text first; ``log_probs`` are those of the reference model.
    For the arguments, see `References`.
    """

    texts_per_sample = 2

    def __init__(self, order: SampleOrder, encode: PromptEncoder, num_texts: int, *args: Any) -> None:
        if num_texts % 2:
            raise ConfigError(f"world.num_texts={num_texts} must be even, because each example has two texts")
        super().__init__(order, encode, num_texts, *args)

    def lacking(self, sample: Sample) -> str | None:
        asks = "chosen and rejected text (for a text with a label, use `groundling train kto`)"
        return None if sample.references and sample.rejected else asks

    def columns(self, samples: Sequence[Sample], epochs: Sequence[int]) -> list[Column]:
        return [
            column
            for sample in samples
            for column in (Column(sample, sample.references[0], 1.0), Column(sample, sample.rejected[0]))
        ]

    @torch.no_grad()
    def collect(
        self, policy: Policy, *, generator: torch.Generator, on_step: Callable[[int], None] = lambda transitions: None
    ) -> tuple[Rollout, list[Episode]]:
        rollout, episodes = super().collect(policy, generator=generator, on_step=on_step)
        rollout.log_probs = as_writer(policy).reference_log_probs(rollout.observations, rollout.actions.T).T
        return rollout, episodes


class Labelled(PreferencePairs):
    """Collects texts whose reward is their label, 1 or 0. Next to each text, a second column combines its prompt with
    the text of another sample, for KTO's estimate of the KL. A sample with several texts counts as one sample per text.
    """

    def __init__(self, order: SampleOrder, encode: PromptEncoder, num_texts: int, *args: Any) -> None:
        super().__init__(SampleOrder(_apart(order.samples), order.seed, False), encode, num_texts, *args)

    def lacking(self, sample: Sample) -> str | None:
        return None if sample.references or sample.rejected else "labelled text"

    def columns(self, samples: Sequence[Sample], epochs: Sequence[int]) -> list[Column]:
        texts = [(*sample.references, *sample.rejected)[0] for sample in samples]
        columns = []
        for place, sample in enumerate(samples):
            columns.append(Column(sample, texts[place], float(bool(sample.references))))
            columns.append(Column(sample, texts[place - 1], learned=False))
        return columns


def _apart(samples: Sequence[Sample]) -> list[Sample]:
    """Split samples into one sample per text."""
    return [
        replace(
            sample, id=f"{sample.id}-{place}", references=(text,) if good else (), rejected=() if good else (text,)
        )
        for sample in samples
        for place, text in enumerate((*sample.references, *sample.rejected))
        for good in [place < len(sample.references)]
    ]


OFFLINE: dict[str, type[References]] = {"references": References, "pairs": PreferencePairs, "labels": Labelled}
"""Collectors by the kind of data that an algorithm learns from (`Algorithm.learns_from`)."""


def held_out(
    samples: Sequence[Sample], algorithm: Algorithm, policy: Policy, encode: PromptEncoder, num_tokens: int
) -> Rollout:
    """Return all samples of a held-out split in one rollout."""
    writer, count = as_writer(policy), 2 * len(_apart(samples) if algorithm.learns_from == "labels" else samples)
    order, rows = SampleOrder(samples, 0, replacement=False), slice(0, count)
    collector = OFFLINE[algorithm.learns_from](order, encode, count, rows, num_tokens, writer.lm.is_encoder_decoder)
    return collector.collect(writer, generator=torch.Generator())[0]
