"""`groundling evaluate`."""

import argparse
from typing import TYPE_CHECKING

from groundling.cli.command import (
    Commands,
    add_command,
    add_config_dir,
    check_used,
    one_line,
    positive,
)
from groundling.errors import ConfigError, RunError
from groundling.io.console import episode_bars, make_console, warn
from groundling.registry import import_words

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from groundling.evaluation.target import Target


def add_parser(commands: Commands) -> None:
    """Add `groundling evaluate`."""
    parser = add_command(
        commands,
        "evaluate",
        run,
        "play held-out episodes and compare with baselines",
        examples="""
        groundling evaluate runs/demo                                held-out episodes, beside the baselines
        groundling evaluate runs/demo --suite french,invented-words   tests of generalisation
        groundling evaluate expert world.env=BabyAI-GoTo-v0           an agent without a run
        groundling evaluate runs/demo world.args.num_dists=6 --name crowded   changed settings, as held-out-crowded
        """,
    )
    parser.add_argument(
        "agent",
        help="a run's folder, one of its checkpoints, an experiment (untrained), random, expert, or explorer; with "
        "--protocol also a language model's folder, file or hub id, or a chat server's address",
    )
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="e.g. device=cpu")
    add_config_dir(parser)
    parser.add_argument(
        "--suite",
        "--split",
        help="which tests: NAME,NAME; of a text env also all, generalisation, glam, forms, controls (default: "
        "held-out); of a run that writes test, val, train (default: test)",
    )
    parser.add_argument(
        "--protocol",
        choices=("balrog-babyai",),
        help=(
            "play a benchmark's suites and score them as the benchmark does: balrog-babyai, the mean over five "
            "tasks"
        ),
    )
    parser.add_argument(
        "--episodes",
        type=positive,
        help=(
            "how many episodes or texts (default: the run's evaluation.episodes; with --protocol the protocol's "
            "number)"
        ),
    )
    parser.add_argument(
        "--name",
        help="what the results are called beside the suite, as evaluation/SUITE-NAME.json (default: they take the "
        "place of the suite's own, which move to evaluation/replaced/ where they are of other overrides)",
    )
    parser.add_argument(
        "--jobs",
        type=positive,
        default=1,
        help="processes of one thread each, of which each plays one suite (default: all in this process)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Carry the command out; returns its exit status."""
    from groundling.evaluation import protocols
    from groundling.evaluation.evaluate import evaluate
    from groundling.evaluation.tables import figures_table
    from groundling.evaluation.target import find

    protocol: str | None = arguments.protocol
    if protocol is None:
        target = find(arguments.agent, arguments.overrides, warn, config_dir=arguments.config_dir)
        usual = target.config.evaluation.episodes
    else:
        target = protocols.find_player(
            arguments.agent, protocol, arguments.overrides, warn, arguments.config_dir
        )
        usual = protocols.num_episodes(target, protocol)
    target = target.named(arguments.name)
    check_used(arguments.config_dir, [(arguments.agent, target)])
    world, console = target.world, make_console()
    suites = world.find_suites(arguments.suite or protocol or next(iter(world.suites)))
    if protocol is not None and not set(suites) <= set(world.find_suites(protocol)):
        raise ConfigError(
            f"--suite {arguments.suite} names suites that the protocol {protocol} does not have: leave it out"
        )
    num_episodes = arguments.episodes or usual
    if arguments.jobs > 1 and len(suites) == 1:
        raise ConfigError(
            f"--jobs {arguments.jobs} plays suites beside each other, and {suites[0]} is the only one: leave --jobs out"
        )
    if arguments.jobs > 1:
        _run_beside(arguments, target, suites, console)
        _count(arguments, target, console)
        return 0
    evaluated = 0
    for suite in suites:
        try:
            with episode_bars(console, num_episodes, world.episodes) as on_agent:
                played = evaluate(target, suite, num_episodes, on_agent, warn)
        except ConfigError as error:
            if len(suites) == 1 or protocol is not None:
                raise
            warn(one_line(error))  # of several suites those that suit are played
            continue
        evaluated += 1
        count = len(played[target.agent].episodes)
        if count < num_episodes:
            console.print(f"{suite} has no more than {count} {world.episodes}", highlight=False)
        console.print(
            figures_table(target.heading(suite, count), {name: one.figures() for name, one in played.items()})
        )
    if evaluated == 0:
        raise ConfigError(f"none of the suites of --suite {arguments.suite} suits this run")
    _count(arguments, target, console)
    console.print(f"written to {target.run_dir / 'evaluation'}", highlight=False)
    return 0


def _count(arguments: argparse.Namespace, target: "Target", console: "Console") -> None:
    """Of a protocol whose suites have all been played: what it comes to."""
    from groundling.evaluation import protocols
    from groundling.evaluation.tables import figures_table

    if arguments.protocol is not None and arguments.suite is None:
        about = protocols.PROTOCOLS[arguments.protocol]
        console.print(figures_table(about, protocols.count(target, arguments.protocol)))


def _run_beside(
    arguments: argparse.Namespace, target: "Target", suites: "Sequence[str]", console: "Console"
) -> None:
    """Evaluate each suite that suits the target in a process of its own."""
    from groundling.runtime.parallel import CommandLine, run_beside

    def tell(text: str) -> None:
        console.print(text, highlight=False, soft_wrap=True)

    suited = []
    for suite in suites:
        try:
            target.under(suite)
        except ConfigError as error:
            warn(one_line(error))
        else:
            suited.append(suite)
    if not suited:
        raise ConfigError(f"none of the suites of --suite {arguments.suite} suits this run")
    same = import_words(arguments.imports)
    if arguments.episodes:
        same += ["--episodes", str(arguments.episodes)]
    if arguments.config_dir:
        same += ["--config-dir", str(arguments.config_dir)]
    if arguments.name:
        same += ["--name", arguments.name]
    if arguments.protocol:
        same += ["--protocol", arguments.protocol]
    words = ["evaluate", arguments.agent, *arguments.overrides, *same]
    lines = [
        CommandLine(
            suite, [*words, "--suite", suite], target.run_dir / "evaluation" / f"{suite}{target.suffix}.log"
        )
        for suite in suited
    ]
    failed = run_beside(lines, arguments.jobs, tell)
    for line in lines:
        if line.name not in failed:
            tell(line.log.read_text(encoding="utf-8", errors="replace"))
    if failed:
        raise RunError(f"{len(failed)} of {len(suited)} suites failed: {', '.join(failed)}")
