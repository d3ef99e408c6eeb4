"""`groundling train`."""

import argparse
import shlex
import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, NamedTuple

from groundling.cli.command import INTERRUPTED, Commands, add_command, add_config_dir, add_overrides, duration
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
        "train, or resume a run that was stopped",
        examples="""
        groundling train demo seed=2                                         the same again resumes it
        groundling train demo world.env=BabyAI-GoToLocal-v0 '~world.args'    another world
        groundling train glam/mixed --dry-run                                what it would do, its memory and time
        """,
    )
    add = parser.add_argument
    text = "an experiment (see `groundling list experiments`) or a config.yaml"
    add("experiment", nargs="?", help=text)
    add_overrides(parser, "e.g. seed=2, or seed=1,2,3 for three runs")
    add_config_dir(parser)
    text = "a file of GLAM or Lamorel instead of an experiment; rl_script_args.… overrides its entries"
    add("--glam-config", type=Path, metavar="FILE", help=text)
    text = "a file of RL4LMs instead of an experiment; alg.…, datapool.…, reward_fn.… override its entries"
    add("--rl4lms-config", type=Path, metavar="FILE", help=text)
    text = "the same as key=value without --set"
    add("--set", nargs="+", action="extend", default=[], metavar="key=value", help=text)
    text = "submit it to SLURM: partition=gpu nodes=2 gpus=4 time=12:00:00 array=seeds, … (--dry-run shows the job)"
    add("--slurm", nargs="*", metavar="key=value", help=text)
    text = "print what it would do, its memory and time; write nothing"
    add("--dry-run", action="store_true", help=text)


def run(arguments: argparse.Namespace) -> int:
    """Run the command; return its exit status."""
    from groundling.config.grammar import sweep

    original = _original_file(arguments)
    if original is not None and arguments.experiment is not None:
        arguments.overrides.insert(0, arguments.experiment)
        arguments.experiment = None
    if original is None and arguments.experiment is None:
        raise ConfigError(
            "name an experiment (see `groundling list experiments`), or give --glam-config or --rl4lms-config FILE"
        )
    if arguments.config_dir is not None and (original is not None or _is_file(arguments.experiment)):
        file = arguments.experiment if original is None else original.path
        raise ConfigError(
            f"--config-dir {arguments.config_dir} does nothing: {file} is a file, not an experiment of that folder; "
            "leave --config-dir out, or name an experiment"
        )
    overrides = [*arguments.overrides, *arguments.set]
    theirs = [text for text in overrides if original is not None and original.reader.is_original(text)]
    ours = [text for text in overrides if text not in theirs]
    variants = [theirs] if original is None else original.reader.spread(original.path, theirs)
    runs = [(variant, swept) for variant in variants for swept in sweep(ours)]
    if any(text.startswith("imports") for text in ours):
        raise ConfigError("imports is set by --import: give --import MODULE instead")
    configs = [replace(c, imports=arguments.imports) for c in _compose(arguments, original, runs)]
    if len({config.run_dir for config in configs}) < len(configs):
        raise ConfigError(
            "two runs of this sweep have the same run_dir: put what differs into it, as in run_dir=runs/${seed}"
        )
    if arguments.slurm is not None:
        commands = [_command_words(arguments, original, *words) for words in [(theirs, ours), *runs]]
        return _submit(arguments, commands, [config.run_dir for config in configs])
    if arguments.dry_run:
        return max(_dry_run(config) for config in configs)
    return _train_each(configs)


def _train_each(configs: list["Config"]) -> int:
    """Train the runs one after the other, until one is asked to stop."""
    from groundling.training.checkpoint import numbered
    from groundling.training.slurm import TO_BE_REQUEUED, time_limit
    from groundling.training.train import train

    def checkpoints() -> list[list[Path]]:
        return [numbered(Path(config.run_dir) / "checkpoints") for config in configs]

    current, before = 0, checkpoints()

    def has_advanced() -> bool:
        """Return True if a checkpoint was written, or the current run had one: the time has sufficed for it once."""
        now = checkpoints()
        return now != before or bool(now[current])

    console = make_console()
    with time_limit(has_advanced) as is_near:
        for current, config in enumerate(configs):
            is_complete = train(config, console, warn)
            words = ["groundling", "evaluate", config.run_dir, *import_words(config.imports)]
            done = f"done: {shlex.join(words)}"
            console.print(done if is_complete else "stopped; the same command resumes it", soft_wrap=True)
            if is_near() and not (is_complete and current == len(configs) - 1):
                return TO_BE_REQUEUED
            if not is_complete:
                return INTERRUPTED
    return 0


class _Original(NamedTuple):
    """A config file of another system."""

    option: str
    path: Path
    reader: ModuleType
    """Has ``is_original``, ``spread`` and ``read``."""


def _original_file(arguments: argparse.Namespace) -> _Original | None:
    """Return the file that replaces an experiment, if one is given."""
    given = {name: getattr(arguments, name) for name in ("glam_config", "rl4lms_config")}
    files = [(name, path) for name, path in given.items() if path is not None]
    if len(files) > 1:
        raise ConfigError("--glam-config and --rl4lms-config name a file each: give one of them")
    for name, path in files:
        return _Original(f"--{name.replace('_', '-')}", path, import_module(f"groundling.convert.{name}"))
    return None


def _compose(
    arguments: argparse.Namespace, original: _Original | None, runs: list[tuple[list[str], list[str]]]
) -> list["Config"]:
    """Compose the configs of a sweep, and print each note of another system's reader once."""
    from groundling.config.compose import compose, from_file

    if original is not None:
        results = [original.reader.read(original.path, theirs, ours) for theirs, ours in runs]
        for note in dict.fromkeys(note for _, notes in results for note in notes):
            warn(note)
        return [config for config, _ in results]
    if _is_file(arguments.experiment):
        return [from_file(Path(arguments.experiment), overrides) for _, overrides in runs]
    return [compose(arguments.experiment, overrides, arguments.config_dir) for _, overrides in runs]


def _is_file(experiment: str) -> bool:
    return experiment.endswith((".yaml", ".yml"))


def _submit(arguments: argparse.Namespace, commands: list[list[str]], run_dirs: list[str]) -> int:
    """Submit a job for the first command, or an array for the others; with --dry-run only print it."""
    from groundling.training import slurm

    job, more = slurm.parse(arguments.slurm)
    submission = slurm.submission(job, more, commands[1:] if job.array else commands[:1], run_dirs)
    print(submission.text)
    if arguments.dry_run:
        print("nothing was written or submitted", file=sys.stderr)
        return 0
    print(f"submitted job {submission.submit()}; its logs: {submission.folder}", file=sys.stderr)
    return 0


def _command_words(
    arguments: argparse.Namespace, original: _Original | None, theirs: list[str], ours: list[str]
) -> list[str]:
    """Return the words after ``groundling`` that train with these overrides from any working directory."""
    if original is not None:
        words = ["train", original.option, str(original.path.resolve())]
    else:
        name = arguments.experiment
        words = ["train", str(Path(name).resolve()) if _is_file(name) else name]
    if arguments.config_dir is not None:
        words += ["--config-dir", str(arguments.config_dir.resolve())]
    return [*words, *import_words(arguments.imports), *theirs, *ours]


def _dry_run(config: "Config") -> int:
    from groundling.config.compose import to_yaml
    from groundling.training.dry_run import dry_run

    figures, world = dry_run(config), config.world
    print(to_yaml(config))
    print(f"device        {figures.device}")
    print(f"parameters    {figures.parameters:,}, of which {figures.trainable:,} are trained")
    mebibytes = f"{figures.memory_bytes / 2**20:,.0f} MiB"
    print(f"memory        {mebibytes} for weights, gradients and Adam, plus activations")
    size = f"{world.STEPS}={world.steps_per_row} × {world.ROWS}={world.num_rows}"
    print(f"updates       {figures.updates:,} of {size}")
    seconds = duration(figures.seconds)
    print(f"time          about {seconds} on this machine with its current load, without evaluation")
    print(f"run folder    {config.run_dir} (nothing was written)")
    if figures.prompt is not None:
        print(f"first prompt  {figures.prompt!r}")
    return 0
