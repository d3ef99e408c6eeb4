"""Groups of envs that play the same episodes, for GRPO, RLOO and GiGPO in text worlds."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import groundling as gl
from groundling.algorithms import GRPO, PPO, RLOO, GiGPO
from groundling.algorithms.advantages import group_relative, returns_to_go
from groundling.algorithms.rollout import Batch, Targets
from groundling.cli.main import main
from groundling.envs.seeds import training_seed
from groundling.envs.text_env import TextObservation
from groundling.envs.vector import TextVectorEnv
from groundling.rewards import EnvPart, RewardSum
from groundling.worlds.text.collect import EnvCollector
from tests.conftest import Corridor, TablePolicy

_ACTIONS = ["left", "right", "stay"]


def _collector(num_steps: int, rows: slice = slice(0, 4), **more: Any) -> EnvCollector:
    envs = TextVectorEnv(
        Corridor, rows.stop - rows.start, _ACTIONS, lambda i, k: training_seed(0, (rows.start + i) // 2, k)
    )
    envs.reset()
    return EnvCollector(envs, num_steps, group_size=2, others=(rows.start, 4 - rows.stop), **more)


def _policy() -> TablePolicy:
    torch.manual_seed(0)
    return TablePolicy()


def _starts(observations: Sequence[TextObservation]) -> list[tuple[str, int]]:
    return [(o.goal, o.raw["position"]) for o in observations]


def test_a_rollout_is_one_episode_of_each_env_and_groups_begin_alike() -> None:
    collector, policy = _collector(12), _policy()
    generator = torch.Generator().manual_seed(0)
    begun = set()
    for number in range(6):
        rollout, episodes = collector.collect(policy, generator=generator)
        mask, dones = rollout.mask, rollout.dones
        assert mask is not None and rollout.groups is not None and rollout.states is not None
        assert rollout.groups.tolist() == [0, 0, 1, 1]
        starts = _starts(rollout.observations[:4])
        assert starts[0] == starts[1] and starts[2] == starts[3]
        assert rollout.states[0, 0] == rollout.states[0, 1]
        begun.add(tuple(starts))
        assert sorted(e.number for e in episodes) == [number] * 4  # each number occurs once
        for env in range(4):
            length = int(mask[:, env].sum())
            assert mask[:length, env].all() and not mask[length:, env].any()
            assert dones[:, env].nonzero().flatten().tolist() == [length - 1]
            (episode,) = [e for e in episodes if e.record.env_index == env]
            assert episode.length == length
            assert episode.episode_return == pytest.approx(float(rollout.rewards[:, env].sum()))
        assert rollout.num_transitions == int(mask.sum()) < mask.numel()
    assert len(begun) > 1


def test_episodes_cut_off_by_num_steps_are_failures_and_restarted() -> None:
    collector, policy = _collector(2), _policy()
    generator = torch.Generator().manual_seed(0)
    failures = 0
    with pytest.warns(UserWarning, match=r"not ended after world\.num_steps=2 steps.* count as failures"):
        for number in range(6):
            rollout, episodes = collector.collect(policy, generator=generator)
            starts = _starts(rollout.observations[:4])
            assert starts[0] == starts[1] and starts[2] == starts[3]
            assert sorted(e.record.env_index for e in episodes) == [0, 1, 2, 3]
            assert {e.number for e in episodes} == {number}
            for episode in episodes:
                dones = rollout.dones[:, episode.record.env_index]
                paid = float(rollout.rewards[:, episode.record.env_index].sum())
                assert episode.episode_return == pytest.approx(paid)
                if not dones.any():
                    failures += 1
                    assert not episode.success and episode.length == 2
    assert failures


def test_two_processes_collect_like_one() -> None:
    policy = _policy()
    whole, _ = _collector(12).collect(policy, generator=torch.Generator().manual_seed(3))
    for rows in (slice(0, 1), slice(1, 4)):
        part, _ = _collector(12, rows).collect(policy, generator=torch.Generator().manual_seed(3))
        for name in ("actions", "rewards", "dones", "mask", "states"):
            one, other = getattr(whole, name)[:, rows], getattr(part, name)
            assert torch.equal(one * whole.mask[:, rows], other * part.mask), name
        assert torch.equal(whole.groups[rows], part.groups)


def test_only_taken_steps_are_learnt() -> None:
    policy = _policy()
    rollout, _ = _collector(12).collect(policy, generator=torch.Generator().manual_seed(0))
    advantages = group_relative(rollout, returns_to_go(rollout.rewards, rollout.dones, 1.0))
    batch = Batch.of(policy, rollout, Targets(advantages, rollout.rewards))
    assert len(batch) == batch.num_steps == rollout.num_transitions
    assert batch.weights is None
    columns = rollout.mask.nonzero()[:, 1].tolist()
    totals = rollout.rewards.sum(0)
    for advantage, env in zip(batch.advantages.tolist(), columns, strict=True):
        pair = totals[env - env % 2 : env - env % 2 + 2]
        assert np.sign(advantage) == np.sign(float(totals[env] - pair.mean()).__round__(6))


def test_a_rollout_whose_episodes_are_over_has_no_empty_segments() -> None:
    rollout, _ = _collector(12).collect(_policy(), generator=torch.Generator().manual_seed(0))
    assert rollout.mask is not None
    recurrent = replace(rollout, memories=torch.zeros(12, 4, 1), starts=torch.zeros(12, 4, dtype=torch.bool))
    segments, indices = recurrent.elements(2)
    assert len(segments) == len(indices) < 24
    assert rollout.mask.flatten()[indices].any(1).all()
    assert int(rollout.mask.flatten()[indices].sum()) == rollout.num_transitions


@pytest.mark.parametrize("algorithm", [GRPO, GiGPO, RLOO])
def test_the_corridor_is_learnt(algorithm: type[Any]) -> None:
    policy = _policy()
    learner = algorithm(learning_rate=0.05, minibatch_size=64, entropy_coefficient=0.01)
    learner.setup(policy)
    envs = TextVectorEnv(Corridor, 16, _ACTIONS, lambda i, k: training_seed(0, i // 4, k))
    envs.reset()
    collector = EnvCollector(envs, 12, group_size=4, reward=RewardSum({"env": EnvPart()}))
    generator = torch.Generator().manual_seed(0)
    successes = []
    for _ in range(40):
        rollout, episodes = collector.collect(policy, generator=generator)
        learner.update(policy, rollout, generator=generator)
        successes.append(np.mean([episode.success for episode in episodes]))
    assert np.mean(successes[-10:]) > max(0.8, np.mean(successes[:3]) + 0.1)


_WORDS = [
    *("train", "demo", "model.path=starter-causal", "~policy.args", "~algorithm.args", "device=cpu"),
    *("policy.args={prompt: conversation, value_hidden_sizes: [8]}", "world.history=null", "world.num_envs=4"),
    *("world.group_size=2", "world.num_steps=3", "world.args.max_steps=3", "world.entropy_floor=0"),
    "training.steps=30",
]
_LEARNER = "algorithm.args={minibatch_size: 8, learning_rate: 1e-4, entropy_coefficient: 0.01}"


def test_mismatches_are_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for more, wanted in (
        (["algorithm.id=gigpo", _LEARNER, "world.num_envs=5"], "is not a multiple of world.group_size=2: use 6"),
        (["algorithm.id=gigpo", _LEARNER, "world.group_size=null"], "text world with, say, world.group_size=8"),
        (["algorithm.id=gigpo", "algorithm.args={step_weight: 0}"], "step_weight must be greater than 0, got 0"),
        (["algorithm.id=gigpo", _LEARNER, "world.group_size=1"], "world.group_size must be at least 2"),
        (["algorithm.id=ppo", _LEARNER], "leave world.group_size out"),
        (["algorithm.id=grpo", _LEARNER, "world.args.draw_task=construction"], "set draw_task=reset, or set task"),
        (["algorithm.id=grpo", "algorithm.args={loss_type: dapo}"], "loss_type=dapo applies only to texts"),
        (["algorithm.id=grpo", "algorithm.args={mask_truncated_completions: true}"], "true applies only to texts"),
        (["algorithm.id=grpo", "algorithm.args={importance_sampling_level: sequence}"], "generates texts or turns"),
        (["algorithm.id=grpo", "algorithm.args={loss_type: cispo, clip_range: 0.1}"], "set clip_range_high instead"),
    ):
        assert main([*_WORDS, *more, f"run_dir={tmp_path / 'run'}"]) == 1
        assert wanted in capsys.readouterr().err


@pytest.mark.parametrize(("algorithm", "group_size", "warned"), [(GRPO, None, 1), (GRPO, 2, 0), (PPO, None, 0)])
def test_comparing_unrelated_episodes_gives_a_warning(
    algorithm: type[Any], group_size: int | None, warned: int, recwarn: pytest.WarningsRecorder
) -> None:
    world = gl.make_world("BabyAI-GoToRedBallNoDists-v0", num_envs=4, num_steps=2, group_size=group_size)
    world.collector(_policy(), algorithm(), slice(0, 4)).close()
    assert len([one for one in recwarn if "compares all episodes" in str(one.message)]) == warned
