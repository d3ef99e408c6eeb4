"""The command line. Every error that a user can mend is one line on standard error and a non-zero exit."""

import argparse
import faulthandler
import importlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from groundling.errors import ConfigError, GroundlingError, RunError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from groundling.configs.schema import Config
    from groundling.evaluation.episodes import Summary

INTERRUPTED = 130
"""Exit status of a run that was asked to stop before its end, as a shell gives it for Ctrl-C."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``groundling`` with these arguments; returns its exit status."""
    # Idle OpenMP threads sleep instead of spinning: where other work shares the cores, torch is then several
    # times faster. It is read when torch is first imported, which is later.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    parser = _parser()
    arguments, more = parser.parse_known_args(argv)
    if more and (not hasattr(arguments, "overrides") or any(word.startswith("-") for word in more)):
        parser.error(f"unrecognized arguments: {' '.join(more)}")
    if more:  # overrides that stand behind an option
        arguments.overrides += more
    if arguments.imports:
        sys.path.insert(0, str(Path.cwd()))
    try:
        for module in arguments.imports:
            _import(module)
        status: int = arguments.run(arguments)
        return status
    except GroundlingError as error:
        print(f"error: {_one_line(error)}", file=sys.stderr)
        return 1
    except BrokenPipeError:  # the reader, such as head, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        print(
            f"error: {error}; what was written before is intact: mend that and run it again", file=sys.stderr
        )
        return 1
    except KeyboardInterrupt:
        print(
            "stopped; the same command goes on: a training from its last checkpoint",
            file=sys.stderr,
        )
        return INTERRUPTED


def entry_point() -> None:
    """The console script."""
    faulthandler.enable()  # if native code crashes, say where
    sys.exit(main())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="groundling", description="Reinforcement learning with language models.", allow_abbrev=False
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    train = _command(commands, "train", _train, "train, or go on with a run that was stopped")
    train.add_argument(
        "experiment", nargs="?", help="an experiment (see `groundling list experiments`) or a config.yaml"
    )
    train.add_argument(
        "overrides", nargs="*", metavar="key=value", help="e.g. seed=2, or seed=1,2,3 for three runs"
    )
    train.add_argument("--config-dir", type=Path, help="a folder with your own experiment/*.yaml")
    train.add_argument(
        "--glam-config",
        type=Path,
        metavar="FILE",
        help="a file of GLAM's or Lamorel's in place of an experiment; rl_script_args.… overrides its entries",
    )
    train.add_argument(
        "--slurm",
        nargs="*",
        metavar="key=value",
        help="submit it to SLURM: partition=gpu nodes=2 gpus=4 time=12:00:00 array=seeds, … (with --dry-run: only "
        "show the job)",
    )
    train.add_argument(
        "--dry-run", action="store_true", help="print what it would do, its memory and time; write nothing"
    )

    evaluate = _command(commands, "evaluate", _evaluate, "play held-out episodes and compare with baselines")
    evaluate.add_argument(
        "agent", help="a run's folder, one of its checkpoints, an experiment (untrained), random or expert"
    )
    evaluate.add_argument("overrides", nargs="*", metavar="key=value", help="e.g. device=cpu")
    evaluate.add_argument(
        "--suite", default="held-out", help="which tests: NAME, or NAME,NAME, or all (default: %(default)s)"
    )
    evaluate.add_argument(
        "--episodes", type=_positive, help="how many (default: the run's evaluation.episodes)"
    )

    collect = _command(
        commands, "collect", _collect, "let an agent play, and keep what it did as a dataset to learn from"
    )
    collect.add_argument("agent", help="as for evaluate")
    collect.add_argument("overrides", nargs="*", metavar="key=value", help="e.g. env.id=BabyAI-GoToLocal-v0")
    collect.add_argument("--episodes", type=_positive, required=True, help="how many are played in all")
    collect.add_argument("--output", type=Path, required=True, metavar="FOLDER", help="the dataset")
    collect.add_argument("--only-success", action="store_true", help="keep only the episodes that succeed")
    collect.add_argument(
        "--validation",
        type=_fraction,
        default=0.0,
        metavar="SHARE",
        help="the share of the episodes that goes into a split of its own",
    )

    report = _command(
        commands, "report", _report, "write one self-contained HTML page about one run or several"
    )
    report.add_argument("runs", type=Path, nargs="+", metavar="RUN")
    report.add_argument(
        "--output", type=Path, help="the page (default: report.html in the first run's folder)"
    )

    study = _command(
        commands,
        "study",
        _study,
        "train and evaluate several arms with several seeds, and tell what came of it",
    )
    study.add_argument("study", help="see `groundling list studies`, or a YAML file of your own")
    study.add_argument(
        "overrides",
        nargs="*",
        metavar="key=value",
        help="seeds=1,2,3, episodes=N, suites=NAME,NAME or arms=NAME,NAME of the study; arms.NAME.key=value of an "
        "arm's runs; others of all runs",
    )
    study.add_argument("--runs", type=Path, metavar="FOLDER", help="the runs' folders (default: runs/STUDY)")
    study.add_argument("--output", type=Path, metavar="FOLDER", help="the results (default: results/STUDY)")
    study.add_argument(
        "--jobs",
        type=_positive,
        default=1,
        help="processes of one thread each (default: all in this process)",
    )
    study.add_argument("--no-results", action="store_true", help="write only the runs' own folders")

    listing = _command(commands, "list", _list, "what there is")
    listing.add_argument(
        "kind",
        nargs="?",
        help="envs, algorithms, policies, prompts, models, agents, suites, experiments or studies",
    )

    _command(commands, "doctor", _doctor, "is this machine set up")
    return parser


def _command(
    commands: "argparse._SubParsersAction[argparse.ArgumentParser]",
    name: str,
    run: Callable[[argparse.Namespace], int],
    help: str,
) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(
        name, help=help, description=help, allow_abbrev=False
    )
    parser.set_defaults(run=run)
    parser.add_argument(
        "--import",
        dest="imports",
        action="append",
        default=[],
        metavar="MODULE",
        help="import a module of yours that registers components or envs",
    )
    return parser


def _train(arguments: argparse.Namespace) -> int:
    from groundling.configs.compose import sweep

    if arguments.config_dir is not None and not arguments.config_dir.is_dir():
        raise ConfigError(f"--config-dir {arguments.config_dir} is no folder")
    if arguments.glam_config is not None and arguments.experiment is not None:
        arguments.overrides.insert(0, arguments.experiment)  # the file stands in its place
        arguments.experiment = None
    if arguments.glam_config is None and arguments.experiment is None:
        raise ConfigError(
            "name an experiment (see `groundling list experiments`), or give --glam-config FILE"
        )
    originals = []
    if arguments.glam_config is not None:
        from groundling.compat.glam_config import is_original

        originals = [text for text in arguments.overrides if is_original(text)]
    ours = [text for text in arguments.overrides if text not in originals]
    runs = sweep(ours)
    configs = _compose(arguments, originals, runs)
    if len({config.run_dir for config in configs}) < len(configs):
        raise ConfigError(
            "two runs of this sweep have one run_dir: put what differs into it, as in run_dir=runs/${seed}"
        )
    if arguments.slurm is not None:
        commands = [_command_words(arguments, originals, overrides) for overrides in [ours, *runs]]
        return _submit(arguments, commands, configs)
    if arguments.dry_run:
        return max(_dry_run(config) for config in configs)
    return _train_each(configs)


def _train_each(configs: list["Config"]) -> int:
    """Train the runs one after the other, until one is asked to stop."""
    from groundling.training.slurm import TO_BE_REQUEUED, time_limit

    with time_limit() as is_near:
        for number, config in enumerate(configs, start=1):
            complete = _train_one(config)
            if is_near() and not (complete and number == len(configs)):
                return TO_BE_REQUEUED
            if not complete:
                return INTERRUPTED
    return 0


def _compose(arguments: argparse.Namespace, originals: list[str], runs: list[list[str]]) -> list["Config"]:
    """The sweep's configs; what a reader of another system's file has to say is told once."""
    from groundling.configs.compose import compose, from_file

    if arguments.glam_config is not None:
        from groundling.compat.glam_config import read

        read_ones = [read(arguments.glam_config, originals, overrides) for overrides in runs]
        for note in dict.fromkeys(note for _, notes in read_ones for note in notes):
            warn(note)
        return [config for config, _ in read_ones]
    if _is_file(arguments.experiment):
        return [from_file(Path(arguments.experiment), overrides) for overrides in runs]
    return [compose(arguments.experiment, overrides, arguments.config_dir) for overrides in runs]


def _is_file(experiment: str) -> bool:
    return experiment.endswith((".yaml", ".yml"))


def _train_one(config: "Config") -> bool:
    """Train one run; whether it is complete."""
    from groundling.training.run import train

    console = _console()
    console.print(f"training in {config.run_dir}", highlight=False)
    complete = train(config, console, warn)
    told = (
        f"done: groundling evaluate {config.run_dir}"
        if complete
        else "stopped; the same command goes on from here"
    )
    console.print(told, highlight=False)
    return complete


def _submit(arguments: argparse.Namespace, commands: list[list[str]], configs: list["Config"]) -> int:
    """Show the job that runs the first of ``commands``, or as an array the others; submit it unless it is a dry run."""
    from groundling.training import slurm

    job, more = slurm.parse(arguments.slurm)
    chosen = commands[1:] if job.array else commands[:1]
    submission = slurm.submission(job, more, chosen, [config.run_dir for config in configs])
    print(submission.text)
    if arguments.dry_run:
        print("nothing was written or submitted", file=sys.stderr)
        return 0
    print(f"submitted job {submission.submit()}; its logs: {submission.folder}", file=sys.stderr)
    return 0


def _command_words(arguments: argparse.Namespace, originals: list[str], overrides: list[str]) -> list[str]:
    """The words after ``groundling`` that train with these overrides, from any folder's shell script."""
    words = ["train"]
    if arguments.glam_config is not None:
        words += ["--glam-config", str(arguments.glam_config.resolve())]
    else:
        name = arguments.experiment
        words.append(str(Path(name).resolve()) if _is_file(name) else name)
    if arguments.config_dir is not None:
        words += ["--config-dir", str(arguments.config_dir.resolve())]
    for module in arguments.imports:
        words += ["--import", module]
    return [*words, *originals, *overrides]


def _dry_run(config: "Config") -> int:
    from groundling.configs.compose import to_yaml
    from groundling.training.estimate import estimate

    found = estimate(config)
    print(to_yaml(config))
    print(f"device        {found.device}")
    print(f"parameters    {found.parameters:,}, of which {found.trainable:,} are trained")
    print(
        f"memory        {found.memory_bytes / 2**20:,.0f} MiB for weights, gradients and Adam, plus activations"
    )
    print(
        f"updates       {found.updates:,} of {config.training.steps_per_update} steps × {config.env.num_envs} envs"
    )
    print(f"time          about {_duration(found.seconds)} on this machine, without evaluation")
    print(f"run folder    {config.run_dir} (nothing was written)")
    if found.prompt is not None:
        print(f"first prompt  {found.prompt!r}")
    return 0


def _evaluate(arguments: argparse.Namespace) -> int:
    from groundling.evaluation.evaluate import evaluate, find
    from groundling.evaluation.suites import find_suites

    suites = find_suites(arguments.suite)
    target = find(arguments.agent, arguments.overrides, warn)
    num_episodes = arguments.episodes or target.config.evaluation.episodes
    console = _console()
    told = 0
    for suite in suites:
        try:
            with _episode_bars(console, num_episodes) as on_agent:
                summaries = evaluate(target, suite, num_episodes, on_agent, warn)
        except ConfigError as error:
            if len(suites) == 1:
                raise
            warn(_one_line(error))  # of several suites those that suit are played
            continue
        told += 1
        console.print(_table(f"{target.under(suite).env.id} · {suite} · {num_episodes} episodes", summaries))
    console.print(f"written to {target.run_dir / 'evaluation'}", highlight=False)
    return 0 if told else 1


@contextmanager
def _episode_bars(console: "Console", num_episodes: int) -> Iterator[Callable[[str], Callable[[], None]]]:
    """Gives a function that shows an agent's progress, from its name."""
    from rich.progress import Progress

    with Progress(console=console, disable=not console.is_terminal, transient=True) as progress:

        def on_agent(name: str) -> Callable[[], None]:
            task = progress.add_task(name, total=num_episodes)
            if not console.is_terminal:
                console.print(f"{name}: {num_episodes} episodes", highlight=False)
            return lambda: progress.advance(task)

        yield on_agent


def _table(title: str, summaries: "dict[str, Summary]") -> "Table":
    from rich.table import Table

    table = Table(title=title)
    for column in ("agent", "success rate", "95 % interval", "return", "episode length"):
        table.add_column(column, justify="left" if column == "agent" else "right")
    for name, s in summaries.items():
        interval = f"{s.success_low:.3f} – {s.success_high:.3f}"
        figures = (f"{s.success_rate:.3f}", interval, f"{s.return_mean:.3f}", f"{s.episode_length:.1f}")
        table.add_row(name, *figures)
    return table


def _collect(arguments: argparse.Namespace) -> int:
    from groundling.evaluation.collect import collect_dataset
    from groundling.evaluation.evaluate import find

    target = find(arguments.agent, arguments.overrides, warn)
    console = _console()
    with _episode_bars(console, arguments.episodes) as on_agent:
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


def _report(arguments: argparse.Namespace) -> int:
    from groundling.evaluation.report import write_report

    output = write_report(arguments.runs, arguments.output or arguments.runs[0] / "report.html")
    print(f"report: {output.resolve()}")
    return 0


def _study(arguments: argparse.Namespace) -> int:
    from groundling.configs.studies import read_study
    from groundling.evaluation.results import write_results
    from groundling.evaluation.study import Job, make_jobs, run_beside, run_here

    study, arms = read_study(arguments.study, arguments.overrides)
    runs = arguments.runs or Path("runs") / study.name
    output = arguments.output or Path("results") / study.name
    jobs = make_jobs(study, arms, runs)
    console = _console()

    def tell(text: str) -> None:
        console.print(text, highlight=False, markup=False, soft_wrap=True)

    options = [word for module in arguments.imports for word in ("--import", module)]
    command = ["study", arguments.study, *arguments.overrides, *options]
    told = [*command, "--jobs", str(arguments.jobs), "--output", str(output)]
    if arguments.jobs == 1:
        failed = run_here(jobs, tell, console, warn)
    else:

        def words(job: Job) -> list[str]:
            one = [f"arms={job.arm}", f"seeds={job.seed}"]
            return [*command, *one, "--runs", str(runs), "--no-results"]

        failed = run_beside(jobs, words, arguments.jobs, tell)
    if not arguments.no_results:
        write_results(study, jobs, output, told)
        tell(f"results: {output / 'README.md'}")
    if failed:
        raise RunError(
            f"{len(failed)} of {len(jobs)} failed ({', '.join(job.name for job in failed)}): mend what they say and "
            "give the same command"
        )
    return 0


def _list(arguments: argparse.Namespace) -> int:
    from groundling.inventory import inventory
    from groundling.registry import unknown

    kinds = inventory()
    if arguments.kind is not None and arguments.kind not in kinds:
        raise ConfigError(unknown("kind", arguments.kind, kinds))
    for kind in [arguments.kind] if arguments.kind else kinds:
        print(f"{kind}:")
        for name, what in kinds[kind]().items():
            print(f"  {name:32} {what}".rstrip())
    return 0


def _doctor(arguments: argparse.Namespace) -> int:
    from groundling.inventory import checkup

    healthy = True
    for name, fine, what in checkup():
        healthy &= fine is not False
        print(f"{'--' if fine is None else 'ok' if fine else 'NO':3} {name:16} {what}")
    return 0 if healthy else 1


def warn(text: str) -> None:
    """Tell the user, beside the output proper."""
    print(f"warning: {text}", file=sys.stderr)


def _console() -> "Console":
    from rich.console import Console

    return Console(quiet=os.environ.get("RANK", "0") != "0")  # of several processes the first one speaks


def _import(module: str) -> None:
    try:
        importlib.import_module(module)
    except Exception as error:  # whatever a user's module does when it is imported
        raise ConfigError(f"--import {module}: {type(error).__name__}: {error}") from error


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a positive number, got {text!r}")
    return int(text)


def _fraction(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError(f"expected a number from 0 to less than 1, got {text!r}")
    return value


def _duration(seconds: float) -> str:
    minutes = seconds / 60
    return (
        f"{seconds:.0f} s"
        if minutes < 2
        else f"{minutes:.0f} min"
        if minutes < 120
        else f"{minutes / 60:.1f} h"
    )


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
