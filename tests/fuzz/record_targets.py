"""Fuzz targets for records: JSON, rows of metrics, checkpoints, evaluations, judges' answers."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

from groundling.evaluation.evaluate import read_evaluation
from groundling.io.documents import check_depth, parse_json, read_lines
from groundling.io.row_files import read_rows, scan_rows
from groundling.judges.preferences.recording import _read as read_recorded
from groundling.judges.preferences.store import Store, StoredAnswer
from groundling.training import checkpoint
from tests.fuzz import mutation
from tests.fuzz.harness import Target

_ROWS: list[Any] = [{"update": n, "step": 8 * n, "loss": 0.5, "name": "é"} for n in range(1, 5)]
_JSON = ('{"a": [1, 2.5, null, "x"], "b": {"c": true}}', "[]", '"é\\ud83d\\ude00"', "-1e5", json.dumps(_ROWS))
_FIGURE = {"value": 0.5, "low": 0.1, "high": None, "episodes": 4}
_EVALUATION: dict[str, Any] = {
    "suite": "held-out",
    "checkpoint": "000002",
    "agents": {"a": {"episodes": 4, "figures": {"success": _FIGURE}}, "zero-shot": {"episodes": 4, "figures": {}}},
    "tasks": {"a": {"go": {"episodes": 4, "figures": {"success": _FIGURE}}}},
    "left_out": {},
}
_COUNTERS: dict[str, Any] = {"counters": {"update": 2, "step": 16, "seconds": 1.5}, "versions": {"torch": "2"}}
_ANSWER = '{"key": "k", "label": "first", "probabilities": [0.5, 0.25, 0.25], "swapped": false, "captions": ["", ""], '
_ANSWERS = (
    _ANSWER + '"replies": [], "prompt_tokens": 5, "completion_tokens": 1, "seconds": 0.5}\n',
    _ANSWER + '"prompt_tokens": 1e9, "completion_tokens": 1, "seconds": 1}\n{"key": 1}\n',
)
_SEGMENTS: list[Any] = [["go", ["a key", "a ball"], "found", {"return": 1.0}], ["go", ["x"], "", {"return": 0}]]


def _bytes(seeds: list[Any], lines: bool = False) -> Callable[[Random], bytes]:
    """Return a function that makes JSON of mutated values or mutated JSON; with ``lines``, one value per line."""

    def text(random: Random, bend: bool) -> str:
        seed = random.choice(seeds)
        bent = mutation.value(random, seed) if bend else seed
        if lines and isinstance(bent, list):
            return "".join(mutation.json_text(one) + "\n" for one in bent)
        return mutation.json_text(bent)

    def make(random: Random) -> bytes:
        if random.random() < 0.6:
            return text(random, True).encode()
        return mutation.encoded(random, mutation.text(random, [text(random, False)]))

    return make


def _written(made: bytes, folder: Path, name: str = "made.json") -> Path:
    path = folder / name
    path.write_bytes(made)
    return path


def _json(random: Random) -> str | bytes:
    made = mutation.text(random, _JSON)
    return made if random.random() < 0.5 else mutation.encoded(random, made)


def _parsed(made: str | bytes, folder: Path) -> None:
    content = parse_json(made, "it")
    check_depth(content, "it")
    written = json.dumps(content)
    assert json.dumps(parse_json(written, "it")) == written
    assert json.dumps(json.loads(made)) == written


def _lines(made: bytes, folder: Path) -> None:
    read = list(read_lines(_written(made, folder)))
    assert len(read) == sum(1 for line in made.removeprefix(b"\xef\xbb\xbf").split(b"\n") if line.strip())
    numbers = [int(where.rpartition(":")[2]) for where, _ in read]
    assert numbers == sorted(set(numbers))


def _rows(made: bytes, folder: Path) -> None:
    path = _written(made, folder)
    for consecutive in (True, False):
        rows, problems = scan_rows(path, consecutive)
        assert all(problem.line >= 1 and problem.problem and problem.advice for problem in problems)
        if problems:
            continue
        updates, steps = ([row[name] for row in rows] for name in ("update", "step"))
        assert updates == sorted(updates) and steps == sorted(steps)
        if consecutive and rows:
            assert updates == list(range(updates[0], updates[0] + len(rows))) and updates[0] <= 1
        again = _written("".join(json.dumps(row) + "\n" for row in rows).encode(), folder, "again.jsonl")
        assert repr(read_rows(again, consecutive)) == repr(rows)


def _manifest(random: Random) -> bytes:
    content = b'{"a": 1}'
    entry = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    names = (
        *("run.json", "sub/a.bin", "../made.json", "/dev/zero", "/etc/hostname", "sub", "", "."),
        *("a\0b", "fifo"),
    )
    manifest = {"run.json": entry} | {random.choice(names): random.choice((entry, entry | {"bytes": 0}))}
    return _bytes([manifest, {"run.json": entry}])(random)


def _checkpoint(made: bytes, folder: Path) -> None:
    inside = folder / "checkpoint"
    (inside / "sub").mkdir(parents=True, exist_ok=True)
    for name in ("run.json", "sub/a.bin"):
        (inside / name).write_bytes(b'{"a": 1}')
    _written(b'{"a": 1}', folder)
    problem = checkpoint.find_problem(_written(made, inside, checkpoint.MANIFEST).parent)
    if problem is not None:
        assert problem.strip()
        return
    for name, expected in json.loads(made.decode("utf-8-sig")).items():
        path = inside / name
        assert path.resolve().is_relative_to(inside.resolve()), f"{name} is not in the checkpoint"
        assert hashlib.sha256(path.read_bytes()).hexdigest() == expected["sha256"]


def _counters(made: bytes, folder: Path) -> None:
    counters = checkpoint.counters_of(_written(made, folder, "run.json").parent)
    assert all(value >= 0 for value in counters.values()) and {"update", "step"} <= counters.keys()
    assert checkpoint.step_of(folder) == counters["step"]


def _evaluation(made: bytes, folder: Path) -> None:
    content = read_evaluation(_written(made, folder))
    for agent in content["agents"].values():
        for figure in agent["figures"].values():
            for name in ("value", "low", "high"):
                assert figure[name] is None or type(figure[name]) in (int, float), figure


def _answers(made: bytes, folder: Path) -> None:
    store = Store(folder, {"q": 1})
    store._answers.mkdir(parents=True, exist_ok=True)
    _written(made, store._answers, "made.jsonl")
    answers = store.read()
    for key, answer in answers.items():
        assert key == answer.key and isinstance(answer, StoredAnswer)
        assert answer.prompt_tokens >= 0 and answer.preference in range(4)
    _written(b"", store._answers, "made.jsonl")
    for answer in answers.values():
        store.append(answer)
    store.close()
    again = store.read()
    made_too = store._answers / "made.jsonl"
    (added,) = {*store._answers.glob("*.jsonl")} - {made_too} if answers else (made_too,)
    added.unlink()
    assert repr(again) == repr({key: replace(answer) for key, answer in answers.items()})


def _recorded(made: bytes, folder: Path) -> None:
    for one in read_recorded(_written(made, folder)):
        assert one.segment.captions and isinstance(one.segment.captions, list)
        texts = (one.segment.context, one.segment.outcome, *one.segment.captions)
        assert all(isinstance(text, str) for text in texts), one
        assert all(type(figure) in (int, float) for figure in one.figures.values()), one


def targets() -> list[Target]:
    """Return the targets for records."""
    answers = [[json.loads(line) for line in text.splitlines()] for text in _ANSWERS]
    return [
        Target("parse_json", _json, _parsed, "equal to Python's result, and written back the same", 330_000),
        Target("read_lines", _bytes([_ROWS], True), _lines, "one value per non-empty line", 10_000),
        Target("scan_rows", _bytes([_ROWS], True), _rows, "valid rows are in order and read back the same", 8_000),
        Target(
            "manifest", _manifest, _checkpoint, "complete files are in the checkpoint and match their hashes", 4_000
        ),
        Target("run.json", _bytes([_COUNTERS]), _counters, "counters, such as updates and steps, are integers", 8_000),
        Target("evaluations", _bytes([_EVALUATION]), _evaluation, "metrics are numbers or null", 6_000),
        Target(
            "judges' answers",
            _bytes(answers, True),
            _answers,
            "parsed answers can be appended and read back the same",
            3_000,
        ),
        Target("recordings", _bytes([_SEGMENTS], True), _recorded, "segments with captions", 6_000),
    ]
