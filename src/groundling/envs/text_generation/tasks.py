"""RL4LMs' pools of reviews, concepts, news and stories, and its synthetic one, with the prompts of the original."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import ClassVar

import numpy as np

from groundling.envs.text_generation.pools import Pool, Sample, Split, check_split, pools
from groundling.envs.text_generation.sources import HUB_NAMES, PARQUET_BRANCH, DatasetPool, Row, Source
from groundling.envs.text_generation.words import words_of_sentences
from groundling.errors import ConfigError
from groundling.registry import unknown

_IMDB_TEST_SIZE = 5000
"""The original evaluates on no more of the test split."""


@pools.register("imdb")
@dataclass(kw_only=True)
class Imdb(DatasetPool):
    """Film reviews to be continued: the prompt is the first half of a review's words, the reference all of it.

    The dataset's training reviews, shuffled, are cut into 80 % train and 20 % val; test is the first 5,000 of its
    shuffled test reviews. The order is that of ``datasets``' own shuffling with the same seed.

    Args:
        seed: Of the shuffling.
    """

    seed: int = 42

    def source(self, split: Split) -> Source:
        """See `DatasetPool`."""
        part = "test" if split == "test" else "train"
        revision = "e6281661ce1c48d982bc483cf8a173c1bbeb5d31"
        return Source("stanfordnlp/imdb", revision, f"plain_text/{part}-*.parquet", "imdb", part)

    def samples(self, rows: Iterable[Row], split: Split) -> Iterator[Sample]:
        """See `DatasetPool`."""
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
    """`imdb` for encoder-decoders: the reference is the second half alone, and training reviews are positive ones.

    The meta data are ``reference``, the whole review. A sample's name counts all reviews of the split, the negative
    ones too. The original draws another order at each call, so that its train and val may share reviews.

    Args:
        positive_ratio: The share of the positive training reviews that is taken, the first ones.
    """

    positive_ratio: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.positive_ratio <= 1:
            raise ConfigError(
                f"positive_ratio={self.positive_ratio} is not a share: give one above 0, up to 1"
            )

    def samples(self, rows: Iterable[Row], split: Split) -> Iterator[Sample]:
        """See `DatasetPool`."""
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
    """Concepts to be put into one sentence; in train a concept set comes once for each of its sentences.

    In val it comes once, with the first of them, as in GEM's form of the dataset, which the original reads. The test
    sentences are withheld, so that there the reference is "empty reference".

    Args:
        concept_separator_token: Between the concepts.
        concept_end_token: After the last one.
        prefix: Before the first one.
    """

    concept_separator_token: str = " "
    concept_end_token: str = " "
    prefix: str = "summarize: "

    def source(self, split: Split) -> Source:
        """See `DatasetPool`."""
        name = HUB_NAMES[split]
        return Source("allenai/common_gen", PARQUET_BRANCH, f"default/{name}/*.parquet", "common_gen", name)

    def samples(self, rows: Iterable[Row], split: Split) -> Iterator[Sample]:
        """See `DatasetPool`."""
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
    """News articles to be summed up in their highlights.

    Args:
        prompt_prefix: Before the article.
        prompt_suffix: After it.
        truncate_article: Keep this many words of the article, with one blank between two; None for all.
        truncate_by: What a word is: ``nltk``, what ``word_tokenize`` of NLTK 3.7 finds, punctuation included, which
            needs NLTK and its data; ``blanks``, what stands between blanks.
    """

    prompt_prefix: str = ""
    prompt_suffix: str = ""
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
            raise ConfigError(
                f"truncate_article={count!r}: give a whole number of words, at least 1, or null for all"
            )

    def source(self, split: Split) -> Source:
        """See `DatasetPool`."""
        name, revision = HUB_NAMES[split], "96df5e686bee6baa90b8bee7c28b81fa3fa6223d"
        return Source("abisee/cnn_dailymail", revision, f"3.0.0/{name}-*.parquet", "cnn_dailymail", name)

    def samples(self, rows: Iterable[Row], split: Split) -> Iterator[Sample]:
        """See `DatasetPool`."""
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
    """News articles to be summed up in one sentence.

    The original has this pool but no id for it, and reads GEM's selection of the articles.

    Args:
        prompt_prefix: Before the article.
        prompt_suffix: After it.
    """

    prompt_prefix: str = ""
    prompt_suffix: str = "TL;DR:"

    def source(self, split: Split) -> Source:
        """See `DatasetPool`."""
        name = HUB_NAMES[split]
        return Source("EdinburghNLP/xsum", PARQUET_BRANCH, f"default/{name}/*.parquet", "xsum", name)

    def samples(self, rows: Iterable[Row], split: Split) -> Iterator[Sample]:
        """See `DatasetPool`."""
        for index, row in enumerate(rows):
            prompt = self.prompt_prefix + row["document"] + self.prompt_suffix
            yield Sample(f"{split}_{index}", prompt, (row["summary"],), data=(row["document"],))


@pools.register("narrative_qa")
@dataclass(kw_only=True)
class NarrativeQA(DatasetPool):
    r"""Questions about a story, answered from its summary, in UnifiedQA's form: ``question \n summary``, lower case.

    The ``\n`` is a backslash and an n, as UnifiedQA was trained; a blank follows the summary, and the line ends within
    it are left out. All answers to a question are its references. The dataset's files hold whole books beside the
    summaries, and so are some gigabytes.
    """

    def source(self, split: Split) -> Source:
        """See `DatasetPool`."""
        name, revision = HUB_NAMES[split], "2e643e7363944af1c33a652d1c87320d0871c4e4"
        columns = ("document.summary.text", "question.text", "answers")
        return Source(
            "deepmind/narrativeqa", revision, f"data/{name}-*.parquet", "narrativeqa", name, columns
        )

    def samples(self, rows: Iterable[Row], split: Split) -> Iterator[Sample]:
        """See `DatasetPool`."""
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
    """One and the same prompt, for the synthetic rewards that look at what was written alone.

    Args:
        prompt: The prompt.
        n_samples: How often each split has it.
    """

    has_splits: ClassVar[bool] = False
    prompt: str
    n_samples: int = 100

    def __post_init__(self) -> None:
        if not isinstance(self.n_samples, int) or self.n_samples < 1:
            raise ConfigError(
                f"n_samples={self.n_samples!r}: a pool needs a whole number of samples, at least 1"
            )

    def prepare(self, split: Split) -> list[Sample]:
        """See `Pool.prepare`."""
        check_split(split)
        return [Sample(str(index), self.prompt) for index in range(self.n_samples)]
