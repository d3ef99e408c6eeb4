"""Real processes, a real server and real kills: no answer on the disk is requested again."""

import json
import multiprocessing
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest

import groundling.worlds  # noqa: F401  (registers subjects of judges; killed processes read no conftest)
from groundling.judges import Annotation, OpenAIJudge, Pairs, open_pairs
from tests.judges.asking.annotating import QUESTION, annotate, dataset, longer
from tests.judges.asking.chat_server import ChatServer, captions, serving
from tests.thorough import thorough


def _annotate(folder: str, url: str, chunk: int, chunks: int) -> None:
    judge = OpenAIJudge("model", url, concurrency=4, timeout=5, soft_labels=False)
    annotate(open_pairs(folder), judge, "llm", chunk=chunk, chunks=chunks)


def _start(arguments: list[tuple[str, str, int, int]]) -> list[Any]:
    context: Any = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.judges.asking.test_annotation_processes", "httpx2"])
    processes = [context.Process(target=_annotate, args=args) for args in arguments]
    for process in processes:
        process.start()
    return processes


def _finish(arguments: list[tuple[str, str, int, int]]) -> None:
    for process in _start(arguments):
        process.join(60)
        assert process.exitcode == 0


def _known(pairs: Pairs, url: str) -> set[frozenset[str]]:
    """Return the pairs whose answers are on the disk."""
    store = Annotation(pairs, OpenAIJudge("model", url), QUESTION).store
    return {
        frozenset(json.loads(line)["captions"])
        for path in (store.folder / "answers" / store.hash).glob("*.jsonl")
        for line in path.read_bytes().split(b"\n")[:-1]
    }


@pytest.mark.parametrize(("chunks", "most"), [(2, 4), *thorough((1, 20), (2, 20))])
def test_kills_cost_only_what_was_in_flight(tmp_path: Path, chunks: int, most: int) -> None:
    rng = random.Random(chunks)
    rows = [(f"a{n}" + "x" * (n % 5), "b" * (n % 9)) for n in range(most * 35 // 2)]
    both = rows + [(b, a) for a, b in rows]
    pairs = dataset(tmp_path / "pairs", both)
    with serving(ChatServer(latency=0.03)) as server:
        arguments = [(str(pairs.folder), server.url, chunk, chunks) for chunk in range(chunks)]
        useful = kills = 0
        while kills < most:
            known, asked = _known(pairs, server.url), len(server.bodies)
            processes = _start(arguments)
            while len(server.bodies) == asked and all(process.is_alive() for process in processes):
                time.sleep(0.005)
            time.sleep(rng.uniform(0.0, 0.12))
            for process in processes:
                assert process.is_alive(), "everything was asked before the last kill"
                os.kill(process.pid, signal.SIGKILL)
                kills += 1
            for process in processes:
                process.join()
            time.sleep(0.05)  # the server completes requests in flight
            again = {frozenset(captions(body)) for body in server.bodies[asked:]} & known
            assert not again, "asked twice although the answer was on the disk"
            useful += len(server.bodies) > asked
        assert useful >= (most - 2) / chunks
        in_flight = len(server.bodies) - len(_known(pairs, server.url))
        assert in_flight <= kills * 4, "at most the requests that were in flight at each kill"
        _finish(arguments)
        assert len(server.bodies) == len({frozenset(row) for row in rows}) + in_flight
    assert open_pairs(pairs.folder).preferences("llm").tolist() == longer(both)
