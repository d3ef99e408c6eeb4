"""RL4LMs' pools of sentences to translate."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

from annotated_types import Ge

from groundling.envs.text_generation.columns import HUB_NAMES, PARQUET_BRANCH, DatasetPool, DatasetSource, Row
from groundling.envs.text_generation.pools import Sample, Split, pools
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

    def source(self, split: Split) -> DatasetSource:
        # The hub names a pair with English last.
        pair = "-".join(sorted((self.source_language, self.target_language), key=lambda name: name == "en"))
        revision, name = _WMT_REVISIONS.get(self.wmt_id, PARQUET_BRANCH), HUB_NAMES[split]
        files = f"{pair}/{name}{'/' if revision == PARQUET_BRANCH else '-'}*.parquet"
        return DatasetSource(f"wmt/{self.wmt_id}", revision, files, _SAMPLE, split=name)


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
            dataset, revision = "Helsinki-NLP/news_commentary", "bbaf548083e788e0e6d2ca68efc325283fe2aff5"
        else:
            dataset, revision = "wmt/wmt16", _WMT_REVISIONS["wmt16"]
        return DatasetSource(dataset, revision, f"de-en/{name}-*.parquet", _SAMPLE, split=name)


@pools.register("iwslt2017en_de")
@dataclass(kw_only=True)
class Iwslt2017(_Translation):
    """Sentences of talks."""

    hub: ClassVar[DatasetSource] = DatasetSource(
        "IWSLT/iwslt2017", PARQUET_BRANCH, "iwslt2017-de-en/{split}/*.parquet", _SAMPLE
    )


END_OF_UTTERANCE = "<EOU>"
_FIRST_TURN = 2  # Turns of an episode of CRD3 before the first sample


@pools.register("daily_dialog")
@dataclass(kw_only=True)
class DailyDialog(DatasetPool):
    """Everyday conversations: the prompt is the last utterances, the reference the next one.

    Utterances end in ``<EOU>``. The meta data are the next utterance's ``emotion`` (0 none, 1 anger, 2 disgust, 3
    fear, 4 happiness, 5 sadness, 6 surprise) and ``intent`` (1 inform, 2 question, 3 directive, 4 commissive), each as
    a list of one. A sample's id counts all utterances of the split.

    Args:
        context_size: Number of utterances in the prompt; those with fewer before them have no sample.
    """

    hub: ClassVar[DatasetSource] = DatasetSource(
        "li2017dailydialog/daily_dialog", PARQUET_BRANCH, "default/{split}/*.parquet", "daily_dialog"
    )
    context_size: Annotated[int, Ge(1)] = 5

    def samples(self, rows: Iterable[Row], split: Split) -> Iterator[Sample]:
        before = 0
        for row in rows:
            said = row["dialog"]
            for turn in range(self.context_size, len(said)):
                context = END_OF_UTTERANCE.join(said[turn - self.context_size : turn])
                yield Sample(
                    str(before + turn),
                    f"{context} {END_OF_UTTERANCE}",
                    (said[turn] + END_OF_UTTERANCE,),
                    {"emotion": [row["emotion"][turn]], "intent": [row["act"][turn]]},
                    data=tuple(said[turn - self.context_size : turn]),
                )
            before += len(said)


@pools.register("crd3")
@dataclass(kw_only=True)
class Crd3(DatasetPool):
    """Role players at a table: the prompt is the last turns and the next speaker, the reference the next turn.

    The original reads whole episodes. The dataset's rows are overlapping parts of them, which `_episodes` joins.

    Args:
        max_context_size: Number of turns in the prompt at most; the first 2 turns of an episode have no sample.
    """

    hub: ClassVar[DatasetSource] = DatasetSource("microsoft/crd3", PARQUET_BRANCH, "default/{split}/*.parquet", "crd3")
    max_context_size: Annotated[int, Ge(1)] = 5

    def samples(self, rows: Iterable[Row], split: Split) -> Iterator[Sample]:
        for number, turns in enumerate(_episodes(rows)):
            lines = [f"{speaker}: {said}" for speaker, said in turns]
            for place, (speaker, said) in enumerate(turns[_FIRST_TURN:], start=_FIRST_TURN):
                context = "\n".join(lines[max(0, place - self.max_context_size) : place])
                prompt = f"{context}\n{speaker}: "
                yield Sample(f"{split}_ep_{number}_turn_{place}", prompt, (said,), data=(prompt,))


_Turn = tuple[str, str]  # the first of several speakers, and what is said


def _episodes(rows: Iterable[Row]) -> list[list[_Turn]]:
    """Join parts of episodes, in the order in which the episodes begin. A part has the places of its first and last
    turn (``turn_start``, ``turn_end``), but not its episode: it belongs to one with the same turns at the same places,
    or to the last one if it continues it. A row without places is an episode.
    """
    episodes: list[dict[int, _Turn]] = []
    last: dict[int, _Turn] = {}
    for row in rows:
        turns = [(turn["names"][0], " ".join(turn["utterances"])) for turn in row["turns"]]
        first = row.get("turn_start")
        if first is None or row.get("turn_end") != first + len(turns) - 1:
            episodes.append(dict(enumerate(turns)))
            continue
        part = dict(enumerate(turns, start=first))
        if not (_agrees(last, part) or max(last, default=first) + 1 == first):
            last = next((episode for episode in episodes if _agrees(episode, part)), {})
            if not last:
                episodes.append(last)
        last.update(part)
    return [[turns[place] for place in sorted(turns)] for turns in episodes]


def _agrees(episode: Mapping[int, _Turn], part: Mapping[int, _Turn]) -> bool:
    """Return True if they share places, with the same turns there."""
    shared = episode.keys() & part.keys()
    return bool(shared) and all(episode[place] == part[place] for place in shared)
