"""What passes between host and device, and what is refused: noted with the function of ours that caused it."""

import contextlib
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Literal

import groundling

Kind = Literal["to device", "to host", "wait", "refused"]
"""A copy, one back, the host waiting for numbers that decide how large a result is; or what a GPU would not do."""
_SOURCE = str(Path(groundling.__file__).parent) + "/"
_ELSEWHERE = "elsewhere"


@dataclass(frozen=True, slots=True)
class Event:
    """Something that a GPU would do slowly, or not at all."""

    kind: Kind
    operator: str
    place: str
    """The innermost function of ours that was under way, such as ``lm/steps.py:Stepper.add``."""
    line: int
    phase: str
    """What the run was at, as `phase` says."""


_PHASE = [""]
_LISTS: list[list[Event]] = []


@contextlib.contextmanager
def recorded() -> Iterator[list[Event]]:
    """Within this context events of all threads are added to the list that it gives."""
    events: list[Event] = []
    _LISTS.append(events)
    try:
        yield events
    finally:
        _LISTS.remove(events)


@contextlib.contextmanager
def phase(name: str) -> Iterator[None]:
    """Within this context events belong to ``name``."""
    _PHASE.append(name)
    try:
        yield
    finally:
        _PHASE.pop()


def note(kind: Kind, operator: str) -> None:
    """Something happens, caused by whoever calls."""
    if _LISTS:
        place, line = _place()
        event = Event(kind, operator, place, line, _PHASE[-1])
        for events in _LISTS:
            events.append(event)


def _place() -> tuple[str, int]:
    """The function of ours that is under way, and its line; in a thread of autograd's, where the main one waits."""
    location = _first(sys._getframe(1))
    main = threading.main_thread().ident
    if location is None and threading.get_ident() != main:
        location = _first(sys._current_frames().get(main or 0))
    return location or (_ELSEWHERE, 0)


def _first(frame: FrameType | None) -> tuple[str, int] | None:
    while frame is not None:
        path = frame.f_code.co_filename
        if path.startswith(_SOURCE):
            return f"{path.removeprefix(_SOURCE)}:{frame.f_code.co_qualname}", frame.f_lineno
        frame = frame.f_back
    return None
