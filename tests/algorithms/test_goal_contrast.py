"""The hinge loss between an observation's own goal and another (after arXiv 2606.26918)."""

from typing import Any

import pytest
import torch

from groundling.algorithms import Rollout, create
from groundling.algorithms.regularizers import GoalContrast
from groundling.envs.text_env import TextObservation
from groundling.errors import ConfigError
from groundling.lm import LanguageModel
from groundling.policies import ActionGeneratingPolicy, ActionScoringPolicy
from groundling.policies.policy import TurnTokens, policies
from groundling.worlds.text.world import TextWorld
from tests.algorithms.rollouts import batch_of, difference, generator, updated

_ACTIONS = ("turn left", "turn right", "go forward")
_GOALS = ("go to the red ball", "go to the blue box", "go to the green key")


def _see(goal: str) -> TextObservation:
    return TextObservation(goal, (("You see a red ball", "You see a blue box"),), (), _ACTIONS, {})


@pytest.fixture
def policy() -> ActionScoringPolicy:
    torch.manual_seed(0)
    lm = LanguageModel.from_pretrained("starter-causal")
    return ActionScoringPolicy(lm, prompt="brief", value_hidden_sizes=(8,))


def _rollout(goals: tuple[str, ...]) -> Rollout:
    shape = 1, len(goals)
    return Rollout(
        observations=[_see(goal) for goal in goals],
        actions=torch.zeros(shape, dtype=torch.long),
        log_probs=torch.full(shape, -1.0),
        values=torch.zeros(shape),
        rewards=torch.zeros(shape),
        dones=torch.ones(shape, dtype=torch.bool),
        last_values=torch.zeros(len(goals)),
        last_observations=[_see(goal) for goal in goals],
    )


def _losses(policy: ActionScoringPolicy, goals: tuple[str, ...], margin: float) -> list[float]:
    batch = batch_of(policy, _rollout(goals))
    contrast = GoalContrast(1.0, margin)
    contrast.prepare(policy, batch, generator(1))
    parts = [batch[index] for index in batch.index.split(1)]
    return [contrast.value(policy, policy.evaluate(part.observations, part.actions), part).item() for part in parts]


def test_the_loss_is_the_hinge_of_the_divergence(policy: ActionScoringPolicy) -> None:
    log_probs = policy([_see(goal) for goal in _GOALS])[0].double()

    def kl(own: int, other: int) -> float:
        return float((log_probs[own].exp() * (log_probs[own] - log_probs[other])).sum())

    for margin in (0.05, 10.0):
        for own, loss in enumerate(_losses(policy, _GOALS, margin)):
            possible = [max(0.0, margin - kl(own, other)) for other in range(3) if other != own]
            assert min(abs(loss - one) for one in possible) < 1e-4


def test_equal_goals_do_not_count(policy: ActionScoringPolicy) -> None:
    losses = _losses(policy, (_GOALS[0], _GOALS[0], _GOALS[1]), 10.0)
    assert losses[2] > 0
    with pytest.raises(ConfigError, match="has no effect, because all 2 observations have the goal 'go to the red"):
        _losses(policy, (_GOALS[0], _GOALS[0]), 1.0)


def test_updates_separate_the_policies_of_two_goals(policy: ActionScoringPolicy) -> None:
    options: dict[str, Any] = {"learning_rate": 1e-3, "goal_coefficient": 1.0, "goal_margin": 2.0}
    _, first = updated(policy, _rollout(_GOALS), "ppo", epochs=1, **options)
    _, all_epochs = updated(policy, _rollout(_GOALS), "ppo", epochs=20, **options)
    assert 0 < all_epochs["goal_contrast"] < first["goal_contrast"] <= 2.0


def test_written_turns(policy: ActionScoringPolicy) -> None:
    for options in ({"guided": False}, {"thought_ends": "Action:", "max_thought_tokens": 3}, {}):
        writer = ActionGeneratingPolicy(policy.lm, prompt="brief", value_hidden_sizes=(8,), **options)
        acted = writer.act([_see(goal) for goal in _GOALS], generator=generator(0))
        assert acted.turns is not None and acted.tokens is not None
        rollout = _rollout(_GOALS)
        rollout.observations = list(acted.turns)
        rollout.tokens = TurnTokens(*(None if one is None else one[None] for one in vars(acted.tokens).values()))
        _, figures = updated(writer, rollout, "ppo", epochs=1, goal_coefficient=1.0, goal_margin=5.0)
        assert 0 < figures["goal_contrast"] < 5


def test_it_needs_a_policy_that_reads_a_prompt() -> None:
    algorithm = create("ppo", goal_coefficient=1.0)
    refused = algorithm.accepts(policies.get("symbolic"), {}, TextWorld.offers)
    assert refused == "goal_coefficient=1.0 needs a policy that reads the goal in a prompt"
    for id in ("action_scoring", "action_generating", "action_head"):
        assert algorithm.accepts(policies.get(id), {}, TextWorld.offers) is None
    with pytest.raises(ConfigError, match=r"goal_margin=0\.2 does nothing without goal_coefficient"):
        create("ppo", goal_margin=0.2)


@pytest.mark.parametrize("algorithm", ["appo", "a2c", "trpo", "rloo", "grpo", "reinforce_pp"])
def test_every_algorithm_can_add_it(algorithm: str, policy: ActionScoringPolicy) -> None:
    _, figures = updated(policy, _rollout(_GOALS), algorithm, goal_coefficient=0.5, goal_margin=3.0)
    assert 0 < figures["goal_contrast"] < 3


def test_micro_batches_change_nothing(policy: ActionScoringPolicy) -> None:
    options: dict[str, Any] = {"learning_rate": 3e-4, "epochs": 1, "goal_coefficient": 0.5, "goal_margin": 3.0}
    one, figures = updated(policy, _rollout(_GOALS), "ppo", **options)
    other, others = updated(policy, _rollout(_GOALS), "ppo", micro_batch_size=2, **options)
    assert figures["goal_contrast"] == pytest.approx(others["goal_contrast"], rel=1e-4)
    assert difference(one, other) < 2e-4
