"""The `groundling report` command."""

import argparse
from pathlib import Path

from groundling.cli.command import Commands, add_command
from groundling.errors import ConfigError


def add_parser(commands: Commands) -> None:
    parser = add_command(
        commands,
        "report",
        run,
        "write a self-contained HTML page about one or more runs",
        examples="""
        groundling report runs/demo
        groundling report runs/demo-seed* --output report.html    several runs on one page
        """,
    )
    add = parser.add_argument
    add("runs", type=Path, nargs="+", metavar="RUN")
    add("--output", type=Path, help="the page (default: report.html in the first run's folder)")
    text = "also write the runs' returns, by task and run name, to a JSON file"
    add("--export", type=Path, metavar="FILE", help=text)


def run(arguments: argparse.Namespace) -> int:
    if missing := [str(folder) for folder in arguments.runs if not (folder / "config.yaml").exists()]:
        raise ConfigError(f"{missing[0]}/config.yaml does not exist: expected a run folder from `groundling train`")
    from groundling.reports.export import write_returns
    from groundling.reports.page import write_report

    output = write_report(arguments.runs, arguments.output or arguments.runs[0] / "report.html")
    print(f"report: {output.resolve()}")
    if arguments.export is not None:
        write_returns(arguments.runs, arguments.export)
        print(f"returns: {arguments.export.resolve()}")
    return 0
