"""RL4LMs' pools of reviews, concepts, news and stories, and its synthetic one, with the prompts of the original."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np

from groundling.envs.text_generation.pools import Pool, Sample, Split, check_split, pools
from groundling.envs.text_generation.sources import HUB_NAMES, PARQUET_BRANCH, DatasetPool, Row, Source
from groundling.errors import ConfigError

_IMDB_TEST_SIZE = 5000
"""The original evaluates on no more than the first reviews of the test split."""


@pools.register("imdb")
@dataclass(kw_only=True)
class Imdb(DatasetPool):
    """Film reviews to be continued: the prompt is the first half of a review's words, the reference all of it.

    The dataset's training reviews, shuffled, are cut into 80 % train and 20 % val; test is its first 5,000 test reviews
    as in the original (all negative, since the dataset is sorted by label).

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
            yield Sample(f"{split}_{index}", prompt, (row["text"],))

    def _reviews(self, rows: Iterable[Row], split: Split) -> list[Row]:
        if split == "test":
            return list(islice(rows, _IMDB_TEST_SIZE))
        reviews = list(rows)
        order = np.random.default_rng(self.seed).permutation(len(reviews))
        cut = int(0.8 * len(reviews))
        return [reviews[i] for i in (order[:cut] if split == "train" else order[cut:])]


@pools.register("imdb_seq2seq")
@dataclass(kw_only=True)
class ImdbSeq2Seq(Imdb):
    """`imdb` for encoder-decoders: the reference is the second half alone, and training reviews are positive ones.

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
        reviews = self._reviews(rows, split)
        if split == "train":
            reviews = [row for row in reviews if row["label"] == 1]
            reviews = reviews[: int(len(reviews) * self.positive_ratio)]
        for index, row in enumerate(reviews):
            prompt, rest = _halves(row["text"])
            yield Sample(f"{split}_{index}", prompt, (rest,))


def _halves(text: str) -> tuple[str, str]:
    words = text.split(" ")
    half = len(words) // 2
    return " ".join(words[:half]), " ".join(words[half:])


@pools.register("commongen")
@dataclass(kw_only=True)
class CommonGen(DatasetPool):
    """Concepts to be put into one sentence; a concept set comes once for each of its sentences.

    The test sentences of the dataset are withheld, so that there the reference is "empty reference".

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
        for index, row in enumerate(rows):
            concepts = self.concept_separator_token.join(row["concepts"])
            yield Sample(
                f"{split}_{index}",
                self.prefix + concepts + self.concept_end_token,
                (row["target"] or "empty reference",),
                {"concepts": row["concepts"]},
            )


@pools.register("cnn_daily_mail")
@dataclass(kw_only=True)
class CnnDailyMail(DatasetPool):
    """News articles to be summed up in their highlights.

    Args:
        prompt_prefix: Before the article.
        prompt_suffix: After it.
        truncate_article: Keep this many words of the article; None for all.
    """

    prompt_prefix: str = "Summarize: "
    prompt_suffix: str = ""
    truncate_article: int | None = None

    def source(self, split: Split) -> Source:
        """See `DatasetPool`."""
        name, revision = HUB_NAMES[split], "96df5e686bee6baa90b8bee7c28b81fa3fa6223d"
        return Source("abisee/cnn_dailymail", revision, f"3.0.0/{name}-*.parquet", "cnn_dailymail", name)

    def samples(self, rows: Iterable[Row], split: Split) -> Iterator[Sample]:
        """See `DatasetPool`."""
        for index, row in enumerate(rows):
            article = row["article"]
            if self.truncate_article is not None:
                article = " ".join(article.split()[: self.truncate_article])
            prompt = self.prompt_prefix + article + self.prompt_suffix
            yield Sample(f"{split}_{index}", prompt, (row["highlights"],))


@pools.register("xsum")
@dataclass(kw_only=True)
class XSum(DatasetPool):
    """News articles to be summed up in one sentence.

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
            yield Sample(f"{split}_{index}", prompt, (row["summary"],))


@pools.register("narrative_qa")
@dataclass(kw_only=True)
class NarrativeQA(DatasetPool):
    r"""Questions about a story, answered from its summary, in UnifiedQA's form: ``question \n summary``, lower case.

    The ``\n`` is a backslash and an n, as UnifiedQA was trained. All answers to a question are its references. The
    dataset's files hold whole books beside the summaries, and so are some gigabytes.
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
        for index, row in enumerate(rows):
            prompt = f"{row['question']['text']} \\n {row['document']['summary']['text']}".lower()
            yield Sample(
                f"{split}_{index}", prompt, tuple(answer["text"].lower() for answer in row["answers"])
            )


@pools.register("dummy_pool")
@dataclass(kw_only=True)
class Dummy(Pool):
    """One and the same prompt, for the synthetic rewards that look at what was written alone.

    Args:
        prompt: The prompt.
        n_samples: How often each split has it.
    """

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
        return [Sample(f"{split}_{index}", self.prompt) for index in range(self.n_samples)]
