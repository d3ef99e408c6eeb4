"""Runs that must have the same trajectory: bit for bit if resumed, and up to rounding with two processes."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from groundling import rewards
from groundling.cli.main import INTERRUPTED, main
from groundling.judges.reward_models import reward_models
from groundling.training.tracking import read_metrics
from groundling.training.trainer import Trainer
from tests.envs import doors  # noqa: F401  (registers test/Doors-v0)
from tests.faults.harness import digest
from tests.launching import groundling
from tests.thorough import some_of, thorough

_WORLD = "demo-easy world.env=BabyAI-GoToRedBallNoDists-v0 ~world.args world.num_envs=4 world.num_steps=4 "
_WORLD += "training.steps=96 ~algorithm.args"
_LEVEL = f"{_WORLD} world.history=2 policy.args.value_hidden_sizes=[16]"
_PPO = "algorithm.args={learning_rate:1e-3,minibatch_size:8,epochs:1} world.entropy_floor=0"
_ALL_LINEAR = "model.lora={r:2,target_modules:all-linear}"
_EPISODES = """demo model.path=starter-causal model.lora={r:2} world.history=null world.num_envs=4 world.num_steps=4
~policy.args algorithm.args.minibatch_size=4 algorithm.args.learning_rate_schedule=constant
algorithm.args.learning_rate=1e-4 algorithm.args.kl_coefficient=0.01 world.entropy_floor=0 training.steps=32"""
_CHAT = "prompt:conversation,system:Act.,value_hidden_sizes:[8]"
_DOORS = """demo model.path=starter world.env=test/Doors-v0 ~world.args world.num_envs=4 world.history=2
world.num_steps=6 training.steps=48 world.entropy_floor=0 policy.args.value_hidden_sizes=[8]
algorithm.args.minibatch_size=12"""
_WRITER = """rl4lms/increasing_numbers_ppo ~world.args world.pool=jsonl world.num_texts=4 world.num_tokens=4
world.args={path:{train:DATA,val:DATA},prompt_column:ask,reference_column:say} world.max_prompt_length=8 ~reward
reward.chrf={} evaluation.metrics=[{id:diversity}] evaluation.episodes=3 evaluation.every=3 training.steps=96
policy.args.generation={terminate_on_eos:false,top_k:200,temperature:1.1} ~algorithm.args"""
_CLIPPED = "minibatch_size:8,learning_rate:1e-2,kl_coefficient:0.1,kl_target:0.05,epochs:2"
_WRITES = f"{_WRITER} algorithm.args={{{_CLIPPED}}}"
_NLPO = f"""{_WRITER} algorithm.id=nlpo algorithm.args={{{_CLIPPED},target_update_iterations:2}}
policy.args.mask_type=learned_top_p policy.args.top_mask=0.6 policy.args.min_tokens_to_keep=5"""
_SUPERVISED = f"{_WRITER} algorithm.id=supervised algorithm.args={{minibatch_size:2,learning_rate:1e-3}}"
_REWARDS = """algorithm.args={minibatch_size:4,learning_rate_schedule:constant} training.steps=24
reward.reward_model={args:{path:REWARD,normalize:false,threshold_quantile:0},coefficient:100}
reward.letters={id:test-letters,coefficient:-1}"""

RUNS = {
    "causal model": f"{_LEVEL} {_PPO} model.path=starter-causal",
    "adapter": f"{_LEVEL} {_PPO} model.lora={{r:2,target_modules:[q,v]}}",
    "adapter of all layers": f"{_LEVEL} {_PPO} {_ALL_LINEAR}",
    "frozen layers": f"{_LEVEL} {_PPO} model.path=starter-causal model.lora={{r:2,layers_to_transform:[2,3,4]}}",
    "random weights": f"{_LEVEL} {_PPO} model.init=random model.gradient_checkpointing=true",
    "memory": f"{_WORLD} {_PPO} world.history=3 ~policy.args policy.id=symbolic "
    "policy.args={channels:8,hidden_size:8,recurrence:2}",
    "replay": f"{_WORLD} world.history=2 ~policy.args policy.id=drrn policy.args={{embedding_size:8,hidden_size:8}} "
    "algorithm.id=drrn algorithm.args={batch_size:8,steps_per_gradient:6,replay_size:30}",
    "critic": f"{_LEVEL} policy.args.prompt=brief algorithm.args={{minibatch_size:8,epochs:1,value_epochs:2,"
    "value_rollouts:2,value_warmup:1,detach_values:true} world.entropy_floor=0",
    **{
        f"cloned {objective}": f"{_LEVEL} world.dataset=DEMONSTRATIONS algorithm.id=bc "
        f"algorithm.args={{objective:{objective},learning_rate:1e-3,minibatch_size:8}}"
        for objective in ("choice", "text")
    },
    "conversation": f"{_EPISODES} policy.args={{{_CHAT}}}",
    "conversation with written actions": f"{_EPISODES} policy.id=action_writing policy.args={{{_CHAT}}}",
    "conversation with thoughts": f"{_EPISODES} policy.id=action_generating "
    f"policy.args={{{_CHAT},thought_ends:So,max_thought_tokens:3}}",
    "forms": "demo-easy model.path=starter-causal world.num_envs=2 world.num_steps=4 world.entropy_floor=0 "
    "policy.args.prompt=[glam,brief,tagged] algorithm.args.minibatch_size=4 training.steps=16 "
    "algorithm.args.contrast_coefficient=0.5 algorithm.args.contrast_prompts=[glam,brief,tagged,narrative]",
    "groups": "demo model.path=starter-causal ~policy.args policy.args={prompt:conversation,value_hidden_sizes:[8]} "
    "world.history=null world.num_envs=4 world.group_size=2 world.num_steps=3 world.args.max_steps=3 "
    "world.entropy_floor=0 training.steps=30 algorithm.id=gigpo ~algorithm.args "
    "algorithm.args={minibatch_size:8,learning_rate:1e-4,entropy_coefficient:0.01}",
    "changing actions": f"{_DOORS} world.num_workers=2",
    "written changing actions": f"{_DOORS} policy.id=action_writing",
    "shaped rewards": "demo-easy world.num_envs=4 world.num_steps=24 training.steps=192 "
    "algorithm.args={minibatch_size:48,kl_coefficient:0.5,epochs:1,learning_rate:1e-2}",
    "sum of rewards": "demo-easy world.num_envs=2 world.num_steps=4 world.args.max_steps=4 "
    f"reward.count={{coefficient:0.5,args:{{exponent:1}}}} {_REWARDS}",
    "sum of rewards of texts": "rl4lms/increasing_numbers_ppo world.num_texts=2 world.num_tokens=4 "
    f"evaluation.every=1 evaluation.episodes=2 {_REWARDS}",
    **{f"ppo writes, {family}": f"{_WRITES} model.path={family}" for family in ("gpt2", "bart")},
    **{f"nlpo writes, {family}": f"{_NLPO} model.path={family}" for family in ("gpt2", "bart")},
    **{f"supervised, {family}": f"{_SUPERVISED} model.path={family}" for family in ("gpt2", "bart")},
    **{
        f"nlpo with an adapter, {family}": f"{_NLPO} {_ALL_LINEAR} model.path={family}" for family in ("llama", "bart")
    },
    "adapter for values": f"{_WRITES} model.path=bart policy.args.value=lora policy.args.value_lora={{r:2}}",
    "two adapters": f"{_WRITES} {_ALL_LINEAR} model.path=llama policy.args.value=lora policy.args.value_lora={{r:3}}",
}
_USUAL = ["memory", "replay", "conversation", "sum of rewards of texts"]
_USUAL += ["nlpo writes, bart", "supervised, gpt2"]


@rewards.register("test-letters")
def letters(generations: list[str], letter: str = "a") -> list[float]:
    """Count the occurrences of a letter."""
    return [float(text.count(letter)) for text in generations]


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return files that runs read, by their names in `RUNS`."""
    folder = tmp_path_factory.mktemp("inputs")
    rows = [{"ask": f"go {i}", "say": f"{i} turn left {i}"} for i in range(9)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    torch.manual_seed(0)
    reward_models.create("characters", channels=8, hidden_size=8).save(folder / "reward")
    return {"DATA": folder / "rows.jsonl", "REWARD": folder / "reward", "DEMONSTRATIONS": folder / "data"}


@pytest.fixture
def words(inputs: dict[str, Path], model_folder: Callable[[str], Path]) -> Callable[[str, Path], list[str]]:
    """Return the command that trains one of `RUNS` in a folder."""

    def fill(name: str, run_dir: Path) -> list[str]:
        text = re.sub(r"model\.path=(gpt2|bart|llama)\b", lambda m: f"model.path={model_folder(m[1])}", RUNS[name])
        if "DEMONSTRATIONS" in text and not inputs["DEMONSTRATIONS"].exists():
            collect = "collect expert world.env=BabyAI-GoToRedBallNoDists-v0 world.history=2 --episodes 10 --output"
            assert main([*collect.split(), str(inputs["DEMONSTRATIONS"])]) == 0
        for placeholder, path in inputs.items():
            text = text.replace(placeholder, str(path))
        return ["train", *text.split(), "device=cpu", f"run_dir={run_dir}"]

    return fill


def _stop_half_way(self: Trainer, *arguments: Any) -> Any:
    if 2 * self.counters.step >= self.config.training.steps:
        raise KeyboardInterrupt
    return _UPDATE(self, *arguments)


_UPDATE = Trainer.update


@pytest.mark.parametrize("name", some_of(RUNS, _USUAL))
def test_a_stopped_run_resumes_to_the_last_bit(
    name: str, words: Callable[[str, Path], list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    assert main(words(name, whole)) == 0
    with monkeypatch.context() as patched:
        patched.setattr(Trainer, "update", _stop_half_way)
        assert main(words(name, stopped)) == INTERRUPTED
    updates = len(read_metrics(whole))
    assert 0 < len(read_metrics(stopped)) < updates
    assert main(words(name, stopped)) == 0
    assert digest(stopped) == digest(whole)
    last = whole / "checkpoints" / f"{updates:06}"
    if "test-letters" in RUNS[name]:
        for part in ("reward/reward_model", "reward/letters"):
            assert any(row[part] for row in read_metrics(whole)), part
    is_adapter = "model.lora" in RUNS[name]
    assert (last / "adapter_model.safetensors").exists() == is_adapter
    assert not (is_adapter and (last / "model.safetensors").exists())


@pytest.mark.parametrize(
    "name", thorough("frozen layers", "conversation", "conversation with thoughts", "forms", "groups")
)
def test_two_processes_train_like_one(name: str, words: Callable[[str, Path], list[str]], tmp_path: Path) -> None:
    assert main(words(name, tmp_path / "one")) == 0
    ended = groundling(2, *words(name, tmp_path / "two"))
    assert [process.exit_code for process in ended] == [0, 0], ended
    for one, two in zip(read_metrics(tmp_path / "one"), read_metrics(tmp_path / "two"), strict=True):
        for figure in one.keys() & {"step", "episodes", "policy_loss", "value_loss", "entropy", "kl_mean", "contrast"}:
            assert one[figure] == pytest.approx(two[figure], abs=1e-5), figure
