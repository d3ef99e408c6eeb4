"""Tests of `groundling convert`."""

from collections.abc import Sequence
from pathlib import Path

from groundling.cli.main import main
from groundling.config.schema import Config
from groundling.convert.experiment import convert


def read(path: Path, words: Sequence[str] = ()) -> tuple[Config, list[str]]:
    """Return the config and the notes to which a file is converted."""
    converted = convert(path, words)
    return converted.config, converted.notes


def convert_and_train(path: Path, words: Sequence[str], overrides: Sequence[str]) -> int:
    """Run `groundling convert` with ``words`` and `groundling train` with ``overrides``; return the exit status."""
    experiment = path.with_name("experiment.yaml")
    status = main(["convert", str(path), *words, "--output", str(experiment)])
    return status or main(["train", str(experiment), *overrides])
