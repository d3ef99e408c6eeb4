"""`groundling distill`: train a reward model on a judge's preferences."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from groundling.cli.command import Commands, add_command, add_overrides, refuse_unused
from groundling.errors import ConfigError
from groundling.io.terminal import make_console, warn

if TYPE_CHECKING:
    from groundling.training.distillation import DistillationConfig


def add_parser(commands: Commands) -> None:
    parser = add_command(
        commands,
        "distill",
        run,
        "train a reward model on a judge's preferences",
        examples="""
        groundling distill data/pairs --preferences rules --output data/reward
        groundling distill pairs.jsonl --output data/reward                       chosen and rejected texts
        """,
    )
    add = parser.add_argument
    text = "a folder of preference pairs labelled by `groundling annotate`, or a file of chosen and rejected texts"
    add("dataset", help=text)
    add_overrides(parser, "e.g. learning_rate=1e-4 epochs=20")
    add("--preferences", metavar="NAME", help="the annotator whose labels the model learns; required for a folder")
    text = "motif, characters, language_model, table or classifier (default: motif for NetHack's messages, characters "
    add("--model", help=text + "for other captions)")
    text = "folder of the reward model; the same command resumes interrupted training"
    add("--output", type=Path, required=True, metavar="FOLDER", help=text)


def run(arguments: argparse.Namespace) -> int:
    config = read_config(arguments)
    from groundling.training.distillation import distill, has_accuracy

    console = make_console()
    row = distill(config, arguments.output, console, warn)
    if has_accuracy(row):
        console.print(f"held-out accuracy {row['validation_accuracy']:.3f}, excluding ties")
    console.print(f"reward model: {arguments.output}")
    return 0


def read_config(arguments: argparse.Namespace) -> "DistillationConfig":
    """Read the configuration from the command line."""
    import groundling.worlds  # noqa: F401  (registers the worlds' subjects)
    from groundling.config.overrides import parse, set_value
    from groundling.errors import unknown
    from groundling.judges.asking.questions import find_subject
    from groundling.judges.reward_models import reward_models
    from groundling.registry import ComponentConfig, check_arguments, named_parameters
    from groundling.training.distillation import DistillationConfig, subject_of

    if Path(arguments.dataset).is_file():
        refuse_unused(arguments, f"with {arguments.dataset}, which contains its own labels", "preferences")
    elif arguments.preferences is None:
        raise ConfigError("--preferences is missing: specify the annotator whose labels the model learns")
    changes = parse(arguments.overrides)
    known = set(named_parameters(DistillationConfig)) - {"dataset", "preferences"}
    model = arguments.model or find_subject(subject_of(arguments.dataset)).reward_model
    labels = arguments.preferences or ""
    values = {"dataset": arguments.dataset, "preferences": labels, "model": {"id": model}}
    if not labels:  # a file has thousands of pairs, but the defaults are for half a million
        values |= {"batch_size": 32, "learning_rate": 5e-5 if model == "language_model" else 1e-3}
    for text, change in zip(arguments.overrides, changes, strict=True):
        if change.takes_out:
            raise ConfigError(f"cannot read {text!r:.200}: expected key=value")
        if change.key.partition(".")[0] not in known:
            raise ConfigError(unknown("key", change.key, known))
        set_value(values, change.key, change.value)
    values["model"] = ComponentConfig.of(values["model"])
    check_arguments(DistillationConfig, values, "groundling distill")
    config = DistillationConfig(**values)
    reward_models.check(config.model.id, config.model.args, "model")
    return config
