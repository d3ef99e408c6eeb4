"""The `groundling collect` command."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from groundling.cli.command import Commands, add_command, add_config_dir, add_overrides, positive, refuse_unused
from groundling.errors import ConfigError
from groundling.io.terminal import episode_bars, make_console, warn

if TYPE_CHECKING:
    from groundling.evaluation.target import Target


def add_parser(commands: Commands) -> None:
    parser = add_command(
        commands,
        "collect",
        run,
        "record an agent's episodes or segments as a training dataset",
        examples="""
        groundling collect expert world.env=BabyAI-GoToLocal-v0 --episodes 2000 --output data/bot
        groundling collect explorer,random world.env=NetHackScore-v1 --pairs 50000 --output data/pairs
        """,
    )
    text = "the agent to record, specified as for `groundling evaluate`; --pairs accepts several: explorer,random"
    parser.add_argument("agent", help=text)
    add_overrides(parser, "e.g. world.env=BabyAI-GoToLocal-v0")
    add_config_dir(parser)
    parser.add_argument("--output", type=Path, required=True, metavar="FOLDER", help="folder of the dataset")
    add = parser.add_argument_group("episodes of a text env, for behavioural cloning").add_argument
    add("--episodes", type=positive, help="total number of episodes")
    add("--only-success", action="store_true", help="keep only successful episodes")
    text = "fraction of the episodes to put into a validation split"
    add("--validation", type=_fraction, default=0.0, metavar="SHARE", help=text)
    title = "pairs of segments or texts, for `groundling annotate`"
    add = parser.add_argument_group(title).add_argument
    add("--pairs", type=positive, help="total number of pairs")
    text = "number of steps in a segment, or 'episode' for whole episodes (default: episode; in NetHack: 1)"
    add("--length", type=_length, help=text)
    text = "record one segment every STRIDE steps (default: the segment's length; in NetHack: 10)"
    add("--stride", type=positive, help=text)
    text = "format of the dataset (default: parquet; in NetHack: motif)"
    add("--format", choices=("motif", "parquet"), help=text)
    text = "in NetHack: also record the screens and the character, which Motif's own train_reward script reads"
    add("--screens", action="store_true", help=text)


def run(arguments: argparse.Namespace) -> int:
    from groundling.evaluation.target import find
    from groundling.io.files import locked, output_lock

    if (arguments.pairs is None) == (arguments.episodes is None):
        raise ConfigError("set --episodes N (episodes of a text env) or --pairs N (pairs of segments or texts)")
    if arguments.pairs is None:
        refuse_unused(arguments, "with --episodes", "length", "stride", "format", "screens")
    else:
        refuse_unused(arguments, "with --pairs", "only_success", "validation")
    names = [arguments.agent] if arguments.pairs is None else arguments.agent.split(",")
    targets = [find(name, arguments.overrides, warn, config_dir=arguments.config_dir) for name in names]
    with locked(output_lock(arguments.output), f"is collecting into {arguments.output}"):
        if arguments.pairs is not None:
            return _record_pairs(arguments, targets)
        return _collect_episodes(arguments, targets[0])


def _collect_episodes(arguments: argparse.Namespace, target: "Target") -> int:
    from groundling.worlds.protocols import episode_recorder

    console = make_console()
    with episode_bars(console, arguments.episodes) as on_agent:
        collected = episode_recorder(target.world).record_episodes(
            target.demonstrator(),
            arguments.episodes,
            arguments.output,
            only_success=arguments.only_success,
            validation_fraction=arguments.validation,
            on_episode=on_agent(arguments.agent),
        )
    summary = f"{collected.transitions:,} transitions from {collected.kept:,} of {collected.episodes:,} episodes"
    console.print(f"{summary} added to {arguments.output}")
    return 0


def _record_pairs(arguments: argparse.Namespace, targets: Sequence["Target"]) -> int:
    from groundling.worlds.protocols import PairRecorder, PairSettings

    world = targets[0].world
    for target in targets[1:]:
        if target.world.settings != world.settings:
            raise ConfigError(
                f"{target.agent} and {targets[0].agent} play in different worlds: use the same env for all agents"
            )
    if not isinstance(world, PairRecorder):
        raise ConfigError(f"{world.spec.name} does not support --pairs: use --episodes N or a different world")
    settings = PairSettings(
        arguments.output,
        arguments.agent,
        arguments.pairs,
        arguments.length,
        arguments.stride,
        arguments.format,
        arguments.screens,
    )
    console = make_console()
    with episode_bars(console, 2 * arguments.pairs, "segments") as on_agent:
        players = [target.demonstrator() for target in targets]
        pairs = world.record_pairs(players, settings, on_agent(arguments.agent))
    console.print(f"{pairs:,} pairs in {arguments.output}")
    return 0


def _length(text: str) -> int:
    """Parse the number of steps in a segment; 0 stands for whole episodes."""
    return 0 if text == "episode" else positive(text)


def _fraction(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError(f"expected a number that is at least 0 and less than 1, got {text!r}")
    return value
