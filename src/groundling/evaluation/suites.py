"""GLAM's tests of generalisation: each is a change to the run's configuration, on episodes that no training sees."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from groundling.errors import ConfigError
from groundling.registry import unknown


@dataclass(frozen=True)
class Suite:
    """A test: what it asks, and the overrides that turn a run's configuration into it."""

    about: str
    overrides: tuple[str, ...] = ()
    keeps: tuple[str, ...] = ()
    """Of the env's arguments that the overrides take out, those that stay as they are in the run."""

    def changes(self, env_args: Mapping[str, Any]) -> list[str]:
        """The overrides of a run whose env was made with ``env_args``."""
        kept = [f"env.args={{{name}: {env_args[name]}}}" for name in self.keeps if name in env_args]
        return [*self.overrides, *kept]


def _words(**replacements: str) -> tuple[str, ...]:
    """The same words of the prompt replaced wherever they stand, as the paper does it."""
    pairs = ", ".join(f"{word.replace('_', ' ')}: {other}" for word, other in replacements.items())
    return (f"policy.args.replacements={{{pairs}}}",)


def _sequence(about: str, id: str) -> Suite:
    """Another level, with as many other objects about; what else the run's env was told is not for this one."""
    return Suite(about, (f"env.id={id}", "~env.args"), keeps=("num_dists",))


_INVENTED_NOUNS = {"key": "dax", "ball": "xolo", "box": "afze"}
_INVENTED_ADJECTIVES = {
    "red": "faze",
    "green": "jatu",
    "blue": "croh",
    "purple": "vurst",
    "yellow": "gakul",
    "grey": "sil",
}
SUITES = {
    "held-out": Suite("no change: the run's own env"),
    "unseen-objects": Suite(
        "missions about the objects that training leaves out", ("env.id=BabyAI-MixedTestLocal-v0",)
    ),
    "other-nouns": Suite("other nouns of the same kind", _words(key="chair", ball="table", box="car")),
    "synonym-adjectives": Suite(
        "synonyms of the colours",
        _words(red="vermilion", green="jade", blue="cyan", purple="violet", yellow="golden", grey="silver"),
    ),
    "invented-nouns": Suite("invented nouns", _words(**_INVENTED_NOUNS)),
    "invented-adjectives": Suite("invented colours", _words(**_INVENTED_ADJECTIVES)),
    "invented-words": Suite("invented nouns and colours", _words(**_INVENTED_NOUNS, **_INVENTED_ADJECTIVES)),
    "introduction-1": Suite("another introduction of the goal", _words(Goal_of_the_agent="Task to do")),
    "introduction-2": Suite(
        "yet another introduction of the goal", _words(Goal_of_the_agent="You are an agent and you have to")
    ),
    "synonym-actions": Suite(
        "synonyms of the actions; for your own: --suite held-out env.actions=[…]",
        ("env.actions=[rotate left, rotate right, move ahead, take, release, switch]",),
    ),
    "pick-up-then-go-to": _sequence("one order of a known sequence", "BabyAI-PickUpThenGoToLocal-v0"),
    "go-to-after-pick-up": _sequence("the other order", "BabyAI-GoToAfterPickUpLocal-v0"),
    "pick-up-seq-go-to": _sequence("both orders", "BabyAI-PickUpSeqGoToLocal-v0"),
    "pick-up-then-pick-up": _sequence(
        "a sequence that training never composes", "BabyAI-PickUpSeqPickUpLocal-v0"
    ),
    "french": Suite("missions, sentences, actions and prompt in French", ("env.language=french",)),
}
"""By name. The invented words are GLAM's."""


def find_suites(names: str) -> list[str]:
    """The suites of a list such as ``held-out,french``, or ``all``.

    Raises:
        ConfigError: no such suite.
    """
    found = list(SUITES) if names == "all" else names.split(",")
    for name in found:
        if name not in SUITES:
            raise ConfigError(unknown("suite", name, SUITES))
    return found
