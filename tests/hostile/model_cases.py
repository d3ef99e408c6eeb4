"""Hostile models, settings files and datasets for `test_audit`."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from tests.config.test_trust import hostile_model
from tests.hostile.cases import CHECKPOINT, DRY, EVALUATE, PY_EXTENSION, Case, checkpointed, of_demo, of_texts
from tests.hostile.plants import (
    ESCAPE,
    JINJA,
    SERVER,
    Plant,
    all_parquet,
    entries,
    module,
    pickled,
    settings,
    tensor,
    together,
    written,
)


def hostile_starter(root: Path) -> None:
    """Write a model with its own Python code."""
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
    "Python of a known model": Case(starter(auto_map=_CODE), LOADED),
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
    "a reward model of a module": Case(
        entries("model/reward_model.json", model="hostile_rm.Model"), TRAIN_REWARD, "unknown reward model"
    ),
    "a reward model's other path": Case(
        together(hostile_starter, entries("model/reward_model.json", model="language_model", args={"path": "python"})),
        TRAIN_REWARD,
        "no model folder",
    ),
    "a reward model's pickle": Case(
        pickled("model/reward_model.safetensors"), TRAIN_REWARD, "no readable reward model"
    ),
    "escapes for a tensor": Case(
        tensor("starter/model.safetensors", ESCAPE),
        "distill PAIRS --preferences rules --output OUT epochs=1 device=cpu --model language_model "
        "model.args={path:./starter}",
    ),
    "a metric of a module": Case(of_texts(evaluation__metrics=[{"id": "hostile_metric.M"}]), DRY, "unknown metric"),
    "a pool of a module": Case(of_texts(world__pool="hostile_pool.P"), DRY, "unknown pool"),
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
            *("!!python/object/apply:subprocess.Popen [[true]]", "!!python/module:hostile_yaml"),
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
            ("defaults: [/experiment/../../outside]", "Could not load"),
            ("defaults: [{override /hydra/launcher: hostile_launcher}]", "Could not find"),
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
    """Describe a folder's data files in a README's header or in a separate file."""
    line = "---\n" if name.endswith(".md") else ""
    return written(f"folder/{name}", f"{line}configs: [{{config_name: default, data_files: '{files}'}}]\n{line}")


def pictures(root: Path) -> None:
    """Write a Parquet file whose images are on a server."""
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
    "a folder with a script": Case(
        together(of_folder(), module("folder/folder"), CSV), DRY, "scripts are no longer supported"
    ),
    "a folder with a pickle": Case(
        together(of_folder(), card("README.md", "x.pkl"), pickled("folder/x.pkl")), DRY, "cannot be loaded"
    ),
    "a folder at a server": Case(together(of_folder(), card("README.md", f"{SERVER}/x.csv"), CSV), DRY, "on a server"),
    "a folder at a server, through another": Case(
        together(of_folder(), card(".huggingface.yaml", f"zip://x.csv::{SERVER}/x.zip"), CSV), DRY, "on a server"
    ),
    "pictures at a server": Case(together(of_folder(meta_columns=["picture"]), pictures), DRY),
}
