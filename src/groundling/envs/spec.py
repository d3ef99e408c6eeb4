"""What a world offers policies and rewards: the one thing that they know of each other."""

from dataclasses import dataclass
from typing import Literal

Offer = str
"""``words``, ``symbols``, ``glyphs``, ``prompt``, or the observation of another kind of world."""
Experience = Literal["acted", "demonstrated"]
Evidence = Literal["env", "captions", "counts", "references"]


@dataclass(frozen=True, slots=True)
class WorldSpec:
    """What an observation offers and what an action is; known before a model or a game is loaded."""

    name: str
    """What messages call the world: an env's id, or a pool's."""
    observation: frozenset[Offer]
    """``words``: a `TextObservation`; ``symbols``: Minigrid's 7 x 7 x 3 codes beside them; ``glyphs``: NetHack's crop,
    figures and message; ``prompt``: the tokens of a text."""
    action: Literal["choice", "token"]
    """One of the admissible actions, or a token of a text."""
    num_actions: int | None = None
    """How many actions can be admissible at once; None: any number, or the tokens of a model."""
    language: str = "english"
    """What it is told in."""
    experience: frozenset[Experience] = frozenset({"acted"})
    """Whose actions can be learnt from: the policy's own, or those that a dataset or a pool's references show."""
    group_size: int | None = None
    """How many episodes of an update begin alike, as texts to one prompt do; None: all count as alike."""
    evidence: frozenset[Evidence] = frozenset()
    """What of a step a reward can look at. ``env``: what the world itself pays; ``captions``: what is to be read;
    ``counts``: how often that has come up in its episode; ``references``: texts to compare with, and a pool's meta."""
    subject: str | None = None
    """The kind of world as judges tell them apart (see `groundling.judges.asking.subjects`); None: they know nothing of
    it."""
