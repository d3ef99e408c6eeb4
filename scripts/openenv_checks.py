"""Check worlds on OpenEnv servers: the same episodes through a server and directly, and runs that survive kills.

    pip install 'groundling[openenv]'
    python -m scripts.openenv_checks equality
    python -m scripts.openenv_checks kills --envs OpenEnv/envs              # the maze, which always starts in the same way
    python -m scripts.openenv_checks kills --envs OpenEnv/envs --world secretary   # ignores seeds

``--envs`` is the folder of OpenEnv's own environments, from https://github.com/meta-pytorch/OpenEnv. All servers run
on this machine and are stopped at the end.
"""

import argparse
import hashlib
import json
import multiprocessing
import os
import random
import re
import shutil
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import transformers.models.llama.modeling_llama  # noqa: F401  (so that forked processes need not import it)
import uvicorn
from openenv.core import GenericEnvClient

import groundling.training.train  # noqa: F401
from groundling.cli.main import main as cli
from groundling.envs.babyai_text import ACTIONS
from groundling.envs.make import make_text_env

WORLD, OTHER_OBJECTS = "BabyAI-MixedTrainLocal-v0", "BabyAI-MixedTestLocal-v0"
SUITES = {None: 100, "unseen-objects": 50, "swapped": 50}  # Number of episodes
NUM_SESSIONS = 8
Episode = tuple[int, str | None]
SHARED = ["policy.id=action_scoring", "model.path=starter-causal", "world.num_envs=4", "world.num_steps=16"]
SHARED += ["world.args.timeout=500", "algorithm.args.minibatch_size=32"]
RUNS = {
    "maze": [
        *SHARED,
        "world.args.action=action",
        "world.args.admissible=legal_actions",
        "world.args.names={0: up, 1: down, 2: left, 3: right}",
        "world.args.descriptions=['You are at {current_position}.']",
        "world.args.goal='Reach {metadata.exit_cell}.'",
    ],
    "secretary": [
        *SHARED,
        "world.args.action=message",
        "world.args.admissible=['[accept]','[continue]']",
        "world.args.descriptions=[messages.-1.content]",
        "world.goal='Accept the highest of five values.'",
        "policy.args.temperature=8",
        "world.entropy_floor=0",
    ],
}
VARIES = ("seconds", "steps_per_second", "lost_envs", "cut_episodes")  # Metrics that differ between equal runs


class Process:
    """A forked process, which starts at once since the modules are already imported; its output goes to a file."""

    def __init__(self, function: Callable[..., object], *arguments: Any, log: Path) -> None:
        self._function, self._arguments, self.log = function, arguments, log
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text("")

    def _run(self) -> None:
        with self.log.open("ab") as file:
            for stream in (1, 2):
                os.dup2(file.fileno(), stream)
        sys.exit(self._function(*self._arguments))

    def start(self) -> None:
        self._process = multiprocessing.get_context("fork").Process(target=self._run)
        self._process.start()

    def kill(self) -> None:
        self._process.kill()
        self._process.join()

    def has_ended(self) -> bool:
        return not self._process.is_alive()

    def wait(self) -> int | None:
        self._process.join()
        return self._process.exitcode


@contextmanager
def listening(server: Process, port: int) -> Iterator[None]:
    """Run a server, which accepts connections when the block starts."""
    server.start()
    try:
        while not server.has_ended():
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            time.sleep(0.1)
        yield
    finally:
        server.kill()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


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
        success = bool(terminated and float(reward) > 0) if done else None
        text = "\n".join(info["descriptions"])
        rows.append([observation["mission"], text, float(reward), done, success, truncated])
    return rows


def check_equality(runs: Path, output: Path) -> int:
    """Compare episodes played through `groundling serve-env` with the same episodes played directly."""
    episodes = [(i if i % 2 else 2**30 + i, suite) for suite, count in SUITES.items() for i in range(count)]
    print(f"playing {len(episodes)} episodes of {WORLD} directly", flush=True)
    direct = {episode: json.dumps(play_directly(*episode)).encode() for episode in episodes}
    port = free_port()
    words = ["serve-env", WORLD, "--port", str(port), "--max-sessions", str(NUM_SESSIONS)]
    server = Process(cli, words, log=runs / "server.log")

    def play(share: Sequence[Episode], together: threading.Barrier) -> dict[Episode, bytes]:
        with closing(GenericEnvClient(base_url=f"http://127.0.0.1:{port}").sync()) as client:
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
    with listening(server, port):
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


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """Return the updates written so far; a killed process may leave an incomplete last line."""
    path, rows = folder / "metrics.jsonl", list[dict[str, Any]]()
    with suppress(json.JSONDecodeError):
        for line in path.read_text().splitlines() if path.exists() else []:
            rows.append(json.loads(line))
    return rows


def result_of(folder: Path) -> tuple[list[dict[str, Any]], str]:
    """Return the metrics that equal runs share, and a hash of the weights, the optimizer and the episodes at the end.

    The state of Python's module `random` is excluded, since the websockets package draws from it.
    """
    rows = [{key: value for key, value in row.items() if key not in VARIES} for row in read_metrics(folder)]
    checkpoint = max((folder / "checkpoints").glob("[0-9]*"))
    weights = [path for path in sorted(checkpoint.glob("*.safetensors")) if path.name != "random.safetensors"]
    return rows, hashlib.sha256(b"".join(path.read_bytes() for path in weights)).hexdigest()


def read_messages(log: Path, folder: Path) -> dict[str, int]:
    """Count the messages of a run that mention interruptions, with N for each number."""
    lines = [line.replace(str(folder), "RUN") for line in log.read_text().splitlines()]
    kept = [line for line in lines if line.startswith(("resuming", "warning", "error"))]
    return dict(Counter(re.sub(r"\d+", "N", line) for line in kept))


def serve_maze(envs: Path, port: int) -> None:
    """Serve OpenEnv's maze to eight sessions; its own app allows one."""
    sys.path.insert(0, str(envs))
    from maze_env.models import MazeAction, MazeObservation
    from maze_env.server.maze_env_environment import MazeEnvironment
    from openenv.core.env_server import create_app

    app = create_app(MazeEnvironment, MazeAction, MazeObservation, max_concurrent_envs=8)
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="error")


def serve_secretary(envs: Path, port: int) -> None:
    """Serve TextArena's Secretary; the environment variables are those of OpenEnv's textarena_env."""
    os.environ |= {"TEXTARENA_ENV_ID": "Secretary-v0-raw", "TEXTARENA_DOWNLOAD_NLTK": "0"}
    sys.path.insert(0, str(envs))
    from textarena_env.server.app import app

    uvicorn.run(app, host="127.0.0.1", port=port, log_level="error")


def check_kills(world: str, envs: Path, kills: int, steps: int, runs: Path, output: Path) -> int:
    """Kill the trainer and the server at random moments, and compare the run with an uninterrupted one."""
    port, folders = free_port(), [runs / f"{world}-{name}" for name in ("uninterrupted", "killed")]
    words = ["train", "text", f"world.env=openenv:http://127.0.0.1:{port}", *RUNS[world], f"training.steps={steps}"]
    whole, killed = (Process(cli, [*words, f"run_dir={one}"], log=one.with_suffix(".log")) for one in folders)
    server = Process(serve_maze if world == "maze" else serve_secretary, envs, port, log=runs / "server.log")
    draw, order, rows = random.Random(0), ["trainer", "server"] * kills, list[dict[str, Any]]()
    draw.shuffle(order)
    with listening(server, port):
        print(f"{world}: the uninterrupted run", flush=True)
        whole.start()
        if whole.wait():
            raise SystemExit(f"the uninterrupted run failed: see {whole.log}")
        metrics = read_metrics(folders[0])
        seconds = metrics[-1]["seconds"] / len(metrics)  # per update
        killed.start()
        for number, victim in enumerate(order, 1):
            before = len(read_metrics(folders[1]))
            while len(read_metrics(folders[1])) <= before and not killed.has_ended():
                time.sleep(0.02)
            wait = draw.uniform(0, seconds)
            time.sleep(wait)
            if killed.has_ended():
                break
            update = len(read_metrics(folders[1]))
            dead = killed if victim == "trainer" else server
            dead.kill()
            time.sleep(draw.uniform(0, 2))
            dead.start()
            rows.append(
                {"world": world, "kill": number, "of": victim, "after update": update, "and seconds": round(wait, 2)}
            )
            print(json.dumps(rows[-1]), flush=True)
        code = killed.wait()
    (expected, weights), (found, found_weights) = map(result_of, folders)
    summary: dict[str, Any] = {"world": world, "kills": len(rows), "exit code": code, "updates": len(found)}
    summary |= {"metrics equal": found == expected, "weights equal": found_weights == weights}
    summary |= {name: read_metrics(folders[1])[-1].get(name) for name in VARIES[2:]}
    summary["messages"] = read_messages(killed.log, folders[1])
    print(json.dumps(summary), flush=True)
    output.mkdir(parents=True, exist_ok=True)
    path = output / "kills.jsonl"
    kept = (
        [line for line in path.read_text().splitlines() if json.loads(line)["world"] != world] if path.exists() else []
    )
    path.write_text("".join(f"{line}\n" for line in [*kept, *map(json.dumps, [*rows, summary])]))
    return code or 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("check", choices=("equality", "kills"))
    add("--output", type=Path, default=Path("results/openenv"))
    add("--envs", type=Path, default=Path("OpenEnv/envs"), help="kills: folder of OpenEnv's environments")
    add("--world", choices=RUNS, default="maze", help="kills: world to train in")
    add("--kills", type=int, default=10, help="kills: number for the trainer, and number for the server")
    add("--steps", type=int, default=2_048, help="kills: length of the run; an update has 64 steps")
    add("--runs", type=Path, default=Path("runs/openenv_checks"), help="folder for logs and runs, removed first")
    given = parser.parse_args()
    shutil.rmtree(given.runs, ignore_errors=True)
    if given.check == "equality":
        return check_equality(given.runs, given.output)
    return check_kills(given.world, given.envs, given.kills, given.steps, given.runs, given.output)


if __name__ == "__main__":
    sys.exit(main())
