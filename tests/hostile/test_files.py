"""Invalid files produce one line, never a traceback."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from groundling.training.checkpoint import seal
from groundling.worlds.text.dataset import schema
from tests.hostile.received import SMALL, Things, refusal_of
from tests.thorough import one_in

ROW: dict[str, Any] = {
    "episode": 0,
    "step": 0,
    "seed": 0,
    "task": "go",
    "goal": "go to the key",
    "descriptions": [["you see a key"]],
    "past_actions": [],
    "actions": ["left", "right", "wait"],
    "prompt": "",
    "action": "left",
    "action_index": 0,
    "reward": 1.0,
    "done": True,
    "success": True,
    "log_prob": None,
}


@pytest.fixture
def copied(things: Things, tmp_path: Path) -> Iterator[Things]:
    for name in ("run", "pairs", "model"):
        shutil.copytree(getattr(things, name), tmp_path / name)
    yield Things(tmp_path / "run", tmp_path / "pairs", tmp_path / "model", tmp_path)


BROKEN = ["", "null", "[]", "1", '"a"', "{}", "{", "[" * 5000, '{"a": 1, "a": 2}', "\ud800", '{"agents": null}']


def _write(path: Path, text: str) -> None:
    path.write_bytes(text.encode("utf-8", "surrogatepass"))


@pytest.mark.parametrize("text", one_in(2, BROKEN), ids=lambda text: text[:16])
@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("run/evaluation/held-out.json", "report RUN"),
        ("run/config.yaml", "report RUN"),
        ("run/config.yaml", "evaluate RUN --episodes 1"),
        ("pairs/recording.json", "distill PAIRS --preferences rules --output ROOT/y epochs=1"),
        ("model/reward_model.json", "train glam/symbolic reward.reward_model.args.path=MODEL"),
    ],
)
def test_a_broken_file_is_named(
    file: str, words: str, text: str, copied: Things, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (copied.root / file).exists()
    _write(copied.root / file, text)
    for name in ("run", "pairs", "model", "root"):
        words = words.replace(name.upper(), str(getattr(copied, name)))
    line = words.split()
    line += [f"run_dir={copied.root / 'new'}", *SMALL] if line[0] == "train" else []
    error = refusal_of(line, capsys)
    assert Path(file).name in error or str(copied.root) in error


Change = Callable[[Path], None]


def _json(name: str, change: Callable[[Any], Any]) -> Change:
    def apply(folder: Path) -> None:
        content = json.loads((folder / name).read_text())
        changed = change(content)
        (folder / name).write_text(json.dumps(content if changed is None else changed))

    return apply


def _tensors(name: str, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Change:
    def apply(folder: Path) -> None:
        changed = {key: value.contiguous() for key, value in change(load_file(folder / name)).items()}
        save_file(changed, folder / name)

    return apply


def _others(change: Callable[[Any], Any]) -> Change:
    """Change the metadata of the generators' states."""

    def apply(folder: Path) -> None:
        path = folder / "random.safetensors"
        with safe_open(path, framework="pt") as file:
            others = json.loads(file.metadata()["others"])
        save_file(load_file(path), path, metadata={"others": json.dumps(change(others))})

    return apply


def _remove(name: str) -> Change:
    return lambda folder: (folder / name).unlink()


def _replace(name: str, text: str) -> Change:
    return lambda folder: _write(folder / name, text)


def _entries(**changes: Callable[[Any], Any]) -> Change:
    return _json("run.json", lambda c: {**c, **{key: change(c[key]) for key, change in changes.items()}})


_TENSORS = [f"{name}.safetensors" for name in ("optimizer", "random", "collector", "symbolic")]
RESEALED: dict[str, Change] = {
    **{f"run.json {text[:12]!r}": _replace("run.json", text) for text in ("null", "[]", "1", "{", "[" * 5000, "{}")},
    **{f"algorithm.json {text!r}": _replace("algorithm.json", text) for text in ("null", "[]", "1", "{")},
    "counters null": _entries(counters=lambda c: None),
    **{
        f"counters {more}": _entries(counters=lambda c, more=more: {**c, **more})
        for more in ({"step": "8"}, {"step": -8}, {"more": 8})
    },
    "envs null": _entries(envs=lambda envs: None),
    "envs fewer": _entries(envs=lambda envs: envs[:1]),
    "envs of numbers": _entries(envs=lambda envs: [1, 2]),
    "envs' actions": _entries(envs=lambda envs: [{**e, "actions": ["a", -3]} for e in envs]),
    "envs' episode": _entries(envs=lambda envs: [{**e, "episode": "a"} for e in envs]),
    "shaped": _entries(shaped=lambda sums: ["a"]),
    **{f"no {name}": _remove(name) for name in ("algorithm.json", "run.json", *_TENSORS)},
    **{
        f"other {name}": lambda folder, name=name: save_file({"0.x": torch.zeros(3)}, folder / name)
        for name in _TENSORS
    },
    **{f"bytes in {name}": _replace(name, "\x00" * 40) for name in _TENSORS},
    "moments' shape": _tensors("optimizer.safetensors", lambda t: {k: v.reshape(-1)[:1] for k, v in t.items()}),
    "moments' names": _tensors("optimizer.safetensors", lambda t: {f"x{k}": v for k, v in t.items()}),
    "moments missing": _tensors(
        "optimizer.safetensors", lambda t: {k: v for k, v in t.items() if not k.endswith("exp_avg")}
    ),
    **{
        f"NumPy at {place}": _others(lambda o, place=place: {**o, "numpy": [place, *o["numpy"][1:]]})
        for place in (625, -1, 1.5, "1", None, 10**30)
    },
    "NumPy null": _others(lambda o: {**o, "numpy": None}),
    "memory's shape": _tensors("collector.safetensors", lambda t: {k: v[:, :1] for k, v in t.items()}),
    "memory missing": _tensors("collector.safetensors", lambda t: {}),
    "weights' shape": _tensors("symbolic.safetensors", lambda t: {k: v[..., :1] for k, v in t.items()}),
}
"""Changes to a checkpoint, which is sealed again."""


@pytest.mark.parametrize("name", one_in(3, RESEALED))
def test_a_checkpoint_of_another_run_is_refused(name: str, copied: Things, capsys: pytest.CaptureFixture[str]) -> None:
    (checkpoint,) = (copied.run / "checkpoints").iterdir()
    RESEALED[name](checkpoint)
    (checkpoint / "manifest.json").unlink()
    seal(checkpoint)
    config = copied.run / "config.yaml"
    refusal_of(["train", str(config), f"run_dir={copied.run}", "training.steps=32"], capsys)


@pytest.mark.parametrize(
    "text", ["null", "[]", "1", "{", "{}", '{"run.json": 1}', '{"run.json": null, "x": []}', "[" * 5000]
)
def test_an_invalid_manifest_is_reported(text: str, copied: Things, capsys: pytest.CaptureFixture[str]) -> None:
    (checkpoint,) = (copied.run / "checkpoints").iterdir()
    (checkpoint / "manifest.json").write_text(text)
    assert "manifest.json" in refusal_of(["evaluate", str(checkpoint), "--episodes", "1"], capsys)


ROWS: dict[str, dict[str, Any]] = {
    "no goal": {"goal": None},
    "no descriptions": {"descriptions": None},
    "no description": {"descriptions": [None]},
    "no sentence": {"descriptions": [[None]]},
    "no actions": {"actions": None},
    "an action null": {"actions": ["left", None, "wait"]},
    "no action": {"actions": []},
    "unknown action": {"action_index": 7},
    "negative action": {"action_index": -1},
    "action null": {"action_index": None},
    "past null": {"past_actions": None},
    "an observation without an action before it": {"descriptions": [["a key"], ["a door"]]},
    "an action without an observation after it": {"past_actions": ["left"]},
    "actions in another order": {"actions": ["right", "left", "wait"]},
    "reward nan": {"reward": float("nan")},
    "reward null": {"reward": None},
    "done null": {"done": None},
}


@pytest.mark.parametrize("name", ROWS)
def test_a_datasets_rows_are_checked(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "data"
    (folder / "data").mkdir(parents=True)
    table = pa.Table.from_pylist([ROW, ROW | ROWS[name]], schema=schema())
    pq.write_table(table, folder / "data" / "train-00000000-00000000.parquet")
    world = ["world.actions=[left,right,wait]", "world.env=BabyAI-GoToObj-v0", "world.history=1"]
    words = [f"world.dataset={folder}", f"run_dir={tmp_path / 'run'}", "device=cpu", "model.path=starter", *world]
    error = refusal_of(["train", "glam/bc", *words], capsys)
    assert "row 2" in error and str(folder) in error
