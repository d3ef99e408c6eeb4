"""Pools of the user's own files and datasets."""

import csv
import itertools
import json
import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from groundling.envs.text_generation import Sample, pools
from groundling.errors import ConfigError, GroundlingError
from groundling.worlds.writing.config import WritingConfig, check_prompts, samples_of

ROWS = [{"question": f"q{n}", "answer": f"a{n}", "key": f"k{n}", "topic": "x"} for n in range(10)]


def _write(folder: Path, id: str, rows: list[dict[str, Any]], name: str = "rows") -> Path:
    path = folder / f"{name}.{id}"
    if id == "jsonl":
        path.write_text("\n".join(map(json.dumps, rows)) + "\n\n")
    elif id == "csv":
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, rows[0])
            writer.writeheader()
            writer.writerows(rows)
    else:
        pq.write_table(pa.Table.from_pylist(rows), path)
    return path


@pytest.mark.parametrize("id", ["jsonl", "csv", "parquet"])
def test_columns_of_a_file_become_samples(id: str, tmp_path: Path) -> None:
    pool = pools.create(
        id,
        path={"train": str(_write(tmp_path, id, ROWS))},
        prompt_column="question",
        reference_column="answer",
        id_column="key",
        meta_columns=["topic"],
        prompt_prefix="> ",
        prompt_suffix="?",
    )
    samples = pool.prepare("train")
    assert samples == [Sample(f"k{n}", f"> q{n}?", (f"a{n}",), {"topic": "x"}, data=(f"q{n}",)) for n in range(10)]
    with pytest.raises(ConfigError, match="no file for split val, only for train"):
        pool.prepare("val")


def test_references_may_be_lists_or_missing(tmp_path: Path) -> None:
    rows = [{"prompt": "a", "answers": ["x", "y"]}, {"prompt": "b", "answers": None}]
    path = {"test": str(_write(tmp_path, "jsonl", rows))}
    samples = pools.create("jsonl", path=path, reference_column="answers").prepare("test")
    assert [s.references for s in samples] == [("x", "y"), ()]
    assert [s.references for s in pools.create("jsonl", path=path).prepare("test")] == [(), ()]
    assert [s.id for s in samples] == ["test_0", "test_1"]


@settings(deadline=None)
@given(
    count=st.integers(1, 40),
    shares=st.tuples(st.integers(0, 5), st.integers(0, 5), st.integers(0, 5)).filter(any),
    seed=st.integers(0, 9),
)
def test_fractions_split_a_file(
    count: int, shares: tuple[int, ...], seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("cut") / "rows.jsonl"
    path.write_text("".join(json.dumps({"prompt": str(n)}) + "\n" for n in range(count)))
    fractions = [share / sum(shares) for share in shares]
    pool: Any = pools.create("jsonl", path=str(path), fractions=fractions, seed=seed)
    parts = [[row["prompt"] for row in pool.rows(split)] for split in ("train", "val", "test")]
    sizes = np.diff([0, *(np.cumsum(fractions) * count).round()])
    if any(f > 0 and size == 0 for f, size in zip(fractions, sizes, strict=True)):  # it shares another split's prompts
        assert {*itertools.chain(*parts)} == {str(n) for n in range(count)}
    else:
        assert sorted(itertools.chain(*parts), key=int) == [str(n) for n in range(count)]
        assert all(abs(len(part) - f * count) <= 1 for part, f in zip(parts, fractions, strict=True))
    assert parts == [[row["prompt"] for row in pool.rows(split)] for split in ("train", "val", "test")]


@pytest.mark.parametrize("id", ["jsonl", "csv", "parquet"])
def test_rows_of_one_prompt_go_to_one_split(id: str, tmp_path: Path) -> None:
    rows = [{"prompt": f"q{n % 10}", "answer": f"a{n}"} for n in range(40)]
    pool = pools.create(id, path=str(_write(tmp_path, id, rows)), reference_column="answer")
    splits = [pool.prepare(split) for split in ("train", "val", "test")]
    prompts = [{sample.prompt for sample in split} for split in splits]
    assert list(map(len, splits)) == [32, 4, 4] and list(map(len, prompts)) == [8, 1, 1]
    assert len(set.union(*prompts)) == 10
    assert sorted(r for split in splits for s in split for r in s.references) == sorted(r["answer"] for r in rows)


def refuse(blank: Sequence[Sample]) -> None:
    raise GroundlingError(f"{blank[0].id} is blank")


def test_shared_and_blank_prompts_of_given_splits_are_found(tmp_path: Path) -> None:
    path = {
        split: str(_write(tmp_path, "jsonl", [{"prompt": prompt} for prompt in prompts], split))
        for split, prompts in (("train", "abca"), ("val", "ad"), ("test", "de"))
    }
    config = WritingConfig(pool="jsonl", args={"path": path})
    with pytest.warns(UserWarning) as told:
        check_prompts(config, refuse, samples_of(config, "train"), validated=False)
    assert [str(one.message).partition(",")[0] for one in told] == [
        "pool 'jsonl': 1 of 2 val prompts are also training prompts"
    ]
    one = WritingConfig(pool="jsonl", args={"path": path | {"test": path["val"]}})
    with pytest.warns(UserWarning, match="1 of 2 val and test prompts") as told:
        check_prompts(one, refuse, samples_of(one, "train"), validated=False)
    assert len(told) == 1
    path["test"] = str(_write(tmp_path, "jsonl", [{"prompt": "e"}, {"prompt": " "}], "blank"))
    with pytest.raises(GroundlingError, match="test_1 is blank"):
        check_prompts(config, refuse, samples_of(config, "train"), validated=False)
    same = WritingConfig(pool="listed", args={"samples": [{"prompt": "a"}]})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_prompts(same, refuse, samples_of(same, "train"), validated=True)


def test_conversations_that_differ_before_the_last_message_are_held_out(tmp_path: Path) -> None:
    path = {}
    for split, first in (("train", "a"), ("val", "b"), ("test", "c")):
        turns = [("user", first), ("assistant", "Sure?"), ("user", "yes")]
        row = {"prompt": [{"role": role, "content": content} for role, content in turns]}
        path[split] = str(_write(tmp_path, "jsonl", [row], split))
    given = WritingConfig(pool="jsonl", args={"path": path})
    assert given.read_prompts().endswith("1 held out for validation and 1 for evaluation") and given.chat
    same = WritingConfig(pool="jsonl", args={"path": dict.fromkeys(path, path["train"])})
    assert "too few prompts" in same.read_prompts()


def test_pools_without_files_read_only_measured_splits() -> None:
    """Such a pool may download each split; it may be created by a function and need not be a `Pool`."""
    asked = []

    class OfTheHub:
        def prepare(self, split: str) -> list[Sample]:
            asked.append(split)
            return [Sample("0", "a", ())]

    pools.register("test/of_the_hub")(lambda: OfTheHub())  # type: ignore[arg-type,return-value]
    config = WritingConfig(pool="test/of_the_hub")
    check_prompts(config, refuse, samples_of(config, "train"), validated=False)
    assert asked == ["train"]
    with pytest.warns(UserWarning, match="1 of 1 val prompts are also training prompts"):
        check_prompts(config, refuse, samples_of(config, "train"), validated=True)
    assert asked == ["train", "train", "val"]


def test_broken_files_are_errors(tmp_path: Path) -> None:
    good = str(_write(tmp_path, "jsonl", ROWS))
    with pytest.raises(GroundlingError, match=r"\.jsonl:\d+: unknown column 'prompt'.*answer, key, question"):
        pools.create("jsonl", path=good).prepare("train")
    with pytest.raises(ConfigError, match="there is no file nowhere"):
        pools.create("jsonl", path="nowhere.jsonl").prepare("train")
    with pytest.raises(ConfigError, match="fractions="):
        pools.create("jsonl", path=good, fractions=[0.5, 0.1, 0.1])
    with pytest.raises(GroundlingError, match="no samples for split val"):
        pools.create("jsonl", path=good, prompt_column="key", fractions=[1, 0, 0]).prepare("val")
    broken = tmp_path / "broken.jsonl"
    broken.write_text('{"prompt": "a"}\n{"prompt"\n')
    with pytest.raises(GroundlingError, match=r"broken\.jsonl:2 is not JSON"):
        pools.create("jsonl", path={"train": str(broken)}).prepare("train")
    broken.write_text("[1]\n")
    with pytest.raises(GroundlingError, match=r"broken\.jsonl:1 is not a JSON object"):
        pools.create("jsonl", path={"train": str(broken)}).prepare("train")
    broken.write_text('{"prompt": 7}\n')
    with pytest.raises(GroundlingError, match=r"broken\.jsonl:1: .* strings, got 7"):
        pools.create("jsonl", path={"train": str(broken)}).prepare("train")
    broken.write_text('{"prompt": [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]}\n')
    with pytest.raises(GroundlingError, match=r"broken\.jsonl:1: .*alternating"):
        pools.create("jsonl", path={"train": str(broken)}).prepare("train")
    broken.write_text("")
    with pytest.raises(ConfigError, match=f"^{broken} is empty: add rows$"):
        pools.create("jsonl", path={"train": str(broken)}).prepare("train")
    ragged = tmp_path / "ragged.csv"
    ragged.write_text("prompt,answer\na,b\nc\n")
    with pytest.raises(GroundlingError, match="row 2 has a different number of values"):
        pools.create("csv", path={"train": str(ragged)}).prepare("train")
    with pytest.raises(GroundlingError, match=r"ragged\.csv cannot be read as Parquet"):
        pools.create("parquet", path={"train": str(ragged)}).prepare("train")


@pytest.mark.parametrize("id", ["jsonl", "csv"])
def test_other_encodings_are_errors(id: str, tmp_path: Path) -> None:
    path = tmp_path / f"rows.{id}"
    path.write_bytes(({"jsonl": '{"prompt": "für"}', "csv": "prompt\nfür"}[id] + "\n").encode("latin-1"))
    with pytest.raises(
        GroundlingError, match=rf"rows\.{id}(:1)? is not UTF-8 \(it has the byte 0xfc\): save it as UTF-8"
    ):
        pools.create(id, path={"train": str(path)}).prepare("train")


def test_long_documents_are_read(tmp_path: Path) -> None:
    path, document = tmp_path / "rows.csv", "word " * 30_000
    path.write_text(f"prompt\n{document}\n")
    csv.field_size_limit(131_072)  # as in a new process
    assert pools.create("csv", path={"train": str(path)}).prepare("train")[0].prompt == document


def test_a_tab_separated_file(tmp_path: Path) -> None:
    path = tmp_path / "rows.tsv"
    path.write_text("\ufeffprompt\tanswer\na, b\tc\n")
    pool = pools.create("csv", path={"train": str(path)}, delimiter="\t", reference_column="answer")
    assert [(s.prompt, s.references) for s in pool.prepare("train")] == [("a, b", ("c",))]


def test_datasets_of_hugging_face(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "data"
    folder.mkdir()
    _write(folder, "jsonl", ROWS, "train")
    pool = pools.create(
        "huggingface",
        dataset=str(folder),
        prompt_column="question",
        reference_column="answer",
        splits={"train": "train[:70%]", "val": "train[70%:]"},
    )
    assert [s.prompt for s in pool.prepare("train")] == [f"q{n}" for n in range(7)]
    assert [s.references for s in pool.prepare("val")] == [(f"a{n}",) for n in (7, 8, 9)]
    with pytest.raises(ConfigError, match="splits has no test"):
        pool.prepare("test")


@pytest.mark.parametrize("name", ["README.md", ".huggingface.yaml"])
def test_cards_are_read_within_limits(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "data"
    folder.mkdir()
    _write(folder, "jsonl", ROWS, "train")
    card = "configs: [{config_name: a, data_files: train.jsonl, date: 2020-02-02}]\nprompt: ${prompt\n"
    (folder / name).write_text(f"---\n{card}---\nwords" if name == "README.md" else card)
    pool = pools.create("huggingface", dataset=str(folder), prompt_column="question")
    assert len(pool.prepare("train")) == len(ROWS)
    lines = ["a0: &a0 [x,x,x,x,x,x,x,x,x,x]"]
    lines += [f"a{i}: &a{i} [{','.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 6)]
    card = "\n".join([*lines, "configs: *a5", ""])
    (folder / name).write_text(f"---\n{card}---\nwords" if name == "README.md" else card)
    with pytest.raises(GroundlingError, match="has more than 100,000 values after expanding aliases"):
        pool.prepare("train")


@pytest.mark.parametrize("name", ["README.md", ".huggingface.yaml"])
def test_a_card_that_is_a_pipe_is_an_error(name: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / name)
    with pytest.raises(GroundlingError, match=f"{name} is not a regular file"):
        pools.create("huggingface", dataset=str(tmp_path)).prepare("train")


@pytest.mark.parametrize("key", ["2020-01-01", "!!binary YQ=="])
def test_cards_may_not_name_servers(key: str, tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text(f"---\nconfigs: [{{{key}: 'http://host/x'}}]\n---\n")
    with pytest.raises(GroundlingError, match="refers to files on a server"):
        pools.create("huggingface", dataset=str(tmp_path)).prepare("train")


def test_an_unloadable_dataset_gives_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(*_: object, **__: object) -> None:
        raise ConnectionError("no route to host\nsecond line")

    monkeypatch.setattr(datasets, "load_dataset", load)
    with pytest.raises(GroundlingError, match=r"some/thing cannot be loaded \(no route") as error:
        pools.create("huggingface", dataset="some/thing").prepare("train")
    assert "\n" not in str(error.value)


ASKED = [{"role": "system", "content": "Count."}, {"role": "user", "content": "1 2"}]
ANSWER = [{"role": "assistant", "content": "3"}]


@pytest.mark.parametrize(
    ("row", "references", "meta"),
    [
        ({"prompt": "1 2", "level": 1}, (), {"level": 1}),
        ({"prompt": "1 2", "completion": "3"}, ("3",), {}),
        ({"prompt": ASKED}, (), {"prompt": ASKED}),
        ({"prompt": ASKED, "completion": ANSWER, "level": 1}, ("3",), {"prompt": ASKED, "level": 1}),
        ({"messages": [*ASKED, *ANSWER]}, ("3",), {"prompt": ASKED}),
    ],
)
@pytest.mark.parametrize("id", ["jsonl", "parquet"])
def test_the_formats_of_trl_are_read(id: str, row: Any, references: Any, meta: Any, tmp_path: Path) -> None:
    (sample,) = pools.create(id, path={"train": str(_write(tmp_path, id, [row]))}).prepare("train")
    assert (sample.prompt, sample.references, sample.meta) == ("1 2", references, meta)
    assert sample.system == ("Count." if "prompt" in meta else None)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            {"question": "q", "answer": "a"},
            "unknown column 'prompt': .*prompt_column=question.*available: answer, quest",
        ),
        ({"a": "q"}, "set world.args.prompt_column=COLUMN, or rename that column to prompt; available: a"),
        ({"prompt": "q", "chosen": "a", "rejected": "b"}, ""),
        ({"chosen": "a", "rejected": "b"}, "preferences, not prompts: use `groundling train dpo"),
        ({"prompt": [*ASKED, *ANSWER]}, "the prompt ends with an answer: move it to a column named completion"),
        ({"prompt": ["1 2"]}, "expected messages"),
        ({"prompt": None}, "prompt and references must be strings, got None"),
    ],
)
def test_rows_in_other_formats_are_explained(row: Any, message: str, tmp_path: Path) -> None:
    pool = pools.create("jsonl", path={"train": str(_write(tmp_path, "jsonl", [row]))})
    if message:
        with pytest.raises(GroundlingError, match=f"(jsonl:1|train_0): .*{message}"):
            pool.prepare("train")
    else:
        assert pool.prepare("train")[0].meta == {"chosen": "a", "rejected": "b"}


def test_a_text_file_has_a_prompt_in_each_line(tmp_path: Path) -> None:
    path = tmp_path / "prompts.txt"
    path.write_bytes("\ufeffένα\r\n\n  δύο\u2028τρία\n".encode())
    samples = pools.create("lines", path={"train": str(path)}).prepare("train")
    assert [sample.prompt for sample in samples] == ["ένα", "  δύο\u2028τρία"]


@pytest.mark.parametrize(("count", "held_out"), [(1, ["0"]), (2, ["0", "1"]), (3, None), (4, None), (20, None)])
def test_every_split_of_few_prompts_has_one(count: int, held_out: list[str] | None, tmp_path: Path) -> None:
    path = tmp_path / "rows.txt"
    path.write_text("".join(f"{n}\n" for n in range(count)))
    pool = pools.create("lines", path=str(path))
    prompts = {split: [sample.prompt for sample in pool.prepare(split)] for split in ("train", "val", "test")}
    if held_out is None:
        assert prompts["test"] and not {*prompts["test"], *prompts["val"]} & {*prompts["train"]}
    else:
        assert sorted(prompts["test"]) == sorted(prompts["val"]) == held_out
