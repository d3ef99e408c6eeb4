"""Deliberate mistakes of each kind: ``python -m tests.rehearsal.planted`` prints the problems found, as JSON."""

import contextlib
import functools
import json
import sys
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch
from scripts.combinations import PAID, Combination
from torch import Tensor

from groundling.lm.read import scoring
from groundling.lm.write import decoding, steps
from groundling.policies import policy
from tests.rehearsal import model_paths, paths
from tests.rehearsal.cases import rehearse


@contextlib.contextmanager
def mixed_devices() -> Iterator[None]:
    """Leave indices on the CPU."""

    def sums_of(lengths: Any, values: Tensor) -> Tensor:
        owners = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths, dtype=torch.long))
        return torch.zeros(len(lengths), device=values.device).index_add(0, owners, values)

    with mock.patch.object(scoring, "sums_of", sums_of):
        yield


@contextlib.contextmanager
def mixed_and_swallowed() -> Iterator[None]:
    """The same mistake in a probe that interprets an error as an answer."""

    def add(stepper: steps.Stepper, texts: steps.Texts, tokens: Tensor) -> None:
        slots, texts.slots = texts.slots, torch.arange(len(texts.slots))
        original(stepper, texts, tokens)
        texts.slots = slots

    original = steps.Stepper.add
    with mock.patch.object(steps.Stepper, "add", add):
        yield


@contextlib.contextmanager
def copied_in_a_loop() -> Iterator[None]:
    """Copy the tokens of each step to the host."""

    def call(choice: Any, *args: Any) -> Tensor:
        tokens: Tensor = original(choice, *args)
        tokens.cpu()
        return tokens

    original = decoding._Choice.__call__
    with mock.patch.object(decoding._Choice, "__call__", call):
        yield


@contextlib.contextmanager
def taken_to_numpy() -> Iterator[None]:
    """Convert a tensor of the device to an array."""

    def sample(log_probs: Tensor, generator: torch.Generator | None) -> Tensor:
        return torch.from_numpy(log_probs.numpy().argmax(-1)).to(log_probs.device)

    with mock.patch.object(policy, "sample_categorical", sample):
        yield


MISTAKES = (mixed_devices, mixed_and_swallowed, copied_in_a_loop, taken_to_numpy)


def main() -> None:
    acting = functools.partial(
        paths.trained, paths.settings(Combination("text", "action_scoring", "ppo", PAID)), updates=1
    )
    writing = {mixed_and_swallowed, copied_in_a_loop}
    problems = {}
    for mistake in MISTAKES:
        name, play = ("decoding", model_paths.decoded) if mistake in writing else ("acting", acting)
        with mistake():
            problems[mistake.__name__] = rehearse(name, play).problems
    json.dump(problems, sys.stdout)


if __name__ == "__main__":
    main()
