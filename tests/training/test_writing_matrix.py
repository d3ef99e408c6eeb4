"""The parts of a token policy that each algorithm trains, for several model families."""

import copy
import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import Tensor

from groundling.algorithms import Rollout
from groundling.config.compose import compose
from groundling.config.schema import Config
from groundling.policies import TokenPolicy
from groundling.rewards import Reward, RewardPartConfig, rewards
from groundling.training.tracking import TrainingProgress
from groundling.training.trainer import Trainer
from tests.lm.reference import sets_of
from tests.thorough import some_of

FAMILIES = ["gpt2", "llama", "t5", "bart"]
NUM_TEXTS, NUM_TOKENS = 8, 6

_STEPS = {"minibatch_size": 24, "learning_rate": 1e-3, "kl_coefficient": 0.05}
_MASK = {"mask_type": "learned_top_p", "top_mask": 0.6, "min_tokens_to_keep": 5}
_SOLVER = {"conjugate_gradient_steps": 3, "line_search_steps": 5}
# Arguments of the algorithm, arguments of the policy, and texts per prompt.
ALGORITHMS: dict[str, tuple[dict[str, Any], dict[str, Any], int]] = {
    "ppo": ({**_STEPS, "epochs": 2, "kl_target": 0.1}, {}, 1),
    "nlpo": ({**_STEPS, "epochs": 2, "learning_rate": 1e-2, "target_update_iterations": 2}, _MASK, 1),
    "a2c": ({"learning_rate": 1e-3, "kl_coefficient": 0.05}, {}, 1),
    "trpo": ({"kl_coefficient": 0.05, "target_kl": 0.02, "critic_epochs": 1, **_SOLVER}, {}, 1),
    "rloo": (_STEPS, {"value": "shared"}, 4),
    "grpo": (_STEPS, {"value": "shared"}, 4),
    "reinforce_pp": (_STEPS, {"value": "shared"}, 1),
    "supervised": ({"minibatch_size": 4, "learning_rate": 1e-3}, {"value": "shared"}, 1),
}


@rewards.register("test-vowel-count")
@dataclass(kw_only=True)
class Vowels(Reward):
    """The share of vowels, which a random model generates occasionally."""

    def score(self, prompts: Sequence[str], generations: Sequence[str], references: Any, meta: Any) -> list[float]:
        return [sum(letter in "aeiou" for letter in text) / (len(text) or 1) for text in generations]


@pytest.fixture
def make_run(model_folder: Callable[[str], Path], tmp_path: Path) -> Callable[..., Trainer]:
    """Return `make_run(algorithm, family, …)`, which makes a run on CommonGen's offline sample."""

    def make(algorithm: str, family: str, lora: dict[str, Any] | None = None, **policy: Any) -> Trainer:
        args, policy_args, texts_per_prompt = ALGORITHMS[algorithm]
        config = copy.deepcopy(_composed())
        config.model.path, config.model.lora = str(model_folder(family)), lora or {}
        config.world.pool, config.world.args = "commongen", {"offline": True, "max_size": 4}
        config.world.texts_per_prompt = texts_per_prompt
        config.reward = {"test-vowel-count": RewardPartConfig()}
        config.policy.args = {"value": "separate", **policy_args, **policy}
        config.algorithm.id, config.algorithm.args = algorithm, args
        config.training.steps, config.world.num_tokens = 10**6, NUM_TOKENS
        return Trainer(config, tmp_path, warn=print)

    return make


@functools.cache
def _composed() -> Config:
    small = ["device=cpu", f"world.num_texts={NUM_TEXTS}", "world.max_prompt_length=12"]
    return compose("rl4lms/increasing_numbers_ppo", small)


def _update(run: Trainer) -> dict[str, Any]:
    return run.update(TrainingProgress(Console(quiet=True), 10**6, 0))


def _weights(policy: torch.nn.Module) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in policy.named_parameters()}


def _changed(policy: torch.nn.Module, before: dict[str, Tensor]) -> set[str]:
    """Return the parts of the policy whose weights have changed."""
    return {name.split(".")[0] for name, p in policy.named_parameters() if not torch.equal(p, before[name])}


@pytest.mark.parametrize("algorithm", some_of(ALGORITHMS, ["nlpo", "trpo", "grpo", "supervised"]))
def test_two_updates_train_every_part(algorithm: str, make_run: Callable[..., Trainer]) -> None:
    run = make_run(algorithm, "bart")
    before = _weights(run.policy)
    rows = [_update(run) for _ in range(2)]
    assert [row["update"] for row in rows] == [1, 2] and 0 < rows[0]["step"] < rows[1]["step"]
    figures = [v for row in rows for v in row.values() if isinstance(v, float)]
    assert len(figures) >= 10 and all(map(math.isfinite, figures))
    expected = {"lm"}
    if algorithm in ("ppo", "nlpo", "a2c", "trpo"):
        expected |= {"value_lm", "value_head"}
    if algorithm == "nlpo":
        expected |= {"mask_lm"}  # updated after the second update
    if algorithm == "trpo":
        assert all(0 < row["step_kl"] <= 0.02 and row["surrogate_gain"] > 0 for row in rows)
    assert _changed(run.policy, before) == expected
    if algorithm != "supervised":
        assert rows[0]["kl_mean"] == pytest.approx(0, abs=1e-4) and rows[1]["kl_mean"] != 0


@pytest.mark.parametrize("family", some_of(FAMILIES, ["gpt2"]))
def test_nlpos_mask_is_refreshed_in_time_and_obeyed(family: str, make_run: Callable[..., Trainer]) -> None:
    run = make_run("nlpo", family)
    policy = run.policy
    assert isinstance(policy, TokenPolicy) and policy.mask_lm is not None
    rollouts = _kept_rollouts(run)
    masks, policies = [], []
    for _ in range(3):
        masks.append(copy.deepcopy(policy.mask_lm.model))
        policies.append(copy.deepcopy(policy.lm.model))
        _update(run)
    first, second, third = masks
    assert _equal(first, second) and not _equal(second, third)
    assert _equal(third, policies[2])  # updated after the second update, when it became a copy of the policy
    special = set(policy.lm.tokenizer.all_special_ids)
    matches = 0
    for mask, writer, rollout in zip(masks, policies, rollouts, strict=True):
        assert rollout.mask is not None
        for column, text in enumerate(rollout.observations[:3]):
            sets = sets_of(text, policy.lm)
            for step, allowed in enumerate(sets):
                written = rollout.actions[:step, column].tolist()
                assert allowed == _nucleus(mask, text.prompt, written) | special
                assert rollout.actions[step, column].item() in allowed
                matches += allowed == _nucleus(writer, text.prompt, written) | special and mask is second
    # The policy had changed by the second rollout, so its own nucleus differed from the mask.
    assert matches < sum(len(text.sets) for text in rollouts[1].observations[:3])


def _kept_rollouts(run: Trainer) -> list[Rollout]:
    """Return a list of all later rollouts of the run's collector."""
    kept: list[Rollout] = []
    collect = run.collector.collect

    def keep(*args: Any, **options: Any) -> Any:
        rollout, texts = collect(*args, **options)
        kept.append(rollout)
        return rollout, texts

    run.collector.collect = keep  # type: ignore[method-assign]
    return kept


def _equal(one: torch.nn.Module, other: torch.nn.Module) -> bool:
    return all(torch.equal(p, q) for p, q in zip(one.parameters(), other.parameters(), strict=True))


@torch.no_grad()
def _nucleus(model: Any, prompt: Sequence[int], written: list[int]) -> set[int]:
    """Return the tokens whose more likely tokens have a total of at most 0.6 (at least five), from a plain forward."""
    if model.config.is_encoder_decoder:
        start = model.config.decoder_start_token_id
        output = model(input_ids=torch.tensor([prompt]), decoder_input_ids=torch.tensor([[start, *written]]))
    else:
        output = model(input_ids=torch.tensor([[*prompt, *written]]))
    scores = output.logits[0, -1].softmax(-1)
    order = scores.argsort(descending=True)
    count = max(5, int((scores[order].cumsum(0) <= 0.6).sum()) + 1)
    return set(order[:count].tolist())
