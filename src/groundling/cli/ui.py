"""The `groundling ui` command."""

import argparse
import importlib.util
import secrets
from pathlib import Path

from groundling.cli.command import Commands, add_command
from groundling.errors import ConfigError
from groundling.io.terminal import make_console

_NEEDED = ("starlette", "uvicorn", "plotly", "markdown_it")


def add_parser(commands: Commands) -> None:
    parser = add_command(
        commands,
        "ui",
        run,
        "show runs, episodes, judges and studies in a browser on this machine",
        examples="""
        groundling ui                      everything in runs/
        groundling ui runs data results    preference datasets and studies too
        """,
    )
    parser.add_argument("folders", type=Path, nargs="*", metavar="FOLDER", help="folders to show (default: runs)")
    parser.add_argument("--port", type=int, default=0, help="port on this machine (default: a free one)")


def run(arguments: argparse.Namespace) -> int:
    if missing := [name for name in _NEEDED if importlib.util.find_spec(name) is None]:
        raise ConfigError(f"{', '.join(missing)} not installed: pip install 'groundling[ui]'")
    folders = arguments.folders or [Path("runs")]
    for folder in folders:
        if not folder.is_dir():
            raise ConfigError(f"{folder} is not a folder: pass folders that contain runs, datasets or results")
    import uvicorn

    from groundling.reports.ui.app import make_app
    from groundling.serving.http import address_of, listen

    listening = listen("127.0.0.1", arguments.port)
    token = secrets.token_urlsafe(24)
    make_console().print(f"open {address_of(listening)}/?token={token}\nPress Ctrl-C to stop.", soft_wrap=True)
    # Requests are not logged, since their URLs contain the token.
    server = uvicorn.Server(uvicorn.Config(make_app(folders, token), log_level="warning", access_log=False))
    server.run(sockets=[listening])
    return 0
