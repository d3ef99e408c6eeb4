"""The `groundling verify` command."""

import argparse
from pathlib import Path

from groundling.cli.command import Commands, add_command
from groundling.io.terminal import make_console


def add_parser(commands: Commands) -> None:
    parser = add_command(
        commands,
        "verify",
        run,
        "check that the files of a run or dataset are complete, and suggest what to do if they are not",
        examples="""
        groundling verify runs/demo
        """,
    )
    text = "a run's folder, a published policy, a reward model, or a dataset from `groundling collect`"
    parser.add_argument("folders", nargs="+", type=Path, metavar="RUN", help=text)


def run(arguments: argparse.Namespace) -> int:
    """Return 1 if there is a problem."""
    from groundling.training.verify import verify

    console = make_console()
    status = 0
    for folder in arguments.folders:
        console.print(str(folder), soft_wrap=True)
        for finding in verify(folder):
            line = finding.what if finding.problem is None else f"{finding.what} {finding.problem}"
            line += f"; {finding.advice}" if finding.advice else ""
            mark = "ok   " if finding.problem is None else "WRONG"
            # File names may contain line breaks.
            console.print(f"  {mark}  {' '.join(line.splitlines())}", soft_wrap=True)
            status |= finding.problem is not None
    return int(status)
