"""A judge of captions answers the questions of online judging."""

import pytest

from groundling.errors import ForeignError, RunError
from groundling.judges.asking import quoting as fence
from groundling.judges.asking.judge import Judge, Reply, Request
from groundling.judges.asking.language_models import OpenAIJudge
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
    with pytest.raises(RunError, match="none of 1 questions; the first error: gone"):
        online_judge(Scripted(Reply("", failure="gone")), QUESTION)([("",), ("a",)], ["", ""])


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
    """Prefers the first caption, and records its questions; for these questions, counted from 0, it is unavailable."""

    def __init__(self, *lost: int) -> None:
        self.lost, self.asked = lost, []

    def answer(self, request: Request) -> Reply:
        self.asked.append(fence.read_all(request.conversation[1]["content"])[0])
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
