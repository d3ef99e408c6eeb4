"""A worker process: steps its share of every group of envs when told to (see `groundling.envs.nethack.vector`).

``python -m groundling.envs.nethack.worker COMMANDS REPLIES MEMORY SPEC``: three file descriptors and a JSON object. A
command is one byte: a group's number, or `BEGIN`. Each is answered by one line of JSON, the first line says that the
envs are made. The process ends when its commands do, or who gives them.
"""

import json
import os
import signal
import sys
from contextlib import suppress
from typing import Any

from groundling.envs.nethack.shared import SharedArrays
from groundling.envs.nethack.stepping import BEGIN, EnvSlice, EnvSpec
from groundling.runtime.parent import end_with

READY = -1
"""What the first reply names instead of a command."""


def serve(commands: int, replies: int, memory: int, settings: dict[str, Any]) -> None:
    """Answer commands until there are no more."""
    spec = EnvSpec(**settings["spec"])
    arrays = SharedArrays.attach(memory, spec.num_envs).arrays
    slices = [
        EnvSlice(spec, arrays, start, stop, lost=settings["lost"]) for start, stop in settings["slices"]
    ]

    def reply(command: int, crashes: list[str]) -> None:
        os.write(replies, json.dumps({"command": command, "crashes": crashes}).encode() + b"\n")

    reply(READY, [])
    while command := os.read(commands, 1):
        if command[0] == BEGIN:
            reply(BEGIN, [crash for envs in slices for crash in envs.begin()])
        else:
            reply(command[0], slices[command[0]].step())
    for envs in slices:
        envs.close()


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for who gives the commands
    commands, replies, memory = map(int, sys.argv[1:4])
    settings = json.loads(sys.argv[4])
    end_with(settings["parent"])
    with suppress(BrokenPipeError):  # nobody is left to hear the reply
        serve(commands, replies, memory, settings)


if __name__ == "__main__":
    main()
