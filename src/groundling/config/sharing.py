"""Redact settings before they are shared: remove paths, servers, accounts and keys."""

from collections.abc import Sequence
from typing import Any

from groundling.config.facts import facts_of
from groundling.config.schema import Config
from groundling.fields import ReadByModel
from groundling.io import redaction


def shareable(node: Any, key: str = "") -> Any:
    """Redact settings, or those at ``key``, by `redaction.shareable`, except for texts that a model reads."""
    return redaction.shareable(node, key, _is_read)


def shareable_words(words: Sequence[str]) -> list[str]:
    """Redact a command line, except for texts that a model reads; drop overrides that name a server or a key."""
    return redaction.shareable_words(words, _is_read)


def _is_read(key: str, value: Any) -> bool:
    """Return True if a model reads the text, or texts, of a setting."""
    names = key.lstrip("+").split(".")
    # Settings may be recorded under another key, as an arm's of a study.
    places = [place for place, name in enumerate(names) if name in Config.model_fields]
    for key in (".".join(names[place:]) for place in places):
        read = {fact for fact in facts_of(key) if fact.name == ReadByModel.name}
        if any(fact.condition(value) for fact in read if fact.condition):
            return True
        if ReadByModel in read and isinstance(value, str) and ReadByModel not in facts_of(key.rpartition(".")[0]):
            return True
    return False
