"""Replies that are verdicts, and replies that only look like them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from groundling.judges.asking.judge import parse
from groundling.judges.asking.questions import AnswerFormat
from groundling.judges.preferences.pairs import Preference

FIRST, SECOND, TIE = Preference.FIRST, Preference.SECOND, Preference.TIE


def preference(reply: str, answer: AnswerFormat, complete: bool = True) -> Preference | None:
    verdict = parse(reply, answer, complete)
    return verdict and verdict.preference


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        ("Verdict: 1", FIRST),
        ("Both do little.\n\nVerdict: 2\n", SECOND),
        ("verdict: TIE", TIE),
        ("...\n**Verdict: 2**", SECOND),
        ("...\n**Verdict:** 1.", FIRST),
        ("...\n`Verdict: tie`  \n\n", TIE),
        ("<think>Verdict: 1\n</think>\nVerdict: 2", SECOND),
        # What stands before the last line is reasoning or quotation, whatever it says.
        ("Verdict: 1 is what a grave says.\nVerdict: 2", SECOND),
        ("Verdict: 1\nSo says the grave; I do not follow it.", None),
        ('The message "Verdict: 1" is a trick.', None),
        ('"Verdict: 1"', None),
        ("> Verdict: 1", None),
        ("| Verdict: 1", None),
        ("'Verdict: 1', 'Verdict: 2' or 'Verdict: tie'", None),
        ("Verdict: 1 or 2", None),
        ("Verdict: 12", None),
        ("Verdict: 3", None),
        ("Verdict: None", None),
        ("1", None),
        ("", None),
        ("\n\n", None),
        ("<think>Verdict: 1", None),
        ('Verdict: "2"', SECOND),
        # Chat templates open thoughts in the prompt.
        ("Verdict: 1 is what it says.\n</think>\nVerdict: 2", SECOND),
        # One sentence to take leave, and none that may take the verdict back.
        ("Verdict: 1\n\nI hope this helps!", FIRST),
        ("**Verdict: 2**\nLet me know if you have any questions.", SECOND),
        ("Verdict: 1\nI hope this helps! Verdict: 2", None),
        ("Verdict: 1\nI hope this helps.\nVerdict: 2", SECOND),
        ("Verdict: 1\nThat is what the grave says.", None),
        ("Verdict: 1\nLet me know.\nBut I do not follow it.", None),
    ],
)
def test_a_line(reply: str, expected: Preference | None) -> None:
    assert preference(reply, "line") == expected


def test_a_reply_that_was_cut_off_has_no_verdict() -> None:
    # It may have been cut off within a quotation.
    for reply, answer in (("Verdict: 1", "line"), ("1", "choice"), ('{"verdict": "1"}', "json")):
        assert preference(reply, answer, complete=True) == FIRST  # type: ignore[arg-type]
        assert preference(reply, answer, complete=False) is None  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        ('{"analysis": "x", "verdict": "1"}', FIRST),
        ('```json\n{"verdict": "tie"}\n```', TIE),
        ('<think>{"verdict": "1"}</think>{"verdict": 2}', SECOND),
        (r'{"analysis": "it says {\"verdict\": \"1\"}", "verdict": "2"}', SECOND),
        ('{"verdict": "1", "verdict": "2"}', None),
        ('Sure: {"verdict": "1"}', None),
        ('{"verdict": "1"} {"verdict": "2"}', None),
        ('{"verdict": true}', None),
        ('{"verdict": ["1"]}', None),
        ('{"analysis": "verdict: 1"}', None),
        ('["1"]', None),
        ("[" * 100_000, None),
        ('It is thought over.</think>{"analysis": "", "verdict": "2"}', SECOND),
        ('{"analysis": "it says </think> to me", "verdict": "2"}', SECOND),
        ('{"verdict": "1"}\nI hope this helps!', FIRST),
        ('{"verdict": "1"}\nSo says the grave.', None),
    ],
)
def test_json(reply: str, expected: Preference | None) -> None:
    assert preference(reply, "json") == expected


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        ("1", FIRST),
        (" 2\n", SECOND),
        ("Tie.", TIE),
        ('"1"', FIRST),
        ("**2**", SECOND),
        ("\n</think>\n\n1", FIRST),
        ("1 or 2", None),
        ("12", None),
        ("I choose 1", None),
        ("", None),
    ],
)
def test_a_choice(reply: str, expected: Preference | None) -> None:
    assert preference(reply, "choice") == expected


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        ('("best_description": 1)', FIRST),
        ('... ("best_description": 2)', SECOND),
        ('("best_message": None)', TIE),
        ("Best description: 2", SECOND),
        ("BEST_MESSAGE none", TIE),
        ("the best  description - 1", FIRST),
        ('"bestdescription"::: 2', SECOND),
        ("best description is 2", SECOND),  # one word more
        ("the best description would be 2", None),  # two words more
        # The first match counts: who quotes the instruction says 1.
        ('I am to say ("best_description": 1|2|None). ("best_description": 2)', FIRST),
        ('("best_description": 1)\n("best_description": 2)', FIRST),
        ("I prefer 2", None),
        ("The best is 2", None),
        ("", None),
    ],
)
def test_the_originals_parser_with_its_faults(reply: str, expected: Preference | None) -> None:
    assert preference(reply, "motif") == expected
    assert preference(reply, "motif", complete=False) == expected


@given(st.text(), st.sampled_from(["1", "2", "tie"]))
def test_only_the_last_line_counts_whatever_stands_before(before: str, word: str) -> None:
    reply = f"{before}\nVerdict: {word}"
    verdict = parse(reply, "line")
    assert verdict is not None and verdict.preference == Preference(["1", "2", "tie"].index(word))
    assert reply[verdict.position :] == word


@given(st.text(st.sampled_from("verdict: 12\n|>'\"*{}tie.[] best_description"), max_size=60))
def test_any_reply_is_a_verdict_or_none_and_never_an_error(reply: str) -> None:
    for answer in ("line", "json", "choice", "motif"):
        verdict = parse(reply, answer)  # type: ignore[arg-type]
        assert verdict is None or reply[verdict.position : verdict.position + 1].lower() in "12tn"
