"""A judge of your own, registered by being imported:

    groundling annotate DATASET --judge variety least=2 --import examples.own_judge

It prefers the segment that tells more different things. It reads the captions as a language model would read them, out
of the conversation; a client of your own server would send `request.conversation` there and return its text.
"""

from typing import Any

from groundling.judges import Judge, Request, register


@register("variety")
class VarietyJudge(Judge):
    """Prefers the segment with more different words.

    Args:
        least: A difference smaller than this is a tie.
    """

    def __init__(self, least: int = 1) -> None:
        self.least = least

    def identity(self) -> dict[str, Any]:
        """Return what the answers depend on: those of another value are not reused."""
        return {"judge": "variety", "least": self.least}

    def answer(self, request: Request) -> str:
        """Its last line must be the verdict, as the conversation asks."""
        first, second = (len(set(caption.lower().split())) for caption in request.captions)
        verdict = "tie" if abs(first - second) < self.least else "1" if first > second else "2"
        return f"{first} words against {second}.\nVerdict: {verdict}"
