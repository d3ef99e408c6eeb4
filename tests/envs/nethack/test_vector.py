import gc
import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from groundling.envs.nethack import make_task
from groundling.envs.nethack.observation import FIGURES, VECTORS, message_id
from groundling.envs.nethack.tasks import NetHackTask
from groundling.envs.nethack.vector import Frames, NetHackVectorEnv
from groundling.envs.seeds import training_seed
from groundling.errors import ConfigError, RunError
from tests.thorough import thorough

SHORT = {"max_episode_steps": 25}
ARRAYS = [f for f in Frames.__slots__ if f != "episodes"]


@contextmanager
def _vector(
    num_envs: int = 6, num_workers: int = 0, task: str = "NetHackScore-v1", **args: Any
) -> Iterator[NetHackVectorEnv]:
    args.setdefault("args", SHORT)
    envs = NetHackVectorEnv(task, num_envs, num_workers, **args)
    try:
        yield envs
    finally:
        envs.close()


def _copied(frames: Frames) -> dict[str, Any]:
    return {name: getattr(frames, name).copy() for name in ARRAYS} | {"episodes": frames.episodes}


def _play(envs: NetHackVectorEnv, rounds: int, seed: int = 0) -> list[dict[str, Any]]:
    """Return the frames of a reset and several rounds of random actions by group, while both groups are stepped."""
    rng = np.random.default_rng(seed)
    all_frames = [_copied(envs.reset())]
    for _ in range(rounds):
        for group in range(envs.num_groups):
            envs.send(group, rng.integers(envs.num_actions, size=envs.group_size))
        all_frames += [_copied(envs.receive(group)) for group in range(envs.num_groups)]
    return all_frames


def _same(first: list[dict[str, Any]], second: list[dict[str, Any]]) -> bool:
    return len(first) == len(second) and all(
        a["episodes"] == b["episodes"] and all((a[name] == b[name]).all() for name in ARRAYS)
        for a, b in zip(first, second, strict=True)
    )


def test_frames_equal_single_envs() -> None:
    """Compare the vector env's frames with the same episodes, played one by one through Gymnasium's interface."""
    num_envs, rounds = 4, 60
    with _vector(num_envs, num_groups=2, seed=5) as envs:
        all_frames = _play(envs, rounds)
    rng = np.random.default_rng(0)
    actions = [[rng.integers(23, size=2) for _ in range(2)] for _ in range(rounds)]
    truncations = 0
    for index in range(num_envs):
        group, row = divmod(index, 2)
        env, episode, counts = make_task("NetHackScore-v1", **SHORT), 0, dict[bytes, int]()
        observation, _ = env.reset(seed=training_seed(5, index, 0))
        _expect(all_frames[0], index, observation, counts)
        episode_return, length = 0.0, 0
        for number in range(rounds):
            frames = all_frames[1 + 2 * number + group]
            observation, reward, terminated, truncated, info = env.step(int(actions[number][group][row]))
            episode_return, length = episode_return + reward, length + 1
            assert frames["rewards"][row] == np.float32(reward)
            assert frames["dones"][row] == (terminated or truncated)
            ended = [e for e in frames["episodes"] if e.env_index == index]
            assert bool(ended) == (terminated or truncated)
            if ended:
                assert ended[0].number == episode and ended[0].seed == training_seed(5, index, episode)
                assert ended[0].episode_return == pytest.approx(episode_return) and ended[0].length == length
                assert ended[0].figures == {name: int(info[name]) for name in FIGURES}
                assert (ended[0].last is not None) == truncated
                if ended[0].last is not None:
                    _expect_seen({name: array[None] for name, array in ended[0].last.items()}, 0, observation)
                    truncations += 1
                episode, episode_return, length = episode + 1, 0.0, 0
                counts.clear()
                observation, _ = env.reset(seed=training_seed(5, index, episode))
            _expect(frames, row, observation, counts)
        assert episode >= 2
    assert truncations >= 2


def _expect(frames: dict[str, Any], index: int, observation: dict[str, np.ndarray], counts: dict[bytes, int]) -> None:
    _expect_seen(frames, index, observation)
    message = observation["message"].tobytes()
    counts[message] = counts.get(message, 0) + 1
    assert frames["message_ids"][index] == message_id(message) and frames["counts"][index] == counts[message]


def _expect_seen(frames: dict[str, Any], index: int, observation: dict[str, np.ndarray]) -> None:
    x, y = observation["blstats"][:2].tolist()
    assert frames["chars"][index, 6, 6] == observation["tty_chars"][y + 1, x]
    padded = np.pad(observation["tty_colors"], 12)[y + 7 : y + 19, x + 6 : x + 18]
    assert (frames["colours"][index] == padded % 16).all()
    expected = np.clip(observation["blstats"] * VECTORS["full"], -5, 5)
    np.testing.assert_allclose(frames["vector"][index], expected, rtol=1e-6)
    assert frames["messages"][index].tobytes() == observation["message"].tobytes()


def test_the_window_is_centred_except_with_compat_crop() -> None:
    with _vector() as envs, _vector(args={"compat": ["crop"]}) as original:
        mended, above = envs.reset().chars, original.reset().chars
        assert (mended[:, 6, 6] == ord("@")).all()
        assert (above[:, 7, 6] == ord("@")).all()
        assert (mended[:, :-1] == above[:, 1:]).all()


def test_vectors_have_the_factors_of_motif_or_all() -> None:
    with _vector(args={"vector": "motif"}) as envs, _vector(args={}) as full:
        motif, ours = envs.reset().vector, full.reset().vector
        depth, hit_points = 12, 10
        assert not motif[:, depth].any() and (ours[:, depth] == np.float32(0.1)).all()
        np.testing.assert_allclose(motif[:, hit_points], 2 * ours[:, hit_points], rtol=1e-6)
    with pytest.raises(ConfigError, match="vector must be full or motif"):
        make_task("NetHackScore-v1", vector="ours")


@pytest.mark.parametrize("num_workers", [0, 1])
def test_wrong_arguments_are_refused_before_workers_start(num_workers: int, tmp_path: Path) -> None:
    warnings: list[str] = []
    for args, message in (({"max_steps": 5}, "max_steps"), ({"compat": ["crops"]}, "crops")):
        with pytest.raises(ConfigError, match=message):
            NetHackVectorEnv("NetHackScore-v1", 4, num_workers, args=args, warn=warnings.append)
    assert not warnings
    recorded = {"savedir": str(tmp_path / "games"), "save_ttyrec_every": 1}
    with _vector(4, num_workers, args=recorded):
        pass
    assert all(path.name.startswith("env-") for path in (tmp_path / "games").glob("*"))


def test_workers_equal_the_local_process() -> None:
    with _vector(6, 0, num_groups=2, seed=3) as here:
        expected = _play(here, 40)
    with _vector(6, 2, num_groups=2, seed=3) as envs:
        all_frames = _play(envs, 40)
        assert len(envs.process_ids) == 2
    assert _same(all_frames, expected)
    lasts = [[e.last for frames in played for e in frames["episodes"] if e.last] for played in (all_frames, expected)]
    assert lasts[0]
    for one, other in zip(*lasts, strict=True):
        assert all((one[name] == other[name]).all() for name in one)
    assert sum(len(frames["episodes"]) for frames in all_frames) >= 6


def test_a_resumed_vector_plays_the_next_episodes() -> None:
    with _vector(4, seed=8) as envs:
        _play(envs, 30)
        state = json.loads(json.dumps(envs.state_dict()))
        begun = [env["next_episode"] for env in state]
    assert min(begun) >= 2
    with _vector(4, seed=8) as again:
        again.load_state_dict(state)
        _play(again, 30)
        first = [e for frames in _play(again, 30) for e in frames["episodes"]]
        assert {e.seed for e in first} == {training_seed(8, e.env_index, e.number) for e in first} and min(
            e.number for e in first
        ) >= min(begun)
    with _vector(4, seed=9) as other, pytest.raises(RunError, match="seed 8"):
        other.load_state_dict(state)
    with _vector(2, seed=8) as other, pytest.raises(RunError, match="4 NetHack envs"):
        other.load_state_dict(state)


def test_an_env_that_raises_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    advance, bad = NetHackTask.advance, set[int]()

    def crash(self: NetHackTask, action: int) -> tuple[float, bool, bool]:
        if id(self) in bad:
            raise RuntimeError("the dungeon collapses")
        return advance(self, action)

    monkeypatch.setattr(NetHackTask, "advance", crash)
    warnings: list[str] = []
    with _vector(4, seed=1, warn=warnings.append) as envs, _vector(4, seed=1) as healthy:
        both = envs, healthy
        for each in both:
            each.reset()
        bad.add(id(envs._envs.slices[0]._envs[1]))  # type: ignore[union-attr]
        for each in both:
            each.send(0, np.array([2, 2]))
        frames, expected = envs.receive(0), healthy.receive(0)
        assert frames.dones.tolist() == frames.cut.tolist() == [False, True]
        assert frames.rewards[1] == 0 and frames.counts[1] == 1 and not frames.episodes
        assert (frames.chars[0] == expected.chars[0]).all()  # the other env is not affected
        assert envs.incidents.crashed_envs == envs.incidents.cut_episodes == 1
        assert len(warnings) == 1 and "env 1: RuntimeError: the dungeon collapses" in warnings[0]
        assert [state["next_episode"] for state in envs.state_dict()] == [1, 2, 1, 1]
        fresh = make_task("NetHackScore-v1")
        observation, _ = fresh.reset(seed=training_seed(1, 1, 1))
        assert frames.messages[1].tobytes() == observation["message"].tobytes()
        for each in both:
            each.send(0, np.array([2, 2]))
            assert not each.receive(0).cut.any()


@pytest.mark.parametrize("number", [signal.SIGKILL, *thorough(signal.SIGBUS, signal.SIGSEGV)])
def test_a_dead_worker_loses_only_its_episodes(number: int) -> None:
    warnings: list[str] = []
    with _vector(8, 2, seed=1, warn=warnings.append) as envs, _vector(8, 0, seed=1) as healthy:
        both = envs, healthy
        for each in both:
            each.reset()
            each.send(0, np.full(4, 2))
            each.receive(0)
        os.kill(envs.process_ids[0], number)  # it steps envs 0 and 1 of group 0, and envs 4 and 5 of group 1
        for each in both:
            each.send(1, np.full(4, 2))
        frames, expected = envs.receive(1), healthy.receive(1)
        assert frames.dones.tolist() == frames.cut.tolist() == [True, True, False, False]
        assert (frames.chars[2:] == expected.chars[2:]).all()
        for each in both:
            each.send(0, np.full(4, 3))
        frames, expected = envs.receive(0), healthy.receive(0)
        assert frames.cut.tolist() == [True, True, False, False]  # its other envs, in their next step
        assert (frames.messages[2:] == expected.messages[2:]).all()
        assert [state["next_episode"] for state in envs.state_dict()] == [2, 2, 1, 1, 2, 2, 1, 1]
        assert (envs.incidents.dead_workers, envs.incidents.cut_episodes) == (1, 4)
        assert len(warnings) == 1 and "signal" in warnings[0]
        envs.send(0, np.full(4, 3))
        assert not envs.receive(0).cut.any()


def test_a_worker_that_hangs_is_killed() -> None:
    with _vector(2, 1, num_groups=1, timeout=0.5, warn=lambda _: None) as envs:
        envs.reset()
        os.kill(envs.process_ids[0], signal.SIGSTOP)
        envs.send(0, np.array([2, 2]))
        assert envs.receive(0).cut.all()
        assert (envs.incidents.hung_workers, envs.incidents.dead_workers) == (1, 0)


def test_a_worker_that_cannot_start_stops_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/bin/false")
    with _vector(2, 1, warn=lambda _: None) as envs, pytest.raises(RunError, match="times in a row"):
        envs.reset()


def test_closing_ends_processes_and_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    gc.collect()
    before = len(list(Path("/proc/self/fd").iterdir()))
    with _vector(4, 2, warn=lambda _: None) as envs:
        envs.reset()
        ids = envs.process_ids
        os.kill(ids[0], signal.SIGKILL)
        envs.send(0, np.array([2, 2]))
        envs.receive(0)
        ids += envs.process_ids
        assert list(tmp_path.iterdir())
    assert not list(tmp_path.iterdir())
    for _ in range(50):
        alive = [pid for pid in ids if Path(f"/proc/{pid}").exists()]
        if not alive:
            break
        time.sleep(0.05)
    assert not alive
    del envs
    gc.collect()
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_recordings_of_each_env_have_a_folder(tmp_path: Path) -> None:
    args = {"savedir": str(tmp_path / "games"), "save_ttyrec_every": 1, "max_episode_steps": 3}
    with _vector(2, 1, num_groups=1, args=args) as envs:
        _play(envs, 4)
    names = sorted(path.parent.name for path in tmp_path.rglob("*.0.ttyrec3.bz2"))
    assert names == ["env-0000", "env-0001"]


@pytest.mark.parametrize(
    "arguments, message",
    [
        (("NetHackScor-v1", 4, 0), "NetHackScore-v1"),
        (("NetHackScore-v1", 5, 0), "multiple of num_groups"),
        (("NetHackScore-v1", 4, 3), "num_workers must be 0 to 2"),
        (("NetHackScore-v1", 4, -1), "num_workers"),
    ],
)
def test_unsuitable_numbers_are_errors(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        NetHackVectorEnv(*arguments)


def test_calls_out_of_turn_are_errors() -> None:
    with _vector(4) as envs:
        envs.reset()
        with pytest.raises(RunError, match="is not in flight"):
            envs.receive(0)
        with pytest.raises(RunError, match="from 0 to 22"):
            envs.send(0, np.array([0, 23]))
        with pytest.raises(RunError, match="needs 2 actions"):
            envs.send(0, np.array([0, 1, 2]))
        envs.send(0, np.array([0, 1]))
        with pytest.raises(RunError, match="already"):
            envs.send(0, np.array([0, 1]))
        with pytest.raises(RunError, match="before reset"):
            envs.reset()
        envs.receive(0)
