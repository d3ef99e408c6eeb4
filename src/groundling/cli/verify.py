"""`groundling verify`."""

import argparse
from pathlib import Path

from groundling.cli.command import Commands, add_command
from groundling.io.console import make_console


def add_parser(commands: Commands) -> None:
    """Add `groundling verify`."""
    parser = add_command(
        commands,
        "verify",
        run,
        "check that what was written is whole, and say what can be mended",
        examples="""
        groundling verify runs/demo
        """,
    )
    parser.add_argument(
        "folders",
        nargs="+",
        type=Path,
        metavar="RUN",
        help="a run's folder, a published policy, a reward model, or a dataset of `groundling collect`",
    )


def run(arguments: argparse.Namespace) -> int:
    """Carry the command out; returns its exit status: 1 where something is wrong."""
    from groundling.training.verify import verify

    console = make_console()
    status = 0
    for folder in arguments.folders:
        findings = verify(folder)
        console.print(str(folder), highlight=False, soft_wrap=True)
        for finding in findings:
            mark, words = (
                ("ok   ", finding.what)
                if finding.problem is None
                else ("WRONG", f"{finding.what} {finding.problem}")
            )
            mend = f"; {finding.mend}" if finding.mend else ""
            line = " ".join(f"{words}{mend}".splitlines())  # the names of files may have line breaks
            console.print(f"  {mark}  {line}", highlight=False, soft_wrap=True)
            status |= finding.problem is not None
    return int(status)
