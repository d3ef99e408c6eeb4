import threading
import time
import tracemalloc
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from groundling.errors import ConfigError, ForeignError, RunError
from groundling.judges.asking import quoting as fence
from groundling.judges.asking.judge import Judge, Reply, Request
from groundling.judges.asking.openai import OpenAIJudge
from groundling.judges.asking.questions import Question
from groundling.judges.asking.rules import RulesJudge
from groundling.judges.online import background
from groundling.judges.online.background import BackgroundJudge
from groundling.judges.online.questions import online_judge
from groundling.judges.online.reward import OnlineLearning, OnlineReward, _from_bytes, _to_bytes
from groundling.judges.reward_models import (
    CharacterRewardModel,
    ClassifierRewardModel,
    MotifRewardModel,
    TableRewardModel,
)
from groundling.rewards.reward_model_part import RewardModelPart
from groundling.rewards.stretch import Stretch, Texts
from groundling.rewards.table import RewardTable
from tests.judges.asking.chat_server import ChatServer, serving
from tests.judges.reward_models.reward_reference import random_texts

PATIENCE = 20.0
_ASKED = Question(world="nethack")


def _until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "it never came about"
        time.sleep(0.002)


def _fits(text: str) -> float:
    return float("e" in text)


def judge_labels(questions: Sequence[tuple[str, ...]], contexts: Sequence[str]) -> list[float | None]:
    """Messages with an "e" are worth a reward; of two, the one with the more of them is preferred."""
    if len(questions[0]) == 1:
        return [_fits(text) for (text,) in questions]
    counts = [(a.count("e"), b.count("e")) for a, b in questions]
    return [1.0 if a > b else 0.0 if a < b else 0.5 for a, b in counts]


class Gate:
    """A judge that notes what it is asked and answers when it is let."""

    def __init__(self) -> None:
        self.asked: list[list[int]] = []
        self.open = threading.Semaphore(0)

    def __call__(self, questions: list[int]) -> list[float | None]:
        self.asked.append(questions)
        assert self.open.acquire(timeout=PATIENCE)
        return [None if q % 10 == 0 else float(q) for q in questions]


def test_the_newest_questions_are_put_first_and_each_once() -> None:
    gate = Gate()
    judge = BackgroundJudge(gate, batch_size=3)
    judge.offer([1])
    _until(lambda: gate.asked == [[1]])
    judge.offer([2, 3, 4])  # nothing waits for the judge, who is still at 1
    judge.offer([5, 3, 1, 10])
    assert judge.answers() == []
    for _ in range(3):
        gate.open.release()
    _until(lambda: judge.asked == 6)
    assert gate.asked == [[1], [10, 5, 4], [3, 2]]
    assert judge.answers() == [(1, 1.0), (5, 5.0), (4, 4.0), (3, 3.0), (2, 2.0)]
    assert judge.answers() == []
    assert judge.invalid == 1
    judge.close()


def test_a_judge_that_fails_is_asked_again_and_told_of_once() -> None:
    calls: list[list[int]] = []
    warnings: list[str] = []

    def judge(questions: list[int]) -> list[float]:
        calls.append(questions)
        if len(calls) <= 2:
            raise ConnectionError("nobody there")
        return [0.5] * (len(questions) if len(calls) > 3 else 99)

    asking = BackgroundJudge(judge, batch_size=2, pause=0.001, warn=warnings.append)
    asking.offer([1, 2])
    _until(lambda: asking.asked == 2)
    assert calls == [[2, 1]] * 4
    assert asking.failures == 3  # twice nobody, once too many answers
    assert len(warnings) == 1
    assert "nobody there" in warnings[0]
    assert sorted(asking.answers()) == [(1, 0.5), (2, 0.5)]
    asking.close()
    with pytest.raises(ConfigError, match="batch_size"):
        BackgroundJudge(judge, batch_size=0)


def test_a_judge_that_says_that_it_cannot_answer_stops_those_who_wait_for_it() -> None:
    calls: list[list[int]] = []

    def judge(questions: list[int]) -> list[float]:
        calls.append(questions)
        raise RunError("no access")

    asking = BackgroundJudge(judge, pause=0.001, warn=pytest.fail)
    asking.offer([1])
    _until(lambda: not asking._thread.is_alive())
    for _ in range(2):
        with pytest.raises(RunError, match="no access"):
            asking.answers()
    assert len(calls) == 1
    online = OnlineReward(TableRewardModel(), lambda questions, contexts: judge([]), warn=pytest.fail)
    online.observe_captions(["door"])
    _until(lambda: not online._judge._thread.is_alive())
    with pytest.raises(RunError, match="no access"):
        online.update()


def test_a_judge_with_a_mistake_in_it_ends_the_run_at_once() -> None:
    class Misspelt(Judge):
        def answer(self, request: Request) -> Reply:
            return {"text": "Verdict: 1"}["txt"]

    online = OnlineReward(TableRewardModel(), online_judge(Misspelt(), _ASKED), warn=pytest.fail)
    online.observe_captions(["door"])
    _until(lambda: not online._judge._thread.is_alive())
    with pytest.raises(ForeignError, match=r"Misspelt.*raised KeyError") as error:
        online.update()
    assert isinstance(error.value.__cause__, KeyError)


@pytest.mark.parametrize("returned", ["Verdict: 1", None])
def test_what_is_no_reply_is_named(returned: Any) -> None:
    class Short(Judge):
        def answer(self, request: Request) -> Reply:
            return returned

    with pytest.raises(RunError, match=f"Short answers {returned!r}, expected a groundling.judges.Reply"):
        online_judge(Short(), _ASKED)([("a", "b")], [""])


def test_a_judge_that_never_gives_a_verdict_ends_the_run() -> None:
    class Mute(Judge):
        words = "I cannot say."

        def answer(self, request: Request) -> Reply:
            return Reply(self.words)

    judge = Mute()
    answer = online_judge(judge, _ASKED)
    assert answer([(f"a{n}", "b") for n in range(19)], [""] * 19) == [None] * 19
    with pytest.raises(RunError, match=r"no verdict in 20 answers.*'I cannot say\.'.*'Verdict: 1'"):
        answer([("a", "c")], [""])
    judge.words = "Verdict: 1"
    answer = online_judge(judge, _ASKED)
    assert answer([("a", "b")], [""]) == [1.0]
    judge.words = "I cannot say."
    assert answer([(f"a{n}", "b") for n in range(30)], [""] * 30) == [None] * 30, "it has given one before"


def test_a_run_is_told_at_its_end_that_its_judge_never_answered() -> None:
    warnings: list[str] = []
    online = OnlineReward(
        TableRewardModel(), lambda questions, contexts: [None] * len(questions), warn=warnings.append
    )
    online.observe_captions(["a", "b"])
    _until(lambda: online._judge.asked == 2)
    online.close()
    assert len(warnings) == 1 and "no valid answer" in warnings[0] and "2 answers without a verdict" in warnings[0]


@pytest.mark.parametrize("captions", [["a"], ["a", "b"]])
def test_a_run_is_told_at_its_end_that_its_judge_failed_to_the_end(captions: list[str]) -> None:
    warnings: list[str] = []

    def judge(questions: list[tuple[str, ...]], contexts: list[str]) -> list[float]:
        if ("b",) in questions:
            raise KeyError("winner")
        return [1.0] * len(questions)

    learning = OnlineLearning(judge_batch_size=1)
    online = OnlineReward(TableRewardModel(), judge, learning, warnings.append)
    for caption in captions:
        online.observe_captions([caption])
        _until(lambda: online._judge.has_answered)
    fails = "b" in captions
    _until(lambda: (online._judge.failing is not None) == fails)
    online.update()
    online.close()
    assert any("failed to the end" in one and "KeyError: 'winner'" in one for one in warnings) == fails


def test_a_judge_that_has_answered_once_is_asked_again_whatever_it_says() -> None:
    warnings: list[str] = []
    replies = iter([[1.0], RunError("busy"), [0.0]])

    def judge(questions: list[int]) -> list[float]:
        reply = next(replies)
        if isinstance(reply, Exception):
            raise reply
        return reply

    asking = BackgroundJudge(judge, pause=0.001, warn=warnings.append)
    asking.offer([1])
    _until(lambda: asking.asked == 1)
    asking.offer([2])
    _until(lambda: asking.asked == 2)
    assert asking.answers() == [(1, 1.0), (2, 0.0)]
    assert asking.failures == len(warnings) == 1
    asking.close()


def test_close_waits_for_what_is_asked_but_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate()
    judge = BackgroundJudge(gate)
    judge.offer([1])
    _until(lambda: gate.asked == [[1]])
    with monkeypatch.context() as patch:
        patch.setattr(background, "_LONGEST_END", 0.01)
        judge.close()
    assert judge._thread.is_alive()
    threading.Timer(0.05, gate.open.release).start()
    judge.close()
    assert not judge._thread.is_alive()


def test_close_ends_the_thread() -> None:
    before = threading.active_count()
    judge = BackgroundJudge(lambda questions: [1.0] * len(questions))
    judge.offer([1])
    judge.close()
    _until(lambda: threading.active_count() == before)


def test_labels_go_into_the_table_and_reach_the_agent() -> None:
    model = TableRewardModel()
    online = OnlineReward(model, judge_labels, OnlineLearning(judge_batch_size=2))
    table = RewardTable(model)
    batch = ["You see", "It's a wall", "You see", "", "door"]
    assert table.rewards(batch).tolist() == [0] * 5
    online.observe_captions(batch)
    online.observe_captions(batch)
    _until(lambda: online.update() and online.figures()["online_answers"] == 4)
    assert table.rewards(batch).tolist() == [1, 0, 1, 0, 0]
    assert not online.update()
    assert online.figures() == {"online_messages": 4, "online_answers": 4, "online_invalid": 0, "online_failures": 0}
    online.close()


def test_nothing_waits_for_the_judge() -> None:
    hold = threading.Event()

    def slow(questions: Sequence[tuple[str, ...]], contexts: Sequence[str]) -> list[float | None]:
        hold.wait(PATIENCE)
        return judge_labels(questions, contexts)

    online = OnlineReward(TableRewardModel(), slow)
    texts = random_texts(200, 1)
    began = time.monotonic()
    for start in range(0, 200, 20):
        online.observe_captions(texts[start : start + 20])
        assert not online.update()
    assert time.monotonic() - began < PATIENCE / 2
    hold.set()
    _until(lambda: online.update() or online.figures()["online_answers"])
    online.close()


@pytest.mark.parametrize("kind", [ClassifierRewardModel, MotifRewardModel])
def test_networks_learn_in_the_background(kind: type) -> None:
    torch.manual_seed(0)
    model = kind()
    learning = OnlineLearning(train_every=60, epochs=12, learning_rate=4e-3, batch_size=32, comparisons=4)
    online = OnlineReward(model, judge_labels, learning, warn=pytest.fail)
    texts = sorted({*random_texts(100, 3)})[:40]
    before = model.version
    weights = model.network.head[-1].weight.clone()
    online.observe_captions(texts)
    answers = 40 if kind is ClassifierRewardModel else 4 * 40 - 10
    _until(lambda: online._judge.asked == answers)
    if kind is ClassifierRewardModel:  # 40 answers are not enough to begin
        assert not online.update()
        assert online._training is None
        online.observe_captions([f"{text} e" for text in texts])
        _until(lambda: online._judge.asked == 80)
    assert not online.update()  # training has begun, and the model is as it was
    assert torch.equal(model.network.head[-1].weight, weights)
    assert model.version == before
    _until(online.update)
    assert model.version != before
    rewards = model.rewards(texts)
    if kind is ClassifierRewardModel:
        agreeing = sum(float(reward) == _fits(text) for reward, text in zip(rewards, texts, strict=True))
        assert agreeing >= 36
        assert model.normalization is None
    else:
        with_e = torch.tensor([text.count("e") >= 3 for text in texts])
        without = torch.tensor([text.count("e") == 0 for text in texts])
        assert rewards[with_e].mean() > rewards[without].mean() + 1
        assert model.normalization.variance > 0.1
    online.close()


def test_a_model_is_tested_on_what_it_has_not_learnt_from_yet() -> None:
    torch.manual_seed(0)
    learning = OnlineLearning(train_every=10, epochs=1)
    online = OnlineReward(MotifRewardModel(), judge_labels, learning, warn=pytest.fail)
    texts = sorted({*random_texts(100, 3)})[:24]
    online.observe_captions(texts[:12])
    _until(lambda: online.update() and online._training is None)
    learnt_from = online._trained_on
    assert learnt_from >= 10 and online.figures()["online_tested"] == 0
    online.observe_captions(texts[12:])
    _until(lambda: online._judge.asked == 2 * 24 - 3)
    _until(online.update)
    new = list(online._answered.values())[learnt_from : online._trained_on]
    figures = online.figures()
    assert figures["online_tested"] == sum(answer != 0.5 for answer in new) > 0
    assert 0 <= figures["online_agreed"] <= figures["online_tested"]
    online.close()


def test_close_ends_a_training() -> None:
    """A thread that computes while Python shuts down aborts the process."""
    learning = OnlineLearning(train_every=1, epochs=1_000_000, batch_size=4)
    online = OnlineReward(MotifRewardModel(), judge_labels, learning, warn=pytest.fail)
    online.observe_captions(sorted({*random_texts(40, 3)})[:12])
    _until(lambda: online.update() or online._training is not None)
    assert online._training is not None and online._training.thread.is_alive()
    online.close()
    assert not online._training.thread.is_alive()


def test_before_it_has_learnt_anything_a_ranking_model_rewards_next_to_nothing() -> None:
    torch.manual_seed(0)
    model = MotifRewardModel()
    online = OnlineReward(model, judge_labels)
    raw = model.rewards(["You see", "door"])
    given = RewardModelPart().worth(raw, torch.ones(2), model.normalization)
    assert given.abs().max() < 1e-2
    online.close()


def test_only_captions_of_one_goal_are_compared_also_after_a_resume() -> None:
    asked: list[tuple[str, ...]] = []

    def judge(questions: Sequence[tuple[str, ...]], contexts: Sequence[str]) -> list[float | None]:
        asked.extend(questions)
        return [0.5] * len(questions)

    online = OnlineReward(MotifRewardModel(), judge)
    online.observe_captions(["a 1", "b 1", "a 2", "c 1", "b 2"], ["a", "b", "a", "c", "b"])
    _until(lambda: online._judge.asked == 2)
    online.update()
    state = online.state_dict()
    online.close()
    assert {frozenset(question) for question in asked} == {frozenset({"a 1", "a 2"}), frozenset({"b 1", "b 2"})}
    asked.clear()
    resumed = OnlineReward(MotifRewardModel(), judge)
    resumed.load_state_dict(state)
    resumed.observe_captions(["c 2", "a 3"], ["c", "a"])
    _until(lambda: resumed._judge.asked == 2)
    assert {frozenset(question) for question in asked} == {frozenset({"a 3", "a 1"}), frozenset({"a 3", "a 2"})}
    resumed.close()


@pytest.mark.parametrize("kind", [TableRewardModel, CharacterRewardModel])
def test_what_two_texts_have_in_common_is_told_once_also_after_a_resume(kind: type) -> None:
    """A prompt is the context of the question; the model reads each text behind it."""
    prompt = "Sum up:\nA newt came."
    judge = Scripted(*(Reply("", probabilities=(0.8, 0.1, 0.1)) for _ in range(3)))

    def written(*texts: str) -> Stretch:
        return Stretch.of_texts(Texts([prompt] * len(texts), [[t] for t in texts], [[]] * len(texts), None))

    def observe(online: OnlineReward, stretch: Stretch) -> None:
        read = stretch.judged
        online.observe(read.ids, read.read, read.goals, read.contexts)

    online = OnlineReward(kind(), online_judge(judge, Question(world="writing")))
    observe(online, written("A newt.", "No newt."))
    count = 1 if kind is CharacterRewardModel else 2
    _until(lambda: online._judge.asked == count)
    online.update()
    state = online.state_dict()
    online.close()
    resumed = OnlineReward(kind(), online_judge(judge, Question(world="writing")))
    resumed.load_state_dict(state)
    observe(resumed, written("One newt."))
    _until(lambda: resumed._judge.asked)
    resumed.close()
    assert len(judge.asked) >= count + 1
    for _, user in judge.asked:
        assert user["content"].count("A newt came.") == 1 and "| A newt came." in user["content"]
    if kind is CharacterRewardModel:
        first = judge.asked[0][1]["content"]
        assert "| A newt." in first and "| No newt." in first


def test_goals_that_never_recur_are_warned_of_once() -> None:
    warnings: list[str] = []
    learning = OnlineLearning(train_every=4)
    online = OnlineReward(MotifRewardModel(), judge_labels, learning, warn=warnings.append)
    for start in range(0, 8, 2):
        names = [str(start), str(start + 1)]
        online.observe_captions(names, names)
    online.close()
    assert len(warnings) == 1 and "no two of 4 captions have the same goal" in warnings[0]


def test_what_was_answered_is_not_asked_again_after_a_resume() -> None:
    asked: list[str] = []

    def judge(questions: Sequence[tuple[str, ...]], contexts: Sequence[str]) -> list[float | None]:
        asked.extend(text for (text,) in questions)
        return [None if text == "door 鍵" else _fits(text) for (text,) in questions]

    online = OnlineReward(TableRewardModel(), judge)
    online.observe_captions(["You see", "door 鍵", "kill"])
    _until(lambda: online._judge.asked == 3)
    online.update()
    state = online.state_dict()
    online.close()
    assert {name: tensor.dtype for name, tensor in state.items()} == {
        "captions": torch.uint8,
        "lengths": torch.int64,
        "goals": torch.uint8,
        "goal_lengths": torch.int64,
        "questions": torch.int64,
        "answers": torch.float32,
        "trained_on": torch.int64,
    }
    asked.clear()
    resumed = OnlineReward(TableRewardModel(), judge)
    resumed.load_state_dict(state)
    assert resumed.state_dict()["answers"].tolist() == state["answers"].tolist()
    resumed.observe_captions(["You see", "door 鍵", "kill", "new"])
    _until(lambda: resumed._judge.asked == 2)
    assert sorted(asked) == ["door 鍵", "new"]
    resumed.close()
    ranking = OnlineReward(MotifRewardModel(), judge)
    with pytest.raises(RunError, match="about 1 captions each"):
        ranking.load_state_dict(state)
    ranking.close()


def test_a_checkpoints_captions_take_the_memory_of_their_bytes() -> None:
    texts = ["a" * 2**20, "", "door 鍵 \ud800", "b" * 2**20]
    tracemalloc.start()
    written, lengths = _to_bytes(texts)
    size = tracemalloc.get_traced_memory()[1]
    tracemalloc.reset_peak()
    before = tracemalloc.get_traced_memory()[0]
    assert _from_bytes(written, lengths) == texts
    read = tracemalloc.get_traced_memory()[1] - before
    tracemalloc.stop()
    assert size < 8 * 2**20 and read < 8 * 2**20, "each of 2 MiB a few times"
    for nothing in ([], [""]):
        written, lengths = _to_bytes(nothing)
        assert written.dtype == torch.uint8 and written.shape == (0,) and _from_bytes(written, lengths) == nothing


def test_training_that_a_checkpoint_has_cut_short_is_begun_again() -> None:
    torch.manual_seed(0)
    learning = OnlineLearning(train_every=60)
    online = OnlineReward(ClassifierRewardModel(), judge_labels, learning, warn=pytest.fail)
    online.observe_captions(sorted({*random_texts(100, 3)})[:70])
    _until(lambda: online._judge.asked == 70)
    assert not online.update() and online._training is not None
    state = online.state_dict()
    _until(online.update)
    learnt = online.state_dict()
    online.close()
    assert (int(state["trained_on"]), int(learnt["trained_on"])) == (0, 70)
    for saved, begins in ((state, True), (learnt, False)):
        resumed = OnlineReward(ClassifierRewardModel(), judge_labels, learning, warn=pytest.fail)
        resumed.load_state_dict(saved)
        assert not resumed.update()
        assert (resumed._training is not None) == begins
        resumed.close()


def test_training_that_fails_leaves_the_model_as_it_was() -> None:
    warnings: list[str] = []
    model = ClassifierRewardModel()
    model.network.head[-1].bias.data.fill_(float("nan"))
    online = OnlineReward(model, judge_labels, OnlineLearning(train_every=1), warnings.append)
    online.observe_captions(["door"])
    _until(lambda: online.update() or warnings)
    assert "learning_rate" in warnings[0]
    online.close()


class Scripted(Judge):
    """Gives the replies that it was told to, and notes what it was asked."""

    def __init__(self, *replies: Reply) -> None:
        self.replies, self.asked = list(replies), []

    def answer(self, request: Request) -> Reply:
        self.asked.append(request.conversation)
        return self.replies.pop(0)


def test_the_judge_of_annotation_answers_online_questions() -> None:
    rules = online_judge(RulesJudge(), _ASKED)
    kill, wall = "You kill the newt!", "It's a wall."
    assert rules([(kill, wall), (wall, kill), (kill, kill)], [""] * 3) == [1.0, 0.0, 0.5]
    assert rules([(kill,), (wall,), ("Hello",)], [""] * 3) == [1.0, 0.0, 0.0]


def test_a_single_message_is_labelled_0_or_1_and_the_empty_one_without_a_request() -> None:
    replies = [(0.6, 0.3, 0.1), (0.4, 0.3, 0.3), (0.4, 0.2, 0.4), (0.2, 0.7, 0.1)]
    judge = Scripted(*(Reply("", probabilities=p) for p in replies))
    assert online_judge(judge, _ASKED)([("a",), ("",), ("b",), ("c",), ("d",)], [""] * 5) == [1.0, 0.0, 1.0, 0.0, 0.0]
    assert len(judge.asked) == 4
    with pytest.raises(RunError, match="none of 1 questions; the first: gone"):
        online_judge(Scripted(Reply("", failure="gone")), _ASKED)([("",), ("a",)], ["", ""])


def test_replies_without_a_verdict_are_asked_for_once_more() -> None:
    judge = Scripted(
        Reply("Hm."), Reply("Verdict: 2"), Reply("Hm."), Reply("Well."), Reply("", probabilities=(0.6, 0.2, 0.2))
    )
    assert online_judge(judge, _ASKED)([("a", "b"), ("c", "d"), ("e", "f")], [""] * 3) == [
        0.0,
        None,
        pytest.approx(0.7),
    ]
    assert [len(conversation) for conversation in judge.asked] == [2, 4, 2, 4, 2]


def test_a_request_that_fails_is_no_answer_and_costs_no_other() -> None:
    judge = Scripted(Reply("Verdict: 1"), Reply("", failure="refused"), Reply("Hm."), Reply("", failure="gone"))
    assert online_judge(judge, _ASKED)([("a",), ("b",), ("c",)], [""] * 3) == [1.0, None, None]
    failing_judge = Scripted(Reply("", failure="refused"), Reply("", failure="gone"))
    with pytest.raises(RunError, match="none of 2 questions; the first: refused"):
        online_judge(failing_judge, _ASKED)([("a",), ("b",)], ["", ""])


def test_of_ten_questions_one_is_refused_and_nine_are_answered_once() -> None:
    def treat(number: int) -> str:
        return "400" if "grail" in server.bodies[number]["messages"][1]["content"] else "ok"

    with serving(ChatServer(treat=treat)) as server:
        judge = OpenAIJudge("model", server.url, soft_labels=False, max_retries=0)
        online = OnlineReward(TableRewardModel(), online_judge(judge, _ASKED), warn=pytest.fail)
        online.observe_captions([f"door {n}" for n in range(9)] + ["grail"])
        _until(lambda: online._judge.asked == 10)
        online.update()
        assert online.figures() == {
            "online_messages": 10,
            "online_answers": 9,
            "online_invalid": 1,
            "online_failures": 0,
        }
        assert len(server.bodies) == 10
        online.close()


class Faltering(Judge):
    """Prefers the first, and notes what it is asked; at these questions, counted from 0, it is out of reach."""

    def __init__(self, *lost: int) -> None:
        self.lost, self.asked = lost, []

    def answer(self, request: Request) -> Reply:
        self.asked.append(fence.read_both(request.conversation[1]["content"])[0])
        if len(self.asked) - 1 in self.lost:
            raise RunError("no connection")
        return Reply("Hm." if self.asked[-1] == "dull" else "Verdict: 1")


def test_answers_that_came_before_a_failure_are_not_asked_for_again() -> None:
    judge = Faltering(3, 5)
    answer = online_judge(judge, _ASKED)
    questions = [("a",), ("dull",), ("",), ("b",), ("c",)]
    with pytest.raises(RuntimeError, match="no connection"):
        answer(questions, [""] * 5)
    assert answer([("d",)], [""]) == [1.0], "a newer batch comes first, and what is kept stays"
    with pytest.raises(RuntimeError, match="no connection"):
        answer(questions, [""] * 5)
    assert answer(questions, [""] * 5) == [1.0, None, 0.0, 1.0, 1.0]
    assert judge.asked == ["a", "dull", "dull", "b", "d", "b", "b", "c"]
    assert answer([("a",)], ["Goal: win"]) == [1.0], "another context, another question"
    assert answer([("a",)], [""]) == [1.0]
    assert judge.asked[8:] == ["a", "a"], "nothing is kept for longer than it takes"


def test_a_first_batch_that_is_answered_in_part_does_not_end_the_run() -> None:
    warnings: list[str] = []
    judge = Faltering(2)
    online = OnlineReward(TableRewardModel(), online_judge(judge, _ASKED), warn=warnings.append)
    online.observe_captions(["a", "b", "c", "d"])
    _until(lambda: online._judge.asked == 4)
    online.update()
    assert online.figures()["online_answers"] == 4 and online.figures()["online_failures"] == 1
    assert len(judge.asked) == 5 and "no connection" in warnings[0]
    online.close()


def test_requests_that_always_fail_do_not_hold_up_the_rest_of_their_batch() -> None:
    class Refusing(Faltering):
        def answer(self, request: Request) -> Reply:
            reply = super().answer(request)
            return Reply("", failure="too long") if self.asked[-1] == "long" else reply

    judge = Refusing(1)
    answer = online_judge(judge, _ASKED)
    with pytest.raises(RuntimeError):
        answer([("a",), ("long",)], ["", ""])
    assert answer([("a",), ("long",)], ["", ""]) == [1.0, None]
