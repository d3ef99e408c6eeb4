"""A judge of captions as the judge of `OnlineReward`."""

from collections.abc import Callable, Sequence

from groundling.errors import ConfigError, RunError
from groundling.judges.asking import inquiry
from groundling.judges.asking.inquiry import Outcome
from groundling.judges.asking.judge import Judge
from groundling.judges.asking.questions import Question
from groundling.judges.preferences.labels import Preference
from groundling.judges.preferences.pairs import Comparison

AskJudge = Callable[[list[tuple[str, ...]], list[str]], Sequence[float | None]]
"""Takes questions about one or two captions, and for each the context that its captions share and do not repeat.

Returns for one caption 1 if it deserves a reward, otherwise 0, as ONI's labels; for two captions the probability that
the first is preferred, 0.5 for a tie; None without an answer."""
_NOTHING = ""  # the empty caption, which a single one is compared with, and which is worth nothing
_MAX_INVALID = 20  # this many answers without a verdict, and none with one: the judge cannot give one
_SHARES = {Preference.FIRST: 1.0, Preference.SECOND: 0.0, Preference.TIE: 0.5}


def online_judge(judge: Judge, question: Question) -> AskJudge:
    """Make ``judge`` answer the questions of `OnlineReward`; `ConfigError` if it cannot answer ``question``.

    The judge is asked which of two captions it prefers, as in annotation. Where ONI asks a yes-or-no question about
    one caption, that caption is compared with an empty one, and is worth 1 if it is preferred, otherwise 0. So any
    judge, goal and prompt serves both. A reply without a verdict is requested once more, then counts as no answer,
    like a failed request. The returned function raises `RunError` if the judge answers none of the questions, or none
    of its first 20 answers or more has a verdict.
    """
    if (refusal := judge.accepts(question)) is not None:
        raise ConfigError(refusal)
    return _Asking(judge, question)


class _Asking:
    def __init__(self, judge: Judge, question: Question) -> None:
        self._judge, self._question = judge, question
        self._has_verdict = False
        self._num_invalid = 0

    def __call__(self, questions: list[tuple[str, ...]], contexts: list[str]) -> list[float | None]:
        answers: list[float | None] = [0.0 if question == (_NOTHING,) else None for question in questions]
        to_ask = [place for place, answer in enumerate(answers) if answer is None]
        shown = []
        for place in to_ask:
            first, second = (*questions[place], _NOTHING)[:2]
            shown.append(Comparison(first, second, contexts[place]))
        replied: list[Outcome] = []
        failures: list[str] = []

        def keep(outcome: Outcome) -> None:
            if outcome.failure is not None:
                failures.append(outcome.failure)
                return
            replied.append(outcome)
            place = to_ask[outcome.number]
            answers[place] = _value(outcome, single=len(questions[place]) == 1)

        try:
            inquiry.ask(self._judge, self._question, shown, keep)
        except RunError:
            if not replied:
                raise
        if to_ask and not replied:
            raise RunError(f"the judge answered none of {len(to_ask)} questions; the first: {failures[0]}")
        self._check(replied)
        return answers

    def _check(self, replied: Sequence[Outcome]) -> None:
        """Raise `RunError` if the judge never gives a verdict."""
        self._has_verdict |= any(outcome.verdict is not None for outcome in replied)
        self._num_invalid += sum(outcome.verdict is None for outcome in replied)
        if not self._has_verdict and self._num_invalid >= _MAX_INVALID:
            raise RunError(
                f"the judge gave no verdict in {self._num_invalid} answers, each asked for twice; the last: "
                f"{replied[-1].excerpt!r}. It was asked: "
                f"{self._question.verdict_form(self._judge.answer_format)}"
            )


def _value(outcome: Outcome, single: bool) -> float | None:
    if outcome.verdict is None:
        return None
    if (probabilities := outcome.replies[-1].probabilities) is not None:
        first, second, tie = probabilities
        return float(first > max(second, tie)) if single else first + tie / 2
    share = _SHARES[outcome.verdict.preference]
    return float(share == 1.0) if single else share
