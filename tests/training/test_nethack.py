"""Rollouts of NetHack from scripted envs."""

import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from groundling.algorithms import APPO, Rollout
from groundling.algorithms.optimisation import make_adamw
from groundling.envs.nethack.observation import EndStatus, message_id
from groundling.envs.nethack.vector import Frames, NetHackEpisode, NetHackIncidents
from groundling.judges.online.background import OnlineLearning
from groundling.judges.online.reward import OnlineReward
from groundling.judges.preferences.pairs import decode
from groundling.judges.reward_models.models import TableRewardModel
from groundling.judges.reward_models.reward_model import Normalization
from groundling.policies.nethack import NetHackObservations, NetHackPolicy
from groundling.rewards import EnvPart, Part, RewardModelPart, RewardSum
from groundling.worlds.nethack.collect import NetHackCollector

_STATUS = [1, -1, 2, 1]
"""How each env's episodes end: death, step limit, success, death."""
_MESSAGES = [b"Hello.", b"You see here a gold piece.", b"You hit it!", b""]


class ScriptedEnvs:
    """Env ``i`` is at step ``t`` since the start of the rollouts, and its episodes last ``i + 2`` steps.

    The message at ``t`` is number ``t % 4``, and each step has the reward ``10 * t + i``.
    """

    num_actions = 23

    def __init__(self, num_envs: int = 4, num_groups: int = 2) -> None:
        self.num_envs, self.num_groups, self.group_size = num_envs, num_groups, num_envs // num_groups
        self.incidents = NetHackIncidents()
        self.t = np.zeros(num_envs, dtype=int)
        self.begun = np.ones(num_envs, dtype=int)
        self.sent: dict[int, np.ndarray] = {}
        self.log: list[tuple[str, int]] = []
        self.closed = False

    def reset(self) -> Frames:
        return self._frames(np.arange(self.num_envs), False)

    def send(self, group: int, actions: np.ndarray) -> None:
        assert group not in self.sent and actions.shape == (self.group_size,)
        self.sent[group] = actions
        self.log.append(("send", group))

    def receive(self, group: int) -> Frames:
        del self.sent[group]
        self.log.append(("receive", group))
        indices = np.arange(self.group_size) + group * self.group_size
        self.t[indices] += 1
        return self._frames(indices, True)

    def state_dict(self) -> list[dict[str, Any]]:
        states: list[dict[str, Any]] = [{"next_episode": number} for number in self.begun.tolist()]
        states[0]["incidents"] = asdict(self.incidents)
        return states

    def load_state_dict(self, states: list[dict[str, Any]]) -> None:
        self.begun[:] = [state["next_episode"] for state in states]
        self.incidents = NetHackIncidents(**states[0]["incidents"])

    def close(self) -> None:
        self.closed = True

    def _frames(self, indices: np.ndarray, stepped: bool) -> Frames:
        n, t = len(indices), self.t[indices]
        messages = np.zeros((n, 256), dtype=np.uint8)
        for row, at in zip(messages, t, strict=True):
            text = _MESSAGES[at % 4]
            row[: len(text)] = np.frombuffer(text, np.uint8)
        dones = (t % (indices + 2) == 0) & stepped
        self.begun[indices] += dones
        return Frames(
            chars=np.full((n, 12, 12), 64, np.uint8) + (t % 4)[:, None, None].astype(np.uint8),
            colours=np.zeros((n, 12, 12), np.uint8),
            vector=np.repeat((t + indices / 10)[:, None], 27, 1).astype(np.float32),
            messages=messages,
            message_ids=np.array([message_id(m.tobytes()) for m in messages]),
            counts=(t % (indices + 2) // 4 + 1).astype(np.float32),
            rewards=(10 * (t - 1) + indices).astype(np.float32) * stepped,
            dones=dones,
            cut=np.zeros(n, bool),
            episodes=[self._episode(i) for i in indices[dones].tolist()],
        )

    def _episode(self, i: int) -> NetHackEpisode:
        """Return an episode; one that reached the step limit ends with a unique observation."""
        figures = {"score": 3 * i, "end_status": _STATUS[i]}
        last = {
            "chars": np.full((12, 12), 35, np.uint8),
            "colours": np.ones((12, 12), np.uint8),
            "vector": np.full(27, self.t[i] / 7, np.float32),
            "messages": np.full(256, 66, np.uint8),
        }
        return NetHackEpisode(i, 0, 0, 1.5 * i, i + 2, figures, last if _STATUS[i] == EndStatus.ABORTED else None)


class LengthModel:
    """A reward model in which the reward of a message is its length."""

    normalization: Normalization | None = Normalization(10.0, 4.0, tuple(np.linspace(-0.9, 0.9, 19)))
    version = 1

    def __init__(self) -> None:
        self.asked: list[int] = []

    def rewards(self, captions: Sequence[str]) -> torch.Tensor:
        self.asked.append(len(captions))
        return torch.tensor([float(len(caption)) for caption in captions])


def _policy() -> NetHackPolicy:
    torch.manual_seed(0)
    return NetHackPolicy(23, hidden_size=8, recurrence=4)


def _reward(
    model: Any = None, online: OnlineReward | None = None, extrinsic: float = 0.1, intrinsic: float = 0.1, **args: Any
) -> RewardSum:
    """Return Motif's parts, or only the env's reward if there is no model."""
    parts: dict[str, Part] = {"env": EnvPart(scale=0.1, clip=10)}
    if model is not None:
        parts["reward_model"] = taste = RewardModelPart(**args)
        taste.use(model, online)
    return RewardSum(parts, {"env": extrinsic, "reward_model": intrinsic})


_EXTRINSIC = _reward()


def _collect(collector: NetHackCollector, policy: NetHackPolicy, seed: int = 0) -> tuple[Rollout, list]:
    return collector.collect(policy, generator=torch.Generator().manual_seed(seed))


def test_each_step_is_stored_at_its_place_and_rollouts_continue() -> None:
    envs, policy = ScriptedEnvs(), _policy()
    collector = NetHackCollector(envs, 4, _EXTRINSIC)
    steps, first = [], _collect(collector, policy)[0]
    second = collector.collect(policy, generator=torch.Generator(), on_step=steps.append)[0]
    assert steps == [2] * 8
    for begin, rollout in ((0, first), (4, second)):
        t, env = np.arange(begin, begin + 4)[:, None], np.arange(4)
        vector = rollout.observations.vector.reshape(4, 4, 27)
        np.testing.assert_allclose(vector[..., 0], t + env / 10, rtol=1e-6)
        ended = ((t + 1) % (env + 2)) == 0
        assert np.array_equal(rollout.dones, ended)
        began = (t == 0) | (t % (env + 2) == 0)
        assert np.array_equal(rollout.starts, began)
        paid = 0.1 * np.clip(0.1 * (10 * t + env), -10, 10)
        np.testing.assert_allclose(rollout.rewards, paid, rtol=1e-5)
        assert rollout.memories.shape == (1, 4, 8)
        assert (rollout.memories[0, began[0]] == 0).all()
        np.testing.assert_allclose(rollout.last_observations.vector[:, 0], begin + 4 + env / 10, rtol=1e-6)


def test_truncated_episodes_are_bootstrapped_on_request() -> None:
    policy, num_steps = _policy(), 7
    limit = _collect(NetHackCollector(ScriptedEnvs(), num_steps, _EXTRINSIC), policy)[0]
    valued = _collect(NetHackCollector(ScriptedEnvs(), num_steps, _EXTRINSIC, bootstrap=0.9), policy)[0]
    assert torch.equal(limit.dones, valued.dones) and torch.equal(limit.actions, valued.actions)
    expected = torch.zeros(num_steps, 4)
    with torch.no_grad():
        for end in (2, 5):  # the last steps of env 1's episodes, of three steps each
            memory = policy.initial_memory(1)
            for step in range(end - 2, end + 1):
                memory = policy.act(limit.observations[[4 * step + 1]], memory=memory).memory
            last = ScriptedEnvs()
            last.t[1] = end + 1
            shown = last._episode(1).last
            assert shown is not None
            seen = NetHackObservations(**{name: array[None] for name, array in shown.items()})
            expected[end, 1] = 0.9 * policy.values(seen, memory)[0]
    assert expected[2, 1] and expected[5, 1] and expected[2, 1] != expected[5, 1]
    assert limit.truncation_values is None and torch.equal(valued.rewards, limit.rewards)
    torch.testing.assert_close(valued.truncation_values, expected)


def test_collected_actions_can_be_evaluated_again() -> None:
    policy = _policy()
    collector = NetHackCollector(ScriptedEnvs(), 8, _EXTRINSIC)
    _collect(collector, policy)
    optimizer = make_adamw(policy, 0.1)  # the second rollout then uses weights other than those of the first
    for parameter in policy.parameters():
        parameter.grad = torch.randn_like(parameter)
    optimizer.step()
    rollout = _collect(collector, policy)[0]
    segments, transitions = rollout.elements(4)
    evaluation = policy.evaluate(segments, rollout.actions.flatten()[transitions])
    torch.testing.assert_close(evaluation.log_probs, rollout.log_probs.flatten()[transitions])
    torch.testing.assert_close(evaluation.values, rollout.values.flatten()[transitions])
    with torch.no_grad():
        after = policy.values(rollout.last_observations, collector._memory * ~rollout.dones[-1, :, None])
    torch.testing.assert_close(rollout.last_values, after)


def test_rewards_are_mixed_as_in_the_paper_and_each_message_is_asked_for_once() -> None:
    model, envs = LengthModel(), ScriptedEnvs()
    collector = NetHackCollector(envs, 4, _reward(model, extrinsic=0.5, intrinsic=0.25))
    policy = _policy()
    _collect(collector, policy)
    rollout, episodes = _collect(collector, policy)
    assert model.asked == [4]
    for t in range(4, 8):
        for env in range(4):
            normalised = (len(_MESSAGES[t % 4]) - 10.0) / 2.0
            kept = normalised if normalised > 0 else 0.0  # the median of the quantiles above is 0
            intrinsic = kept / (t % (env + 2) // 4 + 1) ** 3
            extrinsic = min(0.1 * (10 * t + env), 10.0)
            expected = 0.5 * extrinsic + 0.25 * intrinsic
            assert rollout.rewards[t - 4, env] == pytest.approx(expected, rel=1e-5)
    # Env 3's second episode consists of steps 5 to 9; of its first, steps 0 to 4, four are in the first rollout.
    (long,) = [e for e in episodes if e.length == 5]
    lengths = [len(_MESSAGES[t % 4]) for t in range(5)]
    values = [max((n - 10) / 2, 0) for n in lengths]
    values[4] /= 2**3  # its message occurs a second time
    assert long.figures["intrinsic_return"] == pytest.approx(sum(values))
    assert long.figures["messages"] == 4 and long.figures["score"] == 9
    assert long.episode_return == 4.5 and long.success is None


def test_the_same_weights_collected_ahead_give_the_same_rollouts() -> None:
    policy = _policy()
    at_once, ahead = (
        NetHackCollector(ScriptedEnvs(), 4, _EXTRINSIC),
        NetHackCollector(ScriptedEnvs(), 4, _EXTRINSIC, ahead=True),
    )
    generators = [torch.Generator().manual_seed(3) for _ in range(2)]
    for _ in range(3):
        one, other = (c.collect(policy, generator=g)[0] for c, g in zip((at_once, ahead), generators, strict=True))
        assert torch.equal(one.actions, other.actions) and torch.equal(one.log_probs, other.log_probs)
    ahead.close()
    assert ahead.envs.closed


def test_collected_ahead_is_of_weights_one_update_old() -> None:
    policy, appo = _policy(), APPO(learning_rate=1e-2)
    appo.setup(policy)
    collector = NetHackCollector(ScriptedEnvs(), 4, _EXTRINSIC, ahead=True)
    ratios = []
    for _ in range(3):
        rollout, _ = _collect(collector, policy)
        ratios.append(appo.update(policy, rollout, generator=torch.Generator())["approx_kl"])
    collector.close()
    assert ratios[0] < 1e-6 < ratios[1]


def test_a_restart_keeps_the_table_and_starts_new_episodes(tmp_path: Path) -> None:
    model = LengthModel()
    collector = NetHackCollector(ScriptedEnvs(), 8, _reward(model))
    collector.envs.incidents.dead_workers = 2
    _collect(collector, _policy())
    states = collector.state_dict()
    assert [s["next_episode"] for s in states] == [5, 3, 3, 2]
    again_model = LengthModel()
    again = NetHackCollector(ScriptedEnvs(2), 8, _reward(again_model))
    again.load_state_dict(states[:2])  # as in the first of two processes
    collector.save_shared(tmp_path)
    again.load_shared(tmp_path)
    assert again.envs.begun.tolist() == [5, 3] and again.envs.incidents.dead_workers == 2
    _collect(again, _policy())
    assert model.asked == [4] and again_model.asked == []


def _taste(collector: NetHackCollector) -> RewardModelPart:
    part = collector.reward.parts["reward_model"]
    assert isinstance(part, RewardModelPart)
    return part


def test_a_model_learns_online_from_a_judge_and_is_restored(tmp_path: Path) -> None:
    def judge(questions: list[tuple[str, ...]], contexts: list[str]) -> list[float]:
        return [float("gold" in text) for (text,) in questions]

    labels = {"extrinsic": 0.0, "normalize": False, "threshold_quantile": 0, "count_exponent": 0}

    def collector() -> NetHackCollector:
        model = TableRewardModel()
        online = OnlineReward(model, judge, OnlineLearning())
        return NetHackCollector(ScriptedEnvs(), 8, _reward(model, online, **labels))

    one = collector()
    for _ in range(100):
        rollout, _ = _collect(one, _policy())
        if rollout.rewards.any():
            break
        time.sleep(0.01)  # the judge answers at any time
    taste = _taste(one)
    while len(taste._table.model.ids) < 4:  # type: ignore[union-attr]
        taste._online.update()  # type: ignore[union-attr]
        time.sleep(0.01)
    rollout, _ = _collect(one, _policy())
    counts = one.incidents()
    assert (counts["online_messages"], counts["online_answers"]) == (4, 4) and counts["dead_workers"] == 0
    gold = taste._table.model.rewards(list(map(decode, rollout.observations.messages)))  # type: ignore[union-attr]
    assert torch.allclose(rollout.rewards.flatten(), 0.1 * gold) and gold.sum() == 8
    one.save_shared(tmp_path)
    again = collector()
    again.load_state_dict(one.state_dict())
    again.load_shared(tmp_path)
    assert torch.equal(_taste(again)._table.model.ids, taste._table.model.ids)  # type: ignore[union-attr]
    assert _collect(again, _policy())[0].rewards.any()
    one.close()
    again.close()
