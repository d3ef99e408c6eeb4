"""Hostile files of every kind, each with an audit hook on: they start, send, import, unpickle and read nothing.

What else such files could try is in ``tests/config/test_trust.py`` (settings) and ``tests/test_hostile.py`` (files
that do not fit).
"""

import ctypes
import http.client
import importlib
import json
import marshal
import os
import pickle
import re
import runpy
import shutil
import socket
import subprocess
import sys
import urllib.request
import webbrowser
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import jinja2
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import transformers
import yaml
from safetensors.torch import load_file, save_file

from groundling.cli.main import main
from groundling.lm.load.sources import STARTERS
from groundling.runtime.parallel import CommandLine, run_parallel
from groundling.training.checkpoint import MANIFEST, seal
from tests import test_hostile
from tests.audit import auditing
from tests.config.test_trust import SECRET, demo_values, hostile_model, keep_modules_in, writing_values

things = test_hostile.things  # a text env's run, pairs, and a reward model
SERVER = "http://127.0.0.1:9/hostile"
SCRIPT = f"</td><script src='{SERVER}'></script>"
ESCAPE = "\x1b]0;hostile\x07\x1b[2J\x9b31m\rall is well"
"""What would set a terminal's title, clear it and colour it."""
JINJA = "{{ cycler.__init__.__globals__.os.system('true') }}"
_RUN_WORDS = ("world.num_envs=2", "training.steps=4", "world.num_steps=2", "algorithm.args.minibatch_size=2")
_RUN_WORDS += ("algorithm.args.micro_batch_size=null", "device=cpu", "evaluation.num_envs=1")
_RUN_WORDS += ("evaluation.baselines=[]", "world.args.max_steps=4")

Plant = Callable[[Path], None]
"""Puts something hostile into a folder with copies of the things."""


class Bomb:
    """Starts a shell where it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("true",)


@dataclass(frozen=True)
class Case:
    """Something received, and what a user does with it."""

    plant: Plant
    words: str
    """A command; what is in capitals are the things."""
    message: str | None = None
    """Of the message by which it is refused, a regular expression; None: the command does its work."""


@pytest.fixture(scope="module")
def received(things: test_hostile.Things) -> Path:
    """A folder with all that somebody may be given."""
    root = things.root / "received"
    root.mkdir()
    for name in ("run", "pairs", "model"):
        shutil.copytree(getattr(things, name), root / name)
    lm = str(root / "lm")
    for line in (
        ["train", "demo-easy", f"run_dir={lm}", *_RUN_WORDS],
        ["evaluate", lm, "--episodes", "1"],
        ["collect", lm, "--episodes", "2", "--output", str(root / "data")],
        ["publish", lm, "--output", str(root / "pub")],
    ):
        assert main(line) == 0
    shutil.copytree(STARTERS["starter-causal"], root / "starter")
    return root


# What is planted


def module(*names: str) -> Plant:
    """Modules that start a shell, where Python would find them: the command runs in this folder."""
    return together(*(written(f"{name}.py", "import os\nos.system('true')\n") for name in names))


def _with_modules(root: Path, name: str, content: Any) -> None:
    """Plant each module that a file names, in the working directory and next to the file."""
    for found in set(re.findall(r"hostile_\w+", json.dumps(content))):
        module(found, str(Path(name).parent / found))(root)


def settings(name: str, changes: dict[str, Any], values: dict[str, Any] | None = None) -> Plant:
    """Change values at dotted keys of a YAML file, or of ``values``; modules that they name exist."""

    def plant(root: Path) -> None:
        content = values or yaml.safe_load((root / name).read_text())
        content = json.loads(json.dumps(content))
        for key, value in changes.items():
            *sections, last = key.split(".")
            node = content
            for section in sections:
                node = node.setdefault(section, {})
            node[last] = value
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text(yaml.safe_dump(content))
        _with_modules(root, name, content)

    return plant


def described(name: str, change: Callable[[Any], Any]) -> Plant:
    """Change a JSON file; modules that it names exist."""

    def plant(root: Path) -> None:
        content = json.loads((root / name).read_text())
        changed = change(content)
        (root / name).write_text(json.dumps(content if changed is None else changed))
        _with_modules(root, name, changed)

    return plant


def entries(name: str, **more: Any) -> Plant:
    """Change entries of a JSON file."""
    return described(name, lambda content: {**content, **more})


def written(name: str, text: str) -> Plant:
    """Write a text file."""

    def plant(root: Path) -> None:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)

    return plant


def lines(name: str, **row: Any) -> Plant:
    """Write a file of one JSON line."""
    return written(name, json.dumps(row) + "\n")


def pickled(name: str) -> Plant:
    """A file that is a pickle, as PyTorch writes them where its name says so."""

    def plant(root: Path) -> None:
        if name.endswith((".bin", ".pt")):
            torch.save({"weight": Bomb()}, root / name)
        else:
            (root / name).unlink(missing_ok=True)  # it is linked
            (root / name).write_bytes(pickle.dumps(Bomb()))

    return plant


def without(name: str) -> Plant:
    return lambda root: (root / name).unlink()


def linked(name: str, to: str) -> Plant:
    """A link in place of what was there."""

    def plant(root: Path) -> None:
        path = root / name
        if path.is_dir():
            shutil.rmtree(path)
        path.unlink(missing_ok=True)
        path.symlink_to(root.parent / to)

    return plant


def sealed(folder: str, *plants: Plant) -> Plant:
    """Others' files in a checkpoint, with hashes that are right."""

    def plant(root: Path) -> None:
        for one in plants:
            one(root)
        (root / folder / MANIFEST).unlink()
        seal(root / folder)

    return plant


def tensor(name: str, called: str) -> Plant:
    """One more tensor among weights."""

    def plant(root: Path) -> None:
        weights = load_file(root / name)
        (root / name).unlink()  # it is linked
        save_file({**weights, called: torch.zeros(1)}, root / name, metadata={"format": "pt"})

    return plant


def together(*plants: Plant) -> Plant:
    def plant(root: Path) -> None:
        for one in plants:
            one(root)

    return plant


def parquet(name: str, column: pa.Array, field: pa.Field, more: dict[str, str] | None = None) -> Plant:
    """A Parquet file of one column."""

    def plant(root: Path) -> None:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.Table.from_arrays([column], schema=pa.schema([field], metadata=more)), root / name)

    return plant


def all_parquet(folder: str, metadata: dict[bytes, bytes]) -> Plant:
    """A pickle in the types of every column of the files that are there."""

    def plant(root: Path) -> None:
        for path in (root / folder).rglob("*.parquet"):
            table = pq.read_table(path)
            fields = [field.with_metadata(metadata) for field in table.schema]
            pq.write_table(table.cast(pa.schema(fields, metadata=metadata)), path)

    return plant


CHECKPOINT = "lm/checkpoints/000001"
RESUME = "train LM/config.yaml run_dir=LM training.steps=8"
EVALUATE = "evaluate LM --episodes 1"
DRY = "train ROOT/config.yaml device=cpu --dry-run"
PY_EXTENSION = {b"ARROW:extension:name": b"arrow.py_extension_type", b"ARROW:extension:metadata": pickle.dumps(Bomb())}
"""By which pyarrow before 14.0.1 unpickled (CVE-2023-47248)."""


def of_lm(**changes: Any) -> Plant:
    return settings("lm/config.yaml", {key.replace("__", "."): value for key, value in changes.items()})


def of_demo(**changes: Any) -> Plant:
    keys = {key.replace("__", "."): value for key, value in changes.items()}
    return settings("config.yaml", keys, demo_values())


def of_texts(**changes: Any) -> Plant:
    keys = {key.replace("__", "."): value for key, value in changes.items()}
    return settings("config.yaml", keys, writing_values())


def checkpointed(*plants: Plant) -> Plant:
    return sealed(CHECKPOINT, *plants)


JUDGE = {"model": "m", "base_url": SERVER, "api_key_env": "GROUNDLING_SECRET"}
JUDGED = settings(
    "run/config.yaml",
    {"reward": {"reward_model": {"args": {"path": "model", "online": {"judge": "openai", "args": JUDGE}}}}},
)
_ROW = {"update": 1, "step": 4, "seconds": 1, "return_mean": 0.5, "success_rate": 0.5}
_ENV, _GYM = "hostile_env:Env-v0", {"env_id": "hostile_gym:Env-v0"}


def _scripts_in_sample(row: dict[str, Any]) -> dict[str, Any]:
    first = {**row["first"], "thing": SCRIPT, "target": "other", "named": [SCRIPT]}
    step = {"descriptions": [SCRIPT], "prompt": SCRIPT, "action": SCRIPT, "probabilities": {SCRIPT: 0.5}}
    steps = [{**one, **step} for one in row["steps"]]
    return {**row, "suite": SCRIPT, "mission": SCRIPT, "task": SCRIPT, "first": first, "steps": steps}


def _scripts_in_evaluation(content: dict[str, Any]) -> dict[str, Any]:
    agents = {
        f"{SCRIPT}{name}": {**agent, "figures": {**agent["figures"], SCRIPT: agent["figures"]["return"]}}
        for name, agent in content["agents"].items()
    }
    return {**content, "name": SCRIPT, "checkpoint": SCRIPT, "left_out": {SCRIPT: SCRIPT}, "agents": agents}


def in_samples(change: Callable[[dict[str, Any]], dict[str, Any]]) -> Plant:
    return described("lm/samples/held-out.json", lambda rows: [change(row) for row in rows])


def with_overrides(*words: str) -> Plant:
    return in_samples(lambda row: {**row, "overrides": list(words)})


def in_evaluation(change: Callable[[dict[str, Any]], dict[str, Any]]) -> Plant:
    return described("lm/evaluation/held-out.json", change)


NEW = "train LM/config.yaml run_dir=OUT"
SHOWN_ENV = with_overrides(f"world.env={_ENV}", "imports=[hostile_env]")
ESCAPED_ACTIONS = of_lm(world__actions=[f"{ESCAPE}{n}" for n in range(6)])
REWARD = of_lm(reward={"mine": {"id": "hostile_reward.score"}})
GYM = together(of_lm(world__env="GymV26Environment-v0", world__args=_GYM), module("gym", "shimmy"))
RUNS = {
    "imports of a run": Case(of_lm(imports=["hostile_imports"]), EVALUATE),
    "an env's id with a module": Case(of_lm(world__env=_ENV), EVALUATE, "unknown env"),
    "an env's id with a module, watched": Case(of_lm(world__env=_ENV), "watch LM --fast", "unknown env"),
    "an env's id with a module, trained": Case(of_lm(world__env=_ENV), NEW, "unknown env"),
    "an env that makes another": Case(GYM, EVALUATE, "GymV26Environment-v0"),
    "an env's entry point": Case(of_lm(world__args={"entry_point": "hostile_point:Env"}), EVALUATE, "entry_point"),
    "a suite's overrides in samples": Case(SHOWN_ENV, "report LM"),  # recorded episodes need no env
    "a resolver in samples": Case(with_overrides("name=${oc.env:GROUNDLING_SECRET}"), "report LM", "resolvers"),
    "a policy of a module": Case(of_lm(policy__id="hostile_policy.Policy"), EVALUATE, "unknown policy"),
    "an algorithm of a module": Case(of_lm(algorithm__id="hostile_learner:PPO"), NEW, "unknown algorithm"),
    "a reward of a module": Case(REWARD, NEW, "hostile_reward"),
    "a reward of a module, which nothing played needs": Case(REWARD, EVALUATE),
    "a world of a module": Case(of_lm(world__id="hostile_world"), EVALUATE, "hostile_world"),
    "a model at a server": Case(of_lm(model__path=SERVER), EVALUATE, "add to the command"),
    "a tokenizer at a server": Case(of_lm(model__tokenizer=SERVER), "watch LM --fast", "add to the command"),
    "attention of the hub": Case(of_lm(model__attention="hostile/kernel"), EVALUATE, "add to the command"),
    "a judge that is not needed": Case(JUDGED, "evaluate RUN --episodes 1"),
    "a judge that is not needed, published": Case(JUDGED, "publish RUN --output OUT"),
    "a judge that is not needed, reported": Case(JUDGED, "report RUN"),
    "a script for a name": Case(of_lm(name=SCRIPT), "report LM"),
    "mathematics for a name": Case(of_lm(name=r"$\frac{\input{/etc/passwd}}$"), "report LM"),
    "scripts in samples": Case(in_samples(_scripts_in_sample), "report LM"),
    "scripts in an evaluation": Case(in_evaluation(_scripts_in_evaluation), "report LM"),
    "scripts in metrics": Case(lines("lm/metrics.jsonl", **_ROW, **{SCRIPT: 1.0}, loss=1e300), "report LM"),
    "figures that cannot be drawn": Case(
        lines("lm/metrics.jsonl", **{**_ROW, "seconds": 1e300, "return_mean": -1e308, "success_rate": 1e308}),
        "report LM",
        "cannot be shown",
    ),
    "scripts in texts to be rated": Case(
        lines("texts.jsonl", id=SCRIPT, prompt=SCRIPT, generation=SCRIPT, references=[SCRIPT], metrics={}),
        "rate OUT a=ROOT/texts.jsonl --samples 1",
    ),
    "figures that are no numbers": Case(
        lines("lm/metrics.jsonl", **{**_ROW, "seconds": SCRIPT, "return_mean": SCRIPT}), "report LM", "metrics.jsonl"
    ),
    "escapes in actions, watched": Case(ESCAPED_ACTIONS, "watch LM --fast"),
    "escapes in actions, dry run": Case(ESCAPED_ACTIONS, f"{NEW} --dry-run"),
    "escapes for an env": Case(of_lm(world__env=ESCAPE), EVALUATE, "env"),
    "escapes for a key": Case(of_lm(**{ESCAPE: 1}), EVALUATE, "config.yaml"),
    "escapes for a device": Case(of_lm(device=ESCAPE), EVALUATE, "device"),
    "escapes for a file": Case(
        lambda root: (root / CHECKPOINT / f"{ESCAPE}\n  ok     hostile.partial").write_text(""), "verify LM", "WRONG"
    ),
    "escapes in a manifest": Case(
        described(f"{CHECKPOINT}/{MANIFEST}", lambda names: {**names, ESCAPE: {"bytes": 1, "sha256": ""}}),
        "verify LM",
        "WRONG",
    ),
    "escapes in an evaluation, exported": Case(
        in_evaluation(lambda content: {**content, "name": ESCAPE}), "report LM"
    ),
}
STATES = {
    **{
        f"a pickle as {name}": Case(checkpointed(pickled(f"{CHECKPOINT}/{name}")), EVALUATE, message)
        for name, message in (("model.safetensors", "cannot be loaded"), ("value_head.safetensors", "cannot be read"))
    },
    **{
        f"a pickle as {name}": Case(checkpointed(pickled(f"{CHECKPOINT}/{name}")), RESUME, "does not fit")
        for name in ("optimizer.safetensors", "random.safetensors", "collector.safetensors", "algorithm.json")
    },
    "a pickle for weights": Case(
        checkpointed(without(f"{CHECKPOINT}/model.safetensors"), pickled(f"{CHECKPOINT}/pytorch_model.bin")),
        EVALUATE,
        "cannot be loaded",
    ),
    "a pickle beside weights": Case(checkpointed(pickled(f"{CHECKPOINT}/pytorch_model.bin")), EVALUATE),
    "an index to a pickle": Case(
        checkpointed(
            without(f"{CHECKPOINT}/model.safetensors"),
            pickled(f"{CHECKPOINT}/weights.bin"),
            written(
                f"{CHECKPOINT}/pytorch_model.bin.index.json", '{"metadata": {}, "weight_map": {"a": "weights.bin"}}'
            ),
        ),
        EVALUATE,
        "cannot be loaded",
    ),
    "an index out of the folder": Case(
        checkpointed(
            without(f"{CHECKPOINT}/model.safetensors"),
            pickled("weights.bin"),
            written(
                f"{CHECKPOINT}/model.safetensors.index.json",
                '{"metadata": {}, "weight_map": {"a": "../../../weights.bin"}}',
            ),
        ),
        EVALUATE,
        "lies outside of the folder",
    ),
    **{
        f"a manifest that names {name}": Case(
            described(
                f"{CHECKPOINT}/{MANIFEST}", lambda files, name=name: {**files, name: {"bytes": 0, "sha256": ""}}
            ),
            f"evaluate ROOT/{CHECKPOINT} --episodes 1",
            "is broken",
        )
        for name in ("../../config.yaml", "/dev/zero", "/etc/passwd", "../../../../../../etc/passwd")
    },
    "a checkpoint's link": Case(
        together(sealed(CHECKPOINT, linked(f"{CHECKPOINT}/secret.txt", "outside.txt"))), "publish LM --output OUT"
    ),
    "a lock that is a link": Case(linked("lm/.lock", "outside/made"), RESUME, "is a link"),
    "figures that are a link": Case(linked("lm/metrics.jsonl", "outside.txt"), RESUME, "is not a row of metrics"),
    "an evaluation that is a link": Case(linked("lm/evaluation/held-out.json", "outside.txt"), EVALUATE),
    "a report that is a link": Case(linked("lm/report.html", "outside.txt"), "report LM"),
}


def hostile_starter(root: Path) -> None:
    """A model with Python of its own, in place of the checkpoint's config."""
    hostile_model(root / "python", root / "it-ran")


def starter(**config: Any) -> Plant:
    return entries("starter/config.json", **config)


_LITTLE = "world.num_envs=1 world.num_steps=2 training.steps=2 algorithm.args.minibatch_size=2 world.args.max_steps=4"
_LITTLE += " device=cpu --dry-run"
LOADED = f"train demo-easy model.path=ROOT/starter run_dir=OUT {_LITTLE}"
TRAIN_REWARD = "train glam/symbolic reward.reward_model.args.path=MODEL device=cpu run_dir=OUT"


def adapter(**config: Any) -> Plant:
    return written("starter/adapter_config.json", json.dumps({"base_model_name_or_path": "starter"} | config))


def tokenizer(**config: Any) -> Plant:
    return entries("starter/tokenizer_config.json", **config)


_CODE = {"AutoConfig": "hostile_c.C", "AutoModelForSeq2SeqLM": "hostile_c.M"}
_TORCHAO = {"quant_method": "torchao", "quant_type": {"default": {"_type": "hostile.Config"}}}
_PYTHON = Case(
    checkpointed(
        entries(f"{CHECKPOINT}/config.json", model_type="hostile", auto_map={"AutoConfig": "hostile_config.C"})
    ),
    EVALUATE,
    "hostile",
)
MODELS = {
    "a model's Python": Case(hostile_starter, LOADED.replace("starter", "python"), "custom code"),
    "a model's Python, in a run": _PYTHON,
    "Python beside a known model": Case(starter(auto_map=_CODE), LOADED),
    "Python of the hub": Case(starter(auto_map={"AutoModelForSeq2SeqLM": "hostile/model--code.M"}), LOADED),
    "a tokenizer's Python": Case(
        tokenizer(
            tokenizer_class="HostileTokenizer", auto_map={"AutoTokenizer": ["hostile_tokens.T", "hostile_tokens.T"]}
        ),
        LOADED,
        "contains custom code",
    ),
    "a tokenizer that is a function": Case(tokenizer(tokenizer_class="os.system"), LOADED),
    "a chat template": Case(tokenizer(chat_template=JINJA), LOADED),
    "a generation's Python": Case(
        together(
            entries("starter/generation_config.json", custom_generate="hostile/generate", trust_remote_code=True),
            module("starter/custom_generate/generate"),
        ),
        LOADED,
    ),
    "a kernel of the hub": Case(starter(attn_implementation="hostile/kernel"), LOADED, "code from the hub"),
    "a kernel of the hub, internal": Case(starter(_attn_implementation="hostile/kernel"), LOADED, "code from the hub"),
    "a kernel of the hub, not taken": Case(
        starter(attn_implementation="hostile/kernel"), f"{LOADED} model.attention=eager"
    ),
    "a quantiser of a module": Case(starter(quantization_config={"quant_method": "hostile_quant.Quantizer"}), LOADED),
    "a quantiser with a device's code": Case(starter(quantization_config=_TORCHAO), LOADED, "cannot be loaded"),
    "architectures of a module": Case(starter(architectures=["hostile_arch.Model", "os.system"]), LOADED),
    "a type that is a path": Case(starter(model_type="../../hostile_type"), LOADED, "cannot be read"),
    "a dtype of a module": Case(starter(dtype="hub.load", torch_dtype="load"), LOADED, "cannot be read"),
    "an adapter of a module": Case(
        together(
            adapter(
                peft_type="LORA",
                r=1,
                target_modules=["q"],
                auto_mapping={"base_model_class": "Model", "parent_library": "hostile_parent"},
                task_type=None,
            ),
            module("hostile_parent"),
            pickled("starter/adapter_model.bin"),
        ),
        LOADED,
        "adapter",
    ),
    "an adapter at a server": Case(
        adapter(peft_type="LORA", base_model_name_or_path=SERVER), LOADED, "belongs to the model"
    ),
    "an adapter with a tokenizer's Python": Case(
        adapter(
            peft_type="PROMPT_TUNING",
            num_virtual_tokens=1,
            tokenizer_name_or_path="python",
            tokenizer_kwargs={"trust_remote_code": True},
            prompt_tuning_init="TEXT",
            prompt_tuning_init_text="a",
        ),
        LOADED,
        "adapter",
    ),
    "a reward model of a module": Case(
        entries("model/reward_model.json", model="hostile_rm.Model"), TRAIN_REWARD, "unknown reward model"
    ),
    "a reward model's other path": Case(
        together(hostile_starter, entries("model/reward_model.json", model="language_model", args={"path": "python"})),
        TRAIN_REWARD,
        "no model folder",
    ),
    "a reward model's pickle": Case(
        pickled("model/reward_model.safetensors"), TRAIN_REWARD, "no reward model that can be read"
    ),
    "escapes for a tensor": Case(
        tensor("starter/model.safetensors", ESCAPE),
        "distill PAIRS --preferences rules --output OUT epochs=1 device=cpu --model language_model "
        "model.args={path:./starter}",
    ),
    "a metric of a module": Case(of_texts(evaluation__metrics=[{"id": "hostile_metric.M"}]), DRY, "unknown metric"),
    "a pool of a module": Case(of_texts(world__pool="hostile_pool.P"), DRY, "unknown pool"),
    "a metric's weights": Case(
        together(
            of_texts(
                evaluation__metrics=[{"id": "learned_reward", "args": {"model_name": "python", "label_ix": 0}}],
                evaluation__every=1,
            ),
            hostile_starter,
        ),
        DRY,
        "custom code",
    ),
}
_GLAM = """
lamorel_args:
  llm_args: {model_path: starter}
  accelerate_args: {config_file: SERVER, main_training_function: hostile_glam}
rl_script_args: {path: hostile_glam.py, name_environment: 'hostile_glam:Env-v0'}
"""
_RL4LMS = """
tokenizer: {model_name: SERVER}
reward_fn: {id: hostile_fn.Reward}
datapool: {id: increasing_numbers}
alg: {id: ppo, args: {}, policy: {id: causal_lm_actor_critic_policy, args: {model_name: SERVER}}}
"""
_STUDY = """
name: s
arms: {a: {experiment: demo-easy, overrides: ['world.env=hostile_study:E-v0', 'imports=[hostile_study]']}}
"""


def original(name: str, text: str) -> Plant:
    return settings(name, {}, yaml.safe_load(text.replace("SERVER", SERVER)))


FILES = {
    **{
        f"YAML with {tag}": Case(written("config.yaml", f"name: {tag}\n"), DRY, "not YAML|cannot read")
        for tag in (
            "!!python/object/new:os.system [true]",
            *("!!python/object/apply:subprocess.Popen [[true]]", "!!python/module:hostile_yaml"),
            "!!python/object:hostile_yaml.X {}",
            "!<tag:yaml.org,2002:python/object/apply:os.system> [true]",
        )
    },
    "targets everywhere": Case(
        of_demo(
            **{
                f"{key}__args": {"_target_": "os.system", "_args_": ["true"]}
                for key in ("policy", "algorithm", "world")
            }
        ),
        DRY,
        "unknown argument",
    ),
    "an interpolation of a target": Case(of_demo(name="${world.${name}:GROUNDLING_SECRET}"), DRY, "resolvers"),
    **{
        f"an experiment with {text}": Case(
            together(
                written(
                    "experiment/mine.yaml",
                    f"# @package _global_\n{text}\nname: mine\nworld: {{id: text, env: BabyAI-GoToObj-v0}}\n",
                ),
                module("hydra_plugins/hostile_plugin", "hostile_launcher"),
            ),
            f"train mine --config-dir ROOT run_dir=OUT {_LITTLE}",
            message,
        )
        for text, message in (
            ("defaults: [/../../outside]", "Could not load"),
            ("defaults: [/experiment/../../outside]", "Could not load"),
            ("defaults: [{override /hydra/launcher: hostile_launcher}]", "Could not find"),
            ("defaults: [{override /hydra/job_logging: hostile}]", "Could not find"),
            ("hydra: {searchpath: ['pkg://hostile_launcher', 'file:///etc']}", "primary config"),
            ("hydra: {callbacks: {a: {_target_: hostile_launcher.C}}}", None),
        )
    },
    "GLAM's script": Case(original("glam.yaml", _GLAM), "convert ROOT/glam.yaml", "hostile_glam|unknown env"),
    "RL4LMs's components": Case(original("rl4lms.yaml", _RL4LMS), "convert ROOT/rl4lms.yaml", ""),
    "a study's arms": Case(
        original("study.yaml", _STUDY), "study ROOT/study.yaml --runs OUT", "add --import hostile_study"
    ),
}
CLONE = "train glam/bc world.dataset=DATA world.env=BabyAI-MixedTrainLocal-v0 world.history=1 model.path=starter"
CLONE += " device=cpu run_dir=OUT --dry-run"
DISTILL = "distill PAIRS --preferences rules --output OUT epochs=1 device=cpu model.args={channels:4}"


def of_folder(**args: Any) -> Plant:
    return of_texts(world__pool="huggingface", world__args={"dataset": "folder"} | args)


CSV = written("folder/train.csv", "prompt\na\n")


def card(name: str, files: str) -> Plant:
    """Describe a folder's data files, in a README's header or in a file of its own."""
    line = "---\n" if name.endswith(".md") else ""
    return written(f"folder/{name}", f"{line}configs: [{{config_name: default, data_files: '{files}'}}]\n{line}")


def pictures(root: Path) -> None:
    """Write a Parquet file whose pictures are at a server."""
    picture = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    schema = pa.schema([("prompt", pa.string()), ("picture", picture)])
    columns = {"prompt": ["1 2"] * 20, "picture": [{"bytes": None, "path": f"{SERVER}.png"}] * 20}
    features = {"prompt": {"dtype": "string", "_type": "Value"}, "picture": {"_type": "Image"}}
    about = {"huggingface": json.dumps({"info": {"features": features}})}
    (root / "folder").mkdir()
    pq.write_table(pa.table(columns, schema=schema).replace_schema_metadata(about), root / "folder" / "train.parquet")


DATASETS = {
    "types with pickles, cloned": Case(all_parquet("data", PY_EXTENSION), CLONE),
    "types with pickles, distilled": Case(all_parquet("pairs", PY_EXTENSION), DISTILL),
    "pandas's own types": Case(
        all_parquet("pairs", {b"pandas": b'{"columns": [{"name": "x", "numpy_type": "hostile_pandas.T"}]}'}), DISTILL
    ),
    "a description with servers": Case(
        entries("data/collection.json", **{"imports": ["hostile_data"], "model.path": SERVER}), CLONE
    ),
    "an annotator of another place": Case(
        entries(
            "pairs/annotations/rules.json",
            judge="hostile_judge.J",
            args={"base_url": SERVER, "api_key_env": "GROUNDLING_SECRET"},
        ),
        DISTILL,
    ),
    "a pool's types with pickles": Case(
        together(
            of_texts(world__pool="parquet", world__args={"path": "pool.parquet", "prompt_column": "prompt"}),
            parquet("pool.parquet", pa.array(["1 2"] * 20), pa.field("prompt", pa.string(), metadata=PY_EXTENSION)),
        ),
        DRY,
    ),
    "a folder with a script": Case(
        together(of_folder(), module("folder/folder"), CSV), DRY, "scripts are no longer supported"
    ),
    "a folder with a pickle": Case(
        together(of_folder(), card("README.md", "x.pkl"), pickled("folder/x.pkl")), DRY, "cannot be loaded"
    ),
    "a folder at a server": Case(together(of_folder(), card("README.md", f"{SERVER}/x.csv"), CSV), DRY, "at a server"),
    "a folder at a server, through another": Case(
        together(of_folder(), card(".huggingface.yaml", f"zip://x.csv::{SERVER}/x.zip"), CSV), DRY, "at a server"
    ),
    "pictures at a server": Case(together(of_folder(meta_columns=["picture"]), pictures), DRY),
}
CASES = {**RUNS, **STATES, **MODELS, **FILES, **DATASETS}


def _line(words: str, root: Path) -> list[str]:
    places = {"RUN": "run", "LM": "lm", "PUB": "pub", "DATA": "data", "PAIRS": "pairs", "MODEL": "model", "OUT": "out"}
    for name, place in places.items():
        words = re.sub(rf"\b{name}\b", str(root / place), words)
    return words.replace("ROOT", str(root)).split()


def _copy(source: str, target: str) -> None:
    """Weights are linked, for they are large."""
    if source.endswith(".safetensors"):
        os.link(source, target)
    else:
        shutil.copyfile(source, target)


@pytest.mark.parametrize("name", CASES)
def test_a_hostile_file_does_nothing(
    name: str, received: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    case, root = CASES[name], tmp_path / "received"
    shutil.copytree(received, root, copy_function=_copy)
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside.txt").write_text("mine\n")
    case.plant(root)
    before = sorted(tmp_path.iterdir())
    monkeypatch.setenv("GROUNDLING_SECRET", SECRET)
    keep_modules_in(root / "modules", monkeypatch)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", str(root / "datasets"))
    monkeypatch.chdir(root)
    monkeypatch.syspath_prepend(str(root))
    capsys.readouterr()
    with auditing(root, monkeypatch) as audit:
        status = main(_line(case.words, root))
    output = capsys.readouterr()
    assert audit.acts == []
    assert "GROUNDLING_SECRET" not in audit.asked
    if case.message is None:
        assert status == 0, output.err
    else:
        assert status == 1 and re.search(case.message, output.err or output.out), output.err
        assert output.err.count("error: ") == (case.words.split()[0] != "verify") and "Traceback" not in output.err
    assert SECRET not in output.out + output.err
    shown = re.sub(r"\rGenerating [^\r\n]*", "", output.out + output.err)  # the bars of `datasets`
    assert "\n  ok     hostile" not in shown
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", shown)
    assert (tmp_path / "outside.txt").read_text() == "mine\n" and not list((tmp_path / "outside").iterdir())
    assert sorted(tmp_path.iterdir()) == before and not (root / "it-ran").exists()
    assert not any(name.startswith("hostile") for name in sys.modules)
    for path in root.rglob("*"):
        if path.is_file() and path.suffix != ".safetensors":
            content = path.read_bytes()
            assert SECRET.encode() not in content
            assert path.suffix != ".html" or SCRIPT.encode() not in content


def test_a_log_that_is_a_link_overwrites_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "outside.txt").write_text("mine\n")
    log = tmp_path / "held-out.log"
    log.symlink_to(tmp_path / "outside.txt")
    monkeypatch.setattr("groundling.runtime.parallel._start", lambda words, log: subprocess.Popen(words, stdout=log))
    assert run_parallel([CommandLine("a", ["echo", "told"], log)], 1, print) == []
    assert (tmp_path / "outside.txt").read_text() == "mine\n" and log.read_text() == "told\n"


def test_security_states_the_number_of_cases() -> None:
    """As SECURITY.md says."""
    page = (Path(__file__).parents[1] / "SECURITY.md").read_text(encoding="utf-8")
    assert f"tests/test_audit.py) has {len(CASES)} hostile files" in " ".join(page.split())


# That the audit sees what it is to see


def _import_from(folder: Path) -> None:
    module("mine")(folder)
    runpy.run_path(str(folder / "mine.py"))


def _link(folder: Path, outside: Path) -> None:
    (folder / "link").symlink_to(outside / "file")
    (folder / "link").write_text("theirs")


ACTS: list[tuple[str, Callable[[Path, Path], Any]]] = [
    ("os.system", lambda folder, outside: os.system("true")),
    ("subprocess.Popen", lambda folder, outside: subprocess.run(["true"], check=True)),
    ("os.posix_spawn", lambda folder, outside: os.waitpid(os.posix_spawn("/bin/true", ["true"], {}), 0)),
    ("os.exec", lambda folder, outside: os.execv(str(outside / "none"), ["none"])),
    ("webbrowser.open", lambda folder, outside: webbrowser.BackgroundBrowser("true").open(SERVER)),
    ("socket.connect", lambda folder, outside: socket.create_connection(("127.0.0.1", 9))),
    ("socket.getaddrinfo", lambda folder, outside: socket.getaddrinfo("127.0.0.1", 9)),
    ("socket.gethostbyname", lambda folder, outside: socket.gethostbyname("127.0.0.1")),
    ("socket.bind", lambda folder, outside: socket.create_server(("127.0.0.1", 0)).close()),
    ("urllib.Request", lambda folder, outside: urllib.request.urlopen(SERVER)),
    ("http.client.connect", lambda folder, outside: http.client.HTTPConnection("127.0.0.1", 9).connect()),
    ("pickle.find_class", lambda folder, outside: pickle.loads(pickle.dumps(Bomb()))),
    ("marshal.loads", lambda folder, outside: marshal.loads(marshal.dumps(1))),
    ("import", lambda folder, outside: importlib.import_module("hostile_nowhere")),
    ("compile", lambda folder, outside: _import_from(folder)),
    ("exec", lambda folder, outside: _import_from(folder)),
    ("ctypes.dlopen", lambda folder, outside: ctypes.CDLL(str(folder / "lib.so"))),
    ("open", lambda folder, outside: (outside / "new").write_text("theirs")),
    ("open", _link),
    ("os.rename", lambda folder, outside: (outside / "file").rename(folder / "file")),
    ("os.remove", lambda folder, outside: (outside / "file").unlink()),
    ("os.mkdir", lambda folder, outside: (outside / "new").mkdir()),
    ("os.rmdir", lambda folder, outside: outside.rmdir()),
    ("os.chmod", lambda folder, outside: (outside / "file").chmod(0o777)),
    ("os.truncate", lambda folder, outside: os.truncate(outside / "file", 0)),
    ("os.symlink", lambda folder, outside: (outside / "new").symlink_to(folder)),
    ("os.link", lambda folder, outside: (folder / "new").hardlink_to(outside / "file")),
    ("shutil.rmtree", lambda folder, outside: shutil.rmtree(outside)),
]


@pytest.mark.parametrize(("event", "act"), ACTS, ids=[event for event, _ in ACTS])
def test_the_audit_records_hostile_actions(
    event: str, act: Callable[[Path, Path], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, outside = tmp_path / "received", tmp_path / "outside"
    folder.mkdir()
    outside.mkdir()
    (outside / "file").write_text("mine")
    with auditing(folder, monkeypatch) as audit, suppress(OSError, ImportError):
        act(folder, outside)
    assert event in dict(audit.acts)


def test_the_audit_ignores_harmless_actions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "received"
    with auditing(folder, monkeypatch) as audit:
        folder.mkdir()
        (folder / "a").write_text(Path(__file__).read_text())
        (folder / "a").rename(folder / "b")
        shutil.rmtree(folder)
        importlib.reload(importlib.import_module("colorsys"))
    os.system("true")  # after it
    assert audit.acts == [] and audit.asked == []


@pytest.mark.parametrize(
    "read",
    [
        lambda: os.environ["GROUNDLING_SECRET"],
        lambda: os.getenv("GROUNDLING_SECRET"),
        lambda: os.environ.copy(),
        lambda: {**os.environ},
        lambda: list(os.environ.items()),
    ],
)
def test_reading_an_environment_variable_is_recorded(
    read: Callable[[], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GROUNDLING_SECRET", SECRET)
    with auditing(tmp_path, monkeypatch) as audit:
        read()
    assert "GROUNDLING_SECRET" in audit.asked


CARELESS: dict[str, tuple[Plant, Callable[[Path], Any], str]] = {
    "a pickle for weights": (
        pickled("weights.bin"),
        lambda root: torch.load(root / "weights.bin", weights_only=False),
        "os.system",
    ),
    "a chat template": (lambda root: None, lambda root: jinja2.Template(JINJA).render(), "os.system"),
    "YAML": (
        lambda root: None,
        lambda root: yaml.unsafe_load("!!python/object/apply:os.system ['true']"),
        "os.system",
    ),
    "an env's id": (module("hostile_env"), lambda root: gymnasium.make("hostile_env:Env-v0"), "import"),
    "an array": (
        lambda root: np.save(root / "a.npy", np.array([Bomb()], dtype=object)),
        lambda root: np.load(root / "a.npy", allow_pickle=True),
        "os.system",
    ),
    "a model's Python": (
        lambda root: hostile_model(root / "python", root / "it-ran"),
        lambda root: transformers.AutoConfig.from_pretrained(root / "python", trust_remote_code=True),
        "exec",
    ),
}
"""What happens to whoever reads such files as they ask for."""


@pytest.mark.parametrize("name", CARELESS)
def test_planted_code_would_run_in_careless_readers(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant, read, event = CARELESS[name]
    plant(tmp_path)
    keep_modules_in(tmp_path / "modules", monkeypatch)
    monkeypatch.syspath_prepend(str(tmp_path))
    kept = dict(sys.modules)
    with auditing(tmp_path, monkeypatch) as audit, suppress(gymnasium.error.Error):
        read(tmp_path)
    for added in sys.modules.keys() - kept.keys():
        if added.startswith("hostile"):
            del sys.modules[added]
    assert event in dict(audit.acts)
