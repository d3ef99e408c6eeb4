"""The `groundling train` command."""

import argparse
import shlex
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from groundling.cli.command import INTERRUPTED, Commands, add_command, add_config_dir, add_overrides, duration
from groundling.errors import ConfigError
from groundling.io.terminal import make_console, warn
from groundling.registry import import_words, naming_modules

if TYPE_CHECKING:
    from groundling.config.overrides import Change
    from groundling.config.schema import Config

_YAML = (".yaml", ".yml")  # Suffixes of config files; other names are experiments


def add_parser(commands: Commands) -> None:
    parser = add_command(
        commands,
        "train",
        run,
        "train an agent, or resume a stopped run",
        examples="""
        groundling train demo seed=2                                         run it again to resume
        groundling train demo world.env=BabyAI-GoToLocal-v0 '~world.args'    a different world
        groundling train glam/mixed --dry-run                                show the plan, memory and time
        groundling train writing --prompts my.jsonl --reward my.py:polite    train on your own prompts and reward
        """,
    )
    add = parser.add_argument
    text = "an experiment (see `groundling list experiments`) or a config.yaml"
    add("experiment", help=text)
    add_overrides(parser, "e.g. seed=2, or seed=1,2,3 for three runs")
    add_config_dir(parser)
    text = "your own prompts: a JSON Lines, Parquet, CSV or text file, in TRL's formats or with one prompt per line"
    add("--prompts", type=Path, metavar="FILE", help=text)
    text = "the reward: FILE.py:FUNCTION, or one listed by `groundling list rewards`; repeat the option to sum several"
    add("--reward", dest="rewards", action=_Rewards, default=[], metavar="REWARD", help=text)
    text = "submit to SLURM: partition=gpu nodes=2 gpus=4 time=12:00:00 array=seeds, … (--dry-run shows the job)"
    add("--slurm", nargs="*", metavar="key=value", help=text)
    text = "print the config and the expected memory and time; write nothing"
    add("--dry-run", action="store_true", help=text)


class _Rewards(argparse.Action):
    """Add a reward; a function in a file is imported as with ``--import``."""

    def __call__(self, parser: argparse.ArgumentParser, namespace: Any, values: Any, *_: Any) -> None:
        if values.endswith(".py"):
            parser.error(f"--reward {values} is a file: name a function in it, as in {values}:FUNCTION")
        name, _, function = values.rpartition(":")
        namespace.imports = [*namespace.imports, *([values] if name else [])]
        namespace.rewards = [*namespace.rewards, function]


def run(arguments: argparse.Namespace) -> int:
    name, overrides = arguments.experiment, arguments.overrides
    from groundling.config.compose import compose, from_file, is_open
    from groundling.config.overrides import sweep
    from groundling.training.defaults import compose_fitted

    runs = sweep(overrides)
    if any(text.startswith("imports") for text in overrides):
        raise ConfigError("imports is set by --import: use --import MODULE instead")
    own = _own_texts(arguments) if arguments.prompts is not None or arguments.rewards else []
    start: Callable[..., Config] = partial(from_file, Path(name))
    if not name.endswith(_YAML):
        start = partial(compose_fitted if is_open(name) else compose, name, config_dir=arguments.config_dir)
    configs = [start(overrides=[*own, *words], checked=False) for words in runs]
    if arguments.prompts is not None:
        for described in dict.fromkeys(cast(Any, config.world).read_prompts() for config in configs):
            make_console().print(described, highlight=False, soft_wrap=True)
    authors = configs[0].imports
    configs = [config.model_copy(update={"imports": arguments.imports}) for config in configs]
    if len({config.run_dir for config in configs}) < len(configs):
        raise ConfigError("runs of this sweep share a run_dir: include the swept values, as in run_dir=runs/${seed}")
    with naming_modules(authors, arguments.experiment, configs[0].objects):
        if len(configs) > 1 or arguments.slurm is not None:  # a run checks only its own config, when it starts
            from groundling.config.checks import check

            for config in configs:
                check(config)
        if arguments.slurm is not None:
            commands = [_command_words(arguments, words) for words in [overrides, *runs]]
            return _submit(arguments, commands, [config.run_dir for config in configs])
        if arguments.dry_run:
            return max(_dry_run(config) for config in configs)
        return _train_each(configs)


def _train_each(configs: list["Config"]) -> int:
    """Train the runs one after the other, until one is stopped."""
    from groundling.training.slurm import TO_BE_REQUEUED, time_limit
    from groundling.training.train import train

    def checkpoints() -> list[list[Path]]:
        return [sorted(Path(config.run_dir, "checkpoints").glob("[0-9]*")) for config in configs]

    current, before = 0, checkpoints()

    def has_advanced() -> bool:
        """Return True if a checkpoint was written, or if the current run has one from an earlier job."""
        now = checkpoints()
        return now != before or bool(now[current])

    console = make_console()
    with time_limit(has_advanced) as is_near:
        for current, config in enumerate(configs):
            is_complete = train(config, console, warn)
            words = ["groundling", "evaluate", config.run_dir, *import_words(config.imports)]
            done = f"done; to evaluate it, run: {shlex.join(words)}"
            console.print(done if is_complete else "stopped; run the same command again to resume", soft_wrap=True)
            if is_near() and not (is_complete and current == len(configs) - 1):
                return TO_BE_REQUEUED
            if not is_complete:
                return INTERRUPTED
    return 0


def _own_texts(arguments: argparse.Namespace) -> list["Change"]:
    """Return the config changes that ``--prompts`` and ``--reward`` imply."""
    from groundling.config.overrides import Change
    from groundling.envs.text_generation.own_data import pool_of

    changes, path, rewards = [], arguments.prompts, arguments.rewards
    if path is not None:
        pool = "preferences" if arguments.experiment in ("dpo", "kto") else pool_of(path)
        changes = [Change("world.args", takes_out=True), Change("world.pool", pool)]
        changes.append(Change("world.args", {"path": str(path)}))
    if rewards:
        changes += [Change("reward", takes_out=True), *(Change(f"reward.{id}.coefficient", 1.0) for id in rewards)]
    task = "-".join([*([] if path is None else [path.stem]), *rewards])
    return [*changes, Change("name", f"{task}-${{algorithm.id}}")]


def _submit(arguments: argparse.Namespace, commands: list[list[str]], run_dirs: list[str]) -> int:
    """Submit a job for the first command, or an array for the others; with --dry-run, only print it."""
    from groundling.training import slurm

    job, more = slurm.parse(arguments.slurm)
    text, folder = slurm.job_file(job, more, commands[1:] if job.array else commands[:1], run_dirs)
    print(text)
    if arguments.dry_run:
        print("nothing was written or submitted", file=sys.stderr)
        return 0
    print(f"submitted job {slurm.submit(text, folder)}; logs: {folder}", file=sys.stderr)
    return 0


def _command_words(arguments: argparse.Namespace, overrides: list[str]) -> list[str]:
    """Return the command line that trains with these overrides, valid in any working directory."""
    name = arguments.experiment
    words = ["train", str(Path(name).resolve()) if name.endswith(_YAML) else name]
    if arguments.config_dir is not None:
        words += ["--config-dir", str(arguments.config_dir.resolve())]
    if arguments.prompts is not None:
        words += ["--prompts", str(arguments.prompts.resolve())]
    words += [word for id in arguments.rewards for word in ("--reward", id)]
    return [*words, *import_words(arguments.imports), *overrides]


def _dry_run(config: "Config") -> int:
    from groundling.config.compose import to_yaml
    from groundling.training.build import dry_run

    figures, world = dry_run(config), config.world
    print(to_yaml(config))
    print(f"device        {figures.device}")
    print(f"parameters    {figures.parameters:,}, of which {figures.trainable:,} are trained")
    mebibytes = f"{figures.memory_bytes / 2**20:,.0f} MiB"
    print(f"memory        {mebibytes} for weights, gradients and Adam, plus activations")
    size = f"{world.STEPS}={world.steps_per_row} × {world.ROWS}={world.num_rows}"
    print(f"updates       {figures.updates:,} of {size}")
    seconds = duration(figures.seconds)
    print(f"time          about {seconds} on this machine with its current load, excluding evaluation")
    print(f"run folder    {config.run_dir} (nothing was written)")
    if figures.prompt is not None:
        print(f"first prompt  {figures.prompt!r}")
    return 0
