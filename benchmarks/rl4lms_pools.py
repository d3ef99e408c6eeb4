"""Compare our pools with RL4LMs' own code, and RL4LMs' files with those that tests/convert rebuilds.

    git clone https://github.com/allenai/RL4LMs
    python -m benchmarks.rl4lms_pools --original RL4LMs [--write]

The script runs the original's pools from a checkout on all bundled rows and on the tests' edge cases, converted to the
columns that the original reads, and compares the id, prompt, references and metadata of every sample. It prints a table
for docs/pools.md. `--write` updates `original.json`, which contains counts and SHA-256 sums of the original's output, and
with which `tests/envs/text_generation/test_original.py` compares our pools and the rebuilt files.

Nothing is downloaded. The module `datasets` is replaced by one that returns the rows, and whose shuffling is NumPy's
permutation (`test_pools.py` compares it with the library). An untrained sentence splitter replaces NLTK's data on both
sides. The original shuffles imdb_seq2seq differently each time, so it is given the order of our seed. It pins NLTK 3.7,
which splits words differently from later releases; PYTHONPATH must contain it (`pip install --target … nltk==3.7`).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import types
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import Any
from unittest import mock

import nltk
import numpy as np
from omegaconf import OmegaConf
from tests.convert.originals import RL4LMS, rl4lms
from tests.envs.text_generation.oracle import (
    AWKWARD,
    CASES,
    EPISODES,
    SPLITS,
    TABLE,
    Told,
    awkward_rows,
    fingerprint,
    flat,
    ours,
    words_of_nltk,
)

from groundling.envs.text_generation import pools
from groundling.envs.text_generation.columns import HUB_NAMES, DatasetPool, Row
from groundling.envs.text_generation.pools import Split

PINNED_NLTK = "3.7"
_SEED = 42  # that of imdb_seq2seq
_CLASSES = {
    "imdb": "IMDB",
    "imdb_seq2seq": "IMDBForSeq2Seq",
    "commongen": "CommonGen",
    "totto": "ToTTo",
    "cnn_daily_mail": "CNNDailyMail",
    "xsum": "Xsum",
    "narrative_qa": "NarrativeQA",
    "wmt16": "WMT",
    "wmt14_processed_en_de": "WMT14PreprocessedEnDe",
    "wmt16newsonly": "WMT16NewsOnlyDatasetEnDe",
    "iwslt2017en_de": "IWSLT2017EnDe",
    "crd3": "CRD3DialogueGeneration",
    "daily_dialog": "DailyDialog",
}


def bundled_rows(id: str, split: Split) -> list[Row]:
    """Return the rows of a pool's bundled sample."""
    pool = pools.create(id, offline=True)
    assert isinstance(pool, DatasetPool)
    return list(pool.source(split).bundled())


class _Dataset:
    """The parts of `datasets` that the original uses: a split's rows, in order or shuffled, whole or by column."""

    def __init__(self, rows: list[Row]) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Row]:
        return iter(json.loads(json.dumps(self.rows)))  # the original modifies the rows that it reads

    def __getitem__(self, part: slice) -> dict[str, list[Any]]:
        return {column: [row[column] for row in self.rows[part]] for column in self.rows[0]}

    def shuffle(self, seed: int = _SEED) -> _Dataset:
        return _Dataset([self.rows[i] for i in np.random.default_rng(seed).permutation(len(self.rows))])


def _loaded(id: str) -> dict[str, _Dataset]:
    """Return the splits that a pool of the original reads, from our bundled rows."""
    splits = {HUB_NAMES[split]: bundled_rows(id, split) for split in SPLITS}
    if id == "commongen":
        splits["validation"] = [
            next(group) for _, group in groupby(splits["validation"], key=lambda row: row["concept_set_idx"])
        ]
    if id == "xsum":  # the original reads the split val, which GEM does not have
        splits = {name: [row | {"target": row["summary"]} for row in rows] for name, rows in splits.items()}
        splits["val"] = splits["validation"]
    if id == "totto":
        splits = {name: [_totto(row, name == "test") for row in rows] for name, rows in splits.items()}
    return {name: _Dataset(rows) for name, rows in splits.items()}


def _totto(row: Row, withheld: bool) -> Row:
    """Convert a row from GEM's format to that of ``totto``, whose loading script was part of `datasets`."""
    names = ("original_sentence", "sentence_after_deletion", "sentence_after_ambiguity", "final_sentence")
    annotations = [dict.fromkeys(names, "none")] if withheld else row["sentence_annotations"]
    kept = {
        key: row[key]
        for key in (
            "table_page_title", "table_webpage_url", "table_section_title", "table_section_text", "table",
            "highlighted_cells", "example_id", "overlap_subset",
        )
    }  # fmt: skip
    sentences = {name: [annotation[name] for annotation in annotations] for name in names}
    return {"id": row["totto_id"], **kept, "sentence_annotations": sentences}


def _write_files(home: Path) -> None:
    """Write the files that the original downloads to the home folder: UnifiedQA's TSV files and CRD3's episodes."""
    (home / "narrative_qa").mkdir()
    for split in SPLITS:
        lines = []
        for row in bundled_rows("narrative_qa", split):
            summary = row["document"]["summary"]["text"].replace("\n", "")
            question = f"{row['question']['text']} \\n {summary} "
            lines += [f"{question}\t {answer['text']} \n" for answer in row["answers"]]
        (home / "narrative_qa" / f"{split}.tsv").write_text("".join(lines), "utf-8")
    data = home / "crd3" / "CRD3-master" / "data"
    for folder in ("aligned data", "cleaned data"):
        (data / folder).mkdir(parents=True)
    for split in SPLITS:
        whole = [row["turns"] for row in bundled_rows("crd3", split)[: -len(AWKWARD["crd3"])]] + EPISODES
        names = [f"{split}{number}" for number in range(len(whole))]
        (data / "aligned data" / f"{split}_files").write_text("\n".join(names), "utf-8")
        for name, episode in zip(names, whole, strict=True):
            turns = [{"RL4LMS": turn["names"], "UTTERANCES": turn["utterances"]} for turn in episode]
            (data / "cleaned data" / f"{name}.json").write_text(json.dumps({"TURNS": turns}), "utf-8")


@contextmanager
def original_pools(checkout: Path) -> Iterator[Any]:
    """Yield a function `f(id, args, split)` that returns the samples of the original's code."""
    current = [""]
    served = types.ModuleType("datasets")

    def load_dataset(*_: object, split: str | None = None, **__: object) -> Any:
        loaded = _loaded(current[0])
        return loaded if split is None else loaded[split]

    served.load_dataset = load_dataset  # type: ignore[attr-defined]
    with (
        tempfile.TemporaryDirectory() as home,
        mock.patch.dict(os.environ, {"HOME": home}),
        mock.patch.dict(sys.modules, {"datasets": served}),
        mock.patch.object(sys, "path", [str(checkout), *sys.path]),
    ):
        _write_files(Path(home))
        from rl4lms.data_pools import custom_text_generation_pools as theirs
        from rl4lms.envs.text_generation.test_datapool import TestTextGenPool

        theirs.tqdm = lambda items, **_: items

        def samples(id: str, args: dict[str, Any], split: Split) -> list[Told]:
            current[0] = id
            pool = TestTextGenPool if id == "dummy_pool" else getattr(theirs, _CLASSES[id])
            made = (sample for sample, _ in pool.prepare(split=split, **args))
            return [(str(s.id), s.prompt_or_input_text, list(s.references), s.meta_data or {}) for s in made]

        yield samples


def compare(checkout: Path) -> tuple[dict[str, Any], list[str]]:
    """Return fingerprints of the original's samples by pool, arguments and split, and the rows of a table."""
    made: dict[str, Any] = {}
    lines = []
    with awkward_rows(), words_of_nltk(), original_pools(checkout) as theirs:
        for id, cases in CASES.items():
            count, differing = 0, [0, 0, 0, 0]
            made[id] = {}
            for args in cases:
                for split in SPLITS:
                    expected, samples = theirs(id, args, split), ours(id, args, split)
                    made[id][f"{split} {json.dumps(args, sort_keys=True)}"] = fingerprint(expected)
                    count += len(expected)
                    missing = abs(len(expected) - len(samples))
                    for part in range(4):
                        pairs = zip(expected, samples, strict=False)
                        differing[part] += missing + sum(a[part] != b[part] for a, b in pairs)
            lines.append(f"| `{id}` | {len(cases)} | {count} | {' | '.join(map(str, differing))} |")
    return made, lines


def files(checkout: Path) -> dict[str, dict[str, Any]]:
    """Return the non-empty entries of the original's files by their dotted keys."""
    root = checkout / "scripts" / "training" / "task_configs"
    return {
        path.relative_to(root).with_suffix("").as_posix(): flat(OmegaConf.to_container(OmegaConf.load(path)))
        for path in sorted(root.rglob("*.yml"))
    }


def compare_files(checkout: Path) -> tuple[dict[str, str], list[str]]:
    """Return fingerprints of the original's files, and the entries that differ from the rebuilt ones."""
    real = files(checkout)
    rebuilt = {name: flat(rl4lms(name)) for name in RL4LMS}
    differing = [
        f"{name} {key}: {real.get(name, {}).get(key, '(none)')!r}, rebuilt {rebuilt.get(name, {}).get(key, '(none)')!r}"
        for name in sorted({*real, *rebuilt})
        for key in sorted({*real.get(name, {}), *rebuilt.get(name, {})})
        if repr(real.get(name, {}).get(key, ...)) != repr(rebuilt.get(name, {}).get(key, ...))
    ]
    return {name: fingerprint([entries])["sha256"] for name, entries in real.items()}, differing


def main() -> int:
    """Parse the command line and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--original", type=Path, required=True, help="a checkout of allenai/RL4LMs")
    parser.add_argument("--write", action="store_true", help=f"renew {TABLE.name}")
    given = parser.parse_args()
    if nltk.__version__ != PINNED_NLTK:
        parser.error(f"the original pins NLTK {PINNED_NLTK}, here is {nltk.__version__}: see above")
    made, lines = compare(given.original)
    print(
        "| pool | sets of arguments | samples | ids differing | prompts differing | references differing | "
        "metadata differing |\n|---|---|---|---|---|---|---|\n" + "\n".join(lines)
    )
    sums, differing = compare_files(given.original)
    print("\n".join([f"\n{len(sums)} files, entries differing: {len(differing)}", *differing]))
    if given.write:
        TABLE.write_text(json.dumps({"pools": made, "files": sums}, indent=1, sort_keys=True) + "\n", "utf-8")
    return int(bool(differing) or any(not line.endswith("| 0 | 0 | 0 | 0 |") for line in lines))


if __name__ == "__main__":
    raise SystemExit(main())
