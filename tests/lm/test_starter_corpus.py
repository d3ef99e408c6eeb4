"""The corpus of the starter models: language only, without held-out contents."""

import re
from random import Random

import pytest
import torch
from starter_corpus import documents, invented_word
from starter_muon import orthogonal
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


def test_invented_words_spell_no_noun_that_is_held_out() -> None:
    random = Random(1)
    words = {invented_word(random) for _ in range(200_000)}
    assert words.isdisjoint(noun for nouns in HELD_OUT_NOUNS.values() for noun in nouns)


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


def test_the_optimizer_makes_matrices_orthogonal() -> None:
    wide = torch.randn(3, 8, 20, generator=torch.Generator().manual_seed(0))
    singular = torch.linalg.svdvals(orthogonal(wide))
    assert ((singular > 0.6) & (singular < 1.3)).all()  # Muon's polynomial brings them near to 1, not to it
