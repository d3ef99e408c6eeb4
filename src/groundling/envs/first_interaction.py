"""The first thing that an agent interacts with in an episode, which shows if it reads its mission."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from numbers import Real
from typing import Any, Literal, get_args

from groundling.errors import ConfigError, unknown

Target = Literal["named", "other", "none"]
_TARGETS: tuple[Target, ...] = get_args(Target)


@dataclass(frozen=True, slots=True)
class FirstInteraction:
    """The keys of ``info["first_interaction"]`` at an episode's last step.

    An agent that tries one thing after the other succeeds without reading, so the first one counts. An env may give
    the mapping at every step (the last one counts), or leave it out if the first interaction is unknown.
    """

    target: Target  # The ``named`` thing, an ``other`` one, or ``none`` if the agent interacted with nothing
    chance: float | None = None  # Probability of the named thing in a uniform choice among the things within reach
    thing: str | None = None  # The thing in words
    step: int | None = None  # Number of the action, from 1
    named: tuple[str, ...] = ()  # Words of the mission that name the thing, such as ``the red key``; reports mark them

    @property
    def figures(self) -> dict[str, float]:
        """Figures whose means over episodes are shares; ``first_precision`` is absent without an interaction."""
        figures = {f"first_{target}": float(self.target == target) for target in _TARGETS}
        if self.target != "none":
            figures["first_precision"] = figures["first_named"]
        if self.chance is not None:
            figures["first_chance"] = self.chance
        return figures


def read_first_interaction(info: Mapping[str, Any]) -> FirstInteraction | None:
    """Read the first interaction of an episode's last info, if any; raise `ConfigError` for other keys or values."""
    given = info.get("first_interaction")
    if given is None:
        return None
    known = [field.name for field in fields(FirstInteraction)]
    if not isinstance(given, Mapping) or "target" not in given:
        raise ConfigError(
            f"info['first_interaction'] is {given!r}: expected a mapping with 'target' ({', '.join(_TARGETS)}) and, if "
            f"the env knows them, {', '.join(known[1:])}"
        )
    for key in given:
        if key not in known:
            raise ConfigError(unknown("key of info['first_interaction'],", str(key), known))
    if given["target"] not in _TARGETS:
        raise ConfigError(unknown("target in info['first_interaction'],", str(given["target"]), _TARGETS))
    chance = given.get("chance")
    if chance is not None and not (isinstance(chance, Real) and 0 <= float(chance) <= 1):
        raise ConfigError(f"info['first_interaction'] has the chance {chance!r}: expected 0 to 1")
    exact = {"chance": None if chance is None else float(chance), "named": tuple(given.get("named", ()))}
    return FirstInteraction(**{**given, **exact})
