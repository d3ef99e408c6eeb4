"""Converted files of RL4LMs train, on tiny models put in with overrides; SPICE, which needs Java, is left out."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from groundling.errors import GroundlingError
from groundling.io.row_files import read_rows
from groundling.training.tracking import read_metrics
from groundling.worlds.writing.measures import make_metrics
from tests.building import policy_of
from tests.convert import convert_and_train, read
from tests.convert.conftest import has_wordnet
from tests.convert.originals import RL4LMS, is_causal, rl4lms
from tests.thorough import some_of

_NLPO, _SUPERVISED = "dialog/gpt2_nlpo", "dialog/gpt2_supervised"
_USUAL = [_SUPERVISED, "synthetic_generate_increasing_numbers/bart_ppo"]
"""With and without references to learn from, and each kind of model."""


def _put_in(name: str, models: dict[str, str]) -> list[str]:
    """Words that replace models and data that must be downloaded."""
    entries = rl4lms(name)
    kind = "causal" if is_causal(name) else "seq2seq"
    key = "alg.model_name" if entries["alg"]["id"] == "supervised" else "alg.policy.args.model_name"
    given = [f"{key}={models[kind]}"]
    if "n_epochs" in entries["alg"].get("args", {}):
        given.append("alg.args.n_epochs=1")
    if entries["datapool"]["id"] != "dummy_pool":
        given.append("datapool.args.offline=true")
    reward = entries.get("reward_fn", {}).get("id")
    if reward in ("meteor", "intent_accuracy") and not has_wordnet():  # METEOR is a part of both
        given.append("reward_fn={id:rouge,args:{}}")
    elif reward in ("learned_reward", "intent_accuracy"):
        given.append(f"reward_fn.args.model_name={models['classifier']}")
    if reward == "common_gen_preference_model":
        given.append(f"reward_fn.args.model_name={models['seq2seq']}")
    metrics = [{"args": {}, **metric} for metric in copy.deepcopy(entries["train_evaluation"]["metrics"])]
    for metric in metrics:
        if metric["id"] in ("learned_reward", "intent_accuracy"):
            metric["args"]["model_name"] = models["classifier"]
        if metric["id"] == "bert_score":
            metric["args"] |= {"model_name": models["encoder"], "num_layers": 1}
    metrics_text = ",".join(
        f"{{id:{m['id']},args:{{{','.join(f'{k}:{str(v).rstrip(chr(44))}' for k, v in m['args'].items())}}}}}"
        for m in metrics
        if m["id"] != "spice" and (m["id"] != "meteor" or has_wordnet())
    )
    return [*given, f"train_evaluation.metrics=[{metrics_text}]"]


@pytest.mark.parametrize("name", some_of(RL4LMS, _USUAL))
def test_every_file_trains(name: str, write: Callable[..., Path], models: dict[str, str], tmp_path: Path) -> None:
    small = [
        "device=cpu",
        "world.num_texts=2",
        "world.num_tokens=4",
        "training.steps=9",  # at most 8 tokens an update
        "training.epochs=null",
        "training.checkpoint_every=100",
        "evaluation.episodes=2",
        f"run_dir={tmp_path}/run",
    ]
    if (rl4lms(name).get("train_evaluation").get("generation_kwargs") or {}).get("max_new_tokens"):
        small.append("evaluation.generation={max_new_tokens:4,min_length:0,min_new_tokens:0}")
    if rl4lms(name)["alg"]["id"] == "supervised":
        small.append("evaluation.generation={max_new_tokens:4,min_length:0,min_new_tokens:0}")
    assert convert_and_train(write(name), _put_in(name, models), small) == 0
    assert len(read_metrics(tmp_path / "run")) >= 2
    first = read_rows(tmp_path / "run" / "validation.jsonl")[0]
    assert first["update"] == 0 and first["metrics"]


def test_supervised_training_has_the_requested_epochs(
    write: Callable[..., Path], models: dict[str, str], tmp_path: Path
) -> None:
    path = write(_SUPERVISED)
    small = [
        f"run_dir={tmp_path}/run", "training.epochs=2", "world.num_texts=4", "algorithm.args.minibatch_size=4",
        "evaluation.every=null", "device=cpu",
    ]  # fmt: skip
    words = [*_put_in(_SUPERVISED, models), "datapool.args.max_size=6"]
    for _ in range(2):  # the second time, nothing is left to do
        assert convert_and_train(path, words, small) == 0
        assert len(read_metrics(tmp_path / "run")) == 4  # 2 passes over 6 texts by 4, each with a short end


def test_perplexity_is_the_trained_models(write: Callable[..., Path], models: dict[str, str]) -> None:
    name = "imdb_text_continuation/gpt2_supervised"
    made, notes = read(write(name), _put_in(name, models))
    policy: Any = policy_of(made)
    (perplexity,) = [
        m for m in make_metrics(made.evaluation.metrics, policy) if type(m).__name__ == "CausalPerplexity"
    ]
    assert perplexity.lm is policy.lm and perplexity.stride == 512
    assert any("use_text_from_meta_data" in note for note in notes)


def test_the_tokenizer_of_another_folder_is_used(
    write: Callable[..., Path], models: dict[str, str], tmp_path: Path
) -> None:
    bare = tmp_path / "bare"
    bare.mkdir()
    for name in ("config.json", "model.safetensors", "generation_config.json"):
        (bare / name).write_bytes((Path(models["causal"]) / name).read_bytes())
    given = [f"alg.policy.args.model_name={bare}", f"tokenizer.model_name={models['causal']}"]
    made, _ = read(write(_NLPO), [*given, "datapool.args.offline=true", "alg.args.device=cpu"])
    policy: Any = policy_of(made)
    assert policy.lm.tokenizer.eos_token == "</s>"
    made.model.tokenizer = None
    with pytest.raises(GroundlingError, match="holds no tokenizer"):
        policy_of(made)
