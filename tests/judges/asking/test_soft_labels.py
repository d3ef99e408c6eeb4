"""Soft labels from the log-probabilities of the verdict's token."""

import math
from pathlib import Path

import numpy as np
import pytest

from groundling.judges import Annotation, Question, TextPairs
from groundling.judges.online.reward import online_judge
from groundling.judges.preferences.pairs import TextSegment
from tests.judges.asking.chat_server import ChatServer, captions, serving, verdict
from tests.judges.asking.server_judge import ask, dataset, judge


def _token(text: str, **alternatives: float) -> dict:
    top = [{"token": token, "logprob": math.log(p)} for token, p in alternatives.items()]
    return {"token": text, "top_logprobs": top}


def test_soft_labels_come_from_the_verdicts_token() -> None:
    # The first "1" and the tokens before are none of the verdict's; "t" begins "tie"; " 2" is the same verdict as "2".
    tokens = [
        _token("1 of", **{"1 of": 0.9}),
        _token("\n", **{"\n": 1.0}),
        _token("Verdict:", **{"Verdict:": 1.0}),
        _token(" 2", **{" 2": 0.4, " 1": 0.2, " t": 0.1, " tie": 0.1, "2": 0.15, " two": 0.05}),
    ]
    with serving(
        ChatServer(write=lambda body: "1 of\nVerdict: 2", more=lambda body: {"logprobs": {"content": tokens}})
    ) as server:
        reply = ask(judge(server))[0]
    assert reply.probabilities == pytest.approx((0.25, 0.5, 0.25))
    assert (reply.prompt_tokens, reply.completion_tokens) == (100, 7)


def test_texts_are_judged_in_the_originals_form_too(tmp_path: Path) -> None:
    def write(body: dict) -> str:
        return f'("best_text": {verdict(*captions(body))})'

    def more(body: dict) -> dict:
        number = verdict(*captions(body))
        tokens = [_token('("best_text": '), _token(number, **{number: 0.75, "None": 0.25}), _token(")")]
        return {"logprobs": {"content": tokens}}

    question = Question(world="writing")
    texts = [(TextSegment("Go on.", ["a"]), TextSegment("Go on.", ["aa"]))]
    pairs = TextPairs.create(tmp_path / "pairs", texts, {}, {"world": "writing"})
    with serving(ChatServer(write=write, more=more)) as server:
        one = judge(server, answer="motif")
        summary = Annotation(pairs, one, question).run("llm")
        assert online_judge(one, question)([("aa", "a"), ("a", "aa")], ["Go on."] * 2) == [1.0, 0.0]
    assert (summary.asked, summary.invalid) == (1, 0)
    assert pairs.preferences("llm").tolist() == [1]
    assert pairs.soft_preferences("llm").tolist() == [[0.0, 1.0, 0.0]]
    assert len(server.bodies) == 3, "no question was repeated"


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"logprobs": None},
        {"logprobs": {"content": [{"token": "other text", "top_logprobs": []}]}},
        {"logprobs": {"content": [{"token": "Verdict: 1", "top_logprobs": [{"token": "1"}]}]}},
        {"logprobs": {"content": "nonsense"}},
        {"logprobs": {"content": [_token("Verdict: 1", zebra=0.5)]}},
        {
            "logprobs": {
                "content": [{"token": "Verdict: 1", "top_logprobs": [{"token": "Verdict: 1", "logprob": 1e6}]}]
            }
        },
    ],
)
def test_without_fitting_log_probabilities_there_are_no_soft_labels(more: dict) -> None:
    with serving(ChatServer(write=lambda body: "Verdict: 1", more=lambda body: more)) as server:
        reply = ask(judge(server))[0]
    assert reply.failure is None and reply.probabilities is None


def test_soft_labels_reach_the_rows_in_their_order(tmp_path: Path) -> None:
    def more(body: dict) -> dict:
        sure = verdict(*captions(body))
        return {"logprobs": {"content": [_token("Verdict: "), _token(sure, **{"1": 0.5, "2": 0.5, sure: 0.8})]}}

    def write(body: dict) -> str:
        return f"Verdict: {verdict(*captions(body))}"

    with serving(ChatServer(write=write, more=more)) as server:
        pairs = dataset(tmp_path / "pairs", 6)
        Annotation(pairs, judge(server), Question(world="nethack")).run("llm")
    soft = pairs.soft_preferences("llm")
    assert soft is not None
    high, low = 0.8 / 1.3, 0.5 / 1.3
    np.testing.assert_allclose(soft, [[high, low, 0], [low, high, 0]] * 3, rtol=1e-5)
