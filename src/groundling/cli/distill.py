"""`groundling distill`: train a reward model on a judge's preferences."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from groundling.cli.command import Commands, add_command, add_overrides
from groundling.errors import ConfigError
from groundling.io.console import make_console, warn

if TYPE_CHECKING:
    from groundling.training.distillation import DistillationConfig


def add_parser(commands: Commands) -> None:
    """Add `groundling distill`."""
    parser = add_command(
        commands,
        "distill",
        run,
        "train a reward model on a judge's preferences",
        examples="""
        groundling distill data/pairs --preferences rules --output data/reward
        """,
    )
    add = parser.add_argument
    add("dataset", help="a folder of preference pairs that `groundling annotate` labelled")
    add_overrides(parser, "e.g. learning_rate=1e-4 epochs=20")
    add("--preferences", required=True, metavar="NAME", help="the annotator whose labels are learnt")
    text = "motif, characters, language_model, table or classifier (default: motif for NetHack's messages, characters "
    add("--model", help=text + "for other captions)")
    text = "folder of the reward model; the same command resumes a training that was stopped"
    add("--output", type=Path, required=True, metavar="FOLDER", help=text)


def run(arguments: argparse.Namespace) -> int:
    """Run the command; return its exit status."""
    config = read_config(arguments)
    from groundling.training.distillation import distill, has_accuracy

    console = make_console()
    row = distill(config, arguments.output, console, warn)
    if has_accuracy(row):
        console.print(f"held-out accuracy {row['validation_accuracy']:.3f} on pairs that are not ties")
    console.print(f"reward model: {arguments.output}")
    return 0


def read_config(arguments: argparse.Namespace) -> "DistillationConfig":
    """Read the configuration from the command line.

    Raises:
        ConfigError: a key, model or argument is unknown, or a value is invalid.
    """
    from dataclasses import fields

    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    import groundling.worlds  # noqa: F401  (registers the worlds' subjects)
    from groundling.config.grammar import read
    from groundling.judges.asking.subjects import find_subject
    from groundling.judges.preferences import open_pairs
    from groundling.judges.reward_models import reward_models
    from groundling.registry import check_component, unknown
    from groundling.training.distillation import DistillationConfig

    known = {f.name for f in fields(DistillationConfig)} - {"dataset", "preferences"}
    for text in arguments.overrides:
        key, equals, _ = text.partition("=")
        if not equals:
            raise ConfigError(f"cannot read {text!r}: expected key=value, such as learning_rate=1e-4")
        if key.partition(".")[0] not in known:
            raise ConfigError(unknown("key", key, known))
    changes = [read(text) for text in arguments.overrides]
    for text, change in zip(arguments.overrides, changes, strict=True):
        if change.is_delete() or change.is_sweep_override():
            raise ConfigError(f"cannot read {text!r:.200}: expected key=value, with one value")
    named = {
        "dataset": arguments.dataset,
        "preferences": arguments.preferences,
        "model": {"id": arguments.model or find_subject(open_pairs(arguments.dataset).world).reward_model},
    }
    try:
        schema = OmegaConf.structured(DistillationConfig)
        merged = OmegaConf.merge(schema, named)
        for change in changes:
            OmegaConf.update(merged, change.key_or_group, change.value(), merge=True)
        config = OmegaConf.to_object(merged)
    except OmegaConfBaseException as error:
        raise ConfigError(f"{error.full_key}: {str(error).splitlines()[0]}") from error
    assert isinstance(config, DistillationConfig)
    check_component(reward_models, config.model, "model")
    return config
