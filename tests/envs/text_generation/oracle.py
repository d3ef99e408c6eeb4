"""Cases and fingerprints of RL4LMs' pools, on which `benchmarks/rl4lms_pools.py` runs the original's code."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any
from unittest import mock

import nltk

from groundling.envs.text_generation import pools
from groundling.envs.text_generation.columns import DatasetSource, Row
from groundling.envs.text_generation.pools import Split

TABLE = Path(__file__).parent / "original.json"
SPLITS: tuple[Split, ...] = ("train", "val", "test")
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
"""The arguments that are compared, by pool."""

_ARTICLE = (
    "It's 'so', no–yes—no: he said \"I can't, won't.\" "
    "It cost $3.50 (or so)...  Two\tblanks,\nand a line. Dr. No's 'o U.S. — trip."
)
_STORY = ' Mr. Ivo\'s\ndog, ÄSOP,  barks.\n\nThen it "sleeps". '
_SPEAKERS = [["ANN"], ["BO", "ANN"], ["ANN"], ["CY"], ["BO"], ["CY", "BO", "ANN"], ["ANN"], ["ANN"]]
EPISODES = [
    [{"names": names, "utterances": [f"{word} {place}.", "So!"]} for place, names in enumerate(_SPEAKERS)]
    for word in ("Yes", "No")
]
"""Two episodes, whose rows contain parts of them; both start with the same turns."""
EPISODES[1][0] = EPISODES[0][0]


def _story(question: str, *answers: str) -> Row:
    return {
        "document": {"summary": {"text": _STORY}},
        "question": {"text": question},
        "answers": [{"text": answer} for answer in answers],
    }


def _stretches() -> list[Row]:
    cuts = ((0, 0), (0, 3), (3, 5), (6, 7)), ((0, 4), (2, 7))  # overlapping or adjacent parts; then different ones
    return [
        {"turns": turns[first : last + 1], "turn_start": first, "turn_end": last}
        for pairs in cuts
        for turns in EPISODES
        for first, last in pairs
    ]


def _table(number: int, titles: tuple[str, str], highlighted: list[list[int]], overlap: str, *texts: str) -> Row:
    """Return a table with empty and inner headers, cells over two or no columns, and cells past the last column."""
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
"""Rows that are appended to each split, by bundled sample."""

Told = tuple[str, str, list[str], dict[str, Any]]
"""A sample: id, prompt, references, metadata."""


def ours(id: str, args: dict[str, Any], split: Split) -> list[Told]:
    """Return our samples of the bundled rows."""
    offline = {} if id == "dummy_pool" else {"offline": True}
    samples = pools.create(id, **args, **offline).prepare(split)
    return [(sample.id, sample.prompt, list(sample.references), dict(sample.meta)) for sample in samples]


def fingerprint(samples: Sequence[Any]) -> dict[str, Any]:
    """Return the number of samples and the SHA-256 hash of their JSON."""
    text = "\n".join(json.dumps(sample, ensure_ascii=False, sort_keys=True) for sample in samples)
    return {"samples": len(samples), "sha256": hashlib.sha256(text.encode()).hexdigest()}


@contextmanager
def awkward_rows() -> Iterator[None]:
    """Append the edge cases to the bundled rows."""
    bundled = DatasetSource.bundled
    with mock.patch.object(DatasetSource, "bundled", lambda self: chain(bundled(self), AWKWARD[self.sample])):
        yield


@contextmanager
def words_of_nltk() -> Iterator[None]:
    """Use NLTK's word tokenizer with an untrained sentence splitter, so that NLTK's data is not required."""
    untrained = nltk.tokenize.punkt.PunktSentenceTokenizer()
    with mock.patch.object(nltk.tokenize, "sent_tokenize", lambda text, language="english": untrained.tokenize(text)):
        yield


def flat(node: Any, prefix: str = "") -> dict[str, Any]:
    """Return entries by their dotted keys; an empty section is an entry."""
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    if not items:
        return {prefix: node}
    return {key: value for name, child in items for key, value in flat(child, f"{prefix}.{name}").items()}
