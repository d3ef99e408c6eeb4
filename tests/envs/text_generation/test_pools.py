"""The pools of the original: formats, splits, and the way from the hub's files to samples."""

import json
import re
from pathlib import Path

import huggingface_hub
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from groundling.envs.text_generation import pools, sources, totto
from groundling.envs.text_generation.sources import DatasetPool, DatasetSource
from groundling.errors import ConfigError, GroundlingError

ORIGINAL = [
    "imdb",
    "imdb_seq2seq",
    "commongen",
    "totto",
    "cnn_daily_mail",
    "narrative_qa",
    "wmt16",
    "wmt14_processed_en_de",
    "wmt16newsonly",
    "iwslt2017en_de",
    "crd3",
    "daily_dialog",
    "xsum",
]
SPLITS = ("train", "val", "test")
BUNDLED = Path(sources.__file__).parent / "offline"


def _pool(id: str, **args: object) -> DatasetPool:
    pool = pools.create(id, offline=True, **args)
    assert isinstance(pool, DatasetPool)
    return pool


def test_all_pools_are_registered() -> None:
    assert {*ORIGINAL, "dummy_pool", "huggingface", "jsonl", "csv", "parquet"} <= set(pools)


@pytest.mark.parametrize("id", ORIGINAL)
def test_offline_samples_are_whole(id: str) -> None:
    for split in SPLITS:
        samples = _pool(id).prepare(split)
        assert len({sample.id for sample in samples}) == len(samples) >= 3
        assert all(sample.prompt.strip() and sample.references for sample in samples)
        assert samples == _pool(id).prepare(split)
        json.dumps([dict(sample.meta) for sample in samples])  # predictions are written with it
        assert _pool(id, max_size=2).prepare(split) == samples[:2]
        with pytest.raises(ConfigError, match="max_size must be a whole number"):
            _pool(id, max_size=-1).prepare(split)


def test_the_splits_share_no_samples() -> None:
    for id in ORIGINAL:
        train, val, test = ({(s.prompt, s.references) for s in _pool(id).prepare(split)} for split in SPLITS)
        assert not (train & val or train & test or val & test), id


def test_the_bundled_rows_are_small() -> None:
    assert sum(path.stat().st_size for path in BUNDLED.iterdir()) < 300_000


@pytest.mark.parametrize("id", ORIGINAL)
def test_rows_of_the_hub_give_what_the_same_rows_give_offline(
    id: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def download(dataset: str, *, repo_type: str, revision: str, allow_patterns: str) -> str:
        """A repository that has the bundled rows as its Parquet files, in two shards."""
        asked.append((dataset, repo_type, revision))
        wanted = next(s for s in (pool.source(split) for split in SPLITS) if s.files == allow_patterns)
        rows = list(wanted.rows(offline=True))
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


def test_a_hub_that_cannot_be_reached_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def download(*_: object, **__: object) -> str:
        raise ConnectionError("no route to host\nsecond line")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    with pytest.raises(
        GroundlingError, match=r"stanfordnlp/imdb .*no route to host.*offline=true.* 30 rows"
    ) as error:
        pools.create("imdb").prepare("train")
    assert "\n" not in str(error.value)


def test_a_repository_without_the_files_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *_, **__: str(tmp_path))
    with pytest.raises(GroundlingError, match=re.escape("has no files default/train/*.parquet")):
        pools.create("xsum").prepare("train")


def test_imdb_is_cut_and_shuffled_as_the_original() -> None:
    rows = [{"text": f"a{n} b c  d e", "label": n % 2} for n in range(50)]
    pool = _pool("imdb", seed=3)
    train, val = (list(pool.samples(iter(rows), split)) for split in ("train", "val"))
    order = np.random.default_rng(3).permutation(50)
    assert [s.references[0] for s in train + val] == [rows[i]["text"] for i in order]
    assert len(train) == 40
    assert train[0].prompt == f"a{order[0]} b c"  # three of the six pieces between single blanks
    assert train[0].references[0].startswith(train[0].prompt)
    (odd,) = pool.samples([{"text": "a b c", "label": 0}], "test")
    assert odd.prompt == "a"
    many = [{"text": f"x {n}", "label": 0} for n in range(6000)]
    order = np.random.default_rng(3).permutation(6000)[:5000]
    assert [s.references[0] for s in pool.samples(many, "test")] == [f"x {n}" for n in order]


@pytest.mark.parametrize("seed", [3, 42])
def test_imdb_is_shuffled_as_datasets_shuffles(seed: int) -> None:
    datasets = pytest.importorskip("datasets")
    rows = [{"text": f"x {n}", "label": 0} for n in range(57)]
    theirs = datasets.Dataset.from_list(rows).shuffle(seed)["text"]
    assert [s.references[0] for s in _pool("imdb", seed=seed).samples(rows, "test")] == list(theirs)


def test_imdb_seq2seq_trains_on_positive_reviews_and_their_second_halves() -> None:
    rows = [{"text": f"{'good' if n % 2 else 'bad'} film number {n}", "label": n % 2} for n in range(50)]
    pool = _pool("imdb_seq2seq")
    train = list(pool.samples(iter(rows), "train"))
    positive = [rows[i] for i in np.random.default_rng(42).permutation(50)[:40] if i % 2]
    assert [(s.prompt + " " + s.references[0]) for s in train] == [row["text"] for row in positive]
    assert all(s.prompt == "good film" for s in train)
    assert [s.meta for s in train] == [{"reference": row["text"]} for row in positive]
    places = [place for place, i in enumerate(np.random.default_rng(42).permutation(50)[:40]) if i % 2]
    assert [s.id for s in train] == [f"train_{place}" for place in places]  # among all training reviews
    assert {s.prompt for s in pool.samples(iter(rows), "val")} == {"good film", "bad film"}
    half = list(_pool("imdb_seq2seq", positive_ratio=0.5).samples(iter(rows), "train"))
    assert half == train[: len(train) // 2]
    with pytest.raises(ConfigError, match=r"positive_ratio=1\.5"):
        _pool("imdb_seq2seq", positive_ratio=1.5)


def test_commongen_with_the_arguments_of_the_configs() -> None:
    pool = _pool(
        "commongen", concept_separator_token=" ", concept_end_token=".", prefix="generate a sentence with: "
    )
    first = pool.prepare("train")[0]
    assert first.prompt == "generate a sentence with: boat lake row."
    assert first.references == ("Two friends row a small boat across the quiet lake.",)
    assert first.meta == {"concepts": ["boat", "lake", "row"]}
    assert {s.references for s in pool.prepare("test")} == {("empty reference",)}


def test_commongen_asks_for_a_concept_set_of_val_once() -> None:
    rows = [
        {"concept_set_idx": number, "concepts": ["a", "b"], "target": target}
        for number, target in ((0, "A b."), (0, "B a."), (1, "A and b."))
    ]
    pool = _pool("commongen")
    assert [s.references for s in pool.samples(rows, "val")] == [("A b.",), ("A and b.",)]
    assert [s.id for s in pool.samples(rows, "val")] == ["val_0", "val_1"]
    assert len(list(pool.samples(rows, "train"))) == 3


def test_summaries() -> None:
    row = {"article": "one  two\nthree four", "highlights": "1\n2", "id": "x"}
    (bare,) = _pool("cnn_daily_mail").samples([row], "val")
    assert bare.prompt == "one  two\nthree four"
    (plain,) = _pool("cnn_daily_mail", prompt_prefix="Summarize: ").samples([row], "val")
    assert (plain.prompt, plain.references) == ("Summarize: one  two\nthree four", ("1\n2",))
    (short,) = _pool("cnn_daily_mail", prompt_suffix=" !", truncate_article=3, truncate_by="blanks").samples(
        [row], "val"
    )
    assert short.prompt == "one two three !"
    (extreme,) = _pool("xsum").samples([{"document": "d", "summary": "s", "id": "x"}], "val")
    assert (extreme.prompt, extreme.references) == ("dTL;DR:", ("s",))


def test_articles_are_cut_after_words_of_nltk(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenize = pytest.importorskip("nltk.tokenize")
    monkeypatch.setattr(tokenize, "sent_tokenize", tokenize.punkt.PunktSentenceTokenizer().tokenize)
    row = {"article": 'It isn\'t "old".\nSay so (twice), please. Yes.', "highlights": "", "id": "x"}
    words = "It is n't `` old '' . Say so ( twice ) , please . Yes ."
    dashes = {"article": "It--or 'so'–is 'one of them.", "highlights": "", "id": "x"}  # as NLTK 3.7 cut them
    (sample,) = _pool("cnn_daily_mail", truncate_article=99).samples([dashes], "val")
    assert sample.prompt == "It -- or 'so'–is 'one of them ."
    for count, kept in ((3, "It is n't"), (11, "It is n't `` old '' . Say so ( twice"), (99, words)):
        (sample,) = _pool("cnn_daily_mail", truncate_article=count).samples([row], "val")
        assert sample.prompt == kept


def test_nltks_missing_data_are_told_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenize = pytest.importorskip("nltk.tokenize")

    def missing(text: str) -> None:
        raise LookupError("\n****\n  Resource punkt_tab not found.\n****\n")

    monkeypatch.setattr(tokenize, "sent_tokenize", missing)
    with pytest.raises(GroundlingError, match=r"nltk\.downloader punkt_tab.*truncate_by=blanks") as error:
        _pool("cnn_daily_mail", truncate_article=3).prepare("val")
    assert "\n" not in str(error.value)


def test_how_articles_are_cut_is_checked() -> None:
    with pytest.raises(ConfigError, match="unknown truncate_by 'words'"):
        _pool("cnn_daily_mail", truncate_article=3, truncate_by="words")
    with pytest.raises(ConfigError, match=r"truncate_by=blanks.*truncate_article"):
        _pool("cnn_daily_mail", truncate_by="blanks")
    with pytest.raises(ConfigError, match="truncate_article=0"):
        _pool("cnn_daily_mail", truncate_article=0)


def test_narrative_qa_is_in_the_form_of_unifiedqa() -> None:
    row = {
        "document": {"summary": {"text": " A Man\nwalks. "}},
        "question": {"text": "Who walks?"},
        "answers": [{"text": "A man "}, {"text": " The Man"}],
    }
    (sample,) = _pool("narrative_qa").samples([row], "train")
    assert sample.prompt == r"who walks? \n  a manwalks.  "  # a line's end and nothing else is left out
    assert sample.references == ("a man", "the man")


def test_narrative_qa_has_all_answers_to_one_question_together() -> None:
    first, other = (
        {
            "document": {"summary": {"text": "A man walks."}},
            "question": {"text": question},
            "answers": [{"text": f"{question} {n}"} for n in (1, 2)],
        }
        for question in ("Who?", "Why?")
    )
    samples = list(_pool("narrative_qa").samples([first, other, first], "val"))
    assert [(s.id, s.references) for s in samples] == [
        ("val_0", ("who? 1", "who? 2", "who? 1", "who? 2")),
        ("val_1", ("why? 1", "why? 2")),
    ]


def test_translation_goes_either_way() -> None:
    there = _pool("iwslt2017en_de", prompt_prefix="translate English to German: ").prepare("train")[0]
    back = _pool("wmt16", source_language="de", target_language="en", prompt_suffix=" =").prepare("train")[0]
    assert there.prompt == "translate English to German: The bakery opens at six in the morning."
    assert there.references == ("Die Bäckerei öffnet um sechs Uhr morgens.",)
    assert back.prompt == "Die Bäckerei öffnet um sechs Uhr morgens. ="
    assert back.references == ("The bakery opens at six in the morning.",)
    with pytest.raises(ConfigError, match="fr to en"):
        _pool("wmt16", source_language="fr", target_language="en")


def test_any_workshop_and_pair_has_its_files() -> None:
    pool = pools.create("wmt16", wmt_id="wmt14", source_language="en", target_language="fr")
    assert isinstance(pool, DatasetPool)
    source = pool.source("val")
    assert (source.dataset, source.files) == ("wmt/wmt14", "fr-en/validation/*.parquet")
    news = pools.create("wmt16newsonly")
    assert isinstance(news, DatasetPool)
    assert [news.source(s).dataset for s in SPLITS] == [
        "Helsinki-NLP/news_commentary",
        "wmt/wmt16",
        "wmt/wmt16",
    ]


def test_daily_dialog_asks_for_the_utterance_after_a_window() -> None:
    row = {"dialog": list("abcd"), "act": [1, 2, 3, 4], "emotion": [0, 0, 4, 6]}
    samples = list(_pool("daily_dialog", context_size=2).samples([row, row], "train"))
    assert [(s.id, s.prompt, s.references) for s in samples[:2]] == [
        ("2", "a<EOU>b <EOU>", ("c<EOU>",)),
        ("3", "b<EOU>c <EOU>", ("d<EOU>",)),
    ]
    assert samples[1].meta == {"emotion": [6], "intent": [4]}
    assert samples[3].id == "7"  # utterances that are not asked count
    with pytest.raises(ConfigError, match="context_size=0"):
        _pool("daily_dialog", context_size=0)


def _turns(*names: str) -> list[dict[str, object]]:
    return [{"names": [*name], "utterances": [name.lower(), "!"]} for name in names]


def test_crd3_asks_for_the_turns_after_the_second() -> None:
    rows = [{"turns": _turns("A", "BX", "C", "DE")}, {"turns": _turns("A", "BX", "C")}]
    samples = list(_pool("crd3").samples(rows, "train"))
    assert [(s.id, s.prompt, s.references) for s in samples] == [
        ("train_ep_0_turn_2", "A: a !\nB: bx !\nC: ", ("c !",)),
        ("train_ep_0_turn_3", "A: a !\nB: bx !\nC: c !\nD: ", ("de !",)),
        (
            "train_ep_1_turn_2",
            "A: a !\nB: bx !\nC: ",
            ("c !",),
        ),  # another row without places, another episode
    ]
    short = list(_pool("crd3", max_context_size=1).samples(rows, "val"))
    assert [s.prompt for s in short] == ["B: bx !\nC: ", "C: c !\nD: ", "B: bx !\nC: "]


def test_crd3_makes_episodes_of_stretches() -> None:
    one, two = _turns(*"ABCDEFGH"), _turns(*"ABXYZ")

    def stretch(turns: list[dict[str, object]], first: int, last: int) -> dict[str, object]:
        return {"turns": turns[first : last + 1], "turn_start": first, "turn_end": last}

    rows = [stretch(one, 0, 0), stretch(one, 0, 3), stretch(one, 3, 5), stretch(one, 6, 7)]
    rows += [stretch(two, 0, 1), stretch(two, 0, 4)]
    rows += [
        stretch(one, 0, 4),
        stretch(one, 2, 7),
        stretch(two, 0, 2),
        stretch(two, 3, 4),
    ]  # again, cut otherwise
    samples = list(_pool("crd3").samples(rows, "train"))
    whole = [{"turns": one}, {"turns": two}]
    assert samples == list(_pool("crd3").samples(whole, "train"))


def _cell(value: str, header: bool = False, columns: int = 1) -> dict[str, object]:
    return {"value": value, "is_header": header, "row_span": 1, "column_span": columns}


TABLE = [
    [_cell("Year", True), _cell("Medals", True, columns=2)],
    [_cell("", True), _cell("Gold", True), _cell("Silver", True)],
    [_cell("1999", True), _cell("3"), _cell("4")],
    [_cell("2003", True), _cell("none", columns=2)],
]


def test_totto_cells_find_their_headers_across_columns() -> None:
    assert totto.subtable(TABLE, [(2, 2)]) == (
        "<table> <cell> 4 <col_header> Medals </col_header> <col_header> Silver </col_header> "
        "<row_header> 1999 </row_header> </cell> </table>"
    )
    assert totto.subtable(TABLE, [(3, 1), (2, 1)]) == (
        "<table> <cell> none <col_header> Medals </col_header> <col_header> Gold </col_header> "
        "<col_header> Silver </col_header> <row_header> 2003 </row_header> </cell> "
        "<cell> 3 <col_header> Medals </col_header> <col_header> Gold </col_header> "
        "<row_header> 1999 </row_header> </cell> </table>"
    )
    assert totto.full_table(TABLE[1:3], [(1, 0)]) == (
        "<table> <row> <cell>  </cell> <cell> Gold <row_header>  </row_header> </cell> "
        "<cell> Silver <row_header>  </row_header> <row_header> Gold </row_header> </cell> </row> "
        "<row> <highlighted_cell> 1999 <col_header>  </col_header> </highlighted_cell> "
        "<cell> 3 <col_header> Gold </col_header> <row_header> 1999 </row_header> </cell> "
        "<cell> 4 <col_header> Silver </col_header> <row_header> 1999 </row_header> </cell> </row> </table>"
    )
    assert totto.subtable(TABLE, []) == "<table> </table>"


@pytest.mark.parametrize(
    ("representation", "function_name"), [("subtable", "subtable"), ("fulltable", "full_table")]
)
def test_totto_tells_the_table_twice(representation: str, function_name: str) -> None:
    pool = _pool("totto", representation=representation)
    sample = pool.prepare("train")[1]
    raw = sample.meta["raw_table"]
    table = getattr(totto, function_name)(raw["table"], list(map(tuple, raw["highlighted_cells"])))
    titles = "<page_title> Hella Strand </page_title> <section_title> Filmography </section_title>"
    assert sample.prompt == f"{table}{titles} {table}"
    assert sample.references == ("Hella Strand played Captain Berg in Ivo Lind's film Snowline.",)
    (row, *_) = pool.source("train").rows(offline=True)
    row |= {"table_page_title": "", "table_section_title": ""}
    (bare,) = pool.samples([row], "train")
    assert bare.prompt == 2 * getattr(totto, function_name)(
        row["table"], list(map(tuple, row["highlighted_cells"]))
    )


def test_totto_keeps_the_row_in_the_columns_of_the_original() -> None:
    (row, *_) = _pool("totto").source("val").rows(offline=True)
    for overlap, kept in (("True", True), ("False", False), ("none", False)):
        (sample,) = _pool("totto").samples([row | {"overlap_subset": overlap}], "val")
        raw = sample.meta["raw_table"]
        assert list(raw) == [
            "id", "table_page_title", "table_webpage_url", "table_section_title", "table_section_text", "table",
            "highlighted_cells", "example_id", "sentence_annotations", "overlap_subset",
        ]  # fmt: skip
        assert raw["overlap_subset"] is kept and raw["id"] == row["totto_id"]
        assert raw["sentence_annotations"] == row["sentence_annotations"]
        assert list(sample.references) == [one["final_sentence"] for one in raw["sentence_annotations"]]


def test_totto_test_sentences_are_withheld() -> None:
    for sample in _pool("totto").prepare("test"):
        assert sample.references == ("",)
        (annotation,) = sample.meta["raw_table"]["sentence_annotations"]
        assert set(annotation.values()) == {"none"}


def test_totto_has_one_sample_for_all_sentences_of_a_table() -> None:
    """GEM has a training row for each sentence."""
    (row, *_) = _pool("totto").source("train").rows(offline=True)
    first, second = row["sentence_annotations"]
    rows = [row | {"sentence_annotations": [one]} for one in (first, second)]
    rows.append(row | {"totto_id": 1, "example_id": "x", "sentence_annotations": [first]})
    samples = list(_pool("totto").samples(rows, "train"))
    assert [(s.id, len(s.references)) for s in samples] == [("train_0", 2), ("train_1", 1)]
    assert samples[0].meta["raw_table"]["sentence_annotations"] == [first, second]


def test_totto_says_what_the_full_table_is_called() -> None:
    with pytest.raises(ConfigError, match=r"full_table.*fulltable"):
        _pool("totto", representation="full_table")


def test_listed_has_the_configs_rows_in_every_split() -> None:
    listed = pools.create(
        "listed",
        samples=[{"a": "1"}, {"a": "2"}],
        prompt_column="a",
        reference_column="a",
        prompt_prefix="Say ",
    )
    for split in ("train", "val", "test"):
        assert [(s.id, s.prompt, s.references) for s in listed.prepare(split)] == [
            (f"{split}_0", "Say 1", ("1",)),
            (f"{split}_1", "Say 2", ("2",)),
        ]
    for samples in ([], ["1"], "1", [{"a": "1"}, 2], 3):
        with pytest.raises(
            ConfigError, match=r"samples must be a list of rows, as in \[\{prompt: …\}\], got"
        ):
            pools.create("listed", samples=samples)
    with pytest.raises(GroundlingError, match="'prompt'"):
        pools.create("listed", samples=[{"a": "1"}]).prepare("train")


def test_dummy_pool() -> None:
    samples = pools.create("dummy_pool", prompt="1 2", n_samples=3).prepare("val")
    assert [(s.id, s.prompt, s.references) for s in samples] == [(str(n), "1 2", ()) for n in range(3)]
    with pytest.raises(ConfigError, match="n_samples=0"):
        pools.create("dummy_pool", prompt="1 2", n_samples=0)
    with pytest.raises(ConfigError, match="n_samples='3'"):
        pools.create("dummy_pool", prompt="1 2", n_samples="3")


def test_unknown_splits_arguments_and_columns_are_told() -> None:
    with pytest.raises(ConfigError, match=r"unknown split 'validation'.*val"):
        pools.create("imdb", offline=True).prepare("validation")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"'positive_ration'.*positive_ratio"):
        pools.create("imdb_seq2seq", positive_ration=1.0)
    with pytest.raises(ConfigError, match="unknown representation 'table'"):
        pools.create("totto", representation="table")


def test_a_changed_schema_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DatasetSource, "rows", lambda self, offline: iter([{"body": "x"}]))
    with pytest.raises(GroundlingError, match="EdinburghNLP/xsum has no column 'document'"):
        pools.create("xsum").prepare("train")
