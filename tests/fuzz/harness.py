"""Measurement of a fuzz target, with inputs, CPU seconds, the slowest input, and findings."""

import signal
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from groundling.errors import GroundlingError

MOST_SECONDS = 1.0
"""Maximum CPU seconds for one input."""
_GIVEN_UP_AFTER = 10.0
BATCH = 200
"""Number of inputs from one seed of hypothesis; sampling a seed takes longer than most parsers."""
_COMMON = {
    "deadline": None,
    "database": None,
    "phases": (Phase.explicit, Phase.generate),  # a seed cannot be shrunk; the report contains the input
    "suppress_health_check": list(HealthCheck),
}
settings.register_profile("suite", max_examples=1, derandomize=True, **_COMMON)
settings.register_profile("fuzz", max_examples=1_000_000, **_COMMON)


@dataclass(frozen=True)
class Target:
    """A parser under test."""

    name: str
    make: Callable[[Random], Any]
    """Make an input from a seeded generator."""
    check: Callable[[Any, Path], None]
    """Parse an input in an empty folder, and check a property of the result."""
    what: str
    """The property, as shown in the table."""
    inputs: int
    """Number of inputs in `make fuzz`."""


@dataclass
class Figures:
    """Results of one target."""

    target: Target
    inputs: int = 0
    refused: int = 0
    seconds: float = 0.0
    slowest: float = 0.0
    findings: dict[str, list[str]] = field(default_factory=dict)
    """The first three inputs of each kind of failure, by exception and location."""


class _Hangs(BaseException):
    """Not an `Exception`, which a parser could interpret as an error in the file."""


@contextmanager
def _given_up() -> Iterator[None]:
    def give_up(number: int, frame: FrameType | None) -> None:
        raise _Hangs

    before = signal.signal(signal.SIGPROF, give_up)
    signal.setitimer(signal.ITIMER_PROF, _GIVEN_UP_AFTER)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def read(figures: Figures, made: Any, folder: Path) -> None:
    """Pass one input to a target, and record the result."""
    figures.inputs += 1
    problem, refused, seconds = _try(figures.target, made, folder)
    if not problem and seconds > MOST_SECONDS:  # try again, because the first attempt may have imported modules
        problem, refused, seconds = _try(figures.target, made, folder)
        if not problem and seconds > MOST_SECONDS:
            problem = f"takes more than {MOST_SECONDS} s"
    figures.refused += refused
    figures.slowest = max(figures.slowest, seconds)
    if problem:
        kind = problem.partition(": ")[0]
        known = figures.findings.setdefault(kind, [])
        if len(known) < 3:
            known.append(f"{problem}; input {made!r:.1500}")


def _try(target: Target, made: Any, folder: Path) -> tuple[str, bool, float]:
    """Return the problem or an empty text, True if the input was refused, and the CPU seconds."""
    began, problem, refused = time.process_time(), "", False
    try:
        with _given_up():  # otherwise, the timer could end the process of the tests
            target.check(made, folder)
    except GroundlingError as error:
        refused = True
        if not str(error).strip():
            problem = f"{type(error).__name__} without a message"
    except _Hangs as error:
        problem = f"hangs {_place(error)}"
    except Exception as error:
        problem = f"{type(error).__name__} {_place(error)}: {str(error)[:150]}"
    return problem, refused, time.process_time() - began


def fuzz(
    target: Target, folder: Path, inputs: int, profile: str, seeded: Callable[[Any], Any] = lambda test: test
) -> Figures:
    """Pass ``inputs`` inputs from hypothesis seeds to a target; ``seeded`` decorates the function that samples them."""
    figures = Figures(target)
    batch = min(BATCH, inputs)

    @seeded
    @settings(settings.get_profile(profile), max_examples=-(-inputs // batch))
    @given(seed=st.integers(0, 2**64 - 1))
    def from_seed(seed: int) -> None:
        random = Random(seed)
        for _ in range(min(batch, inputs - figures.inputs)):
            read(figures, target.make(random), folder)

    began = time.process_time()
    from_seed()
    figures.seconds = time.process_time() - began
    return figures


def _place(error: BaseException) -> str:
    """Return the innermost line of the package or of the tests in an error's traceback."""
    frames = traceback.extract_tb(error.__traceback__)
    named = [f for f in frames if "/groundling/" in f.filename or "/fuzz/" in f.filename]
    last = named[-1]
    return f"in {Path(last.filename).name}:{last.lineno}"
