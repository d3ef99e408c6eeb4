"""`groundling evaluate`."""

import argparse
from typing import TYPE_CHECKING

from groundling.commands.command import (
    Commands,
    add_command,
    episode_bars,
    make_console,
    one_line,
    positive,
    warn,
)
from groundling.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from groundling.evaluation.episodes import Summary
    from groundling.evaluation.evaluate import Target


def add_parser(commands: Commands) -> None:
    """Add `groundling evaluate`."""
    parser = add_command(commands, "evaluate", run, "play held-out episodes and compare with baselines")
    parser.add_argument(
        "agent",
        help="a run's folder, one of its checkpoints, an experiment (untrained), random, expert, or explorer",
    )
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="e.g. device=cpu")
    parser.add_argument(
        "--suite",
        default="held-out",
        help="which tests: NAME,NAME; or all, glam, controls (default: %(default)s)",
    )
    parser.add_argument(
        "--episodes",
        type=positive,
        help="how many, or how many texts (default: the run's evaluation.episodes)",
    )
    parser.add_argument(
        "--split", default="test", help="of a run that writes: train, val or test (default: %(default)s)"
    )


def run(arguments: argparse.Namespace) -> int:
    """Carry the command out; returns its exit status."""
    from groundling.envs.nethack import TASKS
    from groundling.evaluation.evaluate import evaluate, find
    from groundling.evaluation.suites import find_suites

    suites = find_suites(arguments.suite)
    target = find(arguments.agent, arguments.overrides, warn)
    num_episodes = arguments.episodes or target.config.evaluation.episodes
    console = make_console()
    if target.config.pool.id is not None:
        return _evaluate_texts(target, arguments.split, num_episodes, console)
    if target.config.env.id in TASKS:
        if suites != ["held-out"]:
            raise ConfigError(f"--suite {arguments.suite} is about words: NetHack's only suite is held-out")
        return _evaluate_games(target, num_episodes, console)
    told = 0
    for suite in suites:
        try:
            with episode_bars(console, num_episodes) as on_agent:
                summaries = evaluate(target, suite, num_episodes, on_agent, warn)
        except ConfigError as error:
            if len(suites) == 1:
                raise
            warn(one_line(error))  # of several suites those that suit are played
            continue
        told += 1
        console.print(_table(f"{target.under(suite).env.id} · {suite} · {num_episodes} episodes", summaries))
    if told == 0:
        raise ConfigError(f"none of the suites of --suite {arguments.suite} suits this run")
    console.print(f"written to {target.run_dir / 'evaluation'}", highlight=False)
    return 0


def _evaluate_texts(target: "Target", split: str, num_samples: int, console: "Console") -> int:
    from rich.table import Table

    from groundling.evaluation.writing import evaluate_texts

    with episode_bars(console, num_samples, "texts") as on_agent:
        found = evaluate_texts(target, split, num_samples, on_agent)
    figures = {name: written.figures() for name, written in found.items()}
    count = len(next(iter(found.values())).samples)
    table = Table(title=f"{target.config.pool.id} · {split} · {count} texts")
    table.add_column("metric")
    for name in figures:
        table.add_column(name, justify="right")
    for metric in next(iter(figures.values())):
        table.add_row(metric, *(f"{own[metric]:.4g}" for own in figures.values()))
    console.print(table)
    console.print(f"written to {target.run_dir / 'evaluation'}", highlight=False)
    return 0


def _evaluate_games(target: "Target", num_episodes: int, console: "Console") -> int:
    from rich.table import Table

    from groundling.evaluation.nethack.evaluate import evaluate_games

    with episode_bars(console, num_episodes) as on_agent:
        found = evaluate_games(target, num_episodes, on_agent, warn)
    table = Table(title=f"{target.config.env.id} · held-out · {num_episodes} episodes · mean [95 % interval]")
    table.add_column("figure")
    for name in found:
        table.add_column(name, justify="right")
    for figure in next(iter(found.values())):
        told = (f"{e.value:.4g} [{e.low:.4g}, {e.high:.4g}]" for e in (own[figure] for own in found.values()))
        table.add_row(figure.replace("_", " "), *told)
    console.print(table)
    console.print(f"written to {target.run_dir / 'evaluation'}", highlight=False)
    return 0


def _table(title: str, summaries: "dict[str, Summary]") -> "Table":
    from rich import box
    from rich.table import Table

    tells = any(s.first_episodes for s in summaries.values())
    first = ("named first", "none", "precision", "chance") if tells else ()
    # Side by side in 80 characters, without lines between them.
    table = Table(title=title, box=box.SIMPLE, padding=0, show_edge=False) if tells else Table(title=title)
    length = "length" if tells else "episode length"
    for column in ("agent", "success rate", "95 % interval", *first, "return", length):
        whole = column in ("agent", "95 % interval")
        table.add_column(column, justify="left" if column == "agent" else "right", no_wrap=whole)
    for name, s in summaries.items():
        cells = [f"{s.success_rate:.3f}", f"{s.success_low:.3f} – {s.success_high:.3f}"]
        if tells:
            cells[1] = _interval(s.success_low, s.success_high)
            cells += map(_rate, (s.first_named, s.first_none, s.first_precision, s.first_chance))
        table.add_row(name, *cells, f"{s.return_mean:.3f}", f"{s.episode_length:.1f}")
    if tells:
        table.caption = (
            "named first: share of episodes whose first thing dealt with is the named one; none: nothing is; "
            "precision: share of the other episodes, to be compared with chance"
        )
    return table


def _rate(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def _interval(low: float, high: float) -> str:
    return f"{low:.3f}–{high:.3f}"
