"""Progress of a run: a live bar in a terminal or notebook, one line per update elsewhere."""

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskProgressColumn, TextColumn
from rich.text import Text

from groundling.io.console import is_live
from groundling.worlds.episode import Episode


class TrainingProgress:
    """Show steps, return, success rate and first precision (of the last 100 episodes), rewards, speed and time left.
    The time left is estimated from whole updates, since steps advance only while an update collects, and without the
    first one, which also compiles and fills caches, once there are others. Steps are env steps, or tokens.
    """

    def __init__(
        self, console: Console, total_steps: int, step: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._console, self._total, self._clock = console, total_steps, clock
        self._step = step
        # Seconds and steps at the start and at the ends of updates: the first two and the latest.
        self._marks = [(clock(), step)]
        self._recent: deque[Episode] = deque(maxlen=100)
        self._rewards: Mapping[str, float] = {}
        self._bar = Progress(
            BarColumn(bar_width=24),
            TaskProgressColumn(),
            TextColumn("{task.description}"),
            _Computed(self._time_left),
            console=console,
            disable=not is_live(console),
        )
        self._task = self._bar.add_task(self._describe(), total=total_steps, completed=step)

    def phase(self, name: str) -> None:
        """Show what the update does now: collecting, learning, measuring or saving."""
        self._bar.update(self._task, description=f"{self._describe()} · {name}")

    def advance(self, steps: int) -> None:
        self._step += steps
        self._bar.update(self._task, completed=self._step)

    def finish_update(
        self, episodes: Sequence[Episode], step: int, rewards: Mapping[str, float] | None = None
    ) -> None:
        """Show the episodes that ended in an update, the steps so far, and means of further rewards by name."""
        self._recent.extend(episodes)
        self._rewards = rewards or {}
        self._step = step
        self._marks = [*self._marks[:2], (self._clock(), step)]
        self._bar.update(self._task, completed=step, description=self._describe())
        if not is_live(self._console):
            self._console.print(f"{self._describe()} · {self._time_left()}", highlight=False, soft_wrap=True)

    def _describe(self) -> str:
        parts = [f"step {self._step:,}/{self._total:,}"]
        if self._recent:
            count = len(self._recent)
            parts.append(f"return {sum(e.episode_return for e in self._recent) / count:.2f}")
            if all(e.success is not None for e in self._recent):
                parts.append(f"success {sum(bool(e.success) for e in self._recent) / count:.2f}")
            firsts = [e.figures["first_precision"] for e in self._recent if "first_precision" in e.figures]
            if firsts:
                parts.append(f"precision {sum(firsts) / len(firsts):.2f}")
        parts += [f"{name} {value:.2f}" for name, value in self._rewards.items()]
        if (rate := self._rate()) is not None:
            parts.append(f"{rate:,.0f} steps/s")
        return " · ".join(parts)

    def _rate(self) -> float | None:
        """Return steps per second, or None before the first update has ended."""
        if len(self._marks) == 1:
            return None
        (began, first), (ended, last) = self._marks[-2:]
        return (last - first) / max(ended - began, 1e-9)

    def _time_left(self) -> str:
        if not (rate := self._rate()):
            return ""
        ended, step = self._marks[-1]
        seconds = round(max((self._total - step) / rate - (self._clock() - ended), 0))
        return f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02} left"

    def __enter__(self) -> "TrainingProgress":
        self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self._bar.stop()


class _Computed(ProgressColumn):
    """A text that is computed whenever the bar is drawn."""

    def __init__(self, text: Callable[[], str]) -> None:
        super().__init__()
        self._text = text

    def render(self, task: Task) -> Text:
        return Text(self._text())
