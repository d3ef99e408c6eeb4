"""The store of answers: lost lines, merged files and locks."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from groundling.errors import RunError
from groundling.judges.preferences.pairs import Preference
from groundling.judges.preferences.store import Store, StoredAnswer, answer_key

QUESTION = {"question": "which?", "judge": {"model": "m"}}


def answer(number: int, label: str = "first", **fields: object) -> StoredAnswer:
    captions = (f"a{number}", f"b{number}")
    return StoredAnswer(answer_key("q", captions, False), label, captions=captions, **fields)  # type: ignore[arg-type]


def bare(one: StoredAnswer) -> StoredAnswer:
    """Return an answer as returned by `Store.read`."""
    return StoredAnswer(one.key, one.label, one.probabilities, one.swapped, seconds=one.seconds)


def test_answers_of_all_processes_are_merged(tmp_path: Path) -> None:
    stores = [Store(tmp_path, QUESTION) for _ in range(3)]
    for number, store in enumerate(stores):
        store.append(answer(number, probabilities=(0.5, 0.25, 0.25), replies=("héllo\n", "\ud800")))
    assert len(list((tmp_path / "answers" / stores[0].hash).iterdir())) == 3, "each has a file of its own"
    known = Store(tmp_path, QUESTION).read()
    assert known == {a.key: bare(a) for a in (answer(n, probabilities=(0.5, 0.25, 0.25)) for n in range(3))}
    question = json.loads((tmp_path / "questions" / f"{stores[0].hash}.json").read_text())
    assert question == QUESTION
    assert Store(tmp_path, {**QUESTION, "question": "why?"}).read() == {}


def test_valid_answers_take_the_place_of_invalid_ones(tmp_path: Path) -> None:
    for labels in (("invalid", "second"), ("second", "invalid")):
        folder = tmp_path / labels[0]
        for label in labels:
            cost = 100 if label == "invalid" else 10
            Store(folder, QUESTION).append(answer(0, label, prompt_tokens=cost, completion_tokens=1, seconds=cost))
        (kept,) = Store(folder, QUESTION).read().values()
        assert kept.preference == Preference.SECOND
        assert (kept.prompt_tokens, kept.completion_tokens, kept.seconds) == (110, 2, 110)
    assert answer(0, "invalid").preference == Preference.UNKNOWN


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 5), st.data())
def test_a_file_cut_anywhere_loses_only_its_last_line(
    tmp_path_factory: pytest.TempPathFactory, count: int, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("store")
    store = Store(folder, QUESTION)
    sizes = [0]
    for number in range(count):
        store.append(answer(number))
        (path,) = (folder / "answers" / store.hash).iterdir()
        sizes.append(path.stat().st_size)
    cut = data.draw(st.integers(0, sizes[-1]))
    os.truncate(path, cut)
    reader = Store(folder, QUESTION)
    whole = sum(size <= cut for size in sizes) - 1
    assert set(reader.read()) == {answer(n).key for n in range(whole)}
    store_again = Store(folder, QUESTION)  # later answers are written to another file
    store_again.append(answer(99))
    assert len(reader.read()) == whole + 1


def test_a_line_that_is_no_answer_is_left_out(tmp_path: Path) -> None:
    store = Store(tmp_path, QUESTION)
    store.append(answer(0))
    (path,) = (tmp_path / "answers" / store.hash).iterdir()
    with path.open("ab") as file:
        file.write(b"\0\0\0\n{}\n[]\n3\n\xff\n" + json.dumps({"key": "x", "label": "third"}).encode() + b"\n")
    assert len(Store(tmp_path, QUESTION).read()) == 1


@pytest.mark.parametrize("count", [pytest.param(10**3999, id="4000 digits"), 10**11, -1, 1.5, "7", None])
def test_impossible_numbers_of_tokens_are_read_as_0(tmp_path: Path, count: object) -> None:
    store = Store(tmp_path, QUESTION)
    store.append(answer(0, prompt_tokens=count, completion_tokens=5))
    (read,) = Store(tmp_path, QUESTION).read().values()
    assert (read.label, read.prompt_tokens, read.completion_tokens) == ("first", 0, 5)


_HOLDER = """
import sys
from pathlib import Path
from groundling.judges.preferences.store import Store
with Store(Path(sys.argv[1]), {"q": 1}).claim(int(sys.argv[2]), int(sys.argv[3])):
    print("claimed", flush=True)
    sys.stdin.read()
"""


def test_a_chunk_has_one_process_at_a_time_and_a_kill_lets_go(tmp_path: Path) -> None:
    store = Store(tmp_path, {"q": 1})
    command = [sys.executable, "-c", _HOLDER, str(tmp_path), "0", "2"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == "claimed\n"
        with pytest.raises(RunError, match="another process is annotating chunk 0 of 2"), store.claim(0, 2):
            pass
        with store.claim(1, 2), Store(tmp_path, {"q": 2}).claim(0, 2):
            pass
        holder.kill()
    with store.claim(0, 2):
        pass
