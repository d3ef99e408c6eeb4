"""A judge of captions answers the questions of online judging."""

from typing import Any

import pytest

from groundling.errors import ForeignError, RunError
from groundling.judges.asking import quoting as fence
from groundling.judges.asking.judge import Judge, Reply, Request
from groundling.judges.asking.openai import OpenAIJudge
from groundling.judges.asking.rules import RulesJudge
from groundling.judges.online.reward import OnlineReward, online_judge
from groundling.judges.reward_models import TableRewardModel
from tests.judges.asking.chat_server import ChatServer, serving
from tests.judges.online.judging import QUESTION, Scripted, until


def test_a_judge_with_a_programming_error_ends_the_run() -> None:
    class Misspelt(Judge):
        def answer(self, request: Request) -> Reply:
            return {"text": "Verdict: 1"}["txt"]

    online = OnlineReward(TableRewardModel(), online_judge(Misspelt(), QUESTION), warn=pytest.fail)
    online.observe_captions(["door"])
    until(lambda: not online._judge._thread.is_alive())
    with pytest.raises(ForeignError, match=r"Misspelt.*raised KeyError") as error:
        online.update()
    assert isinstance(error.value.__cause__, KeyError)


@pytest.mark.parametrize("returned", [1, None])
def test_a_reply_of_another_type_gets_a_message(returned: Any) -> None:
    class Short(Judge):
        def answer(self, request: Request) -> Reply:
            return returned

    with pytest.raises(RunError, match=f"Short answers {returned!r}, expected a text or a groundling.judges.Reply"):
        online_judge(Short(), QUESTION)([("a", "b")], [""])


def test_a_judge_that_never_gives_a_verdict_ends_the_run() -> None:
    class Mute(Judge):
        words = "I cannot say."

        def answer(self, request: Request) -> Reply:
            return Reply(self.words)

    judge = Mute()
    answer = online_judge(judge, QUESTION)
    assert answer([(f"a{n}", "b") for n in range(19)], [""] * 19) == [None] * 19
    with pytest.raises(RunError, match=r"no verdict in 20 answers.*'I cannot say\.'.*'Verdict: 1'"):
        answer([("a", "c")], [""])
    judge.words = "Verdict: 1"
    answer = online_judge(judge, QUESTION)
    assert answer([("a", "b")], [""]) == [1.0]
    judge.words = "I cannot say."
    assert answer([(f"a{n}", "b") for n in range(30)], [""] * 30) == [None] * 30, "it has given one before"


def test_the_judge_of_annotation_answers_online_questions() -> None:
    rules = online_judge(RulesJudge(), QUESTION)
    kill, wall = "You kill the newt!", "It's a wall."
    assert rules([(kill, wall), (wall, kill), (kill, kill)], [""] * 3) == [1.0, 0.0, 0.5]
    assert rules([(kill,), (wall,), ("Hello",)], [""] * 3) == [1.0, 0.0, 0.0]


def test_a_single_message_is_labelled_0_or_1_and_the_empty_one_without_a_request() -> None:
    replies = [(0.6, 0.3, 0.1), (0.4, 0.3, 0.3), (0.4, 0.2, 0.4), (0.2, 0.7, 0.1)]
    judge = Scripted(*(Reply("", probabilities=p) for p in replies))
    assert online_judge(judge, QUESTION)([("a",), ("",), ("b",), ("c",), ("d",)], [""] * 5) == [
        1.0,
        0.0,
        1.0,
        0.0,
        0.0,
    ]
    assert len(judge.asked) == 4
    with pytest.raises(RunError, match="none of 1 questions; the first: gone"):
        online_judge(Scripted(Reply("", failure="gone")), QUESTION)([("",), ("a",)], ["", ""])


def test_replies_without_a_verdict_are_asked_for_once_more() -> None:
    judge = Scripted(
        Reply("Hm."), Reply("Verdict: 2"), Reply("Hm."), Reply("Well."), Reply("", probabilities=(0.6, 0.2, 0.2))
    )
    assert online_judge(judge, QUESTION)([("a", "b"), ("c", "d"), ("e", "f")], [""] * 3) == [
        0.0,
        None,
        pytest.approx(0.7),
    ]
    assert [len(conversation) for conversation in judge.asked] == [2, 4, 2, 4, 2]


def test_a_failed_request_costs_no_other_answer() -> None:
    judge = Scripted(Reply("Verdict: 1"), Reply("", failure="refused"), Reply("Hm."), Reply("", failure="gone"))
    assert online_judge(judge, QUESTION)([("a",), ("b",), ("c",)], [""] * 3) == [1.0, None, None]
    failing_judge = Scripted(Reply("", failure="refused"), Reply("", failure="gone"))
    with pytest.raises(RunError, match="none of 2 questions; the first: refused"):
        online_judge(failing_judge, QUESTION)([("a",), ("b",)], ["", ""])


def test_one_refused_question_of_ten_leaves_nine_answers() -> None:
    def treat(number: int) -> str:
        return "400" if "grail" in server.bodies[number]["messages"][1]["content"] else "ok"

    with serving(ChatServer(treat=treat)) as server:
        judge = OpenAIJudge("model", server.url, soft_labels=False, max_retries=0)
        online = OnlineReward(TableRewardModel(), online_judge(judge, QUESTION), warn=pytest.fail)
        online.observe_captions([f"door {n}" for n in range(9)] + ["grail"])
        until(lambda: online._judge.asked == 10)
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


def test_answers_before_a_failure_are_kept() -> None:
    judge = Faltering(3)
    answer = online_judge(judge, QUESTION)
    assert answer([("a",), ("dull",), ("",), ("b",), ("c",)], [""] * 5) == [1.0, None, 0.0, None, None]
    assert judge.asked == ["a", "dull", "dull", "b"]
    with pytest.raises(RunError, match="no connection"):
        online_judge(Faltering(0), QUESTION)([("a",), ("b",)], ["", ""])


def test_a_failure_after_the_first_answer_does_not_end_the_run() -> None:
    judge = Faltering(2, 3)
    online = OnlineReward(TableRewardModel(), online_judge(judge, QUESTION), warn=(warnings := []).append)
    online.observe_captions(["a", "b", "c", "d"])
    until(lambda: online._judge.asked == 4)
    online.update()
    assert online.figures()["online_answers"] == 2 and not warnings
    online.observe_captions(["e"])
    until(lambda: online._judge.asked == 5)
    online.update()
    assert online.figures()["online_answers"] == 3 and online.figures()["online_failures"] == 1
    assert "no connection" in warnings[0]
    online.close()
