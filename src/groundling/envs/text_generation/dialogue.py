"""RL4LMs' pools of conversations to be carried on."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from groundling.envs.text_generation.pools import Sample, Split, pools
from groundling.envs.text_generation.sources import HUB_NAMES, PARQUET_BRANCH, DatasetPool, Row, Source
from groundling.errors import ConfigError

END_OF_UTTERANCE = "<EOU>"


@pools.register("daily_dialog")
@dataclass(kw_only=True)
class DailyDialog(DatasetPool):
    """Everyday talk: the prompt is the last utterances, the reference the next one.

    Utterances end in ``<EOU>``. The meta data are the next utterance's ``emotion`` (0 none, 1 anger, 2 disgust, 3 fear,
    4 happiness, 5 sadness, 6 surprise) and ``intent`` (1 inform, 2 question, 3 directive, 4 commissive), each as a list
    of one. A sample's name counts all utterances of the split.

    Args:
        context_size: How many utterances the prompt has; a dialogue's utterances with fewer before them are not asked.
    """

    context_size: int = 5

    def __post_init__(self) -> None:
        _check_window("context_size", self.context_size)

    def source(self, split: Split) -> Source:
        """See `DatasetPool`."""
        name = HUB_NAMES[split]
        files = f"default/{name}/*.parquet"
        return Source("li2017dailydialog/daily_dialog", PARQUET_BRANCH, files, "daily_dialog", name)

    def samples(self, rows: Iterable[Row], split: Split) -> Iterator[Sample]:
        """See `DatasetPool`."""
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
    """Talk at a table of role players: the prompt is the last turns and who speaks next, the reference what they say.

    The original reads whole episodes. The dataset's rows are stretches of them, which overlap and come again, cut
    otherwise: `_episodes` puts them together.

    Args:
        max_context_size: How many turns the prompt has at most; the first 2 turns of an episode are not asked.
    """

    max_context_size: int = 5

    def __post_init__(self) -> None:
        _check_window("max_context_size", self.max_context_size)

    def source(self, split: Split) -> Source:
        """See `DatasetPool`."""
        name = HUB_NAMES[split]
        return Source("microsoft/crd3", PARQUET_BRANCH, f"default/{name}/*.parquet", "crd3", name)

    def samples(self, rows: Iterable[Row], split: Split) -> Iterator[Sample]:
        """See `DatasetPool`."""
        for number, turns in enumerate(_episodes(rows)):
            lines = [f"{turn.speaker}: {turn.said}" for turn in turns]
            for place, turn in enumerate(turns[_NOT_ASKED:], start=_NOT_ASKED):
                context = "\n".join(lines[max(0, place - self.max_context_size) : place])
                prompt = f"{context}\n{turn.speaker}: "
                yield Sample(f"{split}_ep_{number}_turn_{place}", prompt, (turn.said,), data=(prompt,))


_NOT_ASKED = 2


class _Turn(NamedTuple):
    speaker: str
    """The first, where several speak."""
    said: str


def _episodes(rows: Iterable[Row]) -> list[list[_Turn]]:
    """The episodes that stretches of turns make, in the order in which they begin.

    A stretch tells the places of its first and last turn within its episode (``turn_start``, ``turn_end``), but not
    which episode that is: it is one that has the same turns at the same places, or the last one where it goes on from
    there. A row without places is an episode.
    """
    episodes: list[dict[int, _Turn]] = []
    last: dict[int, _Turn] = {}
    for row in rows:
        turns = [_Turn(turn["names"][0], " ".join(turn["utterances"])) for turn in row["turns"]]
        first = row.get("turn_start")
        if first is None or row.get("turn_end") != first + len(turns) - 1:
            episodes.append(dict(enumerate(turns)))
            continue
        stretch = dict(enumerate(turns, start=first))
        if not (_agrees(last, stretch) or max(last, default=first) + 1 == first):
            last = next((episode for episode in episodes if _agrees(episode, stretch)), {})
            if not last:
                episodes.append(last)
        last.update(stretch)
    return [[turns[place] for place in sorted(turns)] for turns in episodes]


def _agrees(episode: Mapping[int, _Turn], stretch: Mapping[int, _Turn]) -> bool:
    """Whether they share places, and have the same turns there."""
    shared = episode.keys() & stretch.keys()
    return bool(shared) and all(episode[place] == stretch[place] for place in shared)


def _check_window(name: str, size: int) -> None:
    if size < 1:
        raise ConfigError(f"{name}={size}: a prompt needs at least 1 turn")
