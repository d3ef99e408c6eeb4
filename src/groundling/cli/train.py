"""`groundling train`."""

import argparse
import shlex
import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, NamedTuple

from groundling.cli.command import (
    INTERRUPTED,
    Commands,
    add_command,
    add_config_dir,
    duration,
)
from groundling.errors import ConfigError
from groundling.io.console import make_console, warn
from groundling.registry import import_words

if TYPE_CHECKING:
    from groundling.config.schema import Config


def add_parser(commands: Commands) -> None:
    """Add `groundling train`."""
    parser = add_command(
        commands,
        "train",
        run,
        "train, or go on with a run that was stopped",
        examples="""
        groundling train demo seed=2                                         the same again goes on where it was stopped
        groundling train demo world.env=BabyAI-GoToLocal-v0 '~world.args'    another world
        groundling train glam/mixed --dry-run                                what it would do, its memory and time
        """,
    )
    parser.add_argument(
        "experiment", nargs="?", help="an experiment (see `groundling list experiments`) or a config.yaml"
    )
    parser.add_argument(
        "overrides", nargs="*", metavar="key=value", help="e.g. seed=2, or seed=1,2,3 for three runs"
    )
    add_config_dir(parser)
    parser.add_argument(
        "--glam-config",
        type=Path,
        metavar="FILE",
        help="a file of GLAM's or Lamorel's in place of an experiment; rl_script_args.… overrides its entries",
    )
    parser.add_argument(
        "--rl4lms-config",
        type=Path,
        metavar="FILE",
        help="a file of RL4LMs' in place of an experiment; alg.…, datapool.…, reward_fn.… override its entries",
    )
    parser.add_argument(
        "--set",
        nargs="+",
        action="extend",
        default=[],
        metavar="key=value",
        help="the same as key=value without --set",
    )
    parser.add_argument(
        "--slurm",
        nargs="*",
        metavar="key=value",
        help="submit it to SLURM: partition=gpu nodes=2 gpus=4 time=12:00:00 array=seeds, … (with --dry-run: only "
        "show the job)",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="print what it would do, its memory and time; write nothing"
    )


def run(arguments: argparse.Namespace) -> int:
    """Carry the command out; returns its exit status."""
    from groundling.config.grammar import sweep

    foreign = _foreign_file(arguments)
    if foreign is not None and arguments.experiment is not None:
        arguments.overrides.insert(0, arguments.experiment)  # the file stands in its place
        arguments.experiment = None
    if foreign is None and arguments.experiment is None:
        raise ConfigError(
            "name an experiment (see `groundling list experiments`), or give --glam-config or --rl4lms-config FILE"
        )
    if arguments.config_dir is not None and (foreign is not None or _is_file(arguments.experiment)):
        file = arguments.experiment if foreign is None else foreign.path
        raise ConfigError(
            f"--config-dir {arguments.config_dir} does nothing: {file} is a file, and no experiment of that folder; "
            "leave --config-dir out, or name an experiment"
        )
    overrides = [*arguments.overrides, *arguments.set]
    originals = [text for text in overrides if foreign is not None and foreign.reader.is_original(text)]
    ours = [text for text in overrides if text not in originals]
    spread = [originals] if foreign is None else foreign.reader.spread(foreign.path, originals)
    runs = [(variant, swept) for variant in spread for swept in sweep(ours)]
    if any(text.startswith("imports") for text in ours):
        raise ConfigError("imports is set by --import: give --import MODULE in its place")
    configs = [replace(c, imports=arguments.imports) for c in _compose(arguments, foreign, runs)]
    if len({config.run_dir for config in configs}) < len(configs):
        raise ConfigError(
            "two runs of this sweep have the same run_dir: put what differs into it, as in run_dir=runs/${seed}"
        )
    if arguments.slurm is not None:
        whole = (originals, ours)
        commands = [_command_words(arguments, foreign, *words) for words in [whole, *runs]]
        return _submit(arguments, commands, [config.run_dir for config in configs])
    if arguments.dry_run:
        return max(_dry_run(config) for config in configs)
    return _train_each(configs)


def _train_each(configs: list["Config"]) -> int:
    """Train the runs one after the other, until one is asked to stop."""
    from groundling.training.checkpoint import numbered
    from groundling.training.slurm import TO_BE_REQUEUED, time_limit

    def checkpoints() -> list[list[Path]]:
        return [numbered(Path(config.run_dir) / "checkpoints") for config in configs]

    present, before = 0, checkpoints()

    def has_come_on() -> bool:
        """Whether a checkpoint was written by now, or the present run had one: the time has sufficed for it once."""
        now = checkpoints()
        return now != before or bool(now[present])

    with time_limit(has_come_on) as is_near:
        for present, config in enumerate(configs):
            complete = _train_one(config)
            if is_near() and not (complete and present == len(configs) - 1):
                return TO_BE_REQUEUED
            if not complete:
                return INTERRUPTED
    return 0


class _Foreign(NamedTuple):
    """Another system's file."""

    option: str
    path: Path
    reader: ModuleType
    """Has ``is_original``, ``spread`` and ``read``."""


def _foreign_file(arguments: argparse.Namespace) -> _Foreign | None:
    """The file that stands in an experiment's place, if one does.

    Raises:
        ConfigError: two do.
    """
    given = {name: getattr(arguments, name) for name in ("glam_config", "rl4lms_config")}
    files = [(name, path) for name, path in given.items() if path is not None]
    if len(files) > 1:
        raise ConfigError("--glam-config and --rl4lms-config name a file each: give one of them")
    for name, path in files:
        return _Foreign(f"--{name.replace('_', '-')}", path, import_module(f"groundling.convert.{name}"))
    return None


def _compose(
    arguments: argparse.Namespace, foreign: _Foreign | None, runs: list[tuple[list[str], list[str]]]
) -> list["Config"]:
    """The sweep's configs; what a reader of another system's file has to say is told once."""
    from groundling.config.compose import compose, from_file

    if foreign is not None:
        read_ones = [foreign.reader.read(foreign.path, originals, overrides) for originals, overrides in runs]
        for note in dict.fromkeys(note for _, notes in read_ones for note in notes):
            warn(note)
        return [config for config, _ in read_ones]
    if _is_file(arguments.experiment):
        return [from_file(Path(arguments.experiment), overrides) for _, overrides in runs]
    return [compose(arguments.experiment, overrides, arguments.config_dir) for _, overrides in runs]


def _is_file(experiment: str) -> bool:
    return experiment.endswith((".yaml", ".yml"))


def _train_one(config: "Config") -> bool:
    """Train one run; whether it is complete."""
    from groundling.training.train import train

    console = make_console()
    complete = train(config, console, warn)
    words = ["groundling", "evaluate", config.run_dir, *import_words(config.imports)]
    outcome = f"done: {shlex.join(words)}" if complete else "stopped; the same command goes on from here"
    console.print(outcome, highlight=False, soft_wrap=True)
    return complete


def _submit(arguments: argparse.Namespace, commands: list[list[str]], run_dirs: list[str]) -> int:
    """Show the job that runs the first of ``commands``, or as an array the others; submit it unless it is a dry run."""
    from groundling.training import slurm

    job, more = slurm.parse(arguments.slurm)
    chosen = commands[1:] if job.array else commands[:1]
    submission = slurm.submission(job, more, chosen, run_dirs)
    print(submission.text)
    if arguments.dry_run:
        print("nothing was written or submitted", file=sys.stderr)
        return 0
    print(f"submitted job {submission.submit()}; its logs: {submission.folder}", file=sys.stderr)
    return 0


def _command_words(
    arguments: argparse.Namespace, foreign: _Foreign | None, originals: list[str], overrides: list[str]
) -> list[str]:
    """The words after ``groundling`` that train with these overrides, from any folder's shell script."""
    words = ["train"]
    if foreign is not None:
        words += [foreign.option, str(foreign.path.resolve())]
    else:
        name = arguments.experiment
        words.append(str(Path(name).resolve()) if _is_file(name) else name)
    if arguments.config_dir is not None:
        words += ["--config-dir", str(arguments.config_dir.resolve())]
    for module in arguments.imports:
        words += ["--import", module]
    return [*words, *originals, *overrides]


def _dry_run(config: "Config") -> int:
    from groundling.config.compose import to_yaml
    from groundling.training.dry_run import dry_run

    figures = dry_run(config)
    print(to_yaml(config))
    print(f"device        {figures.device}")
    print(f"parameters    {figures.parameters:,}, of which {figures.trainable:,} are trained")
    print(
        f"memory        {figures.memory_bytes / 2**20:,.0f} MiB for weights, gradients and Adam, plus activations"
    )
    world = config.world
    print(
        f"updates       {figures.updates:,} of {world.STEPS}={world.steps_per_row} × {world.ROWS}={world.num_rows}"
    )
    print(
        f"time          about {duration(figures.seconds)} on this machine, as busy as it is now, without evaluation"
    )
    print(f"run folder    {config.run_dir} (nothing was written)")
    if figures.prompt is not None:
        print(f"first prompt  {figures.prompt!r}")
    return 0
