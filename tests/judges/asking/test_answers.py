"""Replies that contain a verdict, and replies that only look like it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from groundling.judges.asking.judge import parse
from groundling.judges.asking.questions import AnswerFormat
from groundling.judges.preferences.pairs import Preference

FIRST, SECOND, TIE = Preference.FIRST, Preference.SECOND, Preference.TIE


def preference(reply: str, answer: AnswerFormat, complete: bool = True) -> Preference | None:
    verdict = parse(reply, answer, complete)
    return verdict and verdict.choice


@pytest.mark.parametrize(
    ("answer", "reply", "expected"),
    [
        ("line", "Verdict: 1", FIRST),
        ("line", "Both do little.\n\nVerdict: 2\n", SECOND),
        ("line", "...\n**Verdict:** 1.", FIRST),
        ("line", "...\n`Verdict: tie`  \n\n", TIE),
        ("line", "<think>Verdict: 1\n</think>\nVerdict: 2", SECOND),
        # Everything before the last line is reasoning or a quotation, whatever it contains.
        ("line", "Verdict: 1 is what a grave says.\nVerdict: 2", SECOND),
        ("line", "Verdict: 1\nSo says the grave; I do not follow it.", None),
        ("line", 'The message "Verdict: 1" is a trick.', None),
        ("line", '"Verdict: 1"', None),
        ("line", "| Verdict: 1", None),
        ("line", "Verdict: 1 or 2", None),
        ("line", "Verdict: 12", None),
        ("line", "1", None),
        ("line", "", None),
        ("line", "<think>Verdict: 1", None),
        ("line", 'Verdict: "2"', SECOND),
        # Chat templates may open thoughts in the prompt.
        ("line", "Verdict: 1 is what it says.\n</think>\nVerdict: 2", SECOND),
        # One closing sentence is allowed, but none that may revoke the verdict.
        ("line", "Verdict: 1\n\nI hope this helps!", FIRST),
        ("line", "**Verdict: 2**\nLet me know if you have any questions.", SECOND),
        ("line", "Verdict: 1\nI hope this helps! Verdict: 2", None),
        ("line", "Verdict: 1\nI hope this helps.\nVerdict: 2", SECOND),
        ("line", "Verdict: 1\nLet me know.\nBut I do not follow it.", None),
        ("json", '{"analysis": "x", "verdict": "1"}', FIRST),
        ("json", '```json\n{"verdict": "tie"}\n```', TIE),
        ("json", '<think>{"verdict": "1"}</think>{"verdict": 2}', SECOND),
        ("json", r'{"analysis": "it says {\"verdict\": \"1\"}", "verdict": "2"}', SECOND),
        ("json", '{"verdict": "1", "verdict": "2"}', None),
        ("json", '{"verdict": "1"} {"verdict": "2"}', None),
        ("json", '{"verdict": ["1"]}', None),
        ("json", '{"analysis": "verdict: 1"}', None),
        ("json", "[" * 100_000, None),
        ("json", 'It is thought over.</think>{"analysis": "", "verdict": "2"}', SECOND),
        ("json", '{"analysis": "it says </think> to me", "verdict": "2"}', SECOND),
        ("json", '{"verdict": "1"}\nI hope this helps!', FIRST),
        ("json", '{"verdict": "1"}\nSo says the grave.', None),
        ("choice", "1", FIRST),
        ("choice", "Tie.", TIE),
        ("choice", '"1"', FIRST),
        ("choice", "**2**", SECOND),
        ("choice", "\n</think>\n\n1", FIRST),
        ("choice", "1 or 2", None),
        ("choice", "I choose 1", None),
        ("choice", "", None),
        ("motif", '("best_description": 1)', FIRST),
        ("motif", '... ("best_description": 2)', SECOND),
        ("motif", "Best description: 2", SECOND),
        ("motif", "the best  description - 1", FIRST),
        ("motif", "best description is 2", SECOND),  # one more word
        ("motif", "the best description would be 2", None),  # two more words
        # The first match counts, so a judge that quotes the instruction answers 1.
        ("motif", 'I am to say ("best_description": 1|2|None). ("best_description": 2)', FIRST),
        ("motif", '("best_description": 1)\n("best_description": 2)', FIRST),
        ("motif", "The best is 2", None),
        ("motif", "", None),
    ],
)
def test_verdicts(answer: AnswerFormat, reply: str, expected: Preference | None) -> None:
    assert preference(reply, answer) == expected
    if answer == "motif":  # the original's parser, including its bugs
        assert preference(reply, "motif", complete=False) == expected


def test_a_reply_that_was_cut_off_has_no_verdict() -> None:
    # The reply may have been truncated within a quotation.
    for reply, answer in (("Verdict: 1", "line"), ("1", "choice"), ('{"verdict": "1"}', "json")):
        assert preference(reply, answer, complete=True) == FIRST  # type: ignore[arg-type]
        assert preference(reply, answer, complete=False) is None  # type: ignore[arg-type]


@given(st.text(), st.sampled_from(["1", "2", "tie"]))
def test_only_the_last_line_counts_whatever_stands_before(before: str, word: str) -> None:
    reply = f"{before}\nVerdict: {word}"
    verdict = parse(reply, "line")
    assert verdict is not None and verdict.choice == Preference(["1", "2", "tie"].index(word))
    assert reply[verdict.position :] == word
