"""The specification of a world: what it offers policies and rewards."""

from dataclasses import dataclass
from typing import Literal

Offer = str  # ``words``, ``symbols``, ``glyphs``, ``prompt``, or that of another kind of world
Experience = Literal["acted", "demonstrated"]
Evidence = Literal["env", "captions", "counts", "references"]


@dataclass(frozen=True, slots=True)
class WorldSpec:
    """Contents of observations and form of actions; known before a model or a game is loaded."""

    name: str
    """Name in messages: the id of an env or a pool."""
    observation: frozenset[Offer]
    """``words``: a `TextObservation`; ``symbols``: also Minigrid's 7 x 7 x 3 codes; ``glyphs``: NetHack's crop,
    figures and message; ``prompt``: the tokens of a text."""
    action: Literal["choice", "token"]
    """One of the admissible actions, or a token of a text."""
    num_actions: int | None = None
    """Maximal number of admissible actions; None: any number, or the tokens of a model."""
    language: str = "english"
    """Language of the observations."""
    experience: frozenset[Experience] = frozenset({"acted"})
    """Actions to learn from: the policy's own, or those of a dataset or of a pool's references."""
    group_size: int | None = None
    """Number of episodes of an update that begin alike, such as texts to one prompt; None: all count as alike."""
    evidence: frozenset[Evidence] = frozenset()
    """Inputs of rewards. ``env``: the world's own reward; ``captions``: a description of a step; ``counts``: its
    number of occurrences in the episode; ``references``: texts to compare with, and a pool's meta."""
    subject: str | None = None
    """Subject of judges (see `groundling.judges.asking.subjects`); None: judges do not know this world."""
