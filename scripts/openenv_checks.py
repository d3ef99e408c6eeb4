"""Check worlds on OpenEnv servers: the same episodes through a server and directly, and runs that survive kills.

    pip install 'groundling[openenv]'
    python -m scripts.openenv_checks equality

All servers run on this machine and are stopped at the end.
"""

import argparse
import hashlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from groundling.envs.babyai_text import ACTIONS
from groundling.envs.make import make_text_env

WORLD, OTHER_OBJECTS = "BabyAI-MixedTrainLocal-v0", "BabyAI-MixedTestLocal-v0"
SUITES = {None: 100, "unseen-objects": 50, "swapped": 50}  # Number of episodes
NUM_SESSIONS = 8
Episode = tuple[int, str | None]


class Server:
    """A server on this machine.

    Args:
        command: Python's arguments, in which ``{port}`` stands for a free port.
        folder, env: Where to run it, and its additional environment variables.
    """

    def __init__(self, command: Sequence[str], folder: Path | None = None, env: dict[str, str] | None = None) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listening:
            self.port = listening.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._command = [sys.executable, *(word.format(port=self.port) for word in command)]
        self._folder, self._env = folder, {**os.environ, **(env or {})}
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, seconds: float = 120.0) -> None:
        """Start the server, and wait until it accepts connections."""
        self._process = subprocess.Popen(self._command, cwd=self._folder, env=self._env, stdout=subprocess.DEVNULL)
        for _ in range(round(seconds / 0.1)):
            if self._process.poll() is not None:
                raise SystemExit(f"the server exited with {self._process.returncode}")
            with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
                return
            time.sleep(0.1)
        raise SystemExit(f"the server did not listen within {seconds:g} s")

    def kill(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()

    @contextmanager
    def running(self) -> Iterator[str]:
        """Run the server, and yield its address."""
        self.start()
        try:
            yield self.url
        finally:
            self.kill()


def play_served(client: Any, seed: int, suite: str | None) -> list[list[Any]]:
    """Play a random episode through a server: goal, text, reward, end, success and truncation of each step."""
    result, draw, rows = client.reset(seed=seed, suite=suite), random.Random(seed), list[list[Any]]()
    while True:
        seen = result.observation
        truncated = (result.metadata or {}).get("truncated", False)
        rows.append([seen["goal"], seen["text"], result.reward, result.done, seen["success"], truncated])
        if result.done:
            return rows
        action = draw.randrange(len(seen["actions"]))
        result = client.step({"action": action if action % 2 else seen["actions"][action]})


def play_directly(seed: int, suite: str | None) -> list[list[Any]]:
    """Play the same episode without a server."""
    level, control = (OTHER_OBJECTS, None) if suite == "unseen-objects" else (WORLD, suite)
    env, draw = make_text_env(level, control=control), random.Random(seed)
    observation, info = env.reset(seed=seed)
    rows: list[list[Any]] = [[observation["mission"], "\n".join(info["descriptions"]), None, False, None, False]]
    while not rows[-1][3]:
        observation, reward, terminated, truncated, info = env.step(draw.randrange(len(ACTIONS["english"])))
        done = terminated or truncated
        success = bool(terminated and reward > 0) if done else None
        text = "\n".join(info["descriptions"])
        rows.append([observation["mission"], text, float(reward), done, success, truncated])
    return rows


def check_equality(output: Path) -> int:
    """Compare episodes played through `groundling serve-env` with the same episodes played directly."""
    from openenv.core import GenericEnvClient

    episodes = [(i if i % 2 else 2**30 + i, suite) for suite, count in SUITES.items() for i in range(count)]
    print(f"playing {len(episodes)} episodes of {WORLD} directly", flush=True)
    direct = {episode: json.dumps(play_directly(*episode)).encode() for episode in episodes}
    server = Server(["-m", "groundling", "serve-env", WORLD, "--port", "{port}", "--max-sessions", str(NUM_SESSIONS)])

    def play(share: Sequence[Episode], together: threading.Barrier) -> dict[Episode, bytes]:
        with closing(GenericEnvClient(base_url=url).sync()) as client:
            client.connect()
            together.wait(120)  # all sessions are open before the first episode starts
            played = dict[Episode, bytes]()
            for number, episode in enumerate(share, 1):
                played[episode] = json.dumps(play_served(client, *episode)).encode()
                if number % 25 == 0:
                    print(f"{number} of {len(share)} episodes", flush=True)
            together.wait(600)  # and remain open until the last one ends
            return played

    figures: dict[str, Any] = {"world": WORLD, "episodes": len(episodes)}
    with server.running() as url:
        for sessions in (1, NUM_SESSIONS):
            started, together, served = time.perf_counter(), threading.Barrier(sessions), dict[Episode, bytes]()
            with ThreadPoolExecutor(sessions) as pool:
                shares = [episodes[first::sessions] for first in range(sessions)]
                for played in pool.map(play, shares, [together] * sessions):
                    served |= played
            row: dict[str, Any] = {"seconds": round(time.perf_counter() - started, 1)}
            for suite, count in SUITES.items():
                equal = sum(served[one] == direct[one] for one in episodes if one[1] == suite)
                row[f"equal, {suite or 'unchanged'}"] = f"{equal} of {count}"
            row["bytes equal"] = all(served[one] == direct[one] for one in episodes)
            row["sha256"] = hashlib.sha256(b"".join(served[one] for one in episodes)).hexdigest()
            figures[f"{sessions} sessions"] = row
            print(sessions, "sessions:", json.dumps(row), flush=True)
    figures["steps"] = sum(len(json.loads(rows)) - 1 for rows in direct.values())
    figures["bytes"] = sum(map(len, direct.values()))
    figures["sha256, direct"] = hashlib.sha256(b"".join(direct[one] for one in episodes)).hexdigest()
    output.mkdir(parents=True, exist_ok=True)
    (output / "equality.json").write_text(json.dumps(figures, indent=1) + "\n")
    return 0 if all(figures[f"{n} sessions"]["bytes equal"] for n in (1, NUM_SESSIONS)) else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("check", choices=("equality",))
    parser.add_argument("--output", type=Path, default=Path("results/openenv"))
    arguments = parser.parse_args()
    return check_equality(arguments.output)


if __name__ == "__main__":
    sys.exit(main())
