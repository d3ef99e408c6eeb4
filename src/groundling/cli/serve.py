"""The `groundling serve` command."""

import argparse
import importlib.util
import os
import secrets

from groundling.cli.command import Commands, add_command, add_config_dir, add_overrides, listen
from groundling.errors import ConfigError
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

    from groundling.evaluation.protocols import find_agent
    from groundling.lm.load.adapters import merge_adapters
    from groundling.serving.app import make_app
    from groundling.serving.served_policy import ServedPolicy
    from groundling.serving.writer import Writer

    # Not an option, which other users of the machine could read.
    token = os.environ.get(_TOKEN) or secrets.token_urlsafe(24)
    if len(token) < _MIN_TOKEN or not all("!" <= character <= "~" for character in token):
        raise ConfigError(f"{_TOKEN} must have at least {_MIN_TOKEN} printable ASCII characters and no spaces")
    listening = listen(arguments.host, arguments.port)
    target = find_agent(arguments.agent, "balrog-babyai", arguments.overrides, warn, arguments.config_dir)
    policy = ServedPolicy(target.policy(target.agent))
    merge_adapters(policy.policy)
    console, (host, port) = make_console(), listening.getsockname()
    console.print(f"serving {arguments.agent} at http://{host}:{port}/v1", soft_wrap=True)
    if _TOKEN not in os.environ:
        console.print(f"clients need this token: export OPENAI_API_KEY={token}", soft_wrap=True)
    console.print("Press Ctrl-C to stop.")
    writer = Writer(policy)
    app = make_app(writer, arguments.agent, token)
    # When stopped, wait a second for answers that are being written.
    config = uvicorn.Config(app, log_level="warning", access_log=False, timeout_graceful_shutdown=1)
    uvicorn.Server(config).run(sockets=[listening])
    writer.close()
    return 0
