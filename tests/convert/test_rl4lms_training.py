"""RL4LMs' files and our experiments for its tasks can be trained with tiny models and offline samples (no SPICE)."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from groundling.cli.main import main
from groundling.config.compose import compose, experiments
from groundling.config.schema import Config
from groundling.errors import GroundlingError
from groundling.io.row_files import read_rows
from groundling.training.tracking import read_metrics
from groundling.worlds.writing.measures import make_metrics
from tests.building import policy_of
from tests.convert import convert_and_train, read
from tests.convert.conftest import has_wordnet
from tests.convert.originals import RL4LMS
from tests.thorough import one_in, some_of, thorough

_NLPO, _SUPERVISED = "dialog/gpt2_nlpo", "dialog/gpt2_supervised"
_USUAL = [_SUPERVISED, "synthetic_generate_increasing_numbers/bart_ppo"]
"""Files with and without references to learn from, for each kind of model."""
_PERPLEXITY = "{id: causal_perplexity, args: {stride: 512, use_text_from_meta_data: true}}"
TASKS = ["common_gen", "dialog", "imdb", "iwslt2017", "narrative_qa", "summarization", "totto"]


def _small(config: Config, models: dict[str, str], run_dir: Path) -> list[str]:
    """Return overrides for a short training run, which replace models and data that must be downloaded."""
    if {"meteor", "intent_accuracy"} & set(config.reward) and not has_wordnet():
        pytest.skip("METEOR is rewarded, and there is no WordNet")
    words = [
        f"run_dir={run_dir}", f"model.path={models['causal' if 'gpt2' in config.model.path else 'seq2seq']}",
        "model.tokenizer=null", "device=cpu", "world.num_texts=2", "world.num_tokens=4", "training.epochs=null",
        "training.steps=9", "evaluation.episodes=2", "evaluation.generation.max_new_tokens=4",
        "evaluation.generation.min_length=0", "evaluation.generation.min_new_tokens=0",
    ]  # fmt: skip
    words.append(f"algorithm.args.{'minibatch_size=2' if config.algorithm.id == 'supervised' else 'epochs=1'}")
    if config.world.pool != "dummy_pool":
        words.append("world.args.offline=true")
    replaced = dict.fromkeys(("learned_reward", "intent_accuracy"), models["classifier"])
    replaced["common_gen_preference_model"] = models["seq2seq"]
    words += [f"reward.{id}.args.model_name={replaced[id]}" for id in replaced.keys() & config.reward.keys()]
    metrics = []
    for metric in config.evaluation.metrics:
        args = dict(metric.args)
        if metric.id in replaced:
            args["model_name"] = replaced[metric.id]
        if metric.id == "bert_score":
            args |= {"model_name": models["encoder"], "num_layers": 1}
        if metric.id != "spice" and (metric.id != "meteor" or has_wordnet()):
            metrics.append(f"{{id:{metric.id},args:{{{','.join(f'{k}:{v}' for k, v in args.items())}}}}}")
    return [*words, f"evaluation.metrics=[{','.join(metrics)}]"]


def _assert_trained(run_dir: Path) -> None:
    assert len(read_metrics(run_dir)) >= 2
    first = read_rows(run_dir / "validation.jsonl")[0]
    assert first["update"] == 0 and first["metrics"]


@pytest.mark.parametrize("name", some_of(RL4LMS, _USUAL))
def test_every_file_trains(name: str, write: Callable[..., Path], models: dict[str, str], tmp_path: Path) -> None:
    path = write(name)
    assert convert_and_train(path, [], _small(read(path)[0], models, tmp_path / "run")) == 0
    _assert_trained(tmp_path / "run")


@pytest.mark.parametrize(
    "name",
    [
        "common_gen_ppo", "imdb_nlpo", "totto_supervised",
        *thorough("dialog_nlpo", "iwslt2017_nlpo", "narrative_qa_supervised", "summarization_ppo", "dates_ppo"),
    ],
)  # fmt: skip
def test_a_task_trains(name: str, models: dict[str, str], tmp_path: Path) -> None:
    assert main(["train", f"rl4lms/{name}", *_small(compose(f"rl4lms/{name}"), models, tmp_path)]) == 0
    _assert_trained(tmp_path)


@pytest.mark.parametrize("task", one_in(3, TASKS))
def test_every_task_has_every_algorithm(task: str) -> None:
    wanted = {f"rl4lms/{task}_{kind}" for kind in ("supervised", "ppo", "nlpo")}
    assert wanted <= set(experiments())
    for name in wanted:
        config = compose(name)
        assert config.algorithm.id == name.rpartition("_")[2] and config.evaluation.metrics
        assert (config.policy.args.get("mask_type") is not None) == name.endswith("nlpo")
        assert (config.training.epochs is not None) == name.endswith("supervised")


def test_rl_starts_from_a_supervised_model(models: dict[str, str], tmp_path: Path) -> None:
    first, second = tmp_path / "supervised", tmp_path / "ppo"
    name = "rl4lms/imdb_supervised"
    assert main(["train", name, *_small(compose(name), models, first)]) == 0
    (checkpoint, *_) = sorted((first / "checkpoints").iterdir())
    small = _small(compose("rl4lms/imdb_ppo"), models, second)
    assert main(["train", "rl4lms/imdb_ppo", *small, f"model.path={checkpoint}"]) == 0
    assert read_metrics(second)[0]["kl_mean"] == pytest.approx(0, abs=1e-5)  # the reference is that model


def test_supervised_training_has_the_requested_epochs(
    write: Callable[..., Path], models: dict[str, str], tmp_path: Path
) -> None:
    path = write(_SUPERVISED)
    small = [word for word in _small(read(path)[0], models, tmp_path / "run") if not word.startswith("training.")]
    small += ["training.epochs=2", "world.num_texts=4", "algorithm.args.minibatch_size=4", "evaluation.every=null"]
    for _ in range(2):  # the second time, there is nothing left to do
        assert convert_and_train(path, ["datapool.args.max_size=6"], small) == 0
        assert len(read_metrics(tmp_path / "run")) == 4  # 2 passes over 6 texts in batches of 4 and 2


def test_perplexity_is_the_trained_models(write: Callable[..., Path], models: dict[str, str]) -> None:
    words = [f"alg.model_name={models['causal']}", f"train_evaluation.metrics=[{_PERPLEXITY}]"]
    made, notes = read(write("imdb_text_continuation/gpt2_supervised"), words)
    policy: Any = policy_of(made)
    (perplexity,) = make_metrics(made.evaluation.metrics, policy)
    assert type(perplexity).__name__ == "CausalPerplexity"
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
    with pytest.raises(GroundlingError, match="contains no tokenizer"):
        policy_of(made)
