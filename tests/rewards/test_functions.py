"""Plain functions as rewards, called as in TRL."""

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch

from groundling import rewards
from groundling.errors import ConfigError, ForeignError, RunError
from groundling.rewards.registry import register_function

PROMPTS, TEXTS = ["1 + 1 =", "2 + 2 ="], ["2", "5"]
META = [{"answer": "2", "level": 1}, {"answer": "4", "level": 3}]
SAID = [{"prompt": [{"role": "user", "content": text}]} for text in PROMPTS]


def _score(function: Callable[..., Any], meta: Any = META, **args: Any) -> list[float]:
    made: list[float] = rewards.create(register_function(function), **args)(PROMPTS, TEXTS, [[], []], meta).tolist()
    return made


def right(completions: list[str], answer: list[str], **kwargs: Any) -> list[float]:
    return [float(a == b) for a, b in zip(completions, answer, strict=True)]


async def slow(completions: list[str], level: list[int]) -> list[float]:
    return [float(one) for one in level]


def by_messages(prompts: list[Any], completions: list[Any]) -> list[float]:
    assert [prompt[-1]["role"] for prompt in prompts] == ["user", "user"]
    return [float(len(text[0]["content"])) for text in completions]


def everything(**kwargs: Any) -> list[float]:
    assert (kwargs["prompts"], kwargs["completions"]) == (PROMPTS, TEXTS)
    return [float(level) for level in kwargs["level"]]


def weighted(completions: list[str], factor: float = 1.0, level: Any = None) -> list[float]:
    return [factor * one for one in level or [7.0] * len(completions)]


class Length:
    def __call__(self, completions: list[str]) -> torch.Tensor:
        return torch.tensor([len(text) for text in completions])


@pytest.mark.parametrize(
    ("function", "meta", "args", "scores"),
    [
        (right, META, {}, [1, 0]),
        (right, None, {"answer": ["2", "5"]}, [1, 1]),
        (lambda completions, level: [None if one == 1 else 2 for one in level], META, {}, [0, 2]),
        (slow, META, {}, [1, 3]),
        (by_messages, SAID, {}, [1, 1]),
        (everything, META, {}, [1, 3]),
        (weighted, META, {"factor": 2.0}, [2, 6]),
        (weighted, None, {}, [7, 7]),
        (functools.partial(weighted, factor=3.0), META, {}, [3, 9]),
        (Length(), META, {}, [1, 1]),
        (lambda generations, meta: [one["level"] for one in meta], META, {}, [1, 3]),
    ],
    ids=lambda one: getattr(one, "__name__", type(one).__name__) if callable(one) else str(one),
)
def test_a_function_receives_what_it_takes(
    function: Any, meta: Any, args: dict[str, Any], scores: list[float]
) -> None:
    assert _score(function, meta, **args) == scores


def test_an_error_says_that_completions_are_messages() -> None:
    with pytest.raises(ForeignError, match=r"read completion\[0\]\['content'\]\), raised TypeError"):
        _score(lambda completions: [float(text + "!") for text in completions], SAID)
    with pytest.raises(ForeignError, match="<lambda>, called with 2 texts, raised TypeError"):
        _score(lambda completions: [float(text + 1) for text in completions], META)


def test_an_asynchronous_function_runs_within_a_loop() -> None:
    import asyncio

    async def notebook() -> list[float]:
        return _score(slow)

    assert asyncio.run(notebook()) == [1, 3]


@pytest.mark.parametrize(
    ("scores", "message"),
    [
        (lambda completions: None, "must return one number for each sample, got None"),
        (lambda completions: [1.0], "wrong number of rewards: expected 2, got 1"),
        (lambda completions: [1.0, float("nan")], r"returned nan at index 1: rewards must be finite"),
        (lambda completions: ["good", "bad"], "must return one number for each sample"),
        (lambda completions, price: [1.0, 1.0], "expects 'price', but the data has the columns prompt, answer, level"),
    ],
)
def test_bad_scores_are_reported(scores: Any, message: str) -> None:
    with pytest.raises(RunError, match=f"lambda.* {message}"):
        _score(scores)


def test_names_of_functions_are_ids() -> None:
    def rouge(completions: list[str]) -> list[float]:
        return []

    def bleu(completions: list[str]) -> list[float]:
        return []

    @rewards.register("test-own-id")
    def own(completions: list[str]) -> list[float]:
        return []

    assert register_function(right) == "right" and register_function(right, taken=["right", "right_2"]) == "right_3"
    with pytest.raises(ConfigError, match="'rouge' is already registered by groundling"):
        register_function(rouge)
    with pytest.raises(ConfigError, match="bleu is also the id of a bundled reward: rename the function"):
        register_function(bleu)
    for value in (3, Length, torch.nn.Linear(1, 1)):
        with pytest.raises(ConfigError, match="a reward must be a function of completions or a reward's id"):
            register_function(value)  # type: ignore[arg-type]
