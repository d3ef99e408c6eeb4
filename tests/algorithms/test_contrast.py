"""The triplet loss between forms of a prompt (arXiv 2410.19920)."""

import functools
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from groundling.algorithms import Rollout, create
from groundling.algorithms.algorithm import check_trains
from groundling.algorithms.regularizers import ContrastiveLoss
from groundling.envs.text_env import TextObservation
from groundling.errors import ConfigError
from groundling.lm import LanguageModel
from groundling.policies import ActionScoringPolicy
from groundling.worlds.text.world import TextWorld
from tests.algorithms.rollouts import batch_of, difference, generator, updated

_FORMS = ("glam", "brief", "tagged")
_THINGS = ("a wall", "a key", "a red ball", "a blue box", "a green door", "a grey key")
_ACTIONS = ("turn left", "turn right", "go forward")


def _see(thing: str) -> TextObservation:
    return TextObservation("go to the red ball", ((f"You see {thing} 2 steps left",),), (), _ACTIONS, {})


@pytest.fixture(scope="module")
def policy() -> ActionScoringPolicy:
    torch.manual_seed(0)
    lm = LanguageModel.from_pretrained("starter-causal")
    return ActionScoringPolicy(lm, prompt="brief", value_hidden_sizes=(8,))


def _rollout(things: tuple[str, ...]) -> Rollout:
    """Return a rollout with one step of each env, without rewards."""
    shape = 1, len(things)
    return Rollout(
        observations=[_see(thing) for thing in things],
        actions=torch.zeros(shape, dtype=torch.long),
        log_probs=torch.full(shape, -1.0),
        values=torch.zeros(shape),
        rewards=torch.zeros(shape),
        dones=torch.ones(shape, dtype=torch.bool),
        last_values=torch.zeros(len(things)),
        last_observations=[_see(thing) for thing in things],
    )


def _contrast(policy: ActionScoringPolicy, things: tuple[str, ...], seed: int = 1) -> list[float]:
    """Return the loss of each element."""
    batch = batch_of(policy, _rollout(things))
    contrast = ContrastiveLoss(2.0, _FORMS)
    contrast.prepare(policy, batch, generator(seed))
    evaluation = policy.evaluate(batch.observations, batch.actions)
    return [contrast.value(policy, evaluation, batch[i]).item() for i in batch.index.split(1)]


def test_each_element_is_compared_in_one_of_the_possible_triplets(policy: ActionScoringPolicy) -> None:
    @functools.cache
    def state(thing: str, form: str) -> torch.Tensor:
        return policy.states(policy.read([_see(thing)], [form]))

    with torch.no_grad():
        for seed in range(3):
            for thing, loss in zip(_THINGS[:3], _contrast(policy, _THINGS[:3], seed), strict=True):
                possible = [
                    F.triplet_margin_loss(state(thing, i), state(thing, j), state(other, i)).item()
                    for i in _FORMS
                    for j in _FORMS
                    for other in _THINGS[:3]
                    if i != j and other != thing
                ]
                assert min(abs(loss - one) for one in possible) < 1e-4


def test_equal_texts_add_nothing(policy: ActionScoringPolicy) -> None:
    assert _contrast(policy, ("a wall", "a wall")) == [0.0, 0.0]
    assert _contrast(policy, ("a wall",)) == [0.0]


def test_micro_batches_change_nothing(policy: ActionScoringPolicy) -> None:
    options: dict[str, Any] = {"learning_rate": 3e-4, "contrast_coefficient": 0.5, "contrast_prompts": _FORMS}
    (one, figures), (other, others) = (
        updated(policy, _rollout(_THINGS), "ppo", micro_batch_size=size, **options) for size in (None, 2)
    )
    assert figures["contrast"] == pytest.approx(others["contrast"], rel=1e-4) and difference(one, other) < 2e-4


@pytest.mark.parametrize("algorithm", ["ppo", "appo", "a2c", "trpo", "rloo", "grpo", "reinforce_pp"])
def test_every_algorithm_can_add_it(algorithm: str, policy: ActionScoringPolicy) -> None:
    options: dict[str, Any] = {"contrast_coefficient": 0.5, "contrast_prompts": _FORMS}
    learner, figures = updated(policy, _rollout(_THINGS), algorithm, **options)
    assert figures["contrast"] > 0
    if algorithm != "trpo":  # TRPO's step depends on the sampled actions
        body = next(p for name, p in learner.named_parameters() if "value_head" not in name)
        assert difference(policy, learner) > 0 and body.grad is not None and body.grad.abs().sum() > 0


def test_texts_and_a_system_prompt_are_refused() -> None:
    options = {"contrast_coefficient": 1.0, "contrast_prompts": ["glam", "brief"]}
    with pytest.raises(ConfigError, match=r"args\.system has no effect on the prompt 'glam'"):
        check_trains("ppo", options, "action_scoring", {"system": "Go."}, TextWorld.offers)
    with pytest.raises(ConfigError, match=r"contrast_prompts=\['glam', 'conversation'\] mixes texts with conv"):
        create("ppo", contrast_coefficient=1.0, contrast_prompts=["glam", "conversation"])


@pytest.mark.parametrize("policy", ["action_head", "symbolic", "drrn"])
def test_policies_that_do_not_read_actions_are_refused(policy: str) -> None:
    world = TextWorld.offers
    options = {"contrast_coefficient": 1.0, "contrast_prompts": ["glam", "brief"]}
    check_trains("ppo", options, "action_writing", {}, world)
    with pytest.raises(ConfigError, match=r"contrast_coefficient=1\.0 needs a policy that reads"):
        check_trains("ppo", options, policy, {}, world)
