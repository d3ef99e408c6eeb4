import numpy as np

from groundling.envs.nethack.recording import Screen


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
