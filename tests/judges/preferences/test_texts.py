"""Preference datasets of worlds with text, and their text for judges and reward models."""

import json
from pathlib import Path

import numpy as np
import pytest

from groundling.errors import ConfigError
from groundling.judges import Annotation, Comparison, Question, RulesJudge, TextPairs, open_pairs
from groundling.judges.preferences.pairs import TextSegment, caption_id, caption_ids
from groundling.judges.preferences.recording import TextSegments
from groundling.judges.reward_models.distill import TrainingPairs

ROOM: list[TextSegments] = [
    (
        TextSegment("Goal: win", ["a wall\nAction: go on", "a wall\nAction: go on"], "a door"),
        TextSegment("Goal: win", ["a door\nAction: open"]),
    ),
    (TextSegment("Goal: win", ["a door\nAction: open"]), TextSegment("Goal: lose", ["a 鍵\nAction: take"])),
]


def make(folder: Path, texts: list[TextSegments] = ROOM, world: str = "text") -> TextPairs:
    returns = np.arange(2.0 * len(texts)).reshape(-1, 2)
    return TextPairs.create(folder, texts, {"return": returns}, {"world": world, "env": "Room-v0"})


def test_a_dataset_of_texts_is_read_as_written(tmp_path: Path) -> None:
    pairs = make(tmp_path / "pairs")
    again = open_pairs(tmp_path / "pairs")
    assert isinstance(again, TextPairs)
    assert list(again.texts) == ROOM and (len(again), again.world, again.about["env"]) == (2, "text", "Room-v0")
    assert again.returns().tolist() == [[0, 1], [2, 3]]
    pairs.write_preferences("me", np.array([1, 3]), np.array([[0.2, 0.7, 0.1], [np.nan] * 3]))
    assert again.preferences("me").tolist() == [1, 3] and again.annotators() == ["me"]
    with pytest.raises(ConfigError, match="is not empty"):
        make(tmp_path / "pairs")
    with pytest.raises(ConfigError, match="blstats"):
        again.comparisons(blstats=True)
    (tmp_path / "pairs/recording.json").write_text("{}")
    with pytest.raises(ConfigError, match="does not specify the world"):
        open_pairs(tmp_path / "pairs")


def test_files_without_texts_get_a_message(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pairs = make(tmp_path / "pairs")
    file = pairs.folder / "data/pairs.parquet"
    table = pq.read_table(file)
    for column, values in (("captions", [1, 2]), ("captions", [["a"], []]), ("context", [None, "b"])):
        place = table.column_names.index(f"first_{column}")
        pq.write_table(table.set_column(place, f"first_{column}", pa.array(values)), file)
        with pytest.raises(ConfigError, match="expected strings"):
            open_pairs(pairs.folder)
    pq.write_table(table.drop_columns("second_outcome"), file)
    with pytest.raises(ConfigError, match="second_outcome"):
        open_pairs(pairs.folder)
    file.write_bytes(b"no Parquet")
    with pytest.raises(ConfigError, match="cannot be read as Parquet"):
        open_pairs(pairs.folder)


def test_a_common_context_is_shown_once(tmp_path: Path) -> None:
    assert make(tmp_path / "pairs").comparisons() == [
        Comparison("a wall\nAction: go on (x2)\nAfter that:\na door", "a door\nAction: open", "Goal: win"),
        Comparison("Goal: win\na door\nAction: open", "Goal: lose\na 鍵\nAction: take"),
    ]


def test_a_reward_model_reads_each_caption_with_its_context(tmp_path: Path) -> None:
    segments = make(tmp_path / "pairs").segments()
    wall, door = "Goal: win\na wall\nAction: go on", "Goal: win\na door\nAction: open"
    assert segments == [([wall, wall], [door]), ([door], ["Goal: lose\na 鍵\nAction: take"])]
    pairs = TrainingPairs.of(segments, np.array([0, 1]))
    assert [len(caption) for caption in pairs.captions] == sorted(map(len, {wall, door, segments[1][1][0]}))
    assert pairs.indices[0, 1].tolist()[1] == -1


def test_caption_ids_depend_on_content_alone() -> None:
    assert caption_id("é") != caption_id("e") and caption_ids(["a", "b", "a"]).tolist()[0::2] == [caption_id("a")] * 2


def test_a_pair_is_asked_about_once_with_its_context(tmp_path: Path) -> None:
    better, worse = ["you won"], ["you lost"]
    texts: list[TextSegments] = [
        (TextSegment("Goal: a", better), TextSegment("Goal: a", worse)),
        (TextSegment("Goal: a", worse), TextSegment("Goal: a", better)),  # the same pair
        (TextSegment("Goal: b", worse), TextSegment("Goal: b", better)),  # a different goal is a different question
        (TextSegment("Goal: b", worse), TextSegment("Goal: b", worse)),
    ]
    pairs = make(tmp_path / "pairs", texts)
    shown = []

    class Judge(RulesJudge):
        def answer(self, request):  # type: ignore[no-untyped-def]
            shown.append(request.conversation)
            return super().answer(request)

    annotation = Annotation(pairs, Judge(rules=[["you won", 1.0]]), Question(world="text"))  # type: ignore[list-item]
    summary = annotation.run("rules")
    assert (summary.distinct, summary.asked) == (2, 2)
    assert pairs.preferences("rules").tolist() == [0, 1, 1, 2]
    system, user = shown[0]
    assert "world that is told in words" in system["content"] and "NetHack" not in str(shown)
    assert "| Goal: a\n--- end goal" in user["content"] and user["content"].count("Goal: a") == 1
    assert annotation.run("rules").asked == 0
    stored = [json.loads(line) for path in (pairs.folder / "answers").rglob("*.jsonl") for line in path.open()]
    assert [answer["context"] for answer in stored] == ["Goal: a", "Goal: b"]


def test_a_judge_or_question_that_does_not_suit_the_world_is_refused(tmp_path: Path) -> None:
    pairs = make(tmp_path / "pairs", world="writing")
    with pytest.raises(ConfigError, match="from the world 'writing', but the question is about 'text'"):
        Annotation(pairs, RulesJudge(), Question(world="text"))
    with pytest.raises(ConfigError, match="rules judge has no table for the goal 'quality' of the world 'writing'"):
        Annotation(pairs, RulesJudge(), Question(world="writing"))
    with pytest.raises(ConfigError, match=r"world 'writing': unknown goal 'gold'.*quality"):
        Question("gold", world="writing")
    with pytest.raises(ConfigError, match="world 'text': unknown prompt"):
        Question(prompt="reworded", world="text")
    with pytest.raises(ConfigError, match="kind of world"):
        Question(world="chess")
