"""RL4LMs' pools of conversations to be carried on."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from groundling.envs.text_generation.pools import Sample, Split, pools
from groundling.envs.text_generation.sources import HUB_NAMES, PARQUET_BRANCH, DatasetPool, Row, Source
from groundling.errors import ConfigError

END_OF_UTTERANCE = "<EOU>"


@pools.register("daily_dialog")
@dataclass(kw_only=True)
class DailyDialog(DatasetPool):
    """Everyday talk: the prompt is the last utterances, the reference the next one.

    Utterances end in ``<EOU>``. The meta data are the next utterance's ``emotion`` (0 none, 1 anger, 2 disgust, 3 fear,
    4 happiness, 5 sadness, 6 surprise) and ``intent`` (1 inform, 2 question, 3 directive, 4 commissive).

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
        number = 0
        for row in rows:
            said = row["dialog"]
            for turn in range(self.context_size, len(said)):
                context = END_OF_UTTERANCE.join(said[turn - self.context_size : turn])
                yield Sample(
                    f"{split}_{number}",
                    f"{context} {END_OF_UTTERANCE}",
                    (said[turn] + END_OF_UTTERANCE,),
                    {"emotion": row["emotion"][turn], "intent": row["act"][turn]},
                )
                number += 1


@pools.register("crd3")
@dataclass(kw_only=True)
class Crd3(DatasetPool):
    """Talk at a table of role players: the prompt is the last turns and who speaks next, the reference what they say.

    The dataset's rows are stretches of turns that overlap; what two of them ask alike is asked once.

    Args:
        max_context_size: How many turns the prompt has; turns of a stretch with fewer before them are not asked.
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
        asked: set[tuple[str, str]] = set()
        for row in rows:
            speakers = [" and ".join(turn["names"]) for turn in row["turns"]]
            said = [" ".join(turn["utterances"]) for turn in row["turns"]]
            lines = [f"{speaker}: {words}" for speaker, words in zip(speakers, said, strict=True)]
            for turn in range(self.max_context_size, len(lines)):
                context = "\n".join(lines[turn - self.max_context_size : turn])
                question = f"{context}\n{speakers[turn]}: ", said[turn]
                if question not in asked:
                    asked.add(question)
                    yield Sample(f"{split}_{len(asked) - 1}", question[0], (question[1],))


def _check_window(name: str, size: int) -> None:
    if size < 1:
        raise ConfigError(f"{name}={size}: a prompt needs at least 1 turn")
