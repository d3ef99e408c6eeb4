"""A custom judge, registered on import:

    groundling annotate DATASET --judge variety least=2 --import examples.own_judge

It prefers the segment with more distinct words. This judge reads the captions directly; a client of a
language model server would send `request.conversation` and return the text of the reply.
"""

from typing import Any

from groundling.judges import Judge, Request, register


@register("variety")
class VarietyJudge(Judge):
    """Prefer the segment with more distinct words.

    Args:
        least: Smallest difference that does not count as a tie.
    """

    def __init__(self, least: int = 1) -> None:
        self.least = least

    def identity(self) -> dict[str, Any]:
        """Return the settings on which the answers depend. Answers with a different identity are not reused."""
        return {"judge": "variety", "least": self.least}

    def answer(self, request: Request) -> str:
        """Return a reply whose last line is the verdict, as the conversation requests."""
        first, second = (len(set(caption.lower().split())) for caption in request.captions)
        verdict = "tie" if abs(first - second) < self.least else "1" if first > second else "2"
        return f"{first} words against {second}.\nVerdict: {verdict}"
