"""Rules that a text env must follow."""

import pytest
import torch

from groundling.algorithms import Rollout
from groundling.config.schema import Config
from groundling.envs.text_env import TextObservation
from groundling.envs.vector import TextVectorEnv
from groundling.errors import RunError
from groundling.registry import ComponentConfig
from groundling.rewards import EnvPart, Part, RewardInputs, RewardSum
from groundling.training.build import world_of
from groundling.worlds.text.collect import EnvCollector
from groundling.worlds.text.config import TextConfig, TextEvaluation
from tests.building import algorithm_of, policy_of
from tests.conftest import Corridor, TablePolicy

_ACTIONS = ["left", "right", "stay"]


def test_a_policy_must_choose_an_admissible_action() -> None:
    envs = TextVectorEnv(Corridor, 1, _ACTIONS, seed_of=lambda i, k: 0)
    envs.reset()
    with pytest.raises(RunError, match="action 3 of 3"):
        envs.step([3])


class _Fixed(TablePolicy):
    """Always takes the same action."""

    def __init__(self, action: int) -> None:
        super().__init__()
        self.actor.weight.data.zero_()
        self.actor.bias.data = torch.tensor([100.0 * (i == action) for i in range(3)])


def _collected(action: int, bootstrap: float | None) -> tuple[list[TextObservation], _Fixed, Rollout]:
    envs = TextVectorEnv(Corridor, 3, _ACTIONS, seed_of=lambda i, k: 10 * i + k)
    envs.reset()
    collector, policy = (
        EnvCollector(envs, 12, reward=RewardSum({"env": EnvPart(scale=2.0)}), bootstrap=bootstrap),
        _Fixed(action),
    )
    before = envs.observations()
    rollout, _ = collector.collect(policy, generator=torch.Generator().manual_seed(0))
    return before, policy, rollout


def test_a_time_out_is_bootstrapped() -> None:
    before, policy, rollout = _collected(2, bootstrap=0.9)  # standing still is truncated after 12 steps
    assert rollout.dones[-1].all() and not rollout.dones[:-1].any()
    assert rollout.truncation_values is not None and not rollout.rewards.any()  # not included in the rewards
    torch.testing.assert_close(rollout.truncation_values[-1], 0.9 * policy.values(before))
    assert not rollout.truncation_values[:-1].any()
    assert _collected(2, bootstrap=None)[2].truncation_values is None


def test_an_episode_end_is_not_bootstrapped() -> None:
    _, _, valued = _collected(0, bootstrap=0.9)  # walking left reaches a wall before the limit
    _, _, rollout = _collected(0, bootstrap=None)
    assert valued.dones.any() and valued.rewards.equal(rollout.rewards)
    assert valued.truncation_values is not None and not valued.truncation_values.any()


def test_time_outs_are_bootstrapped_with_the_algorithms_discount() -> None:
    config = Config(
        name="cut",
        device="cpu",
        world=TextConfig(env="test/Corridor-v0", num_envs=2, actions=_ACTIONS, bootstrap_truncated=True),
        policy=ComponentConfig(id="test-table"),
        algorithm=ComponentConfig(id="ppo", args={"gamma": 0.75}),
        evaluation=TextEvaluation(),
    )
    policy = policy_of(config)
    algorithm = algorithm_of(config, policy)
    assert world_of(config).collector(policy, algorithm, slice(0, 2))._bootstrap == 0.75


class _Captions(Part):
    """Returns no reward, and records the captions."""

    needs = frozenset({"captions"})

    def __init__(self) -> None:
        self.read: list[tuple[str, str, float]] = []

    def rewards(self, inputs: RewardInputs) -> torch.Tensor:
        captions = inputs.captions
        assert captions is not None
        texts = captions.read(range(len(captions.ids)))
        self.read += zip(captions.goals, texts, captions.counts.tolist(), strict=True)
        return torch.zeros(inputs.shape)


def test_a_step_is_captioned_by_its_result_and_counted_per_episode() -> None:
    part = _Captions()
    envs = TextVectorEnv(Corridor, 1, _ACTIONS, seed_of=lambda i, k: k)
    (first,) = envs.reset()
    collector = EnvCollector(envs, 14, reward=RewardSum({"captions": part}))
    collector.collect(_Fixed(2), generator=torch.Generator())  # standing still is truncated after 12 steps
    (second,) = envs.observations()
    captions = [(o.goal, "\n".join(o.descriptions[-1])) for o in (first, second)]
    assert part.read == [(*captions[0], n) for n in range(1, 13)] + [(*captions[1], n) for n in (1, 2)]
    again = EnvCollector(TextVectorEnv(Corridor, 1, _ACTIONS, lambda i, k: k), 1, reward=RewardSum({"captions": part}))
    again.load_state_dict(collector.state_dict())
    again.collect(_Fixed(2), generator=torch.Generator())
    assert part.read[-1] == (*captions[1], 3)
