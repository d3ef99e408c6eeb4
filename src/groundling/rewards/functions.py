"""Plain functions as rewards, called as in TRL."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any

from groundling.envs.text_generation.columns import MESSAGES
from groundling.errors import RunError, foreign
from groundling.metrics.metric import Meta, References, Texts
from groundling.registry import missing_arguments, taken
from groundling.rewards.part import Reward

SAMPLES = ("prompts", "generations", "completions", "references", "meta")
"""Arguments of a plain function that are lists with one entry per sample."""


class FunctionReward(Reward):
    """A plain function, possibly asynchronous, as a reward. It is called as in TRL, with ``args`` as extra arguments.

    The function's parameters select among ``prompts``, ``completions`` (or ``generations``), ``references``, ``meta``
    and the pool's other columns, each with one entry per sample; with ``**kwargs``, it receives all of them. If the
    prompts are conversations, prompts and completions are lists of messages. The function returns one number per
    sample, or None for samples to which it does not apply; None counts as 0.
    """

    def __init__(self, function: Callable[..., Any], args: Mapping[str, Any]) -> None:
        super().__init__()
        self._function, self._args = function, args
        parameters = inspect.signature(function).parameters
        self._columns = missing_arguments(function, {*SAMPLES, *args})
        self.needs_references = bool(self._columns) or not {"references", "meta"}.isdisjoint(parameters)

    @property
    def name(self) -> str:
        return name_of(self._function)

    def score(self, prompts: Texts, generations: Texts, references: References, meta: Meta) -> Any:
        # Copies, because a function may change its arguments, which other rewards and later epochs also read.
        generations, references, meta = [*generations], [[*given] for given in references], meta and _copied([*meta])
        rows = meta or [{} for _ in prompts]
        conversations = [isinstance(row.get(MESSAGES), list) for row in rows]
        asked = [
            row[MESSAGES] if chat else prompt for row, prompt, chat in zip(rows, prompts, conversations, strict=True)
        ]
        written = [
            [{"role": "assistant", "content": text}] if chat else text
            for text, chat in zip(generations, conversations, strict=True)
        ]
        names = [name for name in dict.fromkeys(name for row in rows for name in row) if name not in SAMPLES[:3]]
        columns = {name: [row.get(name) for row in rows] for name in names if name != MESSAGES}
        if missing := [name for name in self._columns if name not in columns]:
            raise RunError(
                f"{self.name} expects {missing[0]!r}, but the data has the columns {', '.join(['prompt', *columns])}: "
                f"add that column, or set the reward's args.{missing[0]}"
            )
        samples = dict(zip(SAMPLES, (asked, generations, written, references, meta), strict=True))
        lists = f"{self.name}, whose completions are lists of messages here (read completion[0]['content']),"
        with foreign(lists) if any(conversations) else nullcontext():
            scores = self._function(**taken(self._function, {**samples, **columns, **self._args}))
            if inspect.isawaitable(scores):
                scores = _awaited(scores)
        return [0.0 if score is None else score for score in scores] if isinstance(scores, list | tuple) else scores


def _copied(value: Any) -> Any:
    if isinstance(value, list):
        return [_copied(one) for one in value]
    return {name: _copied(one) for name, one in value.items()} if isinstance(value, dict) else value


def _awaited(scores: Awaitable[Any]) -> Any:
    """Wait for a coroutine in a new thread, since a notebook's thread already runs an event loop."""

    async def wait() -> Any:
        return await scores

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, wait()).result()


def name_of(function: Callable[..., Any]) -> str:
    """Return the name of a function, of the function in a partial, or of a callable object's class."""
    inner: Any = getattr(function, "func", function)
    inner = inner.__self__ if getattr(inner, "__name__", "") == "__call__" else inner
    return str(getattr(inner, "__name__", type(inner).__name__))
