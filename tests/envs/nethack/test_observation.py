import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from groundling.config.compose import compose
from groundling.envs.nethack.observation import FEATURES, VECTORS, message_id, message_text, vector_features, window
from groundling.envs.nethack.rendering import CELL, PALETTE, GlyphRenderer, glyph_table, render


@given(row=st.integers(0, 23), column=st.integers(0, 79), seed=st.integers(0, 100))
def test_the_window_is_what_padding_the_terminal_gives(row: int, column: int, seed: int) -> None:
    terminal = np.random.default_rng(seed).integers(33, 127, size=(24, 80), dtype=np.uint8)
    padded = np.pad(terminal, 12, constant_values=ord(" "))
    expected = padded[row + 6 : row + 18, column + 6 : column + 18]
    assert expected[6, 6] == terminal[row, column]
    assert (window(terminal, row, column) == expected).all()


def test_vector_features_are_scaled_and_clipped() -> None:
    names = list(FEATURES)
    blstats = np.zeros((2, 27), dtype=np.float32)
    blstats[0, names.index("x")], blstats[0, names.index("gold")] = 79, 10**9
    blstats[1, names.index("armour_class")], blstats[1, names.index("alignment")] = -(10**6), -1
    out = np.empty((2, 27), dtype=np.float32)
    vector_features(blstats, out)
    features = [{name: value for name, value in zip(names, row.tolist(), strict=True) if value} for row in out]
    assert features == [{"x": 1.0, "gold": 5.0}, {"armour_class": -5.0, "alignment": -1.0}]


def test_the_originals_vector_hides_score_and_depth_but_on_the_map() -> None:
    names = list(FEATURES)
    assert VECTORS.keys() == {"full", "motif"}
    out = np.empty(27, dtype=np.float32)
    vector_features(np.full(27, 20), out, "motif")
    # Copied from the original's table, by position in nle's blstats.
    hidden = [2, 9, 12, 17, 23, 24, 25, 26]
    assert np.flatnonzero(out == 0).tolist() == hidden
    assert {names[i] for i in hidden} >= {"score", "depth", "dungeon_level"}
    tenths = [3, 4, 5, 6, 7, 8, 10, 11, 14, 15, 16, 18, 22]
    assert (out[tenths] == 2).all()
    rest = {0: 20 / 79, 1: 20 / 21, 13: 0.02, 19: 0.2, 20: 0.02, 21: 5.0}
    np.testing.assert_allclose(out[list(rest)], list(rest.values()), rtol=1e-6)
    assert len(hidden) + len(tenths) + len(rest) == 27


def test_the_papers_experiments_show_what_the_original_shows() -> None:
    assert {
        name: compose(f"motif/{name}").world.args.get("vector", "full") for name in ("score", "goal", "laptop")
    } == {"score": "motif", "goal": "motif", "laptop": "full"}


def test_the_vectors_names_are_nles_in_nles_order() -> None:
    from nle import nethack

    index = {"x": nethack.NLE_BL_X, "score": nethack.NLE_BL_SCORE, "hit_points": nethack.NLE_BL_HP}
    index |= {"depth": nethack.NLE_BL_DEPTH, "gold": nethack.NLE_BL_GOLD, "armour_class": nethack.NLE_BL_AC}
    index |= {"turns": nethack.NLE_BL_TIME, "hunger": nethack.NLE_BL_HUNGER, "strength": nethack.NLE_BL_STR25}
    index |= {"exact_strength": nethack.NLE_BL_STR125}
    index |= {"dungeon_level": nethack.NLE_BL_DLEVEL, "condition": nethack.NLE_BL_CONDITION}
    names = list(FEATURES)
    assert len(names) == nethack.BLSTATS_SHAPE[0]
    assert {name: names.index(name) for name in index} == index


def test_message_ids_are_stable_hashes() -> None:
    text = b"You see here a dagger."
    code = f"from groundling.envs.nethack.observation import message_id; print(message_id({text!r}))"
    other = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, env={"PYTHONHASHSEED": "7"} | _path()
    )
    assert int(other.stdout) == message_id(text) == message_id(text.ljust(256, b"\0")) == -6882704359716687590
    assert -(2**63) <= message_id(text) < 2**63
    messages = [f"You have {n} gold pieces.".encode() for n in range(5000)] + [b"", b" "]
    assert len({message_id(m) for m in messages}) == len(messages)


def _path() -> dict[str, str]:
    return {"PYTHONPATH": ":".join(sys.path)}


def test_the_text_of_a_message() -> None:
    padded = np.zeros(256, dtype=np.uint8)
    padded[:9] = list(b"It bites!")
    assert message_text(padded) == "It bites!"
    assert message_text(b"\0" * 256) == ""
    assert message_text(bytes(range(129, 140))) != ""  # never raises an error


def test_the_glyphs_of_a_font() -> None:
    table = glyph_table()
    assert table.shape == (256, 16, 3, 6, 6) and table.dtype == np.uint8
    assert not table[[0, 7, 32]].any()  # NUL, BEL and space are invisible
    at = table[ord("@")]
    assert at[15].max() > 100 and (at[15][0] == at[15][1]).all()  # white
    assert at[1][0].any() and not at[1][1:].any()  # only the red channel
    printable = {table[code, 15].tobytes() for code in range(33, 127)}
    assert len(printable) > 90  # nearly every character has a different image
    dot = table[ord("."), 15, 0]
    assert dot[:3].sum() == 0 and dot[3:].sum() > 0  # the dot is low in its cell, not upside down
    bar, dash = table[ord("|"), 15, 0] > 60, table[ord("-"), 15, 0] > 60
    assert bar.any(axis=1).sum() > bar.any(axis=0).sum() and dash.any(axis=0).sum() > dash.any(axis=1).sum()
    assert len(np.unique(PALETTE, axis=0)) == 16 and PALETTE.max(axis=1).min() > 0


def test_windows_are_rendered_by_cell() -> None:
    rng = np.random.default_rng(0)
    chars, colours = (
        rng.integers(256, size=(5, 12, 12), dtype=np.uint8),
        rng.integers(16, size=(5, 12, 12), dtype=np.uint8),
    )
    pictures = render(chars, colours)
    assert pictures.shape == (5, 3, 72, 72) and pictures.dtype == np.uint8
    for n, row, column in rng.integers((5, 12, 12), size=(40, 3)).tolist():
        cell = pictures[n, :, CELL * row : CELL * (row + 1), CELL * column : CELL * (column + 1)]
        assert (cell == glyph_table()[chars[n, row, column], colours[n, row, column]]).all()


@pytest.mark.parametrize("shape", [(12, 12), (7, 12, 12), (2, 3, 12, 12), (0, 12, 12), (24, 80)])
def test_torch_draws_the_same_bytes(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(1)
    chars, colours = (rng.integers(256, size=shape, dtype=np.uint8), rng.integers(16, size=shape, dtype=np.uint8))
    renderer = GlyphRenderer()
    drawn = renderer(torch.from_numpy(chars), torch.from_numpy(colours))
    assert drawn.dtype == torch.uint8 and (drawn.numpy() == render(chars, colours)).all()
    assert not renderer.state_dict() and not list(renderer.parameters())


@pytest.mark.parametrize("modules", ["nethack.stepping, groundling.envs.nethack.vector", "vector"])
def test_env_workers_start_without_torch(modules: str) -> None:
    code = f"import sys, groundling.envs.{modules}; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout == "False\n"
