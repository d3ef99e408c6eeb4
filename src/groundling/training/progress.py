"""What a run shows while it trains: a live bar in a terminal, a line now and then elsewhere."""

import time
from collections import deque
from collections.abc import Sequence
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

from groundling.worlds.collector import Finished

_SECONDS_BETWEEN_LINES = 10.0


class TrainingProgress:
    """Shows return, success rate and first precision (of the last 100 episodes), steps per second and the time left."""

    def __init__(self, console: Console, total_steps: int, step: int) -> None:
        self._console, self._total, self._begin = console, total_steps, step
        self._step, self._started = step, time.monotonic()
        self._last_line = self._started
        self._recent: deque[Finished] = deque(maxlen=100)
        self._bar = Progress(
            BarColumn(bar_width=24),
            TaskProgressColumn(),
            TextColumn("{task.description}"),
            TextColumn("{task.fields[left]}"),
            console=console,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task(self._describe(), total=total_steps, completed=step, left="")

    def advance(self, steps: int) -> None:
        """Count ``steps`` env steps, or tokens."""
        self._step += steps
        self._bar.update(self._task, completed=self._step)

    def finish_update(self, episodes: Sequence[Finished], step: int) -> None:
        """Count the episodes of an update, which ended at ``step``, and show where the run stands."""
        self._recent.extend(episodes)
        self._step = step
        # By whole updates: rich's own column takes the pace of the last seconds, which are collecting or learning.
        left = f"{self._time_left()} left"
        self._bar.update(self._task, completed=step, description=self._describe(), left=left)
        due = time.monotonic() - self._last_line > _SECONDS_BETWEEN_LINES or self._step >= self._total
        if not self._console.is_terminal and due:
            self._last_line = time.monotonic()
            self._console.print(f"{self._describe()} · {left}", highlight=False)

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
        if self._step > self._begin:
            parts.append(f"{self._rate():,.0f} steps/s")
        return " · ".join(parts)

    def _rate(self) -> float:
        return (self._step - self._begin) / max(time.monotonic() - self._started, 1e-9)

    def _time_left(self) -> str:
        seconds = round(max(self._total - self._step, 0) / max(self._rate(), 1e-9))
        return f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}"

    def __enter__(self) -> "TrainingProgress":
        self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self._bar.stop()
