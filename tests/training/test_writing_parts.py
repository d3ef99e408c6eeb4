"""The reference and the value function of a token policy."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from rich.console import Console

from groundling.config.compose import compose
from groundling.config.schema import Config
from groundling.lm import LanguageModel
from groundling.policies import TokenPolicy
from groundling.training.build import world_of
from groundling.training.tracking import read_metrics
from groundling.training.train import train
from tests.building import algorithm_of, policy_of
from tests.thorough import one_in

_LORA = {"r": 4, "lora_alpha": 8}
_BY_ADAPTER = "policy.args={value:lora,value_lora:{r:2}}"


@pytest.fixture
def config(model_folder: Callable[[str], Path], tmp_path: Path) -> Callable[..., Config]:
    """Return `config(*overrides)`, a run's config with eight texts of at most six tokens and a tiny GPT-2."""

    def make(*overrides: str) -> Config:
        small = [
            *(f"run_dir={tmp_path / 'run'}", "device=cpu", f"model.path={model_folder('gpt2')}"),
            *("world.num_texts=8", "world.num_tokens=6", "training.steps=40"),
            *("world.args.n_samples=3", "world.texts_per_prompt=4", "evaluation.every=null"),
        ]
        return compose("rl4lms/increasing_numbers_ppo", [*small, *overrides])

    return make


def _policy(config: Config, checkpoint: Path | None = None) -> TokenPolicy:
    policy = policy_of(config, checkpoint, learns=True)
    assert isinstance(policy, TokenPolicy)
    return policy


def _kl(config: Config, checkpoint: Path | None = None) -> float:
    """Return the mean |log π - log π_ref| of a rollout."""
    policy = _policy(config, checkpoint)
    collector = world_of(config).collector(policy, algorithm_of(config, policy), slice(0, 8))
    rollout, _ = collector.collect(policy, generator=torch.Generator().manual_seed(0))
    assert rollout.kl is not None and rollout.mask is not None
    return rollout.kl[rollout.mask].abs().mean().item()


def _learnt(folder: Path, model: Path) -> Path:
    """Save a trained adapter, as a supervised run does."""
    lm = LanguageModel.from_pretrained(model, lora=_LORA)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in lm.parameters():
            if parameter.requires_grad:
                parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    lm.save_pretrained(folder)
    return folder


def test_a_learnt_adapter_is_part_of_the_reference(
    config: Callable[..., Config], model_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    learnt = _learnt(tmp_path / "supervised", model_folder("gpt2"))
    grpo = ["algorithm.id=grpo", "~algorithm.args", "algorithm.args={kl_coefficient:0.1}"]
    ours = config(*grpo, f"model.path={learnt}", "model.lora={r:4,lora_alpha:8}")
    assert _kl(ours) < 1e-5
    assert _kl(config(f"model.path={learnt}")) < 1e-5  # the adapter's own settings
    assert _kl(config("model.lora={r:4,lora_alpha:8}")) < 1e-5  # a new adapter: the model without it
    new = _policy(config("model.lora={r:4,lora_alpha:8}"))
    assert new.reference is not None and new.reference._lm is new.lm
    # A checkpoint of the run has changed since then, but its reference has not.
    assert _kl(ours, _learnt(tmp_path / "more", learnt)) > 0.05


def test_trpo_works_with_gradient_checkpointing(config: Callable[..., Config]) -> None:
    args = "algorithm.args={conjugate_gradient_steps:2,line_search_steps:8,critic_epochs:1,damping:0.1}"
    changed = ["algorithm.id=trpo", "~algorithm.args", args]
    policies = []
    for checkpointing in ("true", "false"):
        made = config(*changed, f"model.gradient_checkpointing={checkpointing}")
        policy = _policy(made)
        algorithm = algorithm_of(made, policy)
        collector = world_of(made).collector(policy, algorithm, slice(0, 8))
        rollout, _ = collector.collect(policy, generator=torch.Generator().manual_seed(0))
        rollout.rewards += torch.randn(rollout.rewards.shape, generator=torch.Generator().manual_seed(1))
        figures = algorithm.update(policy, rollout, generator=torch.Generator().manual_seed(0))
        assert figures["step_size"] > 0
        policies.append(policy)
    for ours, plain in zip(*(p.parameters() for p in policies), strict=True):
        torch.testing.assert_close(ours, plain, atol=1e-4, rtol=0)


@pytest.mark.parametrize("algorithm", one_in(2, ["grpo", "rloo", "reinforce_pp", "supervised"]))
def test_algorithms_without_a_critic_keep_none(algorithm: str, config: Callable[..., Config]) -> None:
    group = "1" if algorithm == "supervised" else "4"
    words = [f"algorithm.id={algorithm}", "~algorithm.args", f"world.texts_per_prompt={group}"]
    made = config(*words, "policy.args.value=separate")
    policy = _policy(made)
    assert policy.reference is None and policy.value_lm is None and policy.value_head is None
    assert {id(p) for p in policy.parameters()} == {id(p) for p in policy.lm.parameters()}
    if algorithm != "supervised":  # increasing numbers have no references
        train(made, Console(quiet=True))
        row = read_metrics(Path(made.run_dir))[-1]
        assert "log_prob" in row and not {"value", "kl", "kl_mean"} & row.keys()
        latest = max((Path(made.run_dir) / "checkpoints").iterdir())
        assert not (latest / "value.safetensors").exists()
        assert _policy(made, latest).value_head is None


def test_the_reference_is_loaded_where_something_is_compared_with_it(config: Callable[..., Config]) -> None:
    free = ["~algorithm.args", "algorithm.args={kl_coefficient:0}"]
    assert _policy(config()).reference is not None  # with a penalty
    assert _policy(config(*free)).reference is None
    grpo = config("algorithm.id=grpo", *free, _BY_ADAPTER)
    assert _policy(grpo).reference is None


@pytest.mark.parametrize("adapter", [[], ["model.lora={r:4,lora_alpha:8}"]])
def test_an_adapter_for_values_needs_no_reference(adapter: list[str], config: Callable[..., Config]) -> None:
    free = ["~algorithm.args", "algorithm.args={kl_coefficient:0,learning_rate:1e-2}", *adapter]
    made = config(*free, _BY_ADAPTER)
    policy = _policy(made)
    assert policy.reference is None and policy.value_lm is not None
    weights = {p.data_ptr(): p.numel() for p in policy.lm.parameters()}
    more = {p.data_ptr(): p for p in policy.value_lm.parameters() if p.data_ptr() not in weights}
    trained = sum(p.numel() for p in more.values() if p.requires_grad)
    frozen = sum(p.numel() for p in more.values() if not p.requires_grad)
    # With the policy's adapter, they share the frozen weights; otherwise they use the initial weights.
    assert trained and frozen == (0 if adapter else sum(weights.values()))
    train(made, Console(quiet=True))
    row = read_metrics(Path(made.run_dir))[-1]
    assert "value" in row and not {"kl", "kl_mean", "kl_coefficient"} & row.keys()
    latest = max((Path(made.run_dir) / "checkpoints").iterdir())
    for learns in (True, False):  # when it is continued or evaluated
        again = policy_of(made, latest, learns=learns)
        assert isinstance(again, TokenPolicy) and again.reference is None and again.value_lm is not None
        for name, parameter in policy.value_lm.named_parameters():
            same = torch.equal(parameter, again.value_lm.get_parameter(name))
            assert same == (not parameter.requires_grad), name
