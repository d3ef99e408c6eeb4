"""The corpus of the starter models contains only language, without held-out contents."""

import re

import pytest
from starter_corpus import documents
from starter_probes import CONDITIONS, HELD_OUT_NOUNS, QUESTIONS, probes
from starter_words import ENGLISH, FRENCH

LANGUAGES = {"english": ENGLISH, "french": FRENCH}


def test_the_corpus_has_nothing_of_what_is_held_out() -> None:
    unread = [noun for nouns in HELD_OUT_NOUNS.values() for noun in nouns]
    for language in LANGUAGES.values():
        unread += [language.named.format(noun=noun, color=color) for noun, color in language.held_out]
    pattern = re.compile(rf"\b({'|'.join(unread)})\b")
    for document in documents(seed=123, count=5000):
        text = " ".join([document.context, *(part for turn in document.turns for part in turn)])
        assert not pattern.search(text), text


def test_the_corpus_comes_again_from_its_seed() -> None:
    assert list(documents(5, 50)) == list(documents(5, 50)) != list(documents(6, 50))


@pytest.mark.parametrize("condition", CONDITIONS)
@pytest.mark.parametrize("spoken", LANGUAGES)
def test_a_question_is_on_what_its_condition_says(spoken: str, condition: str) -> None:
    language = LANGUAGES[spoken]
    for kind in QUESTIONS:
        for prompt, answer in probes(language, condition, kind, 20):
            assert answer and prompt.count(language.see.split("{")[0]) >= CONDITIONS[condition][1]
            names = [language.named.format(noun=noun, color=color) for noun, color in language.held_out]
            if condition == "pairs":
                assert any(name in prompt for name in names)
            if condition == "nouns":
                assert re.search(rf"\b({'|'.join(HELD_OUT_NOUNS[spoken])})\b", prompt)
