"""The `groundling serve` command."""

import argparse
import importlib.util
import os
import secrets
import socket

from groundling.cli.command import Commands, add_command, add_config_dir, add_overrides
from groundling.errors import ConfigError, RunError
from groundling.io.terminal import make_console, warn

_LOOPBACK, _TOKEN, _MIN_TOKEN = "127.0.0.1", "GROUNDLING_TOKEN", 16


def add_parser(commands: Commands) -> None:
    parser = add_command(
        commands,
        "serve",
        run,
        "serve an agent's language model to other programs, in the format of OpenAI's API",
        examples="""
        groundling serve runs/demo                         a trained agent, on a free port of this machine
        groundling serve starter-causal --port 8000        a language model: a folder, smollm2, FILE.gguf, a hub id
        """,
    )
    add = parser.add_argument
    add("agent", help="a run's folder, one of its checkpoints, an experiment (untrained), or a language model")
    add_overrides(parser, "e.g. device=cpu")
    add_config_dir(parser)
    add("--port", type=int, default=0, help="port (default: a free one)")
    add("--host", default=_LOOPBACK, help="address to listen on (default: 127.0.0.1, only this machine); unencrypted")


def run(arguments: argparse.Namespace) -> int:
    if missing := [name for name in ("starlette", "uvicorn") if importlib.util.find_spec(name) is None]:
        raise ConfigError(f"{', '.join(missing)} not installed: pip install 'groundling[ui]'")
    import uvicorn

    from groundling.evaluation.protocols import find_player
    from groundling.lm.load.adapters import merge_adapters
    from groundling.serving.app import make_app
    from groundling.serving.served_policy import ServedPolicy

    token = os.environ.get(_TOKEN) or secrets.token_urlsafe(24)
    if len(token) < _MIN_TOKEN or not all("!" <= character <= "~" for character in token):
        raise ConfigError(f"{_TOKEN} must have at least {_MIN_TOKEN} printable ASCII characters and no spaces")
    listening = socket.socket()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((arguments.host, arguments.port))
    except (OSError, OverflowError) as error:
        place = f"{arguments.host}:{arguments.port}"
        raise RunError(f"cannot listen on {place} ({error}): choose a different --port or --host") from error
    # An untrained model is the agent of this protocol, whose policy scores and writes as any other.
    target = find_player(arguments.agent, "balrog-babyai", arguments.overrides, warn, arguments.config_dir)
    policy = target.policy(target.agent)
    served = ServedPolicy(policy)
    merge_adapters(served.policy)
    host, port = listening.getsockname()
    console = make_console()
    console.print(f"serving {arguments.agent} at http://{host}:{port}/v1", soft_wrap=True)
    if _TOKEN not in os.environ:
        console.print(f"clients need this token: export OPENAI_API_KEY={token}", soft_wrap=True)
    console.print("Press Ctrl-C to stop.")
    app = make_app(served, arguments.agent, token)
    config = uvicorn.Config(app, log_level="warning", access_log=False, timeout_graceful_shutdown=1)
    uvicorn.Server(config).run(sockets=[listening])
    return 0
