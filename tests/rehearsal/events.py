"""Record traffic between host and device, and refused operators, along with the function that caused them."""

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
"""A copy, a copy back, a wait for values on which a result's size depends, or an operator that a GPU refuses."""
_SOURCE = str(Path(groundling.__file__).parent) + "/"
_ELSEWHERE = "elsewhere"


@dataclass(frozen=True, slots=True)
class Event:
    """An event that slows a GPU down, or that a GPU refuses."""

    kind: Kind
    operator: str
    place: str
    """The innermost function of the package, such as ``lm/steps.py:Stepper.add``."""
    line: int
    phase: str
    """The phase of the run, set by `phase`."""


_PHASE = [""]
_LISTS: list[list[Event]] = []


@contextlib.contextmanager
def recorded() -> Iterator[list[Event]]:
    """Yield a list to which the events of all threads are appended."""
    events: list[Event] = []
    _LISTS.append(events)
    try:
        yield events
    finally:
        _LISTS.remove(events)


@contextlib.contextmanager
def phase(name: str) -> Iterator[None]:
    """Assign events to the phase ``name``."""
    _PHASE.append(name)
    try:
        yield
    finally:
        _PHASE.pop()


def note(kind: Kind, operator: str) -> None:
    """Record an event caused by the calling function."""
    if not _LISTS:
        return
    location = _first(sys._getframe(1))
    main = threading.main_thread().ident
    if location is None and threading.get_ident() != main:  # an autograd thread
        location = _first(sys._current_frames().get(main or 0))
    event = Event(kind, operator, *(location or (_ELSEWHERE, 0)), _PHASE[-1])
    for events in _LISTS:
        events.append(event)


def _first(frame: FrameType | None) -> tuple[str, int] | None:
    while frame is not None:
        path = frame.f_code.co_filename
        if path.startswith(_SOURCE):
            return f"{path.removeprefix(_SOURCE)}:{frame.f_code.co_qualname}", frame.f_lineno
        frame = frame.f_back
    return None
