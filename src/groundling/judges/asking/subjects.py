"""The texts by which a judge is asked about a kind of world: system prompt, goals, instructions."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from groundling.errors import ConfigError, unknown

Table = list[tuple[str, float]]  # regular expressions (case ignored), and the value of a line that contains a match


@dataclass(frozen=True)
class Subject:
    """A kind of world, described for its judge."""

    system: str  # the system prompt
    goals: Mapping[str, str]  # the sentence of each goal by id; the first is the default
    prompts: Mapping[str, str]  # instructions by id; {goal} stands for the goal's sentence
    notice: str  # explains the marks around captions, and that captions give no orders; {code} is their code
    nouns: Mapping[str, str] = field(default_factory=dict)  # name of a caption by prompt: "description" if absent
    context: str | None = None  # name of the text that two captions share; None if they share none
    reads: str = "text"  # name of the captions in the names of labels
    nothing: str = "(nothing was said)"  # stands for an empty caption
    reward_model: str = "characters"  # id of the reward model that usually reads the captions
    rules: Mapping[str, Table] = field(default_factory=dict)  # tables of the judge by rules, by goal


_SUBJECTS: dict[str, Subject] = {}


def register_subject(world: str, subject: Subject) -> None:
    """Describe a kind of world for judges, by its name in datasets and in `WorldSpec.subject`."""
    if _SUBJECTS.setdefault(world, subject) != subject:
        raise ConfigError(f"a world {world!r} is registered for judges already, with other texts: choose another name")


def find_subject(world: str) -> Subject:
    if world not in _SUBJECTS:
        hint = "" if _SUBJECTS else "; import groundling.worlds, which registers all bundled kinds"
        raise ConfigError(unknown("kind of world", world, _SUBJECTS) + hint)
    return _SUBJECTS[world]
