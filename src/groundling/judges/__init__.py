"""Judges: what states a preference between two captioned segments, and the datasets that keep what they said."""

from groundling.judges.captions import caption
from groundling.judges.pairs import Pairs, Preference

__all__ = ["Pairs", "Preference", "caption"]
