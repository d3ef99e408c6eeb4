"""Fuzz targets for datasets: transitions, pairs of texts and messages, labels, and pools of prompts."""

import io
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from groundling.envs.text_generation.columns import DatasetPool
from groundling.envs.text_generation.pools import pools
from groundling.judges import open_pairs
from groundling.worlds.text.dataset import schema
from groundling.worlds.text.demonstrations import Demonstrations
from tests.fuzz import mutation
from tests.fuzz.harness import Target
from tests.hostile.test_files import ROW

_ACTIONS: list[Any] = [ROW, ROW | {"step": 1, "action": "wait", "action_index": 2, "log_prob": -0.5}]
_CELLS = (
    *([], [None], ["a", None], [[]], [1], {}, {"a": 1}, "x", b"\xff\xfe"),
    *(1, -1, 2.5, float("nan"), None, True, 2**62),
)


def _parquet(random: Random, rows: Sequence[dict[str, Any]], types: pa.Schema | None = None) -> bytes:
    """Return a Parquet file of rows with some cells, columns, types or bytes changed."""
    table = [dict(row) for row in rows] * random.choice((1, 1, 2))
    names = [*rows[0]]
    made: dict[str, Any] = {}
    changed = random.sample(names, random.choice((0, 0, 1, 1, 2)) % (len(names) + 1))
    for name in names:
        column = [row[name] for row in table]
        if name in changed:
            cell = random.choice(_CELLS)
            column = [cell] * len(column) if random.random() < 0.5 else [*column[:-1], cell]
        try:
            is_known = types is not None and name in types.names and random.random() < 0.95
            made[name] = pa.array(column, types.field(name).type if is_known and types else None)
        except (pa.ArrowException, ValueError, TypeError, OverflowError):
            continue  # such a column cannot be written
    if changed and random.random() < 0.15:
        made[random.choice(names)] = _invalid(len(table))
    made = {name: column for name, column in made.items() if random.random() < 0.98}
    file = io.BytesIO()
    size = random.choice((0, len(table), len(table), len(table), len(table)))
    try:
        pq.write_table(pa.table({name: column[:size] for name, column in made.items()}), file)
    except pa.ArrowException:  # Parquet does not support such columns, for example a struct without fields
        return _parquet(random, rows, types)
    return mutation.bent(random, file.getvalue()) if random.random() < 0.3 else file.getvalue()


def _invalid(count: int) -> Any:
    """Return texts that are not UTF-8, as other programs may write them."""
    raw = pa.array([b"\xff\xfea"] * count, pa.binary())
    return pa.StringArray.from_buffers(count, *raw.buffers()[1:])


def _demonstrations(random: Random) -> bytes:
    return _parquet(random, _ACTIONS, schema())


def _shown(made: bytes, folder: Path) -> None:
    (folder / "data").mkdir(exist_ok=True)
    (folder / "data" / "train-00000000-00000001.parquet").write_bytes(made)
    dataset = Demonstrations(folder, 2, slice(0, 2), None, 1, 0)
    rollout = dataset.rollout(3)
    assert bool(rollout.rewards.isfinite().all()) and len(rollout.observations) == 6
    for observation, action in zip(rollout.observations, rollout.actions.flatten().tolist(), strict=True):
        assert 0 <= action < len(observation.actions)
        texts = (observation.goal, *observation.actions, *observation.past_actions, *observation.descriptions[-1])
        assert all(isinstance(text, str) for text in texts)
    state = dataset.state_dict()
    following = dataset.rollout(2).actions.tolist()
    dataset.load_state_dict(state)
    assert dataset.rollout(2).actions.tolist() == following


_PAIR: dict[str, Any] = {
    **{
        f"{place}_{name}": value
        for place in ("first", "second")
        for name, value in (("context", "go"), ("captions", ["a", "b"]), ("outcome", ""))
    },
    **{f"{place}_info_return": 1.5 for place in ("first", "second")},
}
_MESSAGES: dict[str, Any] = {
    **{f"{place}_messages": ["a key", ""] for place in ("first", "second")},
    **{f"{place}_blstats": [[1] * 27] * 2 for place in ("first", "second")},
    **{f"{place}_rewards": [0.5, 1.0] for place in ("first", "second")},
    **{f"{place}_info_score": 3 for place in ("first", "second")},
}
_LABELS: list[dict[str, Any]] = [{"preference": 0, "first": 0.5, "second": 0.25, "tie": 0.25}] * 2


@dataclass
class _Pairs:
    files: dict[str, bytes]


def _array(random: Random, *arrays: Any) -> bytes:
    file = io.BytesIO()
    kind = random.randrange(8)
    array = random.choice(arrays)
    if kind == 0:
        np.savez(file, a=array)
    elif kind == 1:
        np.save(file, array.astype(random.choice((bool, "f8", "S4", "M8[s]", "c16", "u1"))))
    elif kind == 2:
        np.save(file, array.reshape(-1) if random.random() < 0.5 else array[..., None])
    else:
        np.save(file, array)
    if random.random() < 0.5:
        content = mutation.bent(random, file.getvalue())
        header = content[:128].decode("latin-1")
        bent = mutation.text(random, [header], ("(1,)", "(-1,)", "True", "'|O'", "'<f8'", "{", "}", "9" * 19))
        return bent.encode("latin-1", "replace") + content[128:] if random.random() < 0.6 else content
    return file.getvalue()


def _plain(rows: Sequence[dict[str, Any]]) -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(list(rows)), file)
    return file.getvalue()


def _saved(array: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def _pairs(random: Random) -> _Pairs:
    """Create a dataset of two pairs with one or two malformed files."""
    row = random.choice((_PAIR, _MESSAGES))
    files = {
        "data/pairs.parquet": _plain([row, row]),
        "preference/a.parquet": _plain(_LABELS),
        "recording.json": b'{"world": "text"}',
    }
    for name in random.choices([*files, "annotations/a.json"], [4, 3, 1, 1], k=random.choice((1, 1, 2))):
        if name.endswith(".parquet"):
            files[name] = _parquet(random, [row, row] if name.startswith("data") else _LABELS)
        else:
            about = mutation.value(random, {"world": "text", "agent": "random"})
            files[name] = mutation.encoded(random, mutation.text(random, [mutation.json_text(about)]))
    return _Pairs(files)


def _motif(random: Random) -> _Pairs:
    messages = np.zeros((2, 2, 3, 256), np.uint8)
    messages[0, 0, 0, :5] = list(b"a key")
    arrays = {
        "data/message.npy": messages,
        "data/blstats.npy": np.zeros((2, 2, 3, 27), np.int64),
        "data/rewards.npy": np.ones((2, 2, 3)),
        "info/score.npy": np.ones((2, 2)),
        "preference/a.npy": np.array([0, 3], np.int8),
        "soft_preference/a.npy": np.full((2, 3), 0.25, np.float32),
    }
    files = {name: _saved(array) for name, array in arrays.items()}
    for name in random.choices([*files], k=random.choice((1, 1, 2))):
        files[name] = _array(random, arrays[name])
    return _Pairs(files)


def _opened(made: _Pairs, folder: Path) -> None:
    inside = folder / "pairs"
    shutil.rmtree(inside, ignore_errors=True)
    for name, content in made.files.items():
        (inside / name).parent.mkdir(parents=True, exist_ok=True)
        (inside / name).write_bytes(content)
    pairs = open_pairs(inside)
    compared, segments = pairs.comparisons(), pairs.segments()
    assert len(compared) == len(pairs) == len(segments)
    assert all(isinstance(text, str) for one in compared for text in (one.first, one.second, one.context))
    assert all(side and all(isinstance(caption, str) for caption in side) for pair in segments for side in pair)
    assert all(figures.shape == (len(pairs), 2) for figures in pairs.info.values())
    pairs.read_provenance("a")
    labels, soft = pairs.preferences("a"), pairs.soft_preferences("a")
    assert labels.shape == (len(pairs),) and set(labels.tolist()) <= {0, 1, 2, 3}
    assert soft is None or soft.shape == (len(pairs), 3)
    assert pairs.returns().shape == (len(pairs), 2)


@dataclass
class _File:
    kind: str
    content: bytes


_PROMPTS: list[dict[str, Any]] = [
    {"prompt": f"p{n}", "reference": ["r", "s"], "id": n, "more": {"a": 1}} for n in range(5)
]


def _pool_file(random: Random) -> _File:
    kind = random.choice(("jsonl", "csv", "parquet"))
    if kind == "parquet":
        return _File(kind, _parquet(random, _PROMPTS))
    if kind == "csv":
        sheet = "prompt,reference,id,more\n" + "".join(f"p{n},r,{n},x\n" for n in range(5))
        return _File(kind, mutation.encoded(random, mutation.text(random, [sheet], (",", "\n", '"', *mutation.WORDS))))
    rows = mutation.value(random, _PROMPTS)
    lines = [mutation.json_text(one) for one in rows] if isinstance(rows, list) else [mutation.json_text(rows)]
    text = "\n".join(lines)
    return _File(
        kind, mutation.encoded(random, mutation.text(random, [text])) if random.random() < 0.3 else text.encode()
    )


def _pool(made: _File, folder: Path) -> None:
    path = folder / "rows"
    path.write_bytes(made.content)
    columns = {"reference_column": "reference", "id_column": "id", "meta_columns": ("more",)}
    pool = pools.get(made.kind)(path=str(path), fractions=(0.4, 0.2, 0.4), prompt_prefix="a ", **columns)
    samples = [sample for split in ("train", "val", "test") for sample in pool.prepare(split)]
    for sample in samples:
        for text in (sample.prompt, *sample.references):
            assert isinstance(text, str)
            text.encode("utf-8")  # tokenizers read only such texts
        assert sample.prompt.startswith("a ") and isinstance(sample.id, str)
    rows = list(pool.read(path))
    has_few = len({repr(row.get("prompt")) for row in rows}) < 5  # fewer prompts may be shared by splits
    assert len(samples) >= len(rows) if has_few else len(samples) == len(rows)  # each row is in one split


_HUB = [
    "daily_dialog",
    "crd3",
    "wmt16",
    "totto",
    "imdb_seq2seq",
    "commongen",
    "cnn_daily_mail",
    "xsum",
    "narrative_qa",
]


@cache
def _known(id: str) -> tuple[DatasetPool, list[dict[str, Any]]]:
    pool = pools.get(id)(offline=True)
    assert isinstance(pool, DatasetPool)
    return pool, list(islice(pool.source("train").bundled(), 6))


def _hub_rows(random: Random) -> tuple[str, Any]:
    id = random.choice(_HUB)
    rows = [mutation.value(random, row) for row in _known(id)[1]]
    return id, [row for row in rows if isinstance(row, dict)]


def _sampled(made: tuple[str, Any], folder: Path) -> None:
    id, rows = made
    pool, _ = _known(id)
    for sample in pool.made(iter(rows), "train"):
        assert isinstance(sample.prompt, str) and all(isinstance(one, str) for one in sample.references)


def targets() -> list[Target]:
    """Return the targets for datasets."""
    shown = "actions belong to the observation; resuming gives the same rollouts"
    return [
        Target("transitions", _demonstrations, _shown, shown, 1_000),
        Target("pairs in Parquet", _pairs, _opened, "texts, indices, labels and metrics are consistent", 1_000),
        Target("pairs in arrays", _motif, _opened, "the same", 1_000),
        Target("pools of files", _pool_file, _pool, "each row is in one split; prompts are Unicode", 3_000),
        Target("pools of the hub", _hub_rows, _sampled, "prompts and references are strings", 40_000),
    ]
