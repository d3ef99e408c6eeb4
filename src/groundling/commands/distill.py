"""`groundling distill`: a judge's preferences become a reward model."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from groundling.errors import ConfigError

if TYPE_CHECKING:
    from groundling.training.distillation import DistillationConfig


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> argparse.ArgumentParser:
    """Add the command to ``groundling``'s."""
    help = "train a reward model on what a judge prefers"
    parser: argparse.ArgumentParser = commands.add_parser(
        "distill", help=help, description=help, allow_abbrev=False
    )
    parser.add_argument(
        "dataset", help="a folder of preference pairs, see `groundling collect` and `annotate`"
    )
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="e.g. learning_rate=1e-4 epochs=20")
    parser.add_argument("--preferences", required=True, metavar="NAME", help="whose: the annotator's name")
    parser.add_argument(
        "--model", default="motif", help="motif, language_model, table or classifier (default: %(default)s)"
    )
    parser.add_argument(
        "--output",
        type=Path,
        required=True,
        metavar="FOLDER",
        help="the reward model; the same command resumes",
    )
    parser.add_argument(
        "--import",
        dest="imports",
        action="append",
        default=[],
        metavar="MODULE",
        help="import a module of yours that registers reward models",
    )
    parser.set_defaults(run=run)
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Train; returns the exit status."""
    from groundling.cli import warn
    from groundling.training.distillation import distill

    config = read_config(arguments)
    from rich.console import Console

    console = Console()
    row = distill(config, arguments.output, console, warn)
    if row.get("validation_accuracy") is not None:
        console.print(
            f"held-out accuracy {row['validation_accuracy']:.3f} on pairs that are no ties", highlight=False
        )
    console.print(f"reward model: {arguments.output}", highlight=False)
    return 0


def read_config(arguments: argparse.Namespace) -> "DistillationConfig":
    """The configuration that the words of the command line make.

    Raises:
        ConfigError: an unknown key, model or argument, or a value that cannot be run.
    """
    from dataclasses import fields

    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    from groundling.configs.compose import check_component
    from groundling.judges.reward_models import reward_models
    from groundling.registry import unknown
    from groundling.training.distillation import DistillationConfig

    known = {f.name for f in fields(DistillationConfig)} - {"dataset", "preferences"}
    for text in arguments.overrides:
        key, equals, _ = text.partition("=")
        if not equals:
            raise ConfigError(f"cannot read {text!r}: expected key=value, such as learning_rate=1e-4")
        if key.partition(".")[0] not in known:
            raise ConfigError(unknown("key", key, known))
    named = {
        "dataset": arguments.dataset,
        "preferences": arguments.preferences,
        "model": {"id": arguments.model},
    }
    try:
        schema = OmegaConf.structured(DistillationConfig)
        config = OmegaConf.to_object(
            OmegaConf.merge(schema, named, OmegaConf.from_dotlist(arguments.overrides))
        )
    except OmegaConfBaseException as error:
        raise ConfigError(str(error).splitlines()[0]) from error
    assert isinstance(config, DistillationConfig)
    check_component(reward_models, "model", config.model)
    return config
