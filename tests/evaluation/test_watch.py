"""`groundling watch` in every world, and its recording."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from groundling.cli.main import main
from groundling.errors import RunError
from groundling.reports.page import GifWriter, draw
from groundling.worlds.episode import Frame, Summary
from tests.envs import doors  # noqa: F401  (registers test/Doors-v0)
from tests.thorough import some_of

_WORLDS = {
    "babyai": ["demo-easy", "model.init=random"],
    "changing actions": ["demo", "model.path=starter", "~policy.args", "~world.args", "world.env=test/Doors-v0"],
    "writing": ["rl4lms/increasing_numbers_ppo", "model.path=starter-causal", "world.num_tokens=4"],
}


@pytest.mark.parametrize("world", some_of(_WORLDS, ["babyai"]))
def test_an_episode_is_printed_and_filmed(world: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gif = tmp_path / "films" / "one.gif"
    words = ["watch", *_WORLDS[world], "--fast", "device=cpu", "--gif", str(gif)]
    assert main(words) == 0
    output = capsys.readouterr().out
    assert ("text 0 · " if world == "writing" else "episode 0 · ") in output and f"written to {gif}" in output
    with Image.open(gif) as film:
        assert film.n_frames > 1
    assert main([*words[:-2], "--episodes", "2"]) == 0
    assert "0 · " in (again := capsys.readouterr().out) and "1 · " in again


def test_a_frame_is_drawn_with_its_text_next_to_its_picture() -> None:
    red = np.full((40, 60, 3), (255, 0, 0), dtype=np.uint8)
    moment = Frame(["go to the ball"], lambda: red, "left", {"left": 0.75, "right": 0.25})
    page = np.asarray(draw(moment))
    assert (page[20, 30] == (255, 0, 0)).all()
    bars = page[:, 300:]
    assert (bars == (37, 99, 168)).all(-1).sum() > 0.7 * 200 * 10  # the bar of the chosen action, three quarters
    alone = np.asarray(draw(Frame(["a " * 200])))
    assert alone.shape[1] < page.shape[1] and alone.shape[0] > 100  # long lines are wrapped


def test_a_long_film_keeps_its_last_frame(tmp_path: Path) -> None:
    film = GifWriter()
    with pytest.raises(RunError, match="no frame"):
        film.save(tmp_path / "none.gif")
    for number in range(1000):
        film.add(Frame([str(number)], summary=Summary("end") if number == 999 else None))
    film.save(tmp_path / "long.gif")
    with Image.open(tmp_path / "long.gif") as gif:
        assert 100 < gif.n_frames <= 401
        gif.seek(gif.n_frames - 1)
        last = np.asarray(gif.convert("RGB"))
    assert np.abs(last.astype(int) - np.asarray(draw(Frame(["999"])))).mean() < 2
