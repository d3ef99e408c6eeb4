"""RL4LMs' translation and conversation pools."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

from annotated_types import Ge

from groundling.envs.text_generation.columns import HUB_NAMES, PARQUET_BRANCH, DatasetPool, DatasetSource, Row
from groundling.envs.text_generation.pools import Sample, Split, pools
from groundling.fields import ReadByModel

_SAMPLE = "translation_de_en"
_WMT_REVISIONS = {"wmt16": "41d8a4013aa1489f28fea60ec0932af246086482"}  # pinned commits; others use the Parquet branch


@dataclass(kw_only=True)
class _Translation(DatasetPool):
    """German and English sentences.

    Args:
        source_language: Two-letter code of the prompt's language.
        target_language: Two-letter code of the reference's language.
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
    """Sentence pairs from a Workshop on Machine Translation (WMT), in any of its language pairs.

    Args:
        wmt_id: The workshop: ``wmt14`` to ``wmt19``.
    """

    wmt_id: str = "wmt16"

    def source(self, split: Split) -> DatasetSource:
        # On the hub, English comes last in a pair's name.
        pair = "-".join(sorted((self.source_language, self.target_language), key=lambda name: name == "en"))
        revision, name = _WMT_REVISIONS.get(self.wmt_id, PARQUET_BRANCH), HUB_NAMES[split]
        files = f"{pair}/{name}{'/' if revision == PARQUET_BRANCH else '-'}*.parquet"
        return DatasetSource(f"wmt/{self.wmt_id}", revision, files, _SAMPLE, split=name)


@pools.register("wmt14_processed_en_de")
@dataclass(kw_only=True)
class Wmt14Processed(_Translation):
    """Preprocessed English and German sentences from WMT 2014."""

    hub: ClassVar[DatasetSource] = DatasetSource(
        "stas/wmt14-en-de-pre-processed", PARQUET_BRANCH, "ende/{split}/*.parquet", _SAMPLE
    )


@pools.register("wmt16newsonly")
@dataclass(kw_only=True)
class Wmt16NewsOnly(_Translation):
    """Sentences from News Commentary for training, and from WMT 2016 for evaluation."""

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
    """Sentences from TED talks."""

    hub: ClassVar[DatasetSource] = DatasetSource(
        "IWSLT/iwslt2017", PARQUET_BRANCH, "iwslt2017-de-en/{split}/*.parquet", _SAMPLE
    )


END_OF_UTTERANCE = "<EOU>"
_FIRST_TURN = 2  # Number of turns of a CRD3 episode before the first sample


@pools.register("daily_dialog")
@dataclass(kw_only=True)
class DailyDialog(DatasetPool):
    """Everyday conversations. The prompt consists of the preceding utterances; the reference is the next one.

    Utterances end with ``<EOU>``. The metadata is the next utterance's ``emotion`` (0 none, 1 anger, 2 disgust, 3
    fear, 4 happiness, 5 sadness, 6 surprise) and ``intent`` (1 inform, 2 question, 3 directive, 4 commissive), each in
    a list of length 1. A sample's id is the utterance's index among all utterances in the split.

    Args:
        context_size: Number of utterances in the prompt; utterances with fewer predecessors are skipped.
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
    """Tabletop role-playing games. A prompt contains past turns and the next speaker; the reference is the next turn.

    RL4LMs reads whole episodes. The dataset's rows are overlapping parts of episodes, which `_episodes` joins.

    Args:
        max_context_size: Maximum number of turns in the prompt; an episode's first 2 turns are used only as context.
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


_Turn = tuple[str, str]  # the (first) speaker and the utterance


def _episodes(rows: Iterable[Row]) -> list[list[_Turn]]:
    """Join parts of episodes, in the order in which the episodes start. A part has the positions of its first and last
    turn (``turn_start``, ``turn_end``), but no episode id. It belongs to the episode with the same turns at the same
    positions, or to the last episode if it continues that one. A row without positions is a whole episode.
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
    """Return True if the two share positions and have the same turns there."""
    shared = episode.keys() & part.keys()
    return bool(shared) and all(episode[place] == part[place] for place in shared)
