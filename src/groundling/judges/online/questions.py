"""A judge of captions as the judge of online mode: see `groundling.judges.online.reward`."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from groundling.errors import ConfigError, RunError
from groundling.judges.asking.answers import parse
from groundling.judges.asking.judge import Judge, Reply, Request
from groundling.judges.asking.questions import Question, verdict_form
from groundling.judges.preferences.labels import Preference

_NOTHING = ""
"""The caption that says nothing, with which a single one is compared."""
_EMPTY = (_NOTHING,)
"""The question about a caption that says nothing: it is worth nothing."""
_Asked = tuple[tuple[str, ...], str]
"""A question's captions and its context."""
_HOPELESS = 20
"""Questions without a verdict, and none with one, after which a judge is thought to be unable to give one."""
_SHOWN = 200
"""Characters of a reply that an error shows."""
_SHARES = {Preference.FIRST: 1.0, Preference.SECOND: 0.0, Preference.TIE: 0.5}


def online_judge(judge: Judge, question: Question) -> Callable[[list[tuple[str, ...]], list[str]], list[float | None]]:
    """Have ``judge`` answer the questions of `OnlineReward`.

    Of two captions it is asked which one it prefers, as in annotation: what both have in common is told once. (ONI asks
    a yes-or-no question about one caption; here a single caption is compared with one that says nothing, and is worth 1
    if it is preferred, otherwise 0, as the empty caption is without being asked about. So any judge, goal and prompt
    serves both.) A reply without a verdict is asked for once more, then it is no answer; a request that fails is none
    either.

    Args:
        judge: Anything but a judge by figures.
        question: What is asked.

    Returns:
        A function that raises `RunError` where all requests of a call fail, the judge cannot go on, or its answers to
        20 questions or more, the first that it was asked, have no verdict though each was asked twice; `RuntimeError`
        where it has given answers before. Those are kept for the next call that asks for them.

    Raises:
        ConfigError: the judge cannot answer this question.
    """
    if (refusal := judge.accepts(question)) is not None:
        raise ConfigError(refusal)

    done: dict[_Asked, float | None] = {}  # of calls that failed: nobody pays for them twice
    verdicts = 0
    without_verdict: list[str] = []

    def answer(questions: list[tuple[str, ...]], contexts: list[str]) -> list[float | None]:
        keys = list(zip(questions, contexts, strict=True))
        to_answer = [number for number, texts in enumerate(questions) if texts != _EMPTY]
        to_ask = [number for number in to_answer if keys[number] not in done]
        retried = [False] * len(questions)
        failures: list[str] = []

        def tell(request: Request, reply: Reply) -> Request | None:
            nonlocal verdicts
            number = request.number
            if reply.failure is not None:
                failures.append(reply.failure)
                return None
            single = len(questions[number]) == 1
            if reply.probabilities is not None:
                verdicts += 1
                first, second, tie = reply.probabilities
                done[keys[number]] = float(first > max(second, tie)) if single else first + tie / 2
                return None
            verdict = parse(reply.text, judge.answer_format, reply.complete, request.noun)
            if verdict is not None:
                verdicts += 1
                share = _SHARES[verdict.preference]
                done[keys[number]] = float(share == 1.0) if single else share
                return None
            if retried[number]:
                done[keys[number]] = None
                without_verdict.append(reply.text)
                return None
            retried[number] = True
            again = question.retry(request.conversation, reply.text, judge.answer_format)
            return replace(request, conversation=again)

        try:
            judge.ask((_request(judge, question, n, questions[n], contexts[n]) for n in to_ask), tell)
            if to_ask and len(failures) == len(to_answer):
                raise RunError(f"the judge answered none of {len(to_ask)} questions; the first: {failures[0]}")
            if not verdicts and len(without_verdict) >= _HOPELESS:
                raise RunError(
                    f"the judge gave no verdict in {len(without_verdict)} answers, each asked for twice; the last: "
                    f"{without_verdict[-1][:_SHOWN]!r}. It was told: {verdict_form(judge.answer_format, question.noun)}"
                )
        except RunError as error:
            if not verdicts:
                raise
            # It was not set up wrongly, as a `RunError` before any answer would say: it has answered.
            raise RuntimeError(str(error)) from error
        answers = [0.0 if texts == _EMPTY else done.get(key) for texts, key in zip(questions, keys, strict=True)]
        for key in keys:
            done.pop(key, None)
        return answers

    return answer


def _request(judge: Judge, question: Question, number: int, texts: Sequence[str], context: str) -> Request:
    first, second = (*texts, _NOTHING)[:2]
    conversation = question.conversation(first, second, judge.answer_format, judge.control_tokens, context)
    return Request(number, conversation, question.goal, question.world, question.noun)
