"""`groundling collect`."""

import argparse
from pathlib import Path

from groundling.commands.command import Commands, add_command, episode_bars, make_console, positive, warn


def add_parser(commands: Commands) -> None:
    """Add `groundling collect`."""
    parser = add_command(
        commands, "collect", run, "let an agent play, and keep what it did as a dataset to learn from"
    )
    parser.add_argument("agent", help="as for evaluate")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="e.g. env.id=BabyAI-GoToLocal-v0")
    parser.add_argument("--episodes", type=positive, required=True, help="how many are played in all")
    parser.add_argument("--output", type=Path, required=True, metavar="FOLDER", help="the dataset")
    parser.add_argument("--only-success", action="store_true", help="keep only the episodes that succeed")
    parser.add_argument(
        "--validation",
        type=_fraction,
        default=0.0,
        metavar="SHARE",
        help="the share of the episodes that goes into a split of its own",
    )


def run(arguments: argparse.Namespace) -> int:
    """Carry the command out; returns its exit status."""
    from groundling.evaluation.collect import collect_dataset
    from groundling.evaluation.evaluate import find

    target = find(arguments.agent, arguments.overrides, warn)
    console = make_console()
    with episode_bars(console, arguments.episodes) as on_agent:
        collected = collect_dataset(
            target,
            arguments.episodes,
            arguments.output,
            only_success=arguments.only_success,
            validation_fraction=arguments.validation,
            on_episode=on_agent(target.agent),
        )
    told = f"{collected.transitions:,} transitions of {collected.kept:,} episodes (of {collected.episodes:,} played)"
    console.print(f"{told} added to {arguments.output}", highlight=False)
    return 0


def _fraction(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError(f"expected a number from 0 to less than 1, got {text!r}")
    return value
