"""Faults of a command, which must end like an undisturbed one or with one clear error and no loss."""

import os
import random
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from groundling.training import checkpoint, diagnosis
from tests.faults.harness import (
    POLL_SECONDS,
    Ended,
    Scenario,
    children_of,
    digest,
    errors_of,
    kill,
    kill_until_done,
    launched,
    limit_files,
    run,
    start,
    without_rights,
)
from tests.faults.scenarios import train

KILLS_AT_ONCE = 4
"""Number of consecutive kills before a command may end."""
_ROWS_BEFORE_DAMAGE = 6
"""Number of rows of a run before its files are damaged."""
_UNHARMED = 0.05
"""Share of a command's time before the first kill."""
SHOWN = (diagnosis.FILE,)
"""Files of a run that are only displayed, and not read when it is resumed."""
_SECONDS_TO_END = 5
"""Time for the other processes to end after one has died, in seconds."""


@dataclass
class Case:
    """A fault and its result."""

    fault: str
    scenario: str
    kills: int = 0
    lost: int = 0
    """Units of work that were repeated."""
    recovery: float = 0.0
    """Seconds until the work reached its earlier state."""
    problem: str | None = None
    """None if the command ended like an undisturbed one, or with one clear line and no loss."""


@dataclass
class Bench:
    """Folders and random numbers of the cases."""

    folder: Path
    materials: Path
    rng: random.Random

    def __post_init__(self) -> None:
        self._count = 0
        self._undisturbed: dict[str, tuple[float, object]] = {}

    def place(self, scenario: Scenario) -> Path:
        """Create a folder for a command, with its inputs."""
        self._count += 1
        place = self.folder / f"{self._count:04}"
        place.mkdir(parents=True)
        if scenario.needs is not None:
            shutil.copytree(self.materials / scenario.needs, place / scenario.needs)
        return place

    def undisturbed(self, scenario: Scenario) -> tuple[float, object]:
        """Return the seconds and the result of the undisturbed command."""
        if scenario.name not in self._undisturbed:
            place, began = self.place(scenario), time.monotonic()
            ended = run(words_in(scenario, place), place)
            assert ended.status == 0, (scenario.name, ended.error)
            seconds = time.monotonic() - began
            self._undisturbed[scenario.name] = seconds, scenario.compared(place / scenario.output)
        return self._undisturbed[scenario.name]


def words_in(scenario: Scenario, place: Path) -> list[str]:
    """Return the command's arguments with its folder."""
    return [word.replace("{out}", str(place)) for word in scenario.words]


def clear_line(ended: Ended) -> str | None:
    """Return the problem of a failed command; None if it printed one line with "error:" and exited with 1."""
    lines = [line for line in ended.error.splitlines() if not line.startswith("warning: ")]
    if ended.status == 1 and len(lines) == 1 and lines[0].startswith("error: "):
        return None
    return f"exit {ended.status}: {ended.error.strip()[-400:]}"


def killed(bench: Bench, scenario: Scenario, kills: int) -> Iterator[Case]:
    """Send SIGKILL repeatedly at random moments, until the command may end."""
    seconds, reference = bench.undisturbed(scenario)
    left = kills
    while left > 0:
        place = bench.place(scenario)
        moments = [bench.rng.uniform(_UNHARMED, 1) for _ in range(min(KILLS_AT_ONCE, left))]
        result = kill_until_done(scenario, place, moments, seconds)
        case = Case("SIGKILL", scenario.name, result.kills, result.lost, result.recovery)
        if result.refused is not None:  # for example, a publication that was complete when it was killed
            case.problem = clear_line(result.refused)
        if case.problem is None and scenario.compared(place / scenario.output) != reference:
            case.problem = f"ended unlike an undisturbed one, in {place}"
        yield case
        left -= max(1, result.kills)
        if case.problem is None:
            shutil.rmtree(place)


def full_disk(bench: Bench, scenario: Scenario, times: int) -> Iterator[Case]:
    """Limit the size of files, then remove the limit."""
    _, reference = bench.undisturbed(scenario)
    for _ in range(times):
        place, size = bench.place(scenario), int(2 ** bench.rng.uniform(6, 18))
        case = Case("full disk", scenario.name)
        ended = run(words_in(scenario, place), place, limit_files(size))
        if ended.status:
            case.problem = clear_line(ended)
            again = run(words_in(scenario, place), place)
            if case.problem is None and again.status:
                case.problem = f"with space again: exit {again.status}: {again.error.strip()[-300:]}"
        if case.problem is None and scenario.compared(place / scenario.output) != reference:
            case.problem = f"ended unlike an undisturbed one, in {place} (files of at most {size} bytes)"
        yield case


def read_only(bench: Bench, scenario: Scenario) -> Iterator[Case]:
    """Make the folder read-only."""
    place = bench.place(scenario)
    for path in (place, *place.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)
    (place / "stderr").touch() if os.getuid() == 0 else None
    (place / "stderr").chmod(0o666) if os.getuid() == 0 else None
    before = digest(place / scenario.output)
    ended = run(words_in(scenario, place), place, without_rights)
    problem = clear_line(ended)
    if problem is None and digest(place / scenario.output) != before:
        problem = "a file was changed"
    for path in (place, *place.rglob("*")):
        path.chmod(0o755)
    yield Case("read-only folder", scenario.name, problem=problem)


def two_at_once(bench: Bench, scenario: Scenario) -> Iterator[Case]:
    """Run a command twice at the same time; one succeeds, and the other is refused."""
    seconds, reference = bench.undisturbed(scenario)
    place = bench.place(scenario)
    others = place / "other"
    others.mkdir()
    first = start(words_in(scenario, place), place)
    time.sleep(bench.rng.uniform(0.1, 0.5) * seconds)
    second = start(words_in(scenario, place), others)
    first.join()
    second.join()
    ended = [Ended(p.exitcode or 0, errors_of(f)) for p, f in ((first, place), (second, others))]
    failed = [one for one in ended if one.status]
    case = Case("two at once", scenario.name)
    if len(failed) > 1:
        case.problem = f"both failed: {ended}"
    elif failed:
        case.problem = clear_line(failed[0])
    if case.problem is None and scenario.compared(place / scenario.output) != reference:
        case.problem = f"ended unlike an undisturbed one, in {place}"
    yield case


def _cut(path: Path, rng: random.Random) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: rng.randrange(len(content)) if content else 0])


def _flip(path: Path, rng: random.Random) -> None:
    content = bytearray(path.read_bytes())
    if content:
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    path.write_bytes(content)


DAMAGES: dict[str, Callable[[Path, random.Random], None]] = {"cut": _cut, "flipped": _flip}
DAMAGES["missing"] = lambda path, rng: path.unlink()


def _without(compared: object, name: str) -> object:
    """Return the result without a damaged file that is only displayed."""
    return (
        {k: v for k, v in compared.items() if k != name} if name in SHOWN and isinstance(compared, dict) else compared
    )


def damaged(bench: Bench, scenario: Scenario, most: int | None = None) -> Iterator[Case]:
    """Cut, remove, or flip a bit of each file of a killed run, then resume it; at most ``most`` random cases."""
    _, reference = bench.undisturbed(scenario)
    half = bench.place(scenario)
    process = start(words_in(scenario, half), half)
    while process.is_alive() and scenario.progress(half / scenario.output) < _ROWS_BEFORE_DAMAGE:
        time.sleep(POLL_SECONDS)
    kill(process)
    source = half / scenario.output
    every = [(name, what) for name in sorted(digest(source)) for what in DAMAGES]
    for name, what in every if most is None else bench.rng.sample(every, most):
        place = bench.place(scenario)
        shutil.copytree(source, place / scenario.output)
        DAMAGES[what](place / scenario.output / name, bench.rng)
        before = digest(place / scenario.output)
        ended = run(words_in(scenario, place), place)
        case = Case(f"file {what}", scenario.name)
        if ended.status:
            case.problem = clear_line(ended)
            lost = {k for k, v in before.items() if digest(place / scenario.output).get(k) != v}
            if case.problem is None and lost - {"config.yaml"}:
                case.problem = f"{name}: refused, and {sorted(lost)} changed"
        elif _without(scenario.compared(place / scenario.output), name) != _without(reference, name):
            case.problem = f"{name} {what}: ended unlike an undisturbed one, in {place}"
        yield case
        if case.problem is None:
            shutil.rmtree(place)


def failing_envs(bench: Bench) -> Iterator[Case]:
    """Test that envs in workers that raise, die or hang during a run do not change its result."""
    weights: list[dict[str, str]] = []
    for trouble in ("", "raise", "die", "segfault", "hang"):
        scenario = Scenario(f"train doors ({trouble or 'well'})", train("doors"))
        place = bench.place(scenario)
        (place / "times").write_text("x")  # only once: an episode that is lost twice at the same step is cut there
        args = f"world.args={{trouble: {trouble}, times: {place / 'times'}}}" if trouble else "~world.args"
        ended = run([*words_in(scenario, place), args, "world.timeout=5"], place)
        weights.append(
            digest(checkpoint.list_checkpoints(place / "out" / "checkpoints")[-1]) if not ended.status else {}
        )
        kept = [{k: v for k, v in one.items() if k.endswith(".safetensors")} for one in (weights[0], weights[-1])]
        case = Case("env fails", scenario.name)
        if ended.status:
            case.problem = f"exit {ended.status}: {ended.error.strip()[-300:]}"
        elif kept[0] != kept[1]:
            case.problem = f"learnt unlike an undisturbed one, in {place}"
        if trouble:
            yield case


def dead_processes(bench: Bench, scenario: Scenario, times: int) -> Iterator[Case]:
    """Kill one of torchrun's two processes, or torchrun; all must end, and the run must be resumable."""
    place = bench.place(scenario)
    launched(words_in(scenario, place), place).wait()
    reference = scenario.compared(place / scenario.output)
    for number in range(times):
        place = bench.place(scenario)
        process = launched(words_in(scenario, place), place)
        wanted = bench.rng.randrange(2, _ROWS_BEFORE_DAMAGE)
        while process.poll() is None and scenario.progress(place / scenario.output) < wanted:
            time.sleep(POLL_SECONDS)
        ranks = [int(pid) for pid in children_of(process.pid)]
        case = Case("dead launcher" if number % 2 else "dead rank", scenario.name, kills=1)
        os.kill(process.pid if number % 2 else bench.rng.choice(ranks), signal.SIGKILL)
        process.wait()
        time.sleep(_SECONDS_TO_END)
        if alive := [pid for pid in ranks if Path(f"/proc/{pid}").exists()]:
            case.problem = f"processes {alive} continue"
        began = time.monotonic()
        if case.problem is None and (status := launched(words_in(scenario, place), place).wait()):
            case.problem = f"exit {status}: {errors_of(place)[-300:]}"
        case.recovery = time.monotonic() - began
        if case.problem is None and scenario.compared(place / scenario.output) != reference:
            case.problem = f"ended unlike an undisturbed one, in {place}"
        yield case
