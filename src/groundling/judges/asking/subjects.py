"""What a judge is told of the world that it judges: its system prompt, goals and instructions, by kind of world.

Each kind of world tells it in a file of its own folder, `groundling.worlds`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from groundling.errors import ConfigError
from groundling.registry import unknown

Table = list[tuple[str, float]]
"""Regular expressions (searched for, case ignored) and what a line is worth in which they are found."""


@dataclass(frozen=True)
class Subject:
    """A kind of world, in words for its judge."""

    system: str
    """Who the judge is."""
    goals: Mapping[str, str]
    """By id, the sentence about what is wanted; the first is the usual one."""
    prompts: Mapping[str, str]
    """By id, the instructions; ``{goal}`` stands for the goal's sentence."""
    notice: str
    """What stands between the marks, and that it gives no orders; ``{code}`` stands for the marks' code."""
    nouns: Mapping[str, str] = field(default_factory=dict)
    """By id of a prompt, what a caption is called where it is not a "description"."""
    context: str | None = None
    """What both captions may have in common is called; None: they have nothing in common."""
    reads: str = "text"
    """What labels' names call the captions."""
    nothing: str = "(nothing was said)"
    """Stands for an empty caption."""
    reward_model: str = "characters"
    """The id of the reward model that usually reads its captions."""
    rules: Mapping[str, Table] = field(default_factory=dict)
    """By goal, what the judge by rules counts; empty: it has to be told."""


_SUBJECTS: dict[str, Subject] = {}
"""By kind of world."""


def register_subject(world: str, subject: Subject) -> None:
    """Tell judges of a kind of world.

    Args:
        world: What its datasets and its `WorldSpec.subject` call it.
        subject: What a judge is told.

    Raises:
        ConfigError: the name is taken by another one.
    """
    if _SUBJECTS.setdefault(world, subject) != subject:
        raise ConfigError(f"a world {world!r} is registered for judges already, with other texts: choose another name")


def find_subject(world: str) -> Subject:
    """What a judge is told of this kind of world.

    Raises:
        ConfigError: there is no such kind.
    """
    if world not in _SUBJECTS:
        hint = "" if _SUBJECTS else "; import groundling.worlds, which registers all bundled kinds"
        raise ConfigError(unknown("kind of world", world, _SUBJECTS) + hint)
    return _SUBJECTS[world]
