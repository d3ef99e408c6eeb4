"""Preference datasets in both formats, and the captions of their segments."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from groundling.cli.main import main
from groundling.errors import ConfigError
from groundling.judges import Comparison, MessagePairs, Preference, caption, open_pairs
from groundling.judges.preferences.pairs import FORMATS


def encode(*texts: str) -> np.ndarray:
    """Return a message as uint8 (L, 256)."""
    return np.stack([np.frombuffer(text.encode("latin-1").ljust(256, b"\0"), np.uint8) for text in texts])


def make(count: int, length: int, seed: int = 0) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Return arrays of every kind in the published layout."""
    rng = np.random.default_rng(seed)
    texts = ["", "You kill the newt!", "It is a wall. --More--", "ol\xe9 \x7f", "a\0b"]
    data = {
        "message": encode(*rng.choice(texts, count * 2 * length)).reshape(count, 2, length, 256),
        "blstats": rng.integers(-(2**40), 2**40, (count, 2, length, 27)),
        "tty_chars": rng.integers(0, 256, (count, 2, length, 24, 80)).astype(np.uint8),
        "tty_colors": rng.integers(-128, 128, (count, 2, length, 24, 80)).astype(np.int8),
        "rewards": rng.normal(size=(count, 2, length)).astype(np.float32),
    }
    info = {"score": rng.integers(0, 99, (count, 2)), "turns": rng.random((count, 2))}
    return data, info


def test_the_layout_on_disk_is_the_originals(tmp_path: Path) -> None:
    # Written file by file like the published data, without our code.
    message = encode("You see here a gold piece.", "", "It's a wall.", "It's a wall.").reshape(2, 2, 1, 256)
    for part in ("data", "info", "preference"):
        (tmp_path / part).mkdir()
    np.save(tmp_path / "data/message.npy", message)
    np.save(tmp_path / "data/blstats.npy", np.zeros((2, 2, 1, 27), np.int32))
    np.save(tmp_path / "info/score.npy", np.array([[3, 4], [5, 5]]))
    name = "llama70b_msg_defaultgoal_default"
    np.save(tmp_path / f"preference/{name}.npy", np.array([0, 3], np.int8))
    pairs = open_pairs(tmp_path)
    assert (len(pairs), pairs.format) == (2, "motif")
    assert isinstance(pairs.messages, np.memmap) and not pairs.messages.flags.writeable
    assert pairs.comparisons() == [
        Comparison("You see here a gold piece.", ""),
        Comparison("It's a wall.", "It's a wall."),
    ]
    assert pairs.annotators() == [name]
    assert pairs.preferences(name).tolist() == [Preference.FIRST, Preference.UNKNOWN]
    assert pairs.soft_preferences(name) is None
    assert pairs.info["score"].tolist() == [[3, 4], [5, 5]]

    soft = np.array([[0.25, 0.5, 0.25], [np.nan] * 3])
    pairs.write_preferences("mine", np.array([1, 3]), soft)
    written = np.load(tmp_path / "preference/mine.npy", allow_pickle=False)
    assert written.dtype == np.int8 and written.tolist() == [1, 3]
    kept = np.load(tmp_path / "soft_preference/mine.npy", allow_pickle=False)
    assert kept.dtype == np.float32 and kept.shape == (2, 3)
    pairs.write_preferences("mine", np.array([2, 2]))
    assert pairs.soft_preferences("mine") is None, "soft labels of earlier answers must not stay"
    assert sorted(path.name for path in (tmp_path / "preference").iterdir()) == [f"{name}.npy", "mine.npy"]


@settings(max_examples=8, deadline=None)
@given(st.integers(1, 5), st.integers(1, 3), st.integers(0, 99))
def test_both_formats_keep_every_bit(
    tmp_path_factory: pytest.TempPathFactory, count: int, length: int, seed: int
) -> None:
    folder = tmp_path_factory.mktemp("pairs")
    data, info = make(count, length, seed)
    labels = np.arange(count) % 4
    soft = np.random.default_rng(seed).dirichlet([1, 1, 1], count).astype(np.float32)
    soft[0] = np.nan
    for format in FORMATS:
        written = MessagePairs.create(folder / format, data, info, format)  # type: ignore[arg-type]
        written.write_preferences("hard", labels)
        written.write_preferences("soft", labels, soft)
        pairs = open_pairs(folder / format)
        assert pairs.data.keys() == data.keys() and pairs.info.keys() == info.keys()
        for key, array in {**data, **info}.items():
            kept = pairs.data[key] if key in data else pairs.info[key]
            assert kept.dtype == array.dtype, key
            np.testing.assert_array_equal(kept, array)
        assert pairs.annotators() == ["hard", "soft"]
        for name in ("hard", "soft"):
            assert pairs.preferences(name).tolist() == labels.tolist()
        assert pairs.soft_preferences("hard") is None
        np.testing.assert_array_equal(pairs.soft_preferences("soft"), soft)


def test_soft_labels_must_be_probabilities(tmp_path: Path) -> None:
    pairs = MessagePairs.create(tmp_path / "pairs", {"message": make(3, 1)[0]["message"]})
    labels, fitting = np.array([0, 1, 2]), [[0.335, 0.335, 0.33], [np.nan] * 3, [0, 0, 1]]
    for soft in (fitting, np.round(fitting, 2)):  # with two decimals, the first row sums to 1.01
        pairs.write_preferences("judge", labels, np.array(soft))
    logits, log_probabilities = [2.5, -1.0, 0.5], np.log([0.7, 0.2, 0.1]).tolist()
    for wrong in (logits, log_probabilities, [1.5, -0.5, 0.0], [0.5, 0.25, 0.0], [0.0, -np.inf, -np.inf]):
        soft = np.array([*fitting[:2], wrong], dtype=np.float32)
        with pytest.raises(ConfigError, match="labels of judge: row 2 is"):
            pairs.write_preferences("judge", labels, soft)
        np.save(pairs.folder / "soft_preference" / "judge.npy", soft)
        with pytest.raises(ConfigError, match=r"row 2 is .* which sum to 1"):
            pairs.soft_preferences("judge")


def test_hugging_face_opens_it(tmp_path: Path) -> None:
    import datasets

    data = {"message": encode("You die...", "ol\xe9", "", "You win!").reshape(1, 2, 2, 256)}
    pairs = MessagePairs.create(tmp_path / "pairs", data, {"score": np.array([[1, 2]])}, "parquet")
    pairs.write_preferences("rules", np.array([1]), np.array([[0.25, 0.75, 0.0]]))
    cache = str(tmp_path / "cache")
    rows = datasets.load_dataset(str(tmp_path / "pairs"), split="train", cache_dir=cache)
    assert rows[0] == {
        "first_messages": ["You die...", "ol\xe9"],
        "second_messages": ["", "You win!"],
        "first_info_score": 1,
        "second_info_score": 2,
    }
    preference_rows = datasets.load_dataset(
        str(tmp_path / "pairs"), "preference-rules", split="train", cache_dir=cache
    )
    assert preference_rows[0] == {"preference": 1, "first": 0.25, "second": 0.75, "tie": 0.0}


def test_captions_collapse_repetitions_and_drop_empty_messages() -> None:
    messages = encode("It's a wall.", "It's a wall.", "", "You kill the newt!", "", "", "You kill the newt!")
    assert caption(messages) == "It's a wall. (x2)\nYou kill the newt!\nYou kill the newt!"
    assert caption(encode("", "")) == ""
    blstats = np.zeros((7, 27), np.int64)
    blstats[-1, [10, 11, 12, 13, 18, 21]] = 11, 16, 2, 30, 3, 2
    text = caption(messages[:1], blstats)
    assert text == "It's a wall.\nStatus: depth 2, gold 30, HP 11 of 16, experience level 3, hungry"


def test_captions_of_a_dataset_are_those_of_its_segments(tmp_path: Path) -> None:
    data, _ = make(6, 3)
    pairs = MessagePairs.create(tmp_path / "pairs", data)
    for blstats in (False, True):
        expected = [
            Comparison(*(caption(data["message"][n, i], data["blstats"][n, i] if blstats else None) for i in (0, 1)))
            for n in range(6)
        ]
        assert pairs.comparisons(blstats) == expected
    del data["blstats"]
    with pytest.raises(ConfigError, match="no blstats"):
        MessagePairs.create(tmp_path / "bare", data).comparisons(blstats=True)


def _wrong(key: str, array: np.ndarray | None) -> dict[str, np.ndarray]:
    data, _ = make(2, 1)
    return {k: v for k, v in {**data, key: array}.items() if v is not None}


def test_unused_arrays_may_be_of_any_kind(tmp_path: Path) -> None:
    """Use a folder in the published layout whose info/character.npy contains names, and unrelated files."""
    data, info = make(3, 1)
    pairs = MessagePairs.create(tmp_path / "pairs", data, info)
    names = np.array([["mon-hum", "val-dwa"]] * 3)
    np.save(pairs.folder / "info" / "character.npy", names)
    np.save(pairs.folder / "info" / "notes.npy", np.array([{"a": 1}], object), allow_pickle=True)
    np.save(pairs.folder / "data" / "tty_cursor.npy", np.zeros(7))
    again = open_pairs(pairs.folder)
    assert again.info["character"].tolist() == names.tolist()
    assert "notes" not in again.info and "tty_cursor" not in again.data  # type: ignore[attr-defined]
    again.write_preferences("rules", np.array([0, 1, 2]))
    args = ["distill", str(pairs.folder), "--preferences", "rules", "--output", str(tmp_path / "reward")]
    args.insert(2, "validation_fraction=0")
    assert main([*args, "--model", "table"]) == 0
    assert main(["annotate", str(pairs.folder), "--judge", "score"]) == 0
    np.save(pairs.folder / "info" / "score.npy", np.full((3, 2), "high"))
    with pytest.raises(ConfigError, match="info score has dtype <U4, expected numbers"):
        open_pairs(pairs.folder)
    np.save(pairs.folder / "info" / "score.npy", np.array([{"a": 1}], object), allow_pickle=True)
    with pytest.raises(ConfigError, match=r"score\.npy is not a readable array"):
        open_pairs(pairs.folder)


def test_arrays_of_another_machine_are_read_as_numbers(tmp_path: Path) -> None:
    """Use big-endian and column-major arrays."""
    data, info = make(3, 1)
    foreign = {key: np.asfortranarray(array.astype(array.dtype.newbyteorder(">"))) for key, array in data.items()}
    again = MessagePairs.create(tmp_path / "pairs", foreign, info, "parquet")
    for key, array in data.items():
        np.testing.assert_array_equal(again.data[key], array)


@pytest.mark.parametrize(("judge", "part", "key"), [("return", "data", "rewards"), ("score", "info", "score")])
def test_nan_figures_are_refused(
    judge: str, part: str, key: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, info = make(3, 1)
    pairs = MessagePairs.create(tmp_path / "pairs", data, info)
    figures = np.load(pairs.folder / part / f"{key}.npy").astype(float)
    figures[1, 0] = np.nan
    np.save(pairs.folder / part / f"{key}.npy", figures)
    assert main(["annotate", str(pairs.folder), "--judge", judge]) == 1
    assert f"{judge} is NaN in 1 of 3 pairs, first in pair 1" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (_wrong("message", None), "no message array in the data"),
        (_wrong("message", np.zeros((2, 2, 256), np.uint8)), "expected uint8"),
        (_wrong("message", np.zeros((2, 2, 1, 256), np.int64)), "message is int64"),
        (_wrong("message", np.zeros((2, 2, 0, 256), np.uint8)), "L > 0"),
        (_wrong("blstats", np.zeros((2, 2, 1, 25))), "blstats has shape"),
        (_wrong("other", np.zeros((3, 2, 1))), "other has shape"),
        (_wrong("other", np.full((2, 2, 1), "text")), "expected numbers"),
    ],
)
def test_misfitting_arrays_get_a_message(tmp_path: Path, data: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        MessagePairs.create(tmp_path / "pairs", data)
    assert not any(tmp_path.iterdir())


def test_missing_or_broken_parts_get_a_message(tmp_path: Path) -> None:
    data, info = make(2, 1)
    with pytest.raises(ConfigError, match=r"info score has shape \(2,\)"):
        MessagePairs.create(tmp_path / "pairs", data, {"score": np.zeros(2)})
    with pytest.raises(ConfigError, match="did you mean 'parquet'"):
        MessagePairs.create(tmp_path / "pairs", data, info, "parqet")  # type: ignore[arg-type]
    pairs = MessagePairs.create(tmp_path / "pairs", data, info)
    with pytest.raises(ConfigError, match="is not empty"):
        MessagePairs.create(tmp_path / "pairs", data, info)
    with pytest.raises(ConfigError, match="is not a folder"):
        open_pairs(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match="no preference pairs"):
        open_pairs(tmp_path / "empty")
    pairs.write_preferences("rules", np.array([0, 1]))
    with pytest.raises(ConfigError, match="did you mean 'rules'"):
        pairs.preferences("rule")
    for labels, message in ((np.zeros(3, int), "expected int8"), (np.array([0, 4]), r"\[0 4\], expected 0 to 3")):
        with pytest.raises(ConfigError, match=message):
            pairs.write_preferences("rules", labels)
    for name in ("a/b", "..", "a.b", ""):
        with pytest.raises(ConfigError, match="invalid annotator name"):
            pairs.write_preferences(name, np.zeros(2, int))
    np.save(tmp_path / "pairs/data/blstats.npy", np.array([{}]), allow_pickle=True)
    with pytest.raises(ConfigError, match="not a readable array"):
        open_pairs(tmp_path / "pairs")
    np.save(tmp_path / "pairs/data/blstats.npy", np.zeros((10**12, 2, 0, 256), np.uint8))  # only a header
    with pytest.raises(ConfigError, match=r"blstats\.npy has 1,000,000,000,000 rows without values"):
        open_pairs(tmp_path / "pairs")
