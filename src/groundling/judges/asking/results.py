"""Estimates and results of annotation."""

from dataclasses import dataclass


@dataclass(frozen=True)
class AnnotationEstimate:
    """The work left in a chunk, and its approximate cost."""

    rows: int  # pairs in the dataset
    identical: int  # those with equal captions, which are ties without a request
    distinct: int  # distinct unordered pairs of unequal captions in the dataset
    known: int  # the chunk's answers in the store
    requests: int  # the chunk's missing answers
    prompt_tokens: int  # read by these requests
    completion_tokens: int  # written by the judge
    seconds: float | None  # None if unknown
    cost: float | None  # in the currency of the judge's prices; None if it has none


@dataclass(frozen=True)
class AnnotationSummary:
    """The result of an annotation."""

    labels: dict[str, int]  # rows of the dataset by label: first, second, tie, unknown
    distinct: int  # distinct unordered pairs of unequal captions in the dataset
    answered: int  # answers in the store about them
    invalid: int  # those without a verdict
    first_rate: float | None  # share of the caption shown first, without ties; 0.5 without position bias
    inconsistent: float | None  # share of pairs with different verdicts in the two orders
    asked: int  # answers of this call
    failed: int  # requests of this call without a reply
    first_failure: str | None  # why the first of them failed
    invalid_reply: str | None  # the last reply of this call without a verdict, in one line
    prompt_tokens: int  # of all answers in the store about the dataset, including replaced invalid ones
    completion_tokens: int
    cost: float | None  # of these tokens
    seconds: float  # of this call

    @property
    def written(self) -> bool:
        """True if labels were written; not if there are questions and no verdict."""
        return self.answered > self.invalid or self.distinct == 0
