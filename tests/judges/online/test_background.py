"""Querying a judge in a thread: order, failures, closing."""

import threading

import pytest

from groundling.errors import RunError
from groundling.judges.online import background
from groundling.judges.online.background import BackgroundJudge
from groundling.judges.online.reward import OnlineReward
from groundling.judges.reward_models import TableRewardModel
from tests.judges.online.judging import PATIENCE, until


class Gate:
    """A judge that records its questions, and answers when it is released."""

    def __init__(self) -> None:
        self.asked: list[list[int]] = []
        self.open = threading.Semaphore(0)

    def __call__(self, questions: list[int]) -> list[float | None]:
        self.asked.append(questions)
        assert self.open.acquire(timeout=PATIENCE)
        return [None if q % 10 == 0 else float(q) for q in questions]


def test_the_newest_questions_are_put_first() -> None:
    gate = Gate()
    judge = BackgroundJudge(gate, batch_size=3)
    judge.offer([1])
    until(lambda: gate.asked == [[1]])
    judge.offer([2, 3, 4])  # nothing waits for the judge, which is still busy with 1
    judge.offer([5, 10])
    assert judge.answers() == []
    for _ in range(3):
        gate.open.release()
    until(lambda: judge.asked == 6)
    assert gate.asked == [[1], [10, 5, 4], [3, 2]]
    assert judge.answers() == [(1, 1.0), (5, 5.0), (4, 4.0), (3, 3.0), (2, 2.0)]
    assert judge.answers() == []
    assert judge.invalid == 1
    judge.close()


def test_a_failing_judge_is_asked_again_with_one_warning() -> None:
    calls: list[list[int]] = []
    warnings: list[str] = []

    def judge(questions: list[int]) -> list[float]:
        calls.append(questions)
        if len(calls) <= 2:
            raise ConnectionError("no connection")
        return [0.5] * (len(questions) if len(calls) > 3 else 99)

    asking = BackgroundJudge(judge, batch_size=2, pause=0.001, warn=warnings.append)
    asking.offer([1, 2])
    until(lambda: asking.asked == 2)
    assert calls == [[2, 1]] * 4
    assert asking.failures == 3  # two connection errors, and one wrong number of answers
    assert len(warnings) == 1
    assert "no connection" in warnings[0]
    assert sorted(asking.answers()) == [(1, 0.5), (2, 0.5)]
    asking.close()


def test_a_judge_that_cannot_answer_stops_the_run() -> None:
    calls: list[list[int]] = []

    def judge(questions: list[int]) -> list[float]:
        calls.append(questions)
        raise RunError("no access")

    asking = BackgroundJudge(judge, pause=0.001, warn=pytest.fail)
    asking.offer([1])
    until(lambda: not asking._thread.is_alive())
    for _ in range(2):
        with pytest.raises(RunError, match="no access"):
            asking.answers()
    assert len(calls) == 1
    online = OnlineReward(TableRewardModel(), lambda questions, contexts: judge([]), warn=pytest.fail)
    online.observe_captions(["door"])
    until(lambda: not online._judge._thread.is_alive())
    with pytest.raises(RunError, match="no access"):
        online.update()


def test_a_judge_that_has_answered_once_is_asked_again() -> None:
    warnings: list[str] = []
    replies = iter([[1.0], RunError("busy"), [0.0]])

    def judge(questions: list[int]) -> list[float]:
        reply = next(replies)
        if isinstance(reply, Exception):
            raise reply
        return reply

    asking = BackgroundJudge(judge, pause=0.001, warn=warnings.append)
    asking.offer([1])
    until(lambda: asking.asked == 1)
    asking.offer([2])
    until(lambda: asking.asked == 2)
    assert asking.answers() == [(1, 1.0), (2, 0.0)]
    assert asking.failures == len(warnings) == 1
    asking.close()


def test_close_waits_for_the_call_in_progress_but_not_forever(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate()
    judge = BackgroundJudge(gate)
    judge.offer([1])
    until(lambda: gate.asked == [[1]])
    with monkeypatch.context() as patch:
        patch.setattr(background, "_CLOSE_TIMEOUT", 0.01)
        judge.close()
    assert judge._thread.is_alive()
    threading.Timer(0.05, gate.open.release).start()
    judge.close()
    assert not judge._thread.is_alive()
