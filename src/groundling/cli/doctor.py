"""`groundling doctor`."""

import argparse

from groundling.cli.command import Commands, add_command


def add_parser(commands: Commands) -> None:
    """Add `groundling doctor`."""
    parser = add_command(
        commands,
        "doctor",
        run,
        "is this machine set up",
        examples="""
        groundling doctor            versions, extras, devices
        groundling doctor --score    the starter model scores, too
        """,
    )
    parser.add_argument(
        "--score",
        action="store_true",
        help="let the starter model score, too, not only read its files: some seconds",
    )


def run(arguments: argparse.Namespace) -> int:
    """Carry the command out; returns its exit status."""
    from groundling.cli.inventory import checkup

    healthy = True
    for name, fine, what in checkup(arguments.score):
        healthy &= fine is not False
        print(f"{'--' if fine is None else 'ok' if fine else 'NO':3} {name:16} {what}")
    return 0 if healthy else 1
