import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from groundling.cli.main import main
from groundling.envs.nethack import make_task
from groundling.envs.seeds import training_seed
from groundling.errors import ConfigError
from groundling.judges import MessagePairs, Pairs, open_pairs
from groundling.worlds.nethack.pairs import Act, ActForSeed, explorer_player, random_player, record


def _same(a: Pairs, b: Pairs) -> bool:
    arrays = {**a.data, **{f"info {k}": v for k, v in a.info.items()}}
    others = {**b.data, **{f"info {k}": v for k, v in b.info.items()}}
    return arrays.keys() == others.keys() and all(np.array_equal(arrays[k], others[k]) for k in arrays)


def _record(folder: Path, player: ActForSeed = random_player, **options: object) -> Pairs:
    usual = {"name": "random", "num_pairs": 20, "task_args": {"max_episode_steps": 80}}
    return record(player, folder, **{**usual, **options})


def test_segments_are_what_the_env_showed(tmp_path: Path) -> None:
    pairs = _record(tmp_path / "pairs", num_pairs=4, segment_length=3, stride=8, seed=5)
    assert pairs.messages.shape == (4, 2, 3, 256)
    # Replay the first of eight segments, which is at a position sampled with the episode's seed.
    seed = training_seed(5, 0, 0)
    begin = int(np.random.default_rng(seed).integers(8 - 3 + 1))
    env, act = make_task("NetHackScore-v1"), random_player(seed)
    observation, _ = env.reset(seed=seed)
    shown = [(observation, 0.0)]
    for _ in range(10):
        observation, reward, *_ = env.step(act(observation))
        shown.append((observation, reward))
    env.close()
    pair, side = divmod(int(np.random.default_rng(5).permutation(8)[0]), 2)
    steps = shown[begin : begin + 3]
    assert np.array_equal(pairs.messages[pair, side], [o["message"] for o, _ in steps])
    assert np.array_equal(pairs.data["blstats"][pair, side], [o["blstats"] for o, _ in steps])
    assert pairs.data["rewards"][pair, side].tolist() == pytest.approx([r for _, r in steps])
    last = steps[-1][0]["blstats"]
    assert pairs.info["score"][pair, side] == last[9]
    assert pairs.info["turns"][pair, side] == last[20]
    assert pairs.info["steps"][pair, side] == begin + 2


@pytest.mark.parametrize("steps", [60, 130])
def test_a_killed_recording_resumes_exactly(steps: int, tmp_path: Path) -> None:
    whole = _record(tmp_path / "whole")
    assert not _same(whole, _record(tmp_path / "another", seed=1))
    left = [steps]

    def dying(seed: int) -> Act:
        act = random_player(seed)

        def choose(observation: object) -> int:
            left[0] -= 1
            if left[0] < 0:
                raise KeyboardInterrupt
            return act(observation)

        return choose

    with pytest.raises(KeyboardInterrupt):
        _record(tmp_path / "torn", dying)
    assert not (tmp_path / "torn").exists()
    counted: list[int] = []
    torn = _record(tmp_path / "torn", on_segment=lambda: counted.append(1))
    assert _same(whole, torn)
    assert len(counted) == 40
    assert not (tmp_path / "torn.recording").exists()

    def nobody(seed: int) -> Act:
        raise AssertionError("all is recorded")

    assert _same(_record(tmp_path / "torn", nobody), whole)


def test_a_kill_between_the_dataset_and_its_description(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "pairs"
    original: Callable[..., Pairs] = MessagePairs.create

    def create(*args: object) -> Pairs:
        original(*args)
        raise KeyboardInterrupt

    monkeypatch.setattr(MessagePairs, "create", create)
    with pytest.raises(KeyboardInterrupt):
        _record(folder)
    monkeypatch.undo()
    pairs = _record(folder)
    assert json.loads((folder / "recording.json").read_text())["player"] == "random"
    assert _same(pairs, _record(tmp_path / "again"))


def test_the_explorer_and_other_formats(tmp_path: Path) -> None:
    pairs = _record(tmp_path / "pairs", explorer_player, num_pairs=5, screens=True, format="parquet")
    assert pairs.data["tty_chars"].shape == (5, 2, 1, 24, 80)
    assert (pairs.data["tty_chars"] == ord("@")).any(axis=(-1, -2)).mean() > 0.5


def test_unsuitable_recordings_are_errors(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="stride"):
        _record(tmp_path / "a", segment_length=20)
    for args, length, most in (({"max_episode_steps": 50}, 51, 50), ({}, 5001, 5000)):
        with pytest.raises(ConfigError, match=f"segment_length={length} is more than .* max_episode_steps={most}"):
            _record(tmp_path / "a", segment_length=length, stride=length, task_args=args)
    assert len(_record(tmp_path / "just", num_pairs=1, segment_length=80, stride=80)) == 1
    _record(tmp_path / "b", num_pairs=2)
    with pytest.raises(ConfigError, match="seed=0 \\(now 1\\)"):
        _record(tmp_path / "b", num_pairs=2, seed=1)
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match="is not a recording"):
        _record(tmp_path / "c")


def test_screens_make_a_recording_that_the_originals_train_reward_reads(tmp_path: Path) -> None:
    """The original's loader stops at the first of these keys for which there is no file."""
    arguments = ["collect", "random", "world.env=NetHackScore-v1", "--pairs", "2", "device=cpu"]
    arguments += ["--screens", "--stride", "3", "--output", str(tmp_path / "pairs")]
    assert main(arguments) == 0
    files = {path.relative_to(tmp_path / "pairs").as_posix() for path in (tmp_path / "pairs").rglob("*.npy")}
    assert files >= {f"data/{key}.npy" for key in ("blstats", "message", "tty_chars", "tty_colors", "rewards")}
    assert files >= {f"info/{key}.npy" for key in ("score", "turns", "experience_level", "character")}
    assert np.load(tmp_path / "pairs/data/tty_chars.npy").shape == (2, 2, 1, 24, 80)
    assert np.load(tmp_path / "pairs/info/character.npy").tolist() == [["mon-hum-neu-mal"] * 2] * 2
    assert len(open_pairs(tmp_path / "pairs")) == 2
