"""Our own experiments of RL4LMs' tasks train, on tiny models and the offline samples."""

from pathlib import Path

import pytest

from groundling.cli.main import main
from groundling.config.compose import compose, experiments
from groundling.io.row_files import read_rows
from groundling.training.tracking import read_metrics
from tests.convert.conftest import has_wordnet
from tests.thorough import one_in, thorough

TASKS = ["common_gen", "dialog", "imdb", "iwslt2017", "narrative_qa", "summarization", "totto"]


def _small(name: str, models: dict[str, str], run_dir: Path) -> list[str]:
    config = compose(name)
    model = models["causal" if "gpt2" in config.model.path else "seq2seq"]
    given = [
        f"run_dir={run_dir}", f"model.path={model}", "device=cpu", "world.num_texts=2", "world.num_tokens=4",
        "training.epochs=null", "training.steps=9", "evaluation.episodes=2", "evaluation.generation.max_new_tokens=4",
        "evaluation.generation.min_length=0", "evaluation.generation.min_new_tokens=0",
    ]  # fmt: skip
    given.append("algorithm.args.minibatch_size=2" if name.endswith("supervised") else "algorithm.args.epochs=1")
    if config.world.pool != "dummy_pool":
        given.append("world.args.offline=true")
    classifying = {"learned_reward", "intent_accuracy"} & set(config.reward)
    given += [f"reward.{name}.args.model_name={models['classifier']}" for name in classifying]
    kept = []
    for metric in config.evaluation.metrics:
        args = dict(metric.args)
        if metric.id in ("learned_reward", "intent_accuracy"):
            args["model_name"] = models["classifier"]
        if metric.id == "bert_score":
            args |= {"model_name": models["encoder"], "num_layers": 1}
        if metric.id != "meteor" or has_wordnet():
            kept.append(f"{{id:{metric.id},args:{{{','.join(f'{k}:{v}' for k, v in args.items())}}}}}")
    return [*given, f"evaluation.metrics=[{','.join(kept)}]"]


@pytest.mark.parametrize("task", one_in(3, TASKS))
def test_every_task_has_every_algorithm(task: str) -> None:
    wanted = {f"rl4lms/{task}_{kind}" for kind in ("supervised", "ppo", "nlpo")}
    assert wanted <= set(experiments())
    for name in wanted:
        config = compose(name)
        assert config.algorithm.id == name.rpartition("_")[2] and config.evaluation.metrics
        assert (config.policy.args.get("mask_type") is not None) == name.endswith("nlpo")
        assert (config.training.epochs is not None) == name.endswith("supervised")


@pytest.mark.parametrize(
    "name",
    [
        "common_gen_ppo", "imdb_nlpo", "totto_supervised",
        *thorough("dialog_nlpo", "iwslt2017_nlpo", "narrative_qa_supervised", "summarization_ppo", "dates_ppo"),
    ],
)  # fmt: skip
def test_a_task_trains(name: str, models: dict[str, str], tmp_path: Path) -> None:
    if name in ("common_gen_ppo", "dialog_nlpo", "totto_supervised") and not has_wordnet():
        pytest.skip("METEOR is rewarded, and there is no WordNet")
    assert main(["train", f"rl4lms/{name}", *_small(f"rl4lms/{name}", models, tmp_path)]) == 0
    assert len(read_metrics(tmp_path)) >= 2
    assert read_rows(tmp_path / "validation.jsonl")[0]["metrics"]


def test_rl_starts_from_a_supervised_model(models: dict[str, str], tmp_path: Path) -> None:
    first, second = tmp_path / "supervised", tmp_path / "ppo"
    small = _small("rl4lms/imdb_supervised", models, first)
    assert main(["train", "rl4lms/imdb_supervised", *small]) == 0
    (checkpoint, *_) = sorted((first / "checkpoints").iterdir())
    small = [*_small("rl4lms/imdb_ppo", models, second), f"model.path={checkpoint}"]
    assert main(["train", "rl4lms/imdb_ppo", *small]) == 0
    assert read_metrics(second)[0]["kl_mean"] == pytest.approx(0, abs=1e-5)  # the reference is that model
