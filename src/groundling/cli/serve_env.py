"""The `groundling serve-env` command."""

import argparse
import importlib.util
import os
from pathlib import Path

from groundling.cli.command import Commands, add_command, add_overrides, positive, refuse_unused
from groundling.errors import ConfigError

_NETWORK = ("host", "port", "token_env")


def add_parser(commands: Commands) -> None:
    parser = add_command(
        commands,
        "serve-env",
        run,
        "serve a text world as an OpenEnv environment, for trainers that use OpenEnv's clients",
        examples="""
        groundling serve-env BabyAI-MixedTrainLocal-v0              on this machine, port 8000
        groundling serve-env Doors-v0 --import doors                your own env
        groundling serve-env BabyAI-GoToLocal-v0 --output goto_env  a folder for `openenv push` or `docker build`
        """,
    )
    add = parser.add_argument
    add("env", help="the id of an env that is registered with Gymnasium")
    add_overrides(parser, "world.args={…}, world.actions=[…], world.language=…, world.step_limit=N, …")
    add("--host", default="127.0.0.1", help="address to listen on; any but a loopback address requires --token-env")
    add("--port", type=int, default=8000, help="port to listen on; 0 for a free one (default: %(default)s)")
    add("--max-sessions", type=positive, default=8, help="maximum number of clients (default: %(default)s)")
    text = "environment variable with a token, which clients send as the header Authorization: Bearer TOKEN"
    add("--token-env", metavar="NAME", help=text)
    add("--output", type=Path, metavar="FOLDER", help="write a folder to publish instead of serving")


def run(arguments: argparse.Namespace) -> int:
    if importlib.util.find_spec("openenv") is None:
        raise ConfigError("openenv is not installed: pip install 'groundling[openenv]'")
    if arguments.output is not None:
        from groundling.serving.openenv_folder import write_folder

        refuse_unused(arguments, "with --output", *_NETWORK)
        write_folder(arguments.output, arguments.env, arguments.overrides, arguments.imports, arguments.max_sessions)
        print(f"wrote {arguments.output}: see its README.md")
        return 0
    import uvicorn

    from groundling.serving.http import LOOPBACK, MOST_BYTES, address_of, listen
    from groundling.serving.openenv import make_app

    token = None if arguments.token_env is None else os.environ.get(arguments.token_env)
    if arguments.token_env is not None and not token:
        raise ConfigError(f"--token-env: the environment variable {arguments.token_env} is not set")
    if token is None and arguments.host not in LOOPBACK:
        raise ConfigError(f"--host {arguments.host} is open to other machines: require a token with --token-env NAME")
    hosts = LOOPBACK if arguments.host in LOOPBACK else None
    listening = listen(arguments.host, arguments.port)
    app = make_app(arguments.env, arguments.overrides, max_sessions=arguments.max_sessions, token=token, hosts=hosts)
    sessions = f"for up to {arguments.max_sessions} sessions"
    print(f"serving {arguments.env} at {address_of(listening)} {sessions}\nPress Ctrl-C to stop.", flush=True)
    settings = uvicorn.Config(app, log_level="warning", access_log=False, ws_max_size=MOST_BYTES)
    uvicorn.Server(settings).run(sockets=[listening])
    return 0
