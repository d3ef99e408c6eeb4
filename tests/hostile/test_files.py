"""Invalid files end in one line, never in a traceback."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import yaml
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from groundling.cli.main import main
from groundling.training.checkpoint import seal
from groundling.worlds.text.dataset import schema
from tests.hostile.received import SMALL, Things, refusal_of
from tests.thorough import one_in, thorough

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


@pytest.mark.parametrize("text", ["null\n", "[]\n", "1\n", "{\n", '{"update": null, "step": 1}\n', "[" * 5000 + "\n"])
def test_invalid_rows_are_reported(text: str, copied: Things, capsys: pytest.CaptureFixture[str]) -> None:
    _write(copied.run / "metrics.jsonl", text)
    assert "metrics.jsonl" in refusal_of(["report", str(copied.run)], capsys)


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
"""Changes of a checkpoint, which is sealed again."""


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


def _dataset(folder: Path, *rows: dict[str, Any]) -> Path:
    (folder / "data").mkdir(parents=True)
    table = pa.Table.from_pylist(list(rows), schema=schema())
    pq.write_table(table, folder / "data" / "train-00000000-00000000.parquet")
    return folder


def _clone(folder: Path, *words: str) -> list[str]:
    run = f"run_dir={folder.parent / 'run'}"
    return ["train", "glam/bc", f"world.dataset={folder}", run, "device=cpu", "model.path=starter", *words]


@pytest.mark.parametrize("name", ROWS)
def test_a_datasets_rows_are_checked(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = _dataset(tmp_path / "data", ROW, ROW | ROWS[name])
    world = ["world.actions=[left,right,wait]", "world.env=BabyAI-GoToObj-v0", "world.history=1"]
    error = refusal_of(_clone(folder, *world), capsys)
    assert "row 2" in error and str(folder) in error


@pytest.mark.parametrize("text", ["null", "[]", "{", "[" * 5000])
def test_a_datasets_description_is_checked(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = _dataset(tmp_path / "data", ROW)
    (folder / "collection.json").write_text(text)
    assert "collection.json" in refusal_of(_clone(folder), capsys)


SHAPES: tuple[Any, ...] = ([1], 1, "a", None, [], {"a": {"b": 1}}, True)


@pytest.mark.parametrize("section", ["lamorel_args", "rl_script_args", "defaults", "hydra"])
@pytest.mark.parametrize("value", SHAPES, ids=str)
def test_glams_sections_are_checked(
    section: str, value: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = {"lamorel_args": {"llm_args": {}}, "rl_script_args": {"name_environment": "x"}, section: value}
    path = tmp_path / "glam.yaml"
    path.write_text(yaml.safe_dump(settings))
    refusal_of(["convert", str(path)], capsys)


_GLAM = """
    lamorel_args.llm_args lamorel_args.llm_args.parallelism lamorel_args.llm_args.model_path
    lamorel_args.distributed_setup_args lamorel_args.accelerate_args rl_script_args.seed
    rl_script_args.name_environment rl_script_args.number_envs rl_script_args.action_space rl_script_args.lr
    rl_script_args.path rl_script_args.epochs rl_script_args.lora_r rl_script_args.name_model
"""
_RL4LMS = """
    tokenizer reward_fn reward_fn.id reward_fn.args datapool datapool.id datapool.args env env.args
    env.n_envs alg alg.id alg.args alg.args.n_steps alg.kl_div alg.policy alg.policy.args
    alg.policy.args.generation_kwargs train_evaluation train_evaluation.metrics train_evaluation.n_iters
    alg.args.vf_coef alg.kl_div.coeff
"""


def _put(settings: dict[str, Any], key: str, value: Any) -> dict[str, Any]:
    *folders, name = key.split(".")
    node = settings
    for folder in folders:
        node = node.setdefault(folder, {})
    node[name] = value
    return settings


def _foreign(system: str, key: str, value: Any, path: Path) -> list[str]:
    if system == "GLAM":
        settings: dict[str, Any] = {
            "lamorel_args": {"llm_args": {"model_path": "starter"}},
            "rl_script_args": {"name_environment": "BabyAI-GoToObj-v0", "output_dir": str(path.parent / "run")},
        }
    else:
        settings = {
            "tokenizer": {"model_name": "starter-causal"},
            "reward_fn": {"id": "increasing_numbers", "args": {}},
            "datapool": {"id": "increasing_numbers", "args": {}},
            "env": {"n_envs": 2, "args": {"max_episode_length": 4}},
            "alg": {
                "id": "ppo",
                "args": {"n_steps": 4},
                "policy": {"id": "causal_lm_actor_critic_policy", "args": {"model_name": "starter-causal"}},
            },
            "train_evaluation": {"n_iters": 1, "metrics": []},
        }
    path.write_text(yaml.safe_dump(_put(settings, key, value)))
    return ["convert", str(path)]


@pytest.mark.parametrize(
    ("system", "key"), [*(("GLAM", key) for key in _GLAM.split()), *(("RL4LMs", key) for key in _RL4LMS.split())]
)
@pytest.mark.parametrize("value", [[[1]], *thorough([1], {"a": {"b": 1}})], ids=str)
def test_entries_of_original_configs_are_checked(
    system: str, key: str, value: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = _foreign(system, key, value, tmp_path / "file.yaml")
    capsys.readouterr()
    status = main(line)  # an entry that is not known is left out of GLAM's, with a warning
    output = capsys.readouterr().err
    assert status == 0 or [line[:7] for line in output.splitlines()].count("error: ") == 1
    if isinstance(value, list):
        assert status == 1 or key.endswith(("action_space", "path", "metrics")) or "accelerate" in key
