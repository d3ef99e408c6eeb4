"""RL4LMs' pools of sentences to translate."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated, ClassVar

from groundling.envs.text_generation.pools import Sample, Split, pools
from groundling.envs.text_generation.sources import HUB_NAMES, PARQUET_BRANCH, DatasetPool, DatasetSource, Row
from groundling.errors import ConfigError
from groundling.fields import ReadByModel

_SAMPLE = "translation_de_en"
_WMT_REVISIONS = {"wmt16": "41d8a4013aa1489f28fea60ec0932af246086482"}  # known commits; others: the Parquet branch


@dataclass(kw_only=True)
class _Translation(DatasetPool):
    """Sentences in German and English.

    Args:
        source_language: Language of the prompt, two letters.
        target_language: Language of the reference, two letters.
        prompt_prefix: Text before the sentence.
        prompt_suffix: Text after the sentence.
    """

    source_language: str = "en"
    target_language: str = "de"
    prompt_prefix: Annotated[str, ReadByModel] = ""
    prompt_suffix: Annotated[str, ReadByModel] = ""

    def __post_init__(self) -> None:
        self._require_german()

    def _require_german(self) -> None:
        if {self.source_language, self.target_language} != {"de", "en"}:
            raise ConfigError(
                f"{self.source_language} to {self.target_language} is not available: "
                f"{'the bundled sample' if self.offline else 'this pool'} has German (de) and English (en) only"
            )

    def samples(self, rows: Iterable[Row], split: Split) -> Iterator[Sample]:
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
        wmt_id: The workshop: ``wmt14`` to ``wmt19``.
    """

    wmt_id: str = "wmt16"

    def __post_init__(self) -> None:
        if self.offline:
            self._require_german()

    def source(self, split: Split) -> DatasetSource:
        # The hub names a pair with English last.
        pair = "-".join(sorted((self.source_language, self.target_language), key=lambda name: name == "en"))
        dataset, revision, name = f"wmt/{self.wmt_id}", _WMT_REVISIONS.get(self.wmt_id), HUB_NAMES[split]
        if revision is None:
            return DatasetSource(dataset, PARQUET_BRANCH, f"{pair}/{name}/*.parquet", _SAMPLE, split=name)
        return DatasetSource(dataset, revision, f"{pair}/{name}-*.parquet", _SAMPLE, split=name)


@pools.register("wmt14_processed_en_de")
@dataclass(kw_only=True)
class Wmt14Processed(_Translation):
    """The 2014 workshop's English and German sentences, already cleaned."""

    hub: ClassVar[DatasetSource] = DatasetSource(
        "stas/wmt14-en-de-pre-processed", PARQUET_BRANCH, "ende/{split}/*.parquet", _SAMPLE
    )


@pools.register("wmt16newsonly")
@dataclass(kw_only=True)
class Wmt16NewsOnly(_Translation):
    """News commentaries for training, the 2016 workshop's sentences for evaluation."""

    def source(self, split: Split) -> DatasetSource:
        name = HUB_NAMES[split]
        if split == "train":
            revision = "bbaf548083e788e0e6d2ca68efc325283fe2aff5"
            return DatasetSource(
                "Helsinki-NLP/news_commentary", revision, "de-en/train-*.parquet", _SAMPLE, split=name
            )
        files = f"de-en/{name}-*.parquet"
        return DatasetSource("wmt/wmt16", _WMT_REVISIONS["wmt16"], files, _SAMPLE, split=name)


@pools.register("iwslt2017en_de")
@dataclass(kw_only=True)
class Iwslt2017(_Translation):
    """Sentences of talks."""

    hub: ClassVar[DatasetSource] = DatasetSource(
        "IWSLT/iwslt2017", PARQUET_BRANCH, "iwslt2017-de-en/{split}/*.parquet", _SAMPLE
    )
