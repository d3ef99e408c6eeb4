"""The `groundling serve` command."""

import argparse
import importlib.util
import os
import secrets

from groundling.cli.command import Commands, add_command, add_config_dir, add_overrides
from groundling.errors import ConfigError
from groundling.io.terminal import warn

_MIN_TOKEN = 16


def add_parser(commands: Commands) -> None:
    parser = add_command(
        commands,
        "serve",
        run,
        "serve an agent's language model to other programs through an OpenAI-compatible API",
        examples="""
        groundling serve runs/demo             a trained agent, on this machine, port 8000
        groundling serve starter-causal        a language model: a folder, smollm2, FILE.gguf, a hub id
        """,
    )
    add = parser.add_argument
    add("agent", help="a run's folder, one of its checkpoints, an experiment (untrained), or a language model")
    add_overrides(parser, "e.g. device=cpu")
    add_config_dir(parser)
    add("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    add("--port", type=int, default=8000, help="port to listen on; 0 for a free one (default: %(default)s)")
    text = "environment variable with the token that clients must send (default: print a new token)"
    add("--token-env", metavar="NAME", help=text)


def run(arguments: argparse.Namespace) -> int:
    if missing := [name for name in ("starlette", "uvicorn") if importlib.util.find_spec(name) is None]:
        raise ConfigError(f"{', '.join(missing)} not installed: pip install 'groundling[ui]'")
    import uvicorn

    from groundling.evaluation.protocols import find_agent
    from groundling.lm.load.adapters import merge_adapters
    from groundling.serving.app import make_app
    from groundling.serving.http import LOOPBACK, address_of, listen
    from groundling.serving.served_policy import ServedPolicy
    from groundling.serving.writer import Writer

    name: str | None = arguments.token_env
    token = secrets.token_urlsafe(24) if name is None else os.environ.get(name, "")
    if len(token) < _MIN_TOKEN or not all("!" <= character <= "~" for character in token):
        raise ConfigError(f"--token-env {name}: set it to {_MIN_TOKEN} or more ASCII characters without spaces")
    listening = listen(arguments.host, arguments.port)
    target = find_agent(arguments.agent, "balrog-babyai", arguments.overrides, warn, arguments.config_dir)
    policy = ServedPolicy(target.policy(target.agent))
    merge_adapters(policy.policy)
    print(f"serving {arguments.agent} at {address_of(listening)}/v1")
    if name is None:
        print(f"token for clients: export OPENAI_API_KEY={token}")
    print("Press Ctrl-C to stop.", flush=True)
    writer = Writer(policy)
    app = make_app(writer, arguments.agent, token, LOOPBACK if arguments.host in LOOPBACK else None)
    # On shutdown, wait a second for answers in progress.
    settings = uvicorn.Config(app, log_level="warning", access_log=False, timeout_graceful_shutdown=1)
    uvicorn.Server(settings).run(sockets=[listening])
    writer.close()
    return 0
