"""RL4LMs' pools of sentences to be translated."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from groundling.envs.text_generation.pools import Sample, Split, pools
from groundling.envs.text_generation.sources import HUB_NAMES, PARQUET_BRANCH, DatasetPool, Row, Source
from groundling.errors import ConfigError

_WMT_REVISIONS = {"wmt16": "41d8a4013aa1489f28fea60ec0932af246086482"}
"""Commits of the datasets that we could establish; others are taken from their Parquet branch."""


@dataclass(kw_only=True)
class _Translation(DatasetPool):
    """Sentences of one dataset of German and English.

    Args:
        source_language: Of the prompt, two letters.
        target_language: Of the reference, two letters.
        prompt_prefix: Before the sentence.
        prompt_suffix: After it.
    """

    source_language: str = "en"
    target_language: str = "de"
    prompt_prefix: str = ""
    prompt_suffix: str = ""

    def __post_init__(self) -> None:
        self._require_german()

    def _require_german(self) -> None:
        if {self.source_language, self.target_language} != {"de", "en"}:
            raise ConfigError(
                f"{self.source_language} to {self.target_language} is not available: "
                f"{'the bundled sample' if self.offline else 'this pool'} has German (de) and English (en) only"
            )

    def samples(self, rows: Iterable[Row], split: Split) -> Iterator[Sample]:
        """See `DatasetPool`."""
        for index, row in enumerate(rows):
            texts = row["translation"]
            prompt = self.prompt_prefix + texts[self.source_language] + self.prompt_suffix
            data = (texts[self.source_language],)
            yield Sample(f"{split}_{index}", prompt, (texts[self.target_language],), data=data)


@pools.register("wmt16")
@dataclass(kw_only=True)
class Wmt(_Translation):
    """Sentences of a Workshop on Machine Translation, in any of its pairs of languages.

    Args:
        wmt_id: Which workshop: ``wmt14`` to ``wmt19``.
        source_language: Of the prompt, two letters.
        target_language: Of the reference, two letters.
        prompt_prefix: Before the sentence.
        prompt_suffix: After it.
    """

    wmt_id: str = "wmt16"

    def __post_init__(self) -> None:
        if self.offline:
            self._require_german()

    def source(self, split: Split) -> Source:
        """See `DatasetPool`."""
        # The hub names a pair with English last.
        pair = "-".join(sorted((self.source_language, self.target_language), key=lambda name: name == "en"))
        dataset, revision, name = f"wmt/{self.wmt_id}", _WMT_REVISIONS.get(self.wmt_id), HUB_NAMES[split]
        if revision is None:
            return _source(dataset, PARQUET_BRANCH, f"{pair}/{name}/*.parquet", name)
        return _source(dataset, revision, f"{pair}/{name}-*.parquet", name)


@pools.register("wmt14_processed_en_de")
@dataclass(kw_only=True)
class Wmt14Processed(_Translation):
    """The 2014 workshop's English and German sentences, already cleaned."""

    def source(self, split: Split) -> Source:
        """See `DatasetPool`."""
        name = HUB_NAMES[split]
        return _source("stas/wmt14-en-de-pre-processed", PARQUET_BRANCH, f"ende/{name}/*.parquet", name)


@pools.register("wmt16newsonly")
@dataclass(kw_only=True)
class Wmt16NewsOnly(_Translation):
    """Trained on news commentaries alone, evaluated on the 2016 workshop's sentences."""

    def source(self, split: Split) -> Source:
        """See `DatasetPool`."""
        name = HUB_NAMES[split]
        if split == "train":
            revision = "bbaf548083e788e0e6d2ca68efc325283fe2aff5"
            return _source("Helsinki-NLP/news_commentary", revision, "de-en/train-*.parquet", name)
        return _source("wmt/wmt16", _WMT_REVISIONS["wmt16"], f"de-en/{name}-*.parquet", name)


@pools.register("iwslt2017en_de")
@dataclass(kw_only=True)
class Iwslt2017(_Translation):
    """Sentences of talks."""

    def source(self, split: Split) -> Source:
        """See `DatasetPool`."""
        name = HUB_NAMES[split]
        return _source("IWSLT/iwslt2017", PARQUET_BRANCH, f"iwslt2017-de-en/{name}/*.parquet", name)


def _source(dataset: str, revision: str, files: str, split: str) -> Source:
    return Source(dataset, revision, files, "translation_de_en", split)
