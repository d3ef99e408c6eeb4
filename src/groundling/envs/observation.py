"""The observation of a text env that a policy sees."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any


@dataclass(slots=True)  # not frozen, which would take four times as long to construct
class TextObservation:
    """One step of a text env in words, with the recent past that a prompt may quote."""

    goal: str
    """The mission of the episode."""
    descriptions: tuple[tuple[str, ...], ...]
    """The recent observations as sentences, oldest first; the last one is the present."""
    past_actions: tuple[str, ...]
    """The actions between them: one less than descriptions."""
    actions: tuple[str, ...]
    """The admissible actions as strings; action ``i`` of the policy is ``actions[i]``."""
    raw: Mapping[str, Any]
    """The env's own observation (image, direction, …), for policies that do not read text."""
    past_choices: tuple[tuple[str, ...], ...] = ()
    """The admissible actions at each past action; empty if they never change."""
    episode: int = field(default=0, compare=False)
    """The episode's seed, or its number in a dataset; 0 without either."""

    def changed(self, change: Callable[[str], str]) -> "TextObservation":
        """Return the observation with every text changed; ``raw`` stays."""
        return replace(
            self,
            goal=change(self.goal),
            descriptions=tuple(tuple(map(change, texts)) for texts in self.descriptions),
            past_actions=tuple(map(change, self.past_actions)),
            actions=tuple(map(change, self.actions)),
            past_choices=tuple(tuple(map(change, texts)) for texts in self.past_choices),
        )

    def recent(self, history: int | None) -> "TextObservation":
        """Return the observation with its last ``history`` descriptions and the actions between them; None: all."""
        if history is None:
            return self
        descriptions = self.descriptions[-history:]
        first = len(self.past_actions) - len(descriptions) + 1
        return replace(
            self,
            descriptions=descriptions,
            past_actions=self.past_actions[first:],
            past_choices=self.past_choices[first:],
        )
