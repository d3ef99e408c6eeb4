"""Preferences in TRL's formats."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from groundling.envs.text_generation import pools
from groundling.envs.text_generation.preferences import preference
from groundling.errors import ConfigError, GroundlingError

_ASKED = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is the sky?"}]


def _said(text: str) -> list[dict[str, str]]:
    return [{"role": "assistant", "content": text}]


@pytest.mark.parametrize(
    ("row", "prompt", "good", "bad"),
    [
        ({"prompt": "The sky is", "chosen": " blue", "rejected": " green"}, "The sky is", (" blue",), (" green",)),
        ({"chosen": "The sky is blue", "rejected": "The sky is green"}, "The sky is", (" blue",), (" green",)),
        ({"prompt": _ASKED, "chosen": _said("b"), "rejected": _said("g")}, "What is the sky?", ("b",), ("g",)),
        ({"chosen": _ASKED + _said("b"), "rejected": _ASKED + _said("g")}, "What is the sky?", ("b",), ("g",)),
        (
            {"prompt": "What is the sky?", "chosen": _ASKED + _said("b"), "rejected": _ASKED + _said("g")},
            *("What is the sky?", ("b",), ("g",)),
        ),
        (
            {"prompt": _ASKED, "chosen": "It is b", "rejected": "It is g"},
            "What is the sky?",
            ("It is b",),
            ("It is g",),
        ),
        ({"prompt": "The sky is", "completion": " blue", "label": True}, "The sky is", (" blue",), ()),
        ({"prompt": _ASKED, "completion": _said("g"), "label": False}, "What is the sky?", (), ("g",)),
    ],
)
def test_trls_formats(row: dict[str, Any], prompt: str, good: tuple[str, ...], bad: tuple[str, ...]) -> None:
    sample = preference({**row, "score": 3, "unused": None}, "row 1")
    assert (sample.prompt, sample.references, sample.rejected) == (prompt, good, bad)
    is_plain = isinstance(row.get("prompt"), str) and isinstance(row.get("chosen", ""), str)
    is_plain |= "prompt" not in row and isinstance(row["chosen"], str)
    assert sample.system == (None if is_plain else "Be brief.") and sample.earlier == ()


def test_earlier_turns_are_kept() -> None:
    asked = [*_ASKED, *_said("Blue."), {"role": "user", "content": "Why?"}]
    sample = preference({"prompt": asked, "chosen": _said("b"), "rejected": _said("g")}, "row 1")
    assert sample.prompt == "Why?" and sample.earlier == (("What is the sky?", "Blue."),)


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ({"question": "a", "answer": "b"}, "has the columns question, answer: expected chosen and rejected"),
        ({"prompt": "a", "chosen": "b", "rejected": None}, "expected chosen and rejected"),
        ({"prompt": "a", "chosen": "b", "rejected": "b"}, "chosen and rejected are equal, 'b': remove the row"),
        ({"prompt": "a", "chosen": "b", "rejected": _said("g")}, "must both be strings, or both lists"),
        ({"prompt": "a", "chosen": 1, "rejected": 2}, "must both be strings, or both lists"),
        ({"chosen": "b", "rejected": "g"}, "the prompt is empty: add one, or start both texts with it"),
        ({"prompt": "a", "completion": "b", "label": "good"}, "label must be true or false, got 'good'"),
        ({"prompt": _said("b"), "completion": _said("b"), "label": True}, "messages that end with a user message"),
        ({"prompt": _ASKED, "completion": _ASKED, "label": True}, "a list with one assistant message"),
        ({"prompt": 3, "completion": "b", "label": True}, "the prompt must be a string, or messages"),
        ({"prompt": 3, "chosen": "It is b", "rejected": "It is g"}, "the prompt must be a string, or messages"),
        ({"prompt": "a", "completion": 3, "label": True}, "expected a string, or a list with one assistant"),
        ({}, r"has the columns \(none\)"),
    ],
)
def test_other_rows_are_named(row: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=rf"(?s)^row 7.*{problem}") as error:
        preference(row, "row 7")
    assert "\n" not in str(error.value)


def _write(path: Path, rows: list[dict[str, Any]]) -> Path:
    if path.suffix == ".parquet":
        pa = pytest.importorskip("pyarrow")
        pytest.importorskip("pyarrow.parquet").write_table(pa.Table.from_pylist(rows), path)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_no_prompt_is_in_two_splits(tmp_path: Path, suffix: str) -> None:
    rows = [{"prompt": f"p{i % 20}", "chosen": f"c{i}", "rejected": f"r{i}"} for i in range(60)]
    pool = pools.create("preferences", path=str(_write(tmp_path / f"rows.{suffix}", rows)), fractions=[0.6, 0.2, 0.2])
    splits = [pool.prepare(split) for split in ("train", "val", "test")]
    assert [len(samples) for samples in splits] == [36, 12, 12]
    prompts = [{sample.prompt for sample in samples} for samples in splits]
    assert not (prompts[0] & prompts[1] or prompts[0] & prompts[2] or prompts[1] & prompts[2])
    assert {sample.references[0] for samples in splits for sample in samples} == {f"c{i}" for i in range(60)}
    assert len({sample.id for samples in splits for sample in samples}) == 60


def test_implicit_prompts_are_split_like_explicit_ones(tmp_path: Path) -> None:
    rows = [{"chosen": f"p{i} a", "rejected": f"p{i} b"} for i in range(10)]
    pool = pools.create("preferences", path=str(_write(tmp_path / "rows.jsonl", rows)))
    assert [len(pool.prepare(split)) for split in ("train", "val", "test")] == [8, 1, 1]


def test_wrong_files(tmp_path: Path) -> None:
    rows = [{"prompt": "a", "chosen": "b", "rejected": "c"}]
    pool = pools.create("preferences", path=str(_write(tmp_path / "rows.jsonl", rows)), fractions=[1, 0, 0])
    with pytest.raises(GroundlingError, match="no preferences for split val"):
        pool.prepare("val")
    with pytest.raises(ConfigError, match=r"rows\.csv must be a JSON Lines or Parquet file, named \*\.jsonl or"):
        pools.create("preferences", path=str(_write(tmp_path / "rows.csv", rows))).prepare("train")
    rows.append({"prompt": "a", "completion": "b"})
    path = _write(tmp_path / "mixed.jsonl", rows)
    with pytest.raises(ConfigError, match=re.escape(f"{path}:2 has the columns prompt, completion")):
        pools.create("preferences", path=str(path)).prepare("train")
    path.write_text('\n{"prompt": "x", "chosen": "a", "rejected": null}\n')  # after an empty line
    with pytest.raises(
        ConfigError, match=re.escape(f"{path}:2 has the columns prompt, chosen, rejected (null): expec")
    ):
        pools.create("preferences", path=str(path)).prepare("train")
    path.write_text("")
    with pytest.raises(ConfigError, match=f"^{path} is empty: add rows$"):
        pools.create("preferences", path=str(path)).prepare("train")
