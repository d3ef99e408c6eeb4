"""The `groundling evaluate` command."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from groundling.cli.command import (
    Commands,
    add_command,
    add_config_dir,
    add_overrides,
    one_line,
    positive,
    refuse_unused,
)
from groundling.errors import ConfigError, RunError
from groundling.io.terminal import episode_bars, make_console, warn
from groundling.registry import from_file, import_words

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from rich.console import Console

    from groundling.evaluation.target import Target


def add_parser(commands: Commands) -> None:
    parser = add_command(
        commands,
        "evaluate",
        run,
        "evaluate an agent on held-out episodes and compare it with baselines",
        examples="""
        groundling evaluate runs/demo                                held-out episodes, compared with the baselines
        groundling evaluate runs/demo --suite french,invented-words   generalisation tests
        groundling evaluate expert world.env=BabyAI-GoTo-v0           an agent without a run
        groundling evaluate runs/demo world.args.num_dists=6 --name crowded   other settings, saved as held-out-crowded
        """,
    )
    add = parser.add_argument
    text = "a run's folder, one of its checkpoints, an experiment (untrained), random, expert or explorer; with "
    text += "--protocol also a language model's folder, file or hub id, or a chat server's URL"
    add("agent", help=text)
    add_overrides(parser, "e.g. device=cpu")
    add_config_dir(parser)
    text = "test suites, as NAME,NAME; in text envs also the groups all, generalisation, glam, forms and controls "
    text += "(default: held-out); for text generation, the splits test, val and train (default: test)"
    add("--suite", "--split", help=text)
    text = "a function of goal, observation and info that returns the goal to show in the swapped suite; if the env "
    text += "has no separate goal, it returns the observation with its goal replaced"
    add("--other-goal", metavar="FILE.py:FUNCTION", help=text)
    text = "evaluate on a benchmark's suites and compute its score: balrog-babyai, the mean over five tasks"
    add("--protocol", choices=("balrog-babyai",), help=text)
    text = "number of episodes or texts (default: the run's evaluation.episodes, or the protocol's number)"
    add("--episodes", type=positive, help=text)
    text = "write the results to evaluation/SUITE-NAME.json (default: evaluation/SUITE.json; earlier results obtained "
    text += "with other overrides are moved to evaluation/replaced/)"
    add("--name", help=text)
    text = "number of parallel single-threaded processes for several suites (default: run in this process)"
    add("--jobs", type=positive, default=1, help=text)


def run(arguments: argparse.Namespace) -> int:
    from groundling.envs.controls import using

    named: str | None = arguments.other_goal
    with using(named or "", None if named is None else _function(named)):
        return _run(arguments)


def _function(text: str) -> "Callable[..., Any]":
    """Import the function of ``--other-goal``."""
    path, _, name = text.rpartition(":")
    try:
        function = getattr(from_file(Path(path)), name)
    except Exception as error:  # a user's module may raise anything
        raise ConfigError(
            f"--other-goal {text}: {type(error).__name__}: {error}: expected FILE.py:FUNCTION"
        ) from error
    return function


def _run(arguments: argparse.Namespace) -> int:
    from groundling.evaluation import protocols
    from groundling.evaluation.controls import read_controls
    from groundling.evaluation.evaluate import figures_table
    from groundling.evaluation.target import find

    protocol: str | None = arguments.protocol
    if protocol is None:
        target = find(arguments.agent, arguments.overrides, warn, config_dir=arguments.config_dir)
        num_episodes = target.config.evaluation.episodes
    else:
        target = protocols.find_player(arguments.agent, protocol, arguments.overrides, warn, arguments.config_dir)
        num_episodes = protocols.num_episodes(target, protocol)
    target = target.named(arguments.name)
    world, console = target.world, make_console()
    suites = world.find_suites(arguments.suite or protocol or next(iter(world.suites)))
    if protocol is not None and not set(suites) <= set(world.find_suites(protocol)):
        raise ConfigError(f"--suite {arguments.suite} is not part of the protocol {protocol}: remove it")
    if len(suites) == 1:
        refuse_unused(arguments, "with one suite", "jobs")
    if "swapped" not in suites:
        refuse_unused(arguments, "without the swapped suite", "other_goal")
    needs_all = len(suites) == 1 or protocol is not None
    suites = suites if needs_all else _applicable(target, suites)
    original, controls = next(iter(world.suites)), world.suite_groups.get("controls", ())
    if "controls" in (arguments.suite or "").split(",") and original not in suites and {*controls} & {*suites}:
        suites = [original, *suites]  # the controls are compared with it
    if arguments.jobs > 1:
        evaluated = _evaluate_parallel(arguments, target, suites, console)
    else:
        evaluated = _evaluate(target, suites, arguments.episodes or num_episodes, console, needs_all)
    if not evaluated:
        raise ConfigError(f"--suite {arguments.suite} contains no suite that applies to this run")
    if protocol is not None and arguments.suite is None:
        console.print(figures_table(protocols.PROTOCOLS[protocol], protocols.score(target, protocol)))
    compared = [suite for suite in evaluated if suite in controls]
    if compared and original in evaluated:
        read_controls(target.run_dir, target.suffix, target.agent, [original, *compared]).print()
    console.print(f"written to {target.run_dir / 'evaluation'}")
    return 0


def _applicable(target: "Target", suites: "Sequence[str]") -> list[str]:
    """Return the suites that apply to the target; warn about the others, with one line for each reason."""
    refused: dict[str, list[str]] = {}
    for suite in suites:
        try:
            target.under(suite)
        except ConfigError as error:
            reason = one_line(error).removeprefix(f"suite {suite!r} does not apply to this run: ")
            refused.setdefault(reason, []).append(suite)
    for reason, names in refused.items():
        which = f"suites {', '.join(names)} do" if len(names) > 1 else f"suite {names[0]!r} does"
        warn(f"{which} not apply to this run: {reason}")
    return [suite for suite in suites if not any(suite in names for names in refused.values())]


def _evaluate(
    target: "Target", suites: "Sequence[str]", num_episodes: int, console: "Console", needs_all: bool
) -> list[str]:
    """Evaluate the suites in this process; return those that could be evaluated."""
    from groundling.evaluation.evaluate import evaluate, figures_table

    evaluated, unit = list[str](), target.world.presentation.episodes
    for suite in suites:
        try:
            with episode_bars(console, num_episodes, unit) as on_agent:
                played = evaluate(target, suite, num_episodes, on_agent, warn)
        except ConfigError as error:
            if needs_all:
                raise
            warn(one_line(error))
            continue
        evaluated.append(suite)
        count = len(played[target.agent].episodes)
        if count < num_episodes:
            console.print(f"{suite} has only {count} {unit}")
        figures = {name: one.figures() for name, one in played.items()}
        console.print(figures_table(target.heading(suite, count), figures, target.note))
    return evaluated


def _evaluate_parallel(
    arguments: argparse.Namespace, target: "Target", suites: "Sequence[str]", console: "Console"
) -> "Sequence[str]":
    """Evaluate each suite in a separate process, and return the suites."""
    from groundling.runtime.parallel import CommandLine, run_parallel

    def report(text: str) -> None:
        console.print(text, soft_wrap=True)

    words = ["evaluate", arguments.agent, *arguments.overrides, *import_words(arguments.imports)]
    for option in ("episodes", "config_dir", "name", "protocol"):
        if (value := getattr(arguments, option)) is not None:
            words += [f"--{option.replace('_', '-')}", str(value)]
    folder = target.run_dir / "evaluation"
    own = {"swapped": [] if arguments.other_goal is None else ["--other-goal", arguments.other_goal]}
    lines = [
        CommandLine(name, [*words, *own.get(name, ()), "--suite", name], folder / f"{name}{target.suffix}.log")
        for name in suites
    ]
    failed = run_parallel(lines, arguments.jobs, report)
    for line in lines:
        if line.name not in failed:
            report(line.log.read_text(encoding="utf-8", errors="replace"))
    if failed:
        raise RunError(f"{len(failed)} of {len(suites)} suites failed: {', '.join(failed)}")
    return suites
