"""Settings chosen for runs without an experiment."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from groundling.config.compose import compose, experiments, is_open
from groundling.config.schema import Config
from groundling.lm.load.model_files import STARTERS, Source
from groundling.lm.load.size import ModelSize, size_of
from groundling.training.build import check_suits, world_of
from groundling.training.checkpoint import open_run, write_settings
from groundling.training.defaults import Facts, applicable, compose_fitted, recommended
from tests.envs import echo  # noqa: F401  (registers test/Echo-v0)

_STARTER = Facts(ModelSize(1_000_000), "ppo", "action_writing", "choice")
_NEW = replace(_STARTER, size=ModelSize(3_000_000, is_trained=False))
_LORA = replace(_STARTER, size=ModelSize(135_000_000), lora=True)
_FLAN = replace(_STARTER, size=ModelSize(783_000_000))
_GROUPS = replace(_STARTER, algorithm="grpo", episode_limit=64)
_TEXTS = Facts(ModelSize(1_000_000), "grpo", "token", "token")


def _values(facts: Facts) -> dict[str, Any]:
    return {one.key.removeprefix("algorithm.args."): one.value for one in recommended(facts)}


@pytest.mark.parametrize(
    ("facts", "rate"),
    [
        (_STARTER, 4e-4),
        (_NEW, 1e-4),
        (replace(_NEW, size=ModelSize(10_000, is_trained=False)), 1e-3),
        (replace(_NEW, action="free_text"), 3e-4),
        (_LORA, 2e-4),
        (_FLAN, 2e-6),
        (replace(_FLAN, lora=True), 1e-4),
        (replace(_STARTER, size=ModelSize(10_000)), 4e-4),
        (replace(_STARTER, size=ModelSize(70 * 10**9)), 1e-6),
        (replace(_LORA, size=ModelSize(70 * 10**9)), 5e-5),
    ],
)
def test_the_learning_rate_falls_with_the_number_of_trained_weights(facts: Facts, rate: float) -> None:
    assert _values(facts)["learning_rate"] == pytest.approx(rate)


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        (_STARTER, {"policy.args.value_hidden_sizes": [128], "entropy_coefficient": 0.01}),
        (replace(_STARTER, steps=7_680), {"world.num_steps": 16}),
        (replace(_STARTER, steps=10**6), {"world.num_steps": 40}),
        (_NEW, {"entropy_coefficient": 0.1, "epochs": 4, "target_kl": 0.05}),
        (_LORA, {"detach_values": True, "value_warmup": 1}),
        (replace(_STARTER, action="free_text"), {"detach_values": True, "value_warmup": 1}),
        (replace(_GROUPS, rows=20), {"world.group_size": 5}),
        (replace(_STARTER, algorithm="a2c", steps=6_000), {"world.num_steps": 5, "world.num_envs": 12}),
        (replace(_STARTER, algorithm="a2c"), {"world.num_envs": 32}),
        (_GROUPS, {"world.group_size": 8, "world.num_steps": 64}),
        (replace(_GROUPS, episode_limit=1000), {"world.num_steps": 128}),
        (_TEXTS, {"world.texts_per_prompt": 8, "entropy_coefficient": 0.001, "gamma": 1.0, "minibatch_size": 320}),
        (replace(_TEXTS, rows=64, rollout=64 * 16, steps=40_000), {"world.num_texts": 64, "minibatch_size": 256}),
        (replace(_TEXTS, rows=64, rollout=64 * 64, steps=40_000), {"world.num_texts": 16, "minibatch_size": 256}),
        (replace(_TEXTS, rows=64, rollout=64 * 64, steps=60_000), {"world.num_texts": 24, "minibatch_size": 384}),
        (replace(_TEXTS, rows=64, rollout=4096, steps=9, texts_per_prompt=32), {"world.num_texts": 32}),
        (replace(_TEXTS, algorithm="ppo", rows=64, rollout=64 * 64, steps=40_000), {"world.num_texts": 16}),
    ],
)
def test_facts_decide_the_other_settings(facts: Facts, expected: dict[str, Any]) -> None:
    assert expected.items() <= _values(facts).items()


@pytest.mark.parametrize(
    ("facts", "absent"),
    [
        (_STARTER, "detach_values"),
        (replace(_NEW, action="free_text"), "detach_values"),
        (_STARTER, "world.group_size"),
        (replace(_STARTER, policy="action_generating", action="free_text"), "policy.args.temperature"),
    ],
)
def test_settings_that_the_facts_do_not_call_for_are_left_out(facts: Facts, absent: str) -> None:
    assert absent not in _values(facts)


def test_an_env_where_any_text_is_an_action_gets_settings_for_free_text() -> None:
    chosen = {
        env: compose_fitted("text", [f"world.env={env}", *more, "model.path=starter-causal"])
        for env, more in (("test/Echo-v0", []), ("BabyAI-GoToLocal-v0", ["policy.id=action_generating"]))
    }
    temperatures = [config.policy.args.get("temperature") for config in chosen.values()]
    assert temperatures == [None, 2.0]
    assert {config.policy.id for config in chosen.values()} == {"action_generating"}
    assert "policy.id=action_generating: the env lists no actions" in chosen["test/Echo-v0"].chosen[0]
    chosen_otherwise = compose_fitted("text", ["world.env=test/Echo-v0", "policy.id=action_writing"])
    assert chosen_otherwise.policy.id == "action_writing"


def test_only_a_models_own_weights_are_counted(tmp_path: Path) -> None:
    shutil.copytree(STARTERS["starter-causal"], tmp_path / "checkpoint")
    save_file({"moments": torch.zeros(1000, 1000)}, tmp_path / "checkpoint" / "optimizer.safetensors")
    assert size_of(Source(str(tmp_path / "checkpoint"))) == size_of(Source("starter-causal"))


def test_a_folder_is_treated_like_the_same_model_by_name(tmp_path: Path) -> None:
    shutil.copytree(STARTERS["starter-causal"], tmp_path / "mine")
    by_name, by_folder = (
        compose_fitted("text", [f"model.path={path}"]) for path in ("starter-causal", tmp_path / "mine")
    )
    assert by_name.chosen and "pretrained" in by_name.chosen[0]
    by_folder.model.path = by_name.model.path
    assert by_folder == by_name


def test_an_untrained_model_is_recognised_by_its_weights(tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(STARTERS["starter-causal"])
    shape = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), **shape))
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    assert size_of(Source(str(tmp_path))) == ModelSize(model.num_parameters(), is_trained=False)
    config = compose_fitted("text", [f"model.path={tmp_path}"])
    assert config.algorithm.args["learning_rate"] == 1e-3 and "untrained" in config.chosen[0]
    (tmp_path / "model.safetensors").rename(tmp_path / "weights.bin")  # the size is then derived from config.json
    assert size_of(Source(str(tmp_path))).parameters == model.num_parameters()


def test_random_weights_of_a_pretrained_model_count_as_untrained() -> None:
    assert compose_fitted("text", ["model.init=random"]).algorithm.args["learning_rate"] == 3e-4


def test_overrides_have_the_last_word_and_are_not_listed_as_chosen() -> None:
    config = compose_fitted("text", ["algorithm.args.learning_rate=1e-5", "algorithm.id=grpo", "world.num_steps=20"])
    assert config.algorithm.args["learning_rate"] == 1e-5 and config.world.num_steps == 20
    assert not [line for line in config.chosen if "learning_rate=" in line or "num_steps" in line]
    assert any(line.startswith("world.group_size=8: grpo compares") for line in config.chosen)


def test_a_longer_training_keeps_the_settings_chosen_for_its_folder(tmp_path: Path) -> None:
    def composed(steps: int, *more: str, run: str = "run") -> Config:
        return compose_fitted("text", [f"training.steps={steps}", f"run_dir={tmp_path / run}", *more])

    first = composed(7_680)
    with open_run(tmp_path / "run", first.model_dump()) as folder:
        write_settings(folder, first.model_dump())
        assert composed(10**6).world.num_steps != first.world.num_steps, "it has not trained"
        (folder / "metrics.jsonl").write_text('{"update": 1, "step": 512}\n')
    longer = composed(10**6, "name=other")
    assert longer.chosen == first.chosen and longer.world == first.world
    assert composed(10**6, run="new").world.num_steps != first.world.num_steps
    with open_run(tmp_path / "run", longer.model_dump()):
        pass
    settings = tmp_path / "run/config.yaml"
    settings.write_text(settings.read_text().replace("chosen:", "chosen:\n- 'world.num_envs=7: hostile'", 1))
    settings.write_text(settings.read_text().replace("num_envs: 32", "num_envs: 7"))
    assert composed(10**6).world.num_envs == 32


def test_a_setting_that_an_override_makes_useless_is_dropped() -> None:
    left = applicable(recommended(_LORA), compose("text", ["algorithm.args.value_epochs=0"]))
    names = {one.key.removeprefix("algorithm.args.") for one in left}
    assert "detach_values" in names and not {"value_epochs", "value_rollouts", "value_warmup"} & names


@pytest.mark.parametrize("algorithm", ["ppo", "a2c", "grpo", "rloo", "gigpo", "reinforce_pp", "trpo"])
@pytest.mark.parametrize("policy", ["action_scoring", "action_writing", "action_generating"])
def test_every_algorithm_and_policy_can_be_chosen(algorithm: str, policy: str) -> None:
    config = compose_fitted("text", [f"algorithm.id={algorithm}", f"policy.id={policy}"])
    if (algorithm, policy) != ("trpo", "action_generating"):
        check_suits(config.policy, config.model, config.algorithm, world_of(config))


def test_experiments_keep_their_settings() -> None:
    assert [name for name in experiments() if is_open(name)] == ["text", "writing"]
