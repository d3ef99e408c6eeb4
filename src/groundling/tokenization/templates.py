"""Chat templates, rendered with time and memory limits, since a template is a program from an untrusted file."""

import itertools
import json
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from types import FrameType
from typing import Any

from jinja2 import Environment
from transformers import PreTrainedTokenizerBase

from groundling.errors import ConfigError

_SECONDS, _MEMORY = 10.0, 2**30  # Limits for one rendering: seconds, and additional bytes of memory
_CHARACTERS = 2**20  # Maximum number of characters that a template may add to a conversation
# Placeholders for messages, to check that a template writes all of them.
_SYSTEM, _WORDS = "SYSTEMWORDS", ("FIRSTWORDS", "ANSWERWORDS", "SECONDWORDS")
_SAME_DAY = "{%- macro strftime_now(format) -%}{{ format"
for _code in "aAbBcdDeFHIjmMpSTuUwWxXyY":
    _SAME_DAY += f" | replace('%{_code}', '{datetime(2024, 7, 26).strftime('%' + _code)}')"
_SAME_DAY += " }}{%- endmacro -%}"
"""Prepended to templates, so that those that print the date always print the same one, which is Llama 3's default."""


class ChatTemplate:
    """A tokenizer's chat template (https://huggingface.co/docs/transformers/chat_templating).

    If it rejects, omits or repeats a system prompt, the system prompt is prepended to the first user message.
    Templates of vision-language models may accept message contents only as lists of parts. Raises `GroundlingError` if
    a template does not write each message once, changes the text, or exceeds a limit.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        self._name = f"the chat template of the tokenizer {tokenizer.name_or_path or type(tokenizer).__name__}"
        self._source = ""
        problems = []
        for self._in_parts, self._merges in itertools.product((False, True), (False, True)):
            try:
                self._source = tokenizer.get_chat_template()
                _check_products(self._source)
                _check_order(self._printed(_SYSTEM, _WORDS))
                return
            except LimitError as error:
                raise self._refusal(str(error)) from error
            except Exception as error:  # templates may raise anything
                problems.append(_line(error))
        raise self._refusal(f"cannot be used: {problems[0]} (with the system prompt in the user turn: {problems[1]})")

    def render(self, system: str | None, said: Sequence[str], tools: Sequence[str] = ()) -> str:
        """Render a conversation that the user starts; add the generation prompt unless the assistant spoke last.
        ``tools`` are JSON schemas; with them, every later message that is not the assistant's is a tool's result.
        """
        try:
            return self._printed(system, said, tools)
        except LimitError as error:
            raise self._refusal(str(error)) from error
        except Exception as error:
            raise self._refusal(f"cannot be used: {_line(error)}") from error

    def takes_tools(self, tools: Sequence[str]) -> bool:
        """Return True if the template writes tools and their results."""
        try:
            text = self._printed(_SYSTEM, _WORDS, tools)
            _check_order(text)
        except Exception:  # templates may raise anything
            return False
        return all(json.loads(schema)["function"]["name"] in text for schema in tools)

    def _refusal(self, problem: str) -> ConfigError:
        return ConfigError(f"{self._name} {problem}; use a tokenizer with another template (model.tokenizer=…)")

    def _printed(self, system: str | None, said: Sequence[str], tools: Sequence[str] = ()) -> str:
        roles = itertools.chain(("user",), itertools.cycle(("assistant", "tool" if tools else "user")))
        messages: list[dict[str, Any]] = [
            {"role": role, "content": words} for role, words in zip(roles, said, strict=False)
        ]
        if system is not None and self._merges:
            messages[0] = {"role": "user", "content": f"{system}\n\n{said[0]}"}
        elif system is not None:
            messages.insert(0, {"role": "system", "content": system})
        if self._in_parts:
            messages = [{**one, "content": [{"type": "text", "text": one["content"]}]} for one in messages]
        template, asks = f"{_SAME_DAY}{self._source}", messages[-1]["role"] != "assistant"
        schemas = [json.loads(schema) for schema in tools] or None
        with _limits():
            rendered = self._tokenizer.apply_chat_template(
                messages, tools=schemas, chat_template=template, tokenize=False, add_generation_prompt=asks
            )
        text = str(rendered)
        if len(text) > _CHARACTERS + 16 * sum(map(len, (system or "", *said))):
            raise LimitError(f"writes {len(text)} characters")
        return text


class LimitError(Exception):
    """A template exceeds a limit; the message completes a sentence whose subject is the template."""


_limited = threading.Lock()  # Held while the process's memory is limited, so that the right limit is restored


@contextmanager
def _limits() -> Iterator[None]:
    """Raise `LimitError` if the code in this context uses too much time or memory."""
    # A trace function checks the time at each template line, since starting a thread would cost more than rendering.
    deadline = time.monotonic() + _SECONDS

    def check(frame: FrameType, event: str, argument: object) -> Any:
        if time.monotonic() > deadline:
            raise LimitError(f"takes longer than {_SECONDS:g} seconds")
        return check if frame.f_code.co_filename == "<template>" else None

    before = sys.gettrace()
    try:
        with _limited, _little_memory():
            sys.settrace(check)
            yield
    except MemoryError as error:
        raise LimitError(f"takes more than {_MEMORY >> 20} MiB of memory") from error
    finally:
        sys.settrace(before)


@contextmanager
def _little_memory() -> Iterator[None]:
    """On Linux, limit the address space of the process within this context."""
    try:
        import resource

        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    except (ImportError, OSError):  # not Linux
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = used + _MEMORY if soft == resource.RLIM_INFINITY else min(soft, used + _MEMORY)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:120] or type(error).__name__


def _check_products(source: str) -> None:
    """Raise `LimitError` for common ways to spend unlimited time in one instruction, during which no check runs."""
    # Searches in huge strings and divisions of huge numbers remain possible.
    tokens = [(kind, value) for _, kind, value in Environment().lex(source) if kind != "whitespace"]
    tokens = [("", ""), *tokens, ("", "")]
    for (before, left), (kind, value), (after, _) in zip(tokens, tokens[1:], tokens[2:], strict=False):
        if kind == "operator" and value == "**" and left not in ("(", ","):
            raise LimitError("computes powers (**)")
        if kind == "operator" and value == "*" and not {before, after} & {"integer", "string"}:
            raise LimitError("multiplies variables (*)")
        if kind == "name" and value == "round":
            raise LimitError("rounds numbers (round), which computes powers")
        if kind == "name" and value in ("urlize", "wordwrap"):
            raise LimitError(f"calls {value}, whose time grows with the square of a string's length")


def _check_order(text: str) -> None:
    """Raise `ValueError` unless a rendered conversation contains each placeholder once, with the turns in order."""
    places = [text.find(words) for words in _WORDS]
    if any(text.count(words) != 1 for words in (_SYSTEM, *_WORDS)) or places != sorted(places):
        raise ValueError(f"it does not write each message once and in order: {text[:80]!r}")
