"""Measure how many questions per second a judge processes on a server that answers immediately.

    python benchmarks/judge_server.py            # half a minute
    python benchmarks/judge_server.py --quick    # smoke test that writes no results

A loopback server in a separate process answers every request of a persistent connection with the same few bytes.
Pairs of captions are annotated with `groundling.judges.Annotation`, with the given number of parallel requests. It
writes each answer before its worker sends the next request.
"""

import argparse
import asyncio
import itertools
import json
import multiprocessing
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from machine import machine

import groundling.worlds  # noqa: F401  (registers the subjects of judges)
from groundling.judges import Annotation, OpenAIJudge, Question
from groundling.judges.preferences.pairs import TextSegment
from groundling.judges.preferences.recording import TextPairs

RESULTS = Path(__file__).parent / "results"
CONCURRENCY = (1, 8, 64)
_REPLY = json.dumps(
    {
        "choices": [{"message": {"content": "The first.\nVerdict: 1"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 300, "completion_tokens": 7},
    }
).encode()
_ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (len(_REPLY), _REPLY)


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer each request of a connection."""
    try:
        while head := await reader.readuntil(b"\r\n\r\n"):
            length = next(
                int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if b"content-length" in line
            )
            await reader.readexactly(length)
            writer.write(_ANSWER)
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()


def _serve(ports: Any) -> None:
    async def serve() -> None:
        server = await asyncio.start_server(_answer, "127.0.0.1", 0)
        ports.put(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(serve())


def answers_a_second(folder: Path, port: int, concurrency: int, count: int) -> float:
    """Annotate ``count`` pairs."""
    wall = TextSegment("", ["You see a wall."])
    texts = [(TextSegment("", [f"You see a key {n} steps forward."]), wall) for n in range(count)]
    pairs = TextPairs.create(folder, texts, {"return": np.zeros((count, 2))}, {"world": "text"})
    judge = OpenAIJudge("m", f"http://127.0.0.1:{port}/v1", soft_labels=False, concurrency=concurrency)
    annotation = Annotation(pairs, judge, Question(world="text"))
    began = time.perf_counter()
    summary = annotation.run("speed")
    seconds = time.perf_counter() - began
    assert summary.asked == count and not summary.invalid
    return count / seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0, help="approximate duration of each measurement")
    parser.add_argument("--quick", action="store_true", help="run one round with few answers; write no results")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.rounds, arguments.seconds = 1, 0.3
    context = multiprocessing.get_context("spawn")
    ports = context.Queue()
    server = context.Process(target=_serve, args=(ports,), daemon=True)
    server.start()
    port = ports.get()
    rates: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for number, concurrency in itertools.product(range(arguments.rounds), CONCURRENCY):
            place = Path(folder) / f"pairs-{number}-{concurrency}"
            count = max(concurrency, int(arguments.seconds * 50 * concurrency))
            rate = answers_a_second(place, port, concurrency, count)
            rates.setdefault(f"concurrency {concurrency}", []).append(rate)
    server.terminate()
    for name, values in rates.items():
        print(f"{name:16} {median(values):8.1f} answers/s ({min(values):.1f} to {max(values):.1f})")
    if not arguments.quick:
        results = {"machine": machine(), "answers_per_second": rates}
        (RESULTS / "judge_server-cpu.json").write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
