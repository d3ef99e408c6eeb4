"""Measure memory and file descriptors of four commands in parallel while workers are killed (soak test).

    python benchmarks/soak.py --hours 6                # results/soak: soak.csv, soak.json, soak.png, README.md
    python benchmarks/soak.py --hours 0.2 --output /tmp/soak

The commands train in a text world (`demo-easy`), on text generation (`rl4lms/increasing_numbers_ppo`) and in NetHack
(`motif/score` with only the score as reward), and run `annotate` with a loopback server. Each is a single-threaded
process. The text world and NetHack have two worker processes each, and every few minutes one of the four, chosen at
random, receives SIGKILL. Every 30 seconds, the resident and proportional memory, open descriptors, threads, processes
and zombies of each command's process tree are read from /proc (Linux), along with the command's progress. It is an error
if a command ends early, except for `annotate`, which restarts with a new store.
"""

import argparse
import csv
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import soak_figures
from machine import machine

SAMPLE_SECONDS = 30.0
KILL_SECONDS = 180.0
LATENCY = 0.25
"""The delay of the server's answers, in seconds."""
CONCURRENCY = 2
WORKERS = ("groundling.envs.worker_pool",)
"""Words in the command line of an env worker."""
ENDLESS = ["training.steps=1000000000", "training.keep_checkpoints=1", "device=cpu"]
TRAININGS = {
    "text": ["demo-easy", "world.num_envs=8", "world.num_workers=2", "training.checkpoint_every=5"],
    "writer": ["rl4lms/increasing_numbers_ppo", "training.checkpoint_every=20"],
    "nethack": [
        "motif/score",
        "~reward.reward_model",
        "world.num_envs=16",
        "world.num_workers=2",
        "training.checkpoint_every=20",
    ],
}
KILLED = ("text", "nethack")


@dataclass
class Sample:
    """A sample of one command's process tree."""

    seconds: float
    """The time since the start of the soak test."""
    command: str
    main_rss_kib: int
    """The resident memory of the command's main process."""
    main_fds: int
    rss_kib: int
    """The resident memory of all its processes; shared pages are counted in each process."""
    pss_kib: int
    """The proportional memory of all its processes; shared pages are counted once."""
    fds: int
    threads: int
    processes: int
    zombies: int
    progress: int
    """The number of updates of a training run, or of `annotate`'s answers in all stores."""
    kills: int
    """The number of this command's workers that have been killed so far."""
    lost: int
    """The number of envs of lost workers (text world) or of lost workers (NetHack), from the run's metrics."""


def tree(root: int) -> list[int]:
    """Return the ids of a process and its descendants, starting with the root."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                children.setdefault(int(fields[1]), []).append(int(entry.name))
    found = [root]
    for process in found:  # the list grows in this loop
        found += children.get(process, [])
    return found


def figures(process: int) -> dict[str, int]:
    """Return the memory in KiB, descriptors and threads of a process; zeros for zombies and ended processes."""
    counts = dict.fromkeys(("Rss", "Pss", "fds", "threads", "zombie"), 0)
    folder = Path("/proc") / str(process)
    with suppress(OSError):
        state = (folder / "stat").read_text().rpartition(")")[2].split()
        counts["zombie"] = int(state[0] == "Z")
        counts["threads"] = int(state[17])
        counts["fds"] = len(list((folder / "fd").iterdir()))
        for line in (folder / "smaps_rollup").read_text().splitlines():
            name, _, value = line.partition(":")
            if name in ("Rss", "Pss"):
                counts[name] = int(value.split()[0])
    return counts


@dataclass
class Command:
    """One of the four commands and its processes."""

    name: str
    words: list[str]
    folder: Path
    kills: int = 0
    begun: int = 0
    """The number of times that the command has been started."""
    process: "subprocess.Popen[bytes] | None" = field(default=None, repr=False)

    def start(self) -> None:
        """Start or restart the command; its output is written to the log."""
        self.begun += 1
        words = [word.replace("{begun}", str(self.begun)) for word in self.words]
        with (self.folder / f"{self.name}.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "groundling", *words],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
            )

    def sample(self, seconds: float) -> Sample:
        assert self.process is not None
        of_each = [figures(process) for process in tree(self.process.pid)]
        total = {name: sum(one[name] for one in of_each) for name in of_each[0]}
        return Sample(
            seconds=round(seconds, 1),
            command=self.name,
            main_rss_kib=of_each[0]["Rss"],
            main_fds=of_each[0]["fds"],
            rss_kib=total["Rss"],
            pss_kib=total["Pss"],
            fds=total["fds"],
            threads=total["threads"],
            processes=len(of_each),
            zombies=total["zombie"],
            progress=self.progress(),
            kills=self.kills,
            lost=self.lost(),
        )

    def progress(self) -> int:
        rows = self.folder.glob("answers-*/**/*.jsonl" if self.name == "annotate" else f"{self.name}/metrics.jsonl")
        return sum(path.read_bytes().count(b"\n") for path in rows)

    def lost(self) -> int:
        rows = self.folder / self.name / "metrics.jsonl"
        lines = rows.read_text(encoding="utf-8").splitlines() if self.name in KILLED and rows.exists() else []
        last = json.loads(lines[-1]) if lines else {}
        return int(last.get("lost_envs", last.get("dead_workers", 0)))

    def workers(self) -> list[int]:
        """Return the processes that step envs."""
        assert self.process is not None
        found = []
        for process in tree(self.process.pid)[1:]:
            with suppress(OSError):
                words = (Path("/proc") / str(process) / "cmdline").read_bytes().decode()
                if any(name in words for name in WORKERS):
                    found.append(process)
        return found

    def stop(self) -> dict[str, int]:
        """Stop the command; return its exit status, the seconds, and the number of remaining processes."""
        assert self.process is not None
        processes, began = tree(self.process.pid), time.monotonic()
        self.process.terminate()
        try:
            status = self.process.wait(120)
        except subprocess.TimeoutExpired:
            self.process.kill()
            status = self.process.wait()
        seconds = round(time.monotonic() - began)
        time.sleep(1.0)
        left = sum(figures(process)["fds"] > 0 for process in processes)  # zombies have no descriptors
        return {"status": status, "seconds": seconds, "left": left}


@contextmanager
def chat_server() -> Iterator[str]:
    """A judge server on loopback; its verdict is the parity of the request's length."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            time.sleep(LATENCY)
            message = {"message": {"content": f"Verdict: {1 + len(body) % 2}"}, "finish_reason": "stop"}
            usage = {"prompt_tokens": len(body) // 4, "completion_tokens": 3}
            content = json.dumps({"choices": [message], "usage": usage}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *arguments: object) -> None:
            pass

    class Quiet(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *arguments: object) -> None:
            """Ignore connections closed at the end."""

    server = Quiet(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
    finally:
        server.shutdown()
        server.server_close()


def commands(folder: Path, url: str, pairs: Path) -> list[Command]:
    judge = ["openai", "model=soak", f"base_url={url}", f"concurrency={CONCURRENCY}"]
    annotate = ["annotate", str(pairs), "--judge", *judge, "--store", f"{folder}/answers-{{begun}}"]
    return [
        *(
            Command(name, ["train", *words, *ENDLESS, f"run_dir={folder / name}"], folder)
            for name, words in TRAININGS.items()
        ),
        Command("annotate", [*annotate, "--name", "soak-{begun}"], folder),
    ]


def collect(folder: Path, hours: float) -> Path:
    """Write more pairs from a text world than can be annotated in the given hours."""
    pairs = folder / "pairs"
    count = int(1.02 * hours * 3600 * CONCURRENCY / LATENCY)
    play = ["collect", "random", "world.env=BabyAI-MixedTrainLocal-v0", "--pairs", str(count), "--length", "8"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    words = [sys.executable, "-m", "groundling", *play, "--output", str(pairs)]
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL, env=environment)
    return pairs


def soak(running: list[Command], hours: float, output: Path, seed: int) -> None:
    """Sample and kill until the time is over, and write each sample immediately.

    Raises:
        RuntimeError: If a training run ended or a command made no progress.
    """
    draw = random.Random(seed)
    began = time.monotonic()
    next_kill = KILL_SECONDS
    with (output / "soak.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(Sample.__dataclass_fields__))
        writer.writeheader()
        for number in range(int(hours * 3600 / SAMPLE_SECONDS) + 1):
            time.sleep(max(0.0, began + number * SAMPLE_SECONDS - time.monotonic()))
            for command in running:
                assert command.process is not None
                status = command.process.poll()
                if status == 0 and command.name == "annotate":
                    command.start()
                elif status is not None:
                    raise RuntimeError(f"{command.name} ended with {status}: {command.folder / command.name}.log")
                writer.writerow(asdict(command.sample(time.monotonic() - began)))
            file.flush()
            if time.monotonic() - began >= next_kill:
                next_kill += KILL_SECONDS
                victims = [(c, pid) for c in running if c.name in KILLED for pid in c.workers()]
                command, pid = draw.choice(victims)
                os.kill(pid, signal.SIGKILL)
                command.kills += 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hours", type=float, default=6.0)
    parser.add_argument("--output", type=Path, default=Path("results/soak"))
    parser.add_argument("--seed", type=int, default=1, help="seed for the choice of workers to kill")
    arguments = parser.parse_args()
    if arguments.hours * 3600 * (1 - soak_figures.WARM_UP) < soak_figures.BLOCKS * SAMPLE_SECONDS:
        parser.error(
            f"--hours {arguments.hours:g} is too short for a line through {soak_figures.BLOCKS} means: 0.11 at least"
        )
    arguments.output.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="groundling-soak-"))
    print(f"runs and logs: {folder}", flush=True)
    with chat_server() as url:
        running = commands(folder, url, collect(folder, arguments.hours))
        try:
            for command in running:
                command.start()
            soak(running, arguments.hours, arguments.output, arguments.seed)
        finally:
            ended = {command.name: command.stop() for command in running if command.process is not None}
    settings = {"hours": arguments.hours, "seed": arguments.seed, "kill_seconds": KILL_SECONDS}
    text = json.dumps({**settings, "machine": machine(), "ended": ended}, indent=1) + "\n"
    (arguments.output / "soak.json").write_text(text, encoding="utf-8")
    shutil.rmtree(folder)  # only after success, because the logs explain failures
    soak_figures.write(arguments.output)


if __name__ == "__main__":
    main()
