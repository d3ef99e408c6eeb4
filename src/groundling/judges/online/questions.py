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

Returns for one caption 1 if it is worth a reward, otherwise 0, as ONI's labels; for two the probability that the first
is preferred, 0.5 for a tie; None without an answer."""
_NOTHING = ""
"""The empty caption, which a single one is compared with, and which is worth nothing."""
_MAX_INVALID = 20
"""Questions without a verdict, and none with one, after which a judge is considered unable to give one."""
_SHARES = {Preference.FIRST: 1.0, Preference.SECOND: 0.0, Preference.TIE: 0.5}


def online_judge(judge: Judge, question: Question) -> AskJudge:
    """Let ``judge`` answer the questions of `OnlineReward`.

    It is asked which of two captions it prefers, as in annotation. ONI asks a yes-or-no question about one caption;
    here a single caption is compared with an empty one, and is worth 1 if it is preferred, otherwise 0. So any judge,
    goal and prompt serves both. A reply without a verdict is asked for once more and then counts as no answer, like a
    failed request.

    Args:
        judge: Any judge that reads captions.
        question: What it is asked.

    Returns:
        A function that raises `RunError` if all requests of a call fail, the judge cannot continue, or its answers to
        the first 20 questions or more have no verdict; `RuntimeError` if it has given a verdict before. Answers of such
        a call are kept for the next call that asks for them.

    Raises:
        ConfigError: the judge cannot answer this question.
    """
    if (refusal := judge.accepts(question)) is not None:
        raise ConfigError(refusal)
    return _Asking(judge, question)


class _Asking:
    def __init__(self, judge: Judge, question: Question) -> None:
        self._judge, self._question = judge, question
        self._done: dict[tuple[tuple[str, ...], str], float | None] = {}  # of failed calls: not paid for twice
        self._has_verdict = False
        self._invalid: list[Outcome] = []

    def __call__(self, questions: list[tuple[str, ...]], contexts: list[str]) -> list[float | None]:
        keys = list(zip(questions, contexts, strict=True))
        to_answer = [key for key in keys if key[0] != (_NOTHING,)]
        to_ask = [key for key in to_answer if key not in self._done]
        failures: list[str] = []

        def store(outcome: Outcome) -> None:
            if outcome.failure is not None:
                failures.append(outcome.failure)
                return
            captions, _ = key = to_ask[outcome.number]
            self._done[key] = _value(outcome, single=len(captions) == 1)
            self._has_verdict |= outcome.verdict is not None
            if outcome.verdict is None:
                self._invalid.append(outcome)

        try:
            shown = [
                Comparison(captions[0], _NOTHING if len(captions) == 1 else captions[1], context)
                for captions, context in to_ask
            ]
            inquiry.ask(self._judge, self._question, shown, store)
            self._check(len(to_answer), len(to_ask), failures)
        except RunError as error:
            if not self._has_verdict:
                raise
            # A `RunError` would say that the judge has never answered and was set up wrongly.
            raise RuntimeError(str(error)) from error
        answers = [0.0 if key[0] == (_NOTHING,) else self._done.get(key) for key in keys]
        for key in keys:
            self._done.pop(key, None)
        return answers

    def _check(self, to_answer: int, asked: int, failures: list[str]) -> None:
        """Raise `RunError` if the judge has answered nothing, or never gives a verdict."""
        if asked and len(failures) == to_answer:
            raise RunError(f"the judge answered none of {asked} questions; the first: {failures[0]}")
        if not self._has_verdict and len(self._invalid) >= _MAX_INVALID:
            raise RunError(
                f"the judge gave no verdict in {len(self._invalid)} answers, each asked for twice; the last: "
                f"{self._invalid[-1].excerpt!r}. It was asked: "
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
