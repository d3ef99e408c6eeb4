"""RL4LMs' pools of reviews, concepts, news, stories and tables, with the original prompts, and a synthetic pool."""

import functools
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby, pairwise
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import numpy as np
from annotated_types import Ge, Gt, Le

from groundling.envs.text_generation.columns import PARQUET_BRANCH, DatasetPool, DatasetSource, Row
from groundling.envs.text_generation.pools import Pool, Sample, Split, pools
from groundling.errors import ConfigError, importing
from groundling.fields import OnlyWith, ReadByModel


def words(text: str) -> list[str]:
    """Split a text into words and punctuation as in the Penn Treebank, without NLTK's data. This is NLTK's word
    tokenizer without three rules added after release 3.7 (opening quotes before whole words, dashes, clitics before
    line breaks), so that metrics and prompts stay comparable with published results.
    """
    return _tokenizer().tokenize(text)


def words_of_sentences(text: str) -> list[str]:
    """Split each sentence into words, as NLTK 3.7's ``word_tokenize`` does; a final full stop is a separate word."""
    tokenizer = _tokenizer()
    import nltk.tokenize

    try:
        sentences = nltk.tokenize.sent_tokenize(text)
    except LookupError as error:
        raise ConfigError(
            "splitting into words sentence by sentence needs NLTK's data: run python -m nltk.downloader punkt_tab, or "
            "set truncate_by=blanks"
        ) from error
    return [word for sentence in sentences for word in tokenizer.tokenize(sentence)]


@functools.cache
def _tokenizer() -> Any:
    with importing("nltk", "metrics"):
        from nltk.tokenize.destructive import NLTKWordTokenizer
    opening_quote = re.compile(r"'(?!re|ve|ll|m|t|s|d|n)(?=\w\b)", re.IGNORECASE)

    class Tokenizer(NLTKWordTokenizer):
        STARTING_QUOTES = (*NLTKWordTokenizer.STARTING_QUOTES[:-1], (opening_quote, "' "))
        PUNCTUATION = tuple(rule for rule in NLTKWordTokenizer.PUNCTUATION if r"\u2012" not in rule[0].pattern)
        ENDING_QUOTES = tuple(rule for rule in NLTKWordTokenizer.ENDING_QUOTES if rule[0].pattern != r"\s+")

    return Tokenizer()


@pools.register("imdb")
@dataclass(kw_only=True)
class Imdb(DatasetPool):
    """Film reviews to continue. The prompt is the first half of a review's words; the reference is the whole review.

    The shuffled training reviews are split into 80% train and 20% val; test contains the first 5,000 shuffled test
    reviews. The order is that of the datasets library's ``shuffle`` with this seed.

    Args:
        seed: Seed for shuffling.
    """

    seed: int = 42

    def source(self, split: Split) -> DatasetSource:
        part = "test" if split == "test" else "train"
        revision = "e6281661ce1c48d982bc483cf8a173c1bbeb5d31"
        return DatasetSource("stanfordnlp/imdb", revision, f"plain_text/{part}-*.parquet", "imdb", split=part)

    def samples(self, rows: Iterable[Row], split: Split) -> Iterator[Sample]:
        for index, row in enumerate(self._reviews(rows, split)):
            prompt, _ = _halves(row["text"])
            yield Sample(f"{split}_{index}", prompt, (row["text"],), data=(prompt,))

    def _reviews(self, rows: Iterable[Row], split: Split) -> list[Row]:
        reviews = list(rows)
        order = np.random.default_rng(self.seed).permutation(len(reviews))
        cut = int(0.8 * len(reviews))
        share = {"train": order[:cut], "val": order[cut:], "test": order[:5000]}[split]
        return [reviews[i] for i in share]


@pools.register("imdb_seq2seq")
@dataclass(kw_only=True)
class ImdbSeq2Seq(Imdb):
    """`imdb` for encoder-decoders: the reference is the second half, and all training reviews are positive.

    The metadata contains ``reference``, the whole review. A sample's id is its index among all reviews in the split,
    including negative ones. RL4LMs reshuffles at each call, so its train and val splits may share reviews.

    Args:
        positive_ratio: Share of the positive training reviews to use, taken from the start.
    """

    positive_ratio: Annotated[float, Gt(0), Le(1)] = 1.0

    def samples(self, rows: Iterable[Row], split: Split) -> Iterator[Sample]:
        reviews = list(enumerate(self._reviews(rows, split)))
        if split == "train":
            reviews = [(index, row) for index, row in reviews if row["label"] == 1]
            reviews = reviews[: int(len(reviews) * self.positive_ratio)]
        for index, row in reviews:
            prompt, rest = _halves(row["text"])
            yield Sample(f"{split}_{index}", prompt, (rest,), {"reference": row["text"]}, data=(prompt,))


def _halves(text: str) -> tuple[str, str]:
    words = text.split(" ")
    half = len(words) // 2
    return " ".join(words[:half]), " ".join(words[half:])


@pools.register("commongen")
@dataclass(kw_only=True)
class CommonGen(DatasetPool):
    """Concepts to use in one sentence. In train, a concept set occurs once for each of its reference sentences.

    In val, it occurs once, with its first sentence, as in GEM's version of the dataset, which RL4LMs uses. The
    test sentences are not public, so test references are "empty reference".

    Args:
        concept_separator_token: Text between the concepts.
        concept_end_token: Text after the last concept.
        prefix: Text before the first concept.
    """

    hub: ClassVar[DatasetSource] = DatasetSource(
        "allenai/common_gen", PARQUET_BRANCH, "default/{split}/*.parquet", "common_gen"
    )
    concept_separator_token: Annotated[str, ReadByModel] = " "
    concept_end_token: Annotated[str, ReadByModel] = " "
    prefix: Annotated[str, ReadByModel] = "summarize: "

    def samples(self, rows: Iterable[Row], split: Split) -> Iterator[Sample]:
        if split == "val":
            rows = (next(group) for _, group in groupby(rows, key=lambda row: row["concept_set_idx"]))
        for index, row in enumerate(rows):
            concepts = self.concept_separator_token.join(row["concepts"])
            yield Sample(
                f"{split}_{index}",
                self.prefix + concepts + self.concept_end_token,
                (row["target"] or "empty reference",),
                {"concepts": row["concepts"]},
                data=tuple(row["concepts"]),
            )


@pools.register("cnn_daily_mail")
@dataclass(kw_only=True)
class CnnDailyMail(DatasetPool):
    """News articles to summarize; the references are their highlights.

    Args:
        prompt_prefix: Text before the article.
        prompt_suffix: Text after the article.
        truncate_article: Number of words of the article to keep, joined by spaces; None for all.
        truncate_by: How to split the article into words: ``nltk`` uses NLTK 3.7's ``word_tokenize``, which counts
            punctuation as words and requires NLTK and its data; ``blanks`` splits at whitespace.
    """

    hub: ClassVar[DatasetSource] = DatasetSource(
        "abisee/cnn_dailymail", "96df5e686bee6baa90b8bee7c28b81fa3fa6223d", "3.0.0/{split}-*.parquet", "cnn_dailymail"
    )
    prompt_prefix: Annotated[str, ReadByModel] = ""
    prompt_suffix: Annotated[str, ReadByModel] = ""
    truncate_article: Annotated[int, Ge(1)] | None = None
    truncate_by: Annotated[Literal["nltk", "blanks"], OnlyWith("truncate_article")] = "nltk"

    def samples(self, rows: Iterable[Row], split: Split) -> Iterator[Sample]:
        for index, row in enumerate(rows):
            article = row["article"]
            if self.truncate_article is not None:
                split_words = words_of_sentences if self.truncate_by == "nltk" else str.split
                article = " ".join(split_words(article)[: self.truncate_article])
            prompt = self.prompt_prefix + article + self.prompt_suffix
            yield Sample(f"{split}_{index}", prompt, (row["highlights"],), data=(article,))


@pools.register("xsum")
@dataclass(kw_only=True)
class XSum(DatasetPool):
    """News articles to summarize in one sentence.

    In RL4LMs, this pool has no id and uses GEM's selection of the articles.

    Args:
        prompt_prefix: Text before the article.
        prompt_suffix: Text after the article.
    """

    hub: ClassVar[DatasetSource] = DatasetSource(
        "EdinburghNLP/xsum", PARQUET_BRANCH, "default/{split}/*.parquet", "xsum"
    )
    prompt_prefix: Annotated[str, ReadByModel] = ""
    prompt_suffix: Annotated[str, ReadByModel] = "TL;DR:"

    def samples(self, rows: Iterable[Row], split: Split) -> Iterator[Sample]:
        for index, row in enumerate(rows):
            prompt = self.prompt_prefix + row["document"] + self.prompt_suffix
            yield Sample(f"{split}_{index}", prompt, (row["summary"],), data=(row["document"],))


@pools.register("narrative_qa")
@dataclass(kw_only=True)
class NarrativeQA(DatasetPool):
    r"""Questions about a story, answered from its summary, in UnifiedQA's lower-case format ``question \n summary``.

    The ``\n`` is a backslash and an n, as in UnifiedQA's training data. The summary has no line breaks and is followed
    by a space. All answers to a question are its references. The files contain whole books (several gigabytes).
    """

    hub: ClassVar[DatasetSource] = DatasetSource(
        "deepmind/narrativeqa",
        "2e643e7363944af1c33a652d1c87320d0871c4e4",
        "data/{split}-*.parquet",
        "narrativeqa",
        ("document.summary.text", "question.text", "answers"),
    )

    def samples(self, rows: Iterable[Row], split: Split) -> Iterator[Sample]:
        answers: dict[str, list[str]] = {}
        for row in rows:
            summary = row["document"]["summary"]["text"].replace("\n", "")
            prompt = f"{row['question']['text']} \\n {summary} "
            answers.setdefault(prompt, []).extend(answer["text"] for answer in row["answers"])
        for index, (prompt, texts) in enumerate(answers.items()):
            references = tuple(text.lower().strip() for text in texts)
            yield Sample(f"{split}_{index}", prompt.lower(), references, data=(prompt.lower(),))


Cell = dict[str, Any]
Table = Sequence[Sequence[Cell]]  # rows of cells: ``value``, ``is_header``, ``column_span``, ``row_span``

_TABLE_COLUMNS = (
    *("table_page_title", "table_webpage_url", "table_section_title", "table_section_text"),
    *("table", "highlighted_cells", "example_id"),
)  # columns that also exist in GEM's version of the dataset
_ANNOTATIONS = ("original_sentence", "sentence_after_deletion", "sentence_after_ambiguity", "final_sentence")
_WITHHELD = dict.fromkeys(_ANNOTATIONS, "none")  # Values that replace test sentences in the version used by RL4LMs


@pools.register("totto")
@dataclass(kw_only=True)
class Totto(DatasetPool):
    """ToTTo's tables as text (Parikh et al. 2020, arXiv 2004.14373): the table, its titles, and the table again.

    The metadata contains ``raw_table``: the row with RL4LMs' columns, a list of annotations and a Boolean
    ``overlap_subset``. (GEM's version has one row per sentence of a training table, and different column names.)

    Args:
        representation: ``subtable`` for the highlighted cells with their headers, ``fulltable`` for all cells.
    """

    hub: ClassVar[DatasetSource] = DatasetSource("GEM/totto", PARQUET_BRANCH, "totto/{split}/*.parquet", "totto")
    representation: Literal["subtable", "fulltable"] = "subtable"

    def samples(self, rows: Iterable[Row], split: Split) -> Iterator[Sample]:
        for index, (_, group) in enumerate(groupby(rows, key=lambda row: row["totto_id"])):
            rows_of_table = list(group)
            first, withheld = rows_of_table[0], split == "test"
            given = [one for row in rows_of_table for one in row["sentence_annotations"]]
            annotations = [{k: one[k] for k in _ANNOTATIONS} for one in ([_WITHHELD] if withheld else given)]
            row = {
                "id": first["totto_id"],
                **{column: first[column] for column in _TABLE_COLUMNS},
                "sentence_annotations": annotations,
                "overlap_subset": str(first["overlap_subset"]) == "True",
            }
            linearize = subtable if self.representation == "subtable" else full_table
            linearised = linearize(row["table"], [tuple(place) for place in row["highlighted_cells"]])
            named = (("page_title", row["table_page_title"]), ("section_title", row["table_section_title"]))
            titles = "".join(_tagged(tag, text) + " " for tag, text in named if text)
            references = ("",) if withheld else tuple(one["final_sentence"] for one in annotations)
            yield Sample(f"{split}_{index}", linearised + titles + linearised, references, {"raw_table": row})


def subtable(table: Table, highlighted: Sequence[tuple[int, int]]) -> str:
    """Return the cells at ``highlighted`` (row, index) with their headers, tagged as in the paper's baselines."""
    placed = _placed(table)
    return _tagged("table", *(_cell("cell", placed, row, place) for row, place in highlighted))


def full_table(table: Table, highlighted: Sequence[tuple[int, int]]) -> str:
    """Return all cells with their headers, row by row, with a separate tag for highlighted cells. See `subtable`."""
    placed, chosen = _placed(table), set(highlighted)
    rows = []
    for row, cells in enumerate(placed):
        tags = ("highlighted_cell" if (row, place) in chosen else "cell" for place in range(len(cells)))
        rows.append(_tagged("row", *(_cell(tag, placed, row, place) for place, tag in enumerate(tags))))
    return _tagged("table", *rows)


class _Placed(NamedTuple):
    first: int
    last: int  # one past the cell's last column
    is_header: bool
    value: str


def _placed(table: Table) -> list[list[_Placed]]:
    """Return the cells with their columns; as in the paper's baselines, cells that span rows appear only in the first."""
    placed = []
    for cells in table:
        ends = pairwise(accumulate((cell["column_span"] for cell in cells), initial=0))
        pairs = zip(cells, ends, strict=True)
        placed.append([_Placed(first, last, cell["is_header"], cell["value"]) for cell, (first, last) in pairs])
    return placed


def _cell(tag: str, placed: Sequence[Sequence[_Placed]], row: int, place: int) -> str:
    """Return a cell with the headers above it, row by row, and the headers before it in its row."""
    cell = placed[row][place]
    above = (other for cells in placed[:row] for other in cells)
    over = (other for other in above if other.first < cell.last and cell.first < other.last)
    named = [_tagged("col_header", other.value) for other in over if other.is_header]
    named += [_tagged("row_header", other.value) for other in placed[row][:place] if other.is_header]
    return _tagged(tag, cell.value, *named)


def _tagged(tag: str, *parts: str) -> str:
    """Join a tag and its parts with spaces; an empty part results in two spaces."""
    return " ".join((f"<{tag}>", *parts, f"</{tag}>"))


@pools.register("dummy_pool")
@dataclass(kw_only=True)
class Dummy(Pool):
    """The same prompt for all samples, for synthetic rewards that depend only on the completion.

    Args:
        prompt: The prompt.
        n_samples: Number of samples in each split.
    """

    has_splits: ClassVar[bool] = False
    prompt: str
    n_samples: Annotated[int, Ge(1)] = 100

    def prepare(self, split: Split) -> list[Sample]:
        return [Sample(str(index), self.prompt) for index in range(self.n_samples)]
