"""RL4LMs' pools: splits, files of the hub, arguments; test_original.py compares their samples with the original's."""

import json
import re
from pathlib import Path
from typing import Any

import huggingface_hub
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from groundling.envs.text_generation import pools, tasks
from groundling.envs.text_generation.columns import DatasetPool, DatasetSource
from groundling.errors import ConfigError, GroundlingError

ORIGINAL = [
    *(
        "imdb",
        "imdb_seq2seq",
        "commongen",
        "totto",
        "cnn_daily_mail",
        "narrative_qa",
        "wmt16",
        "wmt14_processed_en_de",
    ),
    *("wmt16newsonly", "iwslt2017en_de", "crd3", "daily_dialog", "xsum"),
]
SPLITS = ("train", "val", "test")


def _pool(id: str, **args: object) -> DatasetPool:
    pool = pools.create(id, offline=True, **args)
    assert isinstance(pool, DatasetPool)
    return pool


@pytest.mark.parametrize("id", ORIGINAL)
def test_bundled_samples_are_complete_and_stable(id: str) -> None:
    for split in SPLITS:
        samples = _pool(id).prepare(split)
        assert len({sample.id for sample in samples}) == len(samples) >= 3
        assert all(sample.prompt.strip() and sample.references for sample in samples)
        assert samples == _pool(id).prepare(split)
        json.dumps([dict(sample.meta) for sample in samples])  # predictions are written as JSON
        assert _pool(id, max_size=2).prepare(split) == samples[:2]


def test_the_splits_share_no_samples() -> None:
    for id in ORIGINAL:
        train, val, test = ({(s.prompt, s.references) for s in _pool(id).prepare(split)} for split in SPLITS)
        assert not (train & val or train & test or val & test), id


@pytest.mark.parametrize("id", ORIGINAL)
def test_rows_of_the_hub_give_the_samples_of_bundled_rows(
    id: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def download(dataset: str, *, repo_type: str, revision: str, allow_patterns: str) -> str:
        """Return a repository that contains the bundled rows as Parquet files, in two shards."""
        asked.append((dataset, repo_type, revision))
        wanted = next(s for s in (pool.source(split) for split in SPLITS) if s.files == allow_patterns)
        rows = list(wanted.bundled())
        for shard, part in enumerate((rows[:2], rows[2:])):
            path = tmp_path / allow_patterns.replace("*", f"{shard:05d}-of-00002")
            path.parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(pa.Table.from_pylist(part, schema=pa.Table.from_pylist(rows).schema), path)
        return str(tmp_path)

    pool = _pool(id)
    offline = {split: pool.prepare(split) for split in SPLITS}
    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    pool.offline = False
    assert {split: pool.prepare(split) for split in SPLITS} == offline
    for dataset, repo_type, revision in asked:
        assert re.fullmatch(r"[\w.-]+/[\w.-]+", dataset) and repo_type == "dataset"
        assert revision == "refs/convert/parquet" or re.fullmatch("[0-9a-f]{40}", revision)


def test_an_unreachable_hub_gives_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def download(*_: object, **__: object) -> str:
        raise ConnectionError("no route to host\nsecond line")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    with pytest.raises(
        GroundlingError, match=r"stanfordnlp/imdb .*no route to host.* 30 rows with offline=true"
    ) as error:
        pools.create("imdb").prepare("train")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("seed", [3, 42])
def test_imdb_is_shuffled_as_datasets_shuffles(seed: int) -> None:
    datasets = pytest.importorskip("datasets")
    rows = [{"text": f"x {n}", "label": 0} for n in range(57)]
    theirs = datasets.Dataset.from_list(rows).shuffle(seed)["text"]
    assert [s.references[0] for s in _pool("imdb", seed=seed).samples(rows, "test")] == list(theirs)


def test_articles_are_truncated_at_words_of_nltk(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenize = pytest.importorskip("nltk.tokenize")
    monkeypatch.setattr(tokenize, "sent_tokenize", tokenize.punkt.PunktSentenceTokenizer().tokenize)
    row = {"article": 'It isn\'t "old".\nSay so (twice), please. Yes.', "highlights": "", "id": "x"}
    words = "It is n't `` old '' . Say so ( twice ) , please . Yes ."
    dashes = {"article": "It--or 'so'–is 'one of them.", "highlights": "", "id": "x"}  # as split by NLTK 3.7
    (sample,) = _pool("cnn_daily_mail", truncate_article=99).samples([dashes], "val")
    assert sample.prompt == "It -- or 'so'–is 'one of them ."
    for count, kept in ((3, "It is n't"), (11, "It is n't `` old '' . Say so ( twice"), (99, words)):
        (sample,) = _pool("cnn_daily_mail", truncate_article=count).samples([row], "val")
        assert sample.prompt == kept


def test_missing_data_of_nltk_give_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenize = pytest.importorskip("nltk.tokenize")

    def missing(text: str) -> None:
        raise LookupError("\n****\n  Resource punkt_tab not found.\n****\n")

    monkeypatch.setattr(tokenize, "sent_tokenize", missing)
    with pytest.raises(GroundlingError, match=r"nltk\.downloader punkt_tab.*truncate_by=blanks") as error:
        _pool("cnn_daily_mail", truncate_article=3).prepare("val")
    assert "\n" not in str(error.value)


def test_files_of_workshops_and_pairs_of_languages() -> None:
    pool = pools.create("wmt16", wmt_id="wmt14", source_language="en", target_language="fr")
    assert isinstance(pool, DatasetPool)
    source = pool.source("val")
    assert (source.dataset, source.files) == ("wmt/wmt14", "fr-en/validation/*.parquet")
    news = pools.create("wmt16newsonly")
    assert isinstance(news, DatasetPool)
    assert [news.source(s).dataset for s in SPLITS] == ["Helsinki-NLP/news_commentary", "wmt/wmt16", "wmt/wmt16"]


def _cell(value: str, header: bool = False, columns: int = 1) -> dict[str, object]:
    return {"value": value, "is_header": header, "row_span": 1, "column_span": columns}


TABLE = [
    [_cell("Year", True), _cell("Medals", True, columns=2)],
    [_cell("", True), _cell("Gold", True), _cell("Silver", True)],
    [_cell("1999", True), _cell("3"), _cell("4")],
    [_cell("2003", True), _cell("none", columns=2)],
]


def test_totto_cells_find_their_headers_across_columns() -> None:
    assert tasks.subtable(TABLE, [(2, 2)]) == (
        "<table> <cell> 4 <col_header> Medals </col_header> <col_header> Silver </col_header> "
        "<row_header> 1999 </row_header> </cell> </table>"
    )
    assert tasks.subtable(TABLE, [(3, 1), (2, 1)]) == (
        "<table> <cell> none <col_header> Medals </col_header> <col_header> Gold </col_header> "
        "<col_header> Silver </col_header> <row_header> 2003 </row_header> </cell> "
        "<cell> 3 <col_header> Medals </col_header> <col_header> Gold </col_header> "
        "<row_header> 1999 </row_header> </cell> </table>"
    )
    assert tasks.full_table(TABLE[1:3], [(1, 0)]) == (
        "<table> <row> <cell>  </cell> <cell> Gold <row_header>  </row_header> </cell> "
        "<cell> Silver <row_header>  </row_header> <row_header> Gold </row_header> </cell> </row> "
        "<row> <highlighted_cell> 1999 <col_header>  </col_header> </highlighted_cell> "
        "<cell> 3 <col_header> Gold </col_header> <row_header> 1999 </row_header> </cell> "
        "<cell> 4 <col_header> Silver </col_header> <row_header> 1999 </row_header> </cell> </row> </table>"
    )
    assert tasks.subtable(TABLE, []) == "<table> </table>"


def test_totto_has_one_sample_for_all_sentences_of_a_table() -> None:
    """GEM contains a training row for each sentence."""
    (row, *_) = _pool("totto").source("train").bundled()
    first, second = row["sentence_annotations"]
    rows = [row | {"sentence_annotations": [one]} for one in (first, second)]
    rows.append(row | {"totto_id": 1, "example_id": "x", "sentence_annotations": [first]})
    samples = list(_pool("totto").samples(rows, "train"))
    assert [(s.id, len(s.references)) for s in samples] == [("train_0", 2), ("train_1", 1)]
    assert samples[0].meta["raw_table"]["sentence_annotations"] == [first, second]


def test_listed_has_the_configs_rows_in_every_split() -> None:
    listed = pools.create(
        "listed", samples=[{"a": "1"}, {"a": "2"}], prompt_column="a", reference_column="a", prompt_prefix="Say "
    )
    for split in ("train", "val", "test"):
        assert [(s.id, s.prompt, s.references) for s in listed.prepare(split)] == [
            (f"{split}_0", "Say 1", ("1",)),
            (f"{split}_1", "Say 2", ("2",)),
        ]
    for samples in ([], ["1"], "1", [{"a": "1"}, 2], 3):
        with pytest.raises(ConfigError, match=r"samples(\[\d\])? must be a (list|mapping)"):
            pools.create("listed", samples=samples)
    with pytest.raises(GroundlingError, match="'prompt'"):
        pools.create("listed", samples=[{"a": "1"}]).prepare("train")


@pytest.mark.parametrize(
    ("id", "args", "message"),
    [
        ("imdb_seq2seq", {"positive_ratio": 1.5}, r"positive_ratio must be at most 1, got 1\.5"),
        ("cnn_daily_mail", {"truncate_article": 3, "truncate_by": "words"}, "one of nltk, blanks, got 'words'"),
        ("daily_dialog", {"context_size": 0}, "context_size must be at least 1"),
        ("totto", {"representation": "full_table"}, "subtable, fulltable, got 'full_table'"),
        ("imdb", {"offline": True, "max_size": -1}, "max_size must be at least 1"),
    ],
)
def test_wrong_arguments_are_refused(id: str, args: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        pools.create(id, **args)


def test_changed_columns_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DatasetSource, "bundled", lambda self: iter([{"body": "x"}]))
    with pytest.raises(GroundlingError, match=r"dataset EdinburghNLP/xsum does not have the format .*'document'"):
        pools.create("xsum", offline=True).prepare("train")
