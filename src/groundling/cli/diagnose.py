"""The `groundling diagnose` command."""

import argparse
from pathlib import Path

from groundling.cli.command import Commands, add_command


def add_parser(commands: Commands) -> None:
    parser = add_command(
        commands,
        "diagnose",
        run,
        "look for signs that a run is not learning, and suggest what to change first",
        examples="""
        groundling diagnose runs/demo
        """,
    )
    parser.add_argument("run_dir", type=Path, metavar="RUN")


def run(arguments: argparse.Namespace) -> int:
    from groundling.config.compose import from_file
    from groundling.io.terminal import make_console
    from groundling.training.diagnosis import SHOWN, UPDATES, examined, findings, table_of

    console, folder = make_console(), arguments.run_dir
    config, figures = from_file(folder / "config.yaml", purpose="showing"), examined(folder)
    if not figures:
        console.print(f"{folder}: no update has finished yet")
    elif found := findings(figures, config):
        console.print(table_of(found, f"signs that {folder} is not learning"))
    else:
        shown = ", ".join(f"{name} {figures[name]:.3g}" for name in SHOWN if name in figures)
        console.print(f"nothing found in updates 1 to {UPDATES}: {shown}", soft_wrap=True)
    return 0
