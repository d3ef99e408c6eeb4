"""Whether our pools give what RL4LMs' own code gives, and whether its files are what tests/convert rebuilds.

    git clone https://github.com/allenai/RL4LMs
    python -m tests.envs.text_generation.oracle --original RL4LMs [--write]

Runs the original's pools, from its checkout, on all bundled rows and the awkward ones below, put into the columns that
it reads, and compares id, prompt, references and meta data of every sample. Prints a table for docs/pools.md. `--write`
renews `original.json`, which `test_original.py` holds our pools and rebuilt files to: counts and SHA-256 sums of what
the original gave.

Nothing is downloaded. `datasets` is a module here that serves the rows; its shuffling is NumPy's permutation, as
`test_pools.py` compares with the library. An untrained sentence splitter takes the place of NLTK's data on both sides.
The original draws imdb_seq2seq's order anew each time: it is given our seed's. It pins NLTK 3.7, which cuts words
otherwise than later releases: PYTHONPATH names a folder with it (`pip install --no-deps --target FOLDER nltk==3.7`).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import tempfile
import types
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, groupby
from pathlib import Path
from typing import Any
from unittest import mock

import nltk
import numpy as np
from omegaconf import OmegaConf

from groundling.envs.text_generation import pools
from groundling.envs.text_generation.columns import HUB_NAMES, DatasetPool, DatasetSource, Row
from groundling.envs.text_generation.pools import Split

PINNED_NLTK = "3.7"
TABLE = Path(__file__).parent / "original.json"
SPLITS: tuple[Split, ...] = ("train", "val", "test")
_SEED = 42  # that of imdb_seq2seq
_AFFIXES = {"prompt_prefix": "before: ", "prompt_suffix": " :after"}

CASES: dict[str, list[dict[str, Any]]] = {
    "imdb": [{"seed": 42}, {"seed": 7}],
    "imdb_seq2seq": [{}, {"positive_ratio": 0.5}],
    "commongen": [{}, {"concept_separator_token": ", ", "concept_end_token": ".", "prefix": "say: "}],
    "totto": [{}, {"representation": "subtable"}, {"representation": "fulltable"}],
    "cnn_daily_mail": [{}, _AFFIXES, {"truncate_article": 20}, {"max_size": 2}],
    "xsum": [{}, {"prompt_suffix": " In short:"}],
    "narrative_qa": [{}],
    "wmt16": [
        {"wmt_id": "wmt16", "source_language": "en", "target_language": "de"},
        {"wmt_id": "wmt14", "source_language": "de", "target_language": "en", **_AFFIXES},
    ],
    "wmt14_processed_en_de": [{}, _AFFIXES],
    "wmt16newsonly": [{}, _AFFIXES],
    "iwslt2017en_de": [{}, _AFFIXES],
    "crd3": [{"max_context_size": size} for size in (1, 2, 5, 100)],
    "daily_dialog": [{"context_size": size} for size in (1, 3, 5)],
    "dummy_pool": [{"prompt": "<|endoftext|>"}, {"prompt": "1 2", "n_samples": 3}],
}
"""By pool, the arguments with which it is compared."""
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

_ARTICLE = (
    "It's 'so', no–yes—no: he said \"I can't, won't.\" "
    "It cost $3.50 (or so)...  Two\tblanks,\nand a line. Dr. No's 'o U.S. — trip."
)
_STORY = ' Mr. Ivo\'s\ndog, ÄSOP,  barks.\n\nThen it "sleeps". '
_SPEAKERS = [["ANN"], ["BO", "ANN"], ["ANN"], ["CY"], ["BO"], ["CY", "BO", "ANN"], ["ANN"], ["ANN"]]
_EPISODES = [
    [{"names": names, "utterances": [f"{word} {place}.", "So!"]} for place, names in enumerate(_SPEAKERS)]
    for word in ("Yes", "No")
]
"""Two, of which the rows have stretches; both begin alike."""
_EPISODES[1][0] = _EPISODES[0][0]


def _story(question: str, *answers: str) -> Row:
    return {
        "document": {"summary": {"text": _STORY}},
        "question": {"text": question},
        "answers": [{"text": answer} for answer in answers],
    }


def _stretches() -> list[Row]:
    cuts = ((0, 0), (0, 3), (3, 5), (6, 7)), ((0, 4), (2, 7))  # overlapping or adjoining; then cut otherwise
    return [
        {"turns": turns[first : last + 1], "turn_start": first, "turn_end": last}
        for pairs in cuts
        for turns in _EPISODES
        for first, last in pairs
    ]


def _table(number: int, titles: tuple[str, str], highlighted: list[list[int]], overlap: str, *texts: str) -> Row:
    """Headers in the midst and without a text, cells over two columns, over none, and past the last one."""
    lines = [[("Year", 1, 1), ("Medals", 2, 1)], [("", 1, 1), ("Gold", 1, 1), ("x", 0, 0), ("Silver", 1, 1)]]
    lines += [[("1999", 1, 1), ("3", 1, 0), ("4", 1, 0), ("5", 3, 1), ("6", 1, 0)], [], [("", 2, 0), (" a ", 1, 0)]]
    names = ("original_sentence", "sentence_after_deletion", "sentence_after_ambiguity", "final_sentence")
    return {
        "totto_id": 1000 + number,
        "table_page_title": titles[0],
        "table_webpage_url": "http://a.b",
        "table_section_title": titles[1],
        "table_section_text": "Text.",
        "table": [
            [{"column_span": span, "is_header": bool(h), "row_span": 1, "value": value} for value, span, h in line]
            for line in lines
        ],
        "highlighted_cells": highlighted,
        "example_id": str(number),
        "overlap_subset": overlap,
        "sentence_annotations": [dict(zip(names, (f"0 {t}", f"1 {t}", f"2 {t}", t), strict=True)) for t in texts],
    }


AWKWARD: dict[str, list[Row]] = {
    "imdb": [{"text": text, "label": 1} for text in ("one", "a  b", " a b c ", "a\nb c\td")],
    "common_gen": [{"concept_set_idx": 1000, "concepts": ["a"], "target": ""}],
    "totto": [
        _table(0, ("", ""), [[2, 2], [2, 4], [4, 1], [1, 3], [0, 1]], "True", "A.", "B."),
        _table(1, ("Page", ""), [[2, 3]], "False", "C."),
        _table(2, ("", "Section"), [], "none", "D."),
    ],
    "cnn_dailymail": [{"article": _ARTICLE, "highlights": "", "id": "x"}],
    "xsum": [{"document": _ARTICLE, "summary": " s ", "id": "x"}],
    "narrativeqa": [_story("Who is IT?", " Äsop ", "THE dog"), _story("who?", "x"), _story("Who is IT?", "It's 2")],
    "translation_de_en": [{"translation": {"de": "", "en": " A  b\n"}}],
    "crd3": _stretches(),
    "daily_dialog": [{"dialog": [" a ", "b?", "", "c"], "act": [1, 2, 3, 4], "emotion": [0, 6, 0, 1]}],
}
"""By bundled sample, rows that go to every split behind its own."""

Told = tuple[str, str, list[str], dict[str, Any]]
"""A sample: id, prompt, references, meta data."""


def ours(id: str, args: dict[str, Any], split: Split) -> list[Told]:
    """Our samples, of the bundled rows."""
    offline = {} if id == "dummy_pool" else {"offline": True}
    samples = pools.create(id, **args, **offline).prepare(split)
    return [(sample.id, sample.prompt, list(sample.references), dict(sample.meta)) for sample in samples]


def fingerprint(samples: Sequence[Any]) -> dict[str, Any]:
    """The number of samples and the SHA-256 of their JSON."""
    text = "\n".join(json.dumps(sample, ensure_ascii=False, sort_keys=True) for sample in samples)
    return {"samples": len(samples), "sha256": hashlib.sha256(text.encode()).hexdigest()}


@contextmanager
def awkward_rows() -> Iterator[None]:
    """The bundled rows have the awkward ones behind them."""
    bundled = DatasetSource.bundled
    with mock.patch.object(DatasetSource, "bundled", lambda self: chain(bundled(self), AWKWARD[self.sample])):
        yield


def bundled_rows(id: str, split: Split) -> list[Row]:
    """The rows of a pool's bundled sample."""
    pool = pools.create(id, offline=True)
    assert isinstance(pool, DatasetPool)
    return list(pool.source(split).bundled())


@contextmanager
def words_of_nltk() -> Iterator[None]:
    """NLTK's words, whether its data are there or not: sentences are cut by an untrained splitter."""
    untrained = nltk.tokenize.punkt.PunktSentenceTokenizer()
    with mock.patch.object(nltk.tokenize, "sent_tokenize", lambda text, language="english": untrained.tokenize(text)):
        yield


class _Dataset:
    """What the original asks of `datasets`: a split's rows, in order or shuffled, whole or by column."""

    def __init__(self, rows: list[Row]) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Row]:
        return iter(json.loads(json.dumps(self.rows)))  # the original changes what it reads

    def __getitem__(self, part: slice) -> dict[str, list[Any]]:
        return {column: [row[column] for row in self.rows[part]] for column in self.rows[0]}

    def shuffle(self, seed: int = _SEED) -> _Dataset:
        return _Dataset([self.rows[i] for i in np.random.default_rng(seed).permutation(len(self.rows))])


def _loaded(id: str) -> dict[str, _Dataset]:
    """The splits of the dataset that a pool of the original reads, from our bundled rows."""
    splits = {HUB_NAMES[split]: bundled_rows(id, split) for split in SPLITS}
    if id == "commongen":
        splits["validation"] = [
            next(group) for _, group in groupby(splits["validation"], key=lambda row: row["concept_set_idx"])
        ]
    if id == "xsum":  # the original looks for the split val, which GEM has not
        splits = {name: [row | {"target": row["summary"]} for row in rows] for name, rows in splits.items()}
        splits["val"] = splits["validation"]
    if id == "totto":
        splits = {name: [_totto(row, name == "test") for row in rows] for name, rows in splits.items()}
    return {name: _Dataset(rows) for name, rows in splits.items()}


def _totto(row: Row, withheld: bool) -> Row:
    """A row of GEM's form in that of the dataset ``totto``, whose loading script Hugging Face's `datasets` had."""
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
    """What the original downloads into the home folder: UnifiedQA's TSV files, CRD3's episodes."""
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
        whole = [row["turns"] for row in bundled_rows("crd3", split)[: -len(AWKWARD["crd3"])]] + _EPISODES
        names = [f"{split}{number}" for number in range(len(whole))]
        (data / "aligned data" / f"{split}_files").write_text("\n".join(names), "utf-8")
        for name, episode in zip(names, whole, strict=True):
            turns = [{"NAMES": turn["names"], "UTTERANCES": turn["utterances"]} for turn in episode]
            (data / "cleaned data" / f"{name}.json").write_text(json.dumps({"TURNS": turns}), "utf-8")


@contextmanager
def original_pools(checkout: Path) -> Iterator[Any]:
    """`f(id, args, split)`, the samples of the original's code."""
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
    """Fingerprints of what the original gives by pool, arguments and split; and the rows of a table."""
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
    """The entries of the original's files by their dotted keys, as far as they hold anything."""
    root = checkout / "scripts" / "training" / "task_configs"
    return {
        path.relative_to(root).with_suffix("").as_posix(): flat(OmegaConf.to_container(OmegaConf.load(path)))
        for path in sorted(root.rglob("*.yml"))
    }


def flat(node: Any, prefix: str = "") -> dict[str, Any]:
    """Entries by their keys; an empty section is an entry."""
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    if not items:
        return {prefix: node}
    return {key: value for name, child in items for key, value in flat(child, f"{prefix}.{name}").items()}


def compare_files(checkout: Path) -> tuple[dict[str, str], list[str]]:
    """Fingerprints of the original's files; and the entries that differ from the rebuilt ones."""
    from tests.convert.originals import RL4LMS, rl4lms

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
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--original", type=Path, required=True, help="a checkout of allenai/RL4LMs")
    parser.add_argument("--write", action="store_true", help=f"renew {TABLE.name}")
    given = parser.parse_args()
    if nltk.__version__ != PINNED_NLTK:
        parser.error(f"the original pins NLTK {PINNED_NLTK}, here is {nltk.__version__}: see above")
    made, lines = compare(given.original)
    print(
        "| pool | sets of arguments | samples | ids differing | prompts differing | references differing | "
        "meta data differing |\n|---|---|---|---|---|---|---|\n" + "\n".join(lines)
    )
    sums, differing = compare_files(given.original)
    print("\n".join([f"\n{len(sums)} files, entries differing: {len(differing)}", *differing]))
    if given.write:
        TABLE.write_text(json.dumps({"pools": made, "files": sums}, indent=1, sort_keys=True) + "\n", "utf-8")
    return int(bool(differing) or any(not line.endswith("| 0 | 0 | 0 | 0 |") for line in lines))


if __name__ == "__main__":
    raise SystemExit(main())
