"""RL4LMs' pools of reviews, concepts, news and stories, and a synthetic one, with the original's prompts."""

import functools
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Annotated, Any, ClassVar

import numpy as np

from groundling.envs.text_generation.columns import PARQUET_BRANCH, DatasetPool, DatasetSource, Row
from groundling.envs.text_generation.pools import Pool, Sample, Split, check_split, pools
from groundling.errors import ConfigError, GroundlingError, unknown
from groundling.fields import ReadByModel


def words(text: str) -> list[str]:
    """Split a text into words and punctuation as in the Penn Treebank, without NLTK's data. This is NLTK's word
    tokenizer without three rules added after release 3.7 (opening quotes before whole words, dashes, clitics before
    line breaks), so that figures and prompts stay comparable with published ones.
    """
    return _tokenizer().tokenize(text)


def words_of_sentences(text: str) -> list[str]:
    """Split each sentence into words, as ``word_tokenize`` of NLTK 3.7 does: a full stop ends every sentence."""
    tokenizer = _tokenizer()
    import nltk.tokenize

    try:
        sentences = nltk.tokenize.sent_tokenize(text)
    except LookupError as error:
        raise GroundlingError(
            "words are cut sentence by sentence, which needs NLTK's data: python -m nltk.downloader punkt_tab, or give "
            "truncate_by=blanks"
        ) from error
    return [word for sentence in sentences for word in tokenizer.tokenize(sentence)]


@functools.cache
def _tokenizer() -> Any:
    try:
        from nltk.tokenize.destructive import NLTKWordTokenizer
    except ImportError as error:
        raise GroundlingError(f"nltk is not installed: pip install 'groundling[metrics]' ({error})") from error
    opening_quote = re.compile(r"'(?!re|ve|ll|m|t|s|d|n)(?=\w\b)", re.IGNORECASE)

    class Tokenizer(NLTKWordTokenizer):
        STARTING_QUOTES = (*NLTKWordTokenizer.STARTING_QUOTES[:-1], (opening_quote, "' "))
        PUNCTUATION = tuple(rule for rule in NLTKWordTokenizer.PUNCTUATION if r"\u2012" not in rule[0].pattern)
        ENDING_QUOTES = tuple(rule for rule in NLTKWordTokenizer.ENDING_QUOTES if rule[0].pattern != r"\s+")

    return Tokenizer()


_IMDB_TEST_SIZE = 5000  # Size of the original's test split


@pools.register("imdb")
@dataclass(kw_only=True)
class Imdb(DatasetPool):
    """Film reviews to continue: the prompt is the first half of a review's words, the reference all of it.

    The shuffled training reviews are split into 80 % train and 20 % val; test is the first 5,000 shuffled test
    reviews. The order is that of ``datasets``' shuffling with the same seed.

    Args:
        seed: Seed of the shuffling.
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
        share = {"train": order[:cut], "val": order[cut:], "test": order[:_IMDB_TEST_SIZE]}[split]
        return [reviews[i] for i in share]


@pools.register("imdb_seq2seq")
@dataclass(kw_only=True)
class ImdbSeq2Seq(Imdb):
    """`imdb` for encoder-decoders: the reference is the second half, and training reviews are positive.

    The meta data are ``reference``, the whole review. A sample's id counts all reviews of the split, including
    negative ones. The original draws another order at each call, so its train and val may share reviews.

    Args:
        positive_ratio: Share of the positive training reviews to use, the first ones.
    """

    positive_ratio: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.positive_ratio <= 1:
            raise ConfigError(f"positive_ratio={self.positive_ratio} is not a share: give one above 0, up to 1")

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
    """Concepts to use in one sentence; in train a concept set occurs once for each of its sentences.

    In val it occurs once, with its first sentence, as in GEM's form of the dataset, which the original reads. The test
    sentences are not public: the reference is "empty reference".

    Args:
        concept_separator_token: Text between the concepts.
        concept_end_token: Text after the last one.
        prefix: Text before the first one.
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
    """News articles to summarize by their highlights.

    Args:
        prompt_prefix: Text before the article.
        prompt_suffix: Text after the article.
        truncate_article: Number of words of the article, joined by blanks; None: all.
        truncate_by: Words by ``nltk``: ``word_tokenize`` of NLTK 3.7, including punctuation, which needs NLTK and its
            data; or by ``blanks``.
    """

    hub: ClassVar[DatasetSource] = DatasetSource(
        "abisee/cnn_dailymail", "96df5e686bee6baa90b8bee7c28b81fa3fa6223d", "3.0.0/{split}-*.parquet", "cnn_dailymail"
    )
    prompt_prefix: Annotated[str, ReadByModel] = ""
    prompt_suffix: Annotated[str, ReadByModel] = ""
    truncate_article: int | None = None
    truncate_by: str = "nltk"

    def __post_init__(self) -> None:
        if self.truncate_by not in _WORDS:
            raise ConfigError(unknown("truncate_by", self.truncate_by, _WORDS))
        count = self.truncate_article
        if count is None and self.truncate_by != "nltk":
            raise ConfigError(
                f"truncate_by={self.truncate_by}: no article is cut without truncate_article, so give that too"
            )
        if count is not None and not (isinstance(count, int) and count > 0):
            raise ConfigError(f"truncate_article={count!r}: give a whole number of words, at least 1, or null for all")

    def samples(self, rows: Iterable[Row], split: Split) -> Iterator[Sample]:
        for index, row in enumerate(rows):
            article = row["article"]
            if self.truncate_article is not None:
                article = " ".join(_WORDS[self.truncate_by](article)[: self.truncate_article])
            prompt = self.prompt_prefix + article + self.prompt_suffix
            yield Sample(f"{split}_{index}", prompt, (row["highlights"],), data=(article,))


_WORDS: dict[str, Callable[[str], list[str]]] = {"nltk": words_of_sentences, "blanks": str.split}


@pools.register("xsum")
@dataclass(kw_only=True)
class XSum(DatasetPool):
    """News articles to summarize in one sentence.

    The original has this pool without an id, and reads GEM's selection of the articles.

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
    r"""Questions about a story, answered from its summary, in UnifiedQA's form: ``question \n summary``, lower case.

    The ``\n`` is a backslash and an n, as UnifiedQA was trained; a blank follows the summary, without its line breaks.
    All answers to a question are its references. The dataset's files have whole books besides the summaries, some
    gigabytes.
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


@pools.register("dummy_pool")
@dataclass(kw_only=True)
class Dummy(Pool):
    """One prompt for all samples, for synthetic rewards of the written text alone.

    Args:
        prompt: The prompt.
        n_samples: Number of samples of each split.
    """

    has_splits: ClassVar[bool] = False
    prompt: str
    n_samples: int = 100

    def __post_init__(self) -> None:
        if not isinstance(self.n_samples, int) or self.n_samples < 1:
            raise ConfigError(f"n_samples={self.n_samples!r}: a pool needs a whole number of samples, at least 1")

    def prepare(self, split: Split) -> list[Sample]:
        check_split(split)
        return [Sample(str(index), self.prompt) for index in range(self.n_samples)]
