from pathlib import Path

import numpy as np
import pytest

from groundling.envs.nethack import make_task
from groundling.envs.nethack.recording import Screen, read_ttyrec
from groundling.errors import RunError


def test_a_screen_as_text() -> None:
    chars = np.full((24, 80), ord(" "), dtype=np.uint8)
    chars[0, :5], chars[3, 10], chars[4, 2] = list(b"Hello"), ord("@"), 0
    lines = Screen(chars, np.zeros_like(chars)).text().split("\n")
    assert len(lines) == 24 and lines[0] == "Hello" and lines[3] == " " * 10 + "@" and lines[4] == ""


def test_a_screen_as_a_picture() -> None:
    chars, colours = np.full((24, 80), ord(" "), dtype=np.uint8), np.zeros((24, 80), dtype=np.uint8)
    chars[5, 20], colours[5, 20] = ord("@"), 1
    picture = np.asarray(Screen(chars, colours).image())
    height, width = picture.shape[0] // 24, picture.shape[1] // 80
    rows, columns = np.nonzero(picture.any(axis=-1))
    assert set(rows // height) == {5} and set(columns // width) == {20}
    assert picture[..., 0].max() > 100 and picture[..., 1:].max() == 0  # red
    framed = np.asarray(Screen(chars, colours, cursor=(7, 3)).image())
    assert (framed[7 * height, 3 * width : 4 * width] == 255).all()


def test_nles_own_recordings_can_be_read_again(tmp_path: Path) -> None:
    env = make_task("NetHackScore-v1", savedir=str(tmp_path), save_ttyrec_every=1, max_episode_steps=30)
    texts = [Screen.of(env.reset(seed=3)[0]).text()]
    actions = np.random.default_rng(0).integers(1, 9, size=30).tolist()
    texts += [Screen.of(env.step(action)[0]).text() for action in actions]
    env.close()
    recorded = [screen.text() for screen in read_ttyrec(next(tmp_path.glob("nle.*.0.ttyrec3.bz2")))]
    position = -1
    for text in texts:  # all are there, in their order, between those that --More-- and quitting gave
        assert text in recorded[position + 1 :] or text == recorded[position]
        position = recorded.index(text, position + 1) if text in recorded[position + 1 :] else position
    assert len(recorded) >= 30


def test_other_files_are_no_recordings(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="no file"):
        next(read_ttyrec(tmp_path / "nothing.ttyrec3.bz2"))
    (tmp_path / "torn.ttyrec3.bz2").write_bytes(b"not bzip2 at all")
    with pytest.raises(RunError, match="torn"):
        list(read_ttyrec(tmp_path / "torn.ttyrec3.bz2"))
