"""Which thing an agent first deals with in an episode, as a text env tells it: does the agent read its mission?"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from numbers import Real
from typing import Any, Literal, get_args

from groundling.errors import ConfigError
from groundling.registry import unknown

Target = Literal["named", "other", "none"]
_TARGETS: tuple[Target, ...] = get_args(Target)


@dataclass(frozen=True, slots=True)
class FirstInteraction:
    """What ``info["first_interaction"]`` of an episode's last step says, a mapping with these keys.

    An agent that tries one thing after the other succeeds without reading; the first thing tells. An env may give the
    mapping at every step; the last one counts. One that cannot tell, in general or in this episode, gives none.
    """

    target: Target
    """What was first dealt with: the ``named`` thing, an ``other`` one, or ``none`` at all."""
    chance: float | None = None
    """How likely the named thing is to be the first, if one of those within reach is taken blindly: 0 to 1."""
    thing: str | None = None
    """What was first dealt with, in words."""
    step: int | None = None
    """The action that did it, counted from 1."""
    named: tuple[str, ...] = ()
    """The words of the mission that name the thing, such as ``the red key``; reports mark them."""

    @property
    def figures(self) -> dict[str, float]:
        """What is logged: shares of episodes, once they are averaged.

        ``first_precision`` is there where something was dealt with, so that its mean is over those episodes alone.
        """
        figures = {f"first_{target}": float(self.target == target) for target in _TARGETS}
        if self.target != "none":
            figures["first_precision"] = figures["first_named"]
        if self.chance is not None:
            figures["first_chance"] = self.chance
        return figures


def read_first_interaction(info: Mapping[str, Any]) -> FirstInteraction | None:
    """What the info of an episode's last step says of it; None of an env that does not tell.

    Raises:
        ConfigError: it is not what `FirstInteraction` has.
    """
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
    return FirstInteraction(
        target=given["target"],
        chance=None if chance is None else float(chance),
        thing=given.get("thing"),
        step=given.get("step"),
        named=tuple(given.get("named", ())),
    )
