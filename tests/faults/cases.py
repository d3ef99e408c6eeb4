"""Faults of a command: it ends like an undisturbed one, or with one clear error and nothing lost."""

import os
import random
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from groundling.training import checkpoint
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
"""So many kills one after the other before a command may end."""
_ROWS_BEFORE_DAMAGE = 6
"""Of a run whose files are damaged."""
_UNHARMED = 0.05
"""Of a command's time: no kill comes before."""
_SECONDS_TO_END = 5
"""Of the other processes, where one has died."""


@dataclass
class Case:
    """A fault and what came of it."""

    fault: str
    scenario: str
    kills: int = 0
    lost: int = 0
    """Units of work that were done again."""
    recovery: float = 0.0
    """Seconds until the work was where it had been."""
    problem: str | None = None
    """None: it ended as undisturbed, or in one clear line with nothing lost."""


@dataclass
class Bench:
    """Where cases are tried."""

    folder: Path
    materials: Path
    rng: random.Random

    def __post_init__(self) -> None:
        self._count = 0

    def place(self, scenario: Scenario) -> Path:
        """A new folder for a command, with what it needs."""
        self._count += 1
        place = self.folder / f"{self._count:04}"
        place.mkdir(parents=True)
        if scenario.needs is not None:
            shutil.copytree(self.materials / scenario.needs, place / scenario.needs)
        return place

    def undisturbed(self, scenario: Scenario) -> tuple[float, object]:
        """Seconds and what is left, of the command alone.

        Raises:
            AssertionError: it fails.
        """
        place, began = self.place(scenario), time.monotonic()
        ended = run(words_in(scenario, place), place)
        assert ended.status == 0, (scenario.name, ended.error)
        return time.monotonic() - began, scenario.compared(place / scenario.output)


def words_in(scenario: Scenario, place: Path) -> list[str]:
    """The command's words in its folder."""
    return [word.replace("{out}", str(place)) for word in scenario.words]


def clear_line(ended: Ended) -> str | None:
    """What is wrong with how a command has failed; None of exit status 1 and one line that begins with "error:"."""
    lines = [line for line in ended.error.splitlines() if not line.startswith("warning: ")]
    if ended.status == 1 and len(lines) == 1 and lines[0].startswith("error: "):
        return None
    return f"exit {ended.status}: {ended.error.strip()[-400:]}"


def killed(bench: Bench, scenario: Scenario, kills: int) -> Iterator[Case]:
    """SIGKILL at random moments, again and again, until the command is let end."""
    seconds, reference = bench.undisturbed(scenario)
    left = kills
    while left > 0:
        place = bench.place(scenario)
        moments = [bench.rng.uniform(_UNHARMED, 1) for _ in range(min(KILLS_AT_ONCE, left))]
        result = kill_until_done(scenario, place, moments, seconds)
        case = Case("SIGKILL", scenario.name, result.kills, result.lost, result.recovery)
        if result.refused is not None:  # as that which has published already is, if it was killed as it ended
            case.problem = clear_line(result.refused)
        if case.problem is None and scenario.compared(place / scenario.output) != reference:
            case.problem = f"ended otherwise than undisturbed, in {place}"
        yield case
        left -= max(1, result.kills)
        if case.problem is None:
            shutil.rmtree(place)


def full_disk(bench: Bench, scenario: Scenario, times: int) -> Iterator[Case]:
    """No file can grow beyond some bytes; afterwards there is space again."""
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
            case.problem = f"ended otherwise than undisturbed, in {place} (files of at most {size} bytes)"
        yield case


def read_only(bench: Bench, scenario: Scenario) -> Iterator[Case]:
    """The folder may not be written to."""
    place = bench.place(scenario)
    for path in (place, *place.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)
    (place / "stderr").touch() if os.getuid() == 0 else None
    (place / "stderr").chmod(0o666) if os.getuid() == 0 else None
    before = digest(place / scenario.output)
    ended = run(words_in(scenario, place), place, without_rights)
    problem = clear_line(ended)
    if problem is None and digest(place / scenario.output) != before:
        problem = "something was changed all the same"
    for path in (place, *place.rglob("*")):
        path.chmod(0o755)
    yield Case("read-only folder", scenario.name, problem=problem)


def two_at_once(bench: Bench, scenario: Scenario) -> Iterator[Case]:
    """The same command twice at the same time: one does it, the other is told so."""
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
        case.problem = f"ended otherwise than undisturbed, in {place}"
    yield case


def _cut(path: Path, rng: random.Random) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: rng.randrange(len(content)) if content else 0])


def _flip(path: Path, rng: random.Random) -> None:
    content = bytearray(path.read_bytes())
    if content:
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    path.write_bytes(content)


def _remove(path: Path, rng: random.Random) -> None:
    path.unlink()


DAMAGES: dict[str, Callable[[Path, random.Random], None]] = {"cut": _cut, "flipped": _flip, "missing": _remove}


def damaged(bench: Bench, scenario: Scenario, most: int | None = None) -> Iterator[Case]:
    """Each file of a run that was killed in its midst is cut, flipped in one bit or removed, then it is gone on with.

    All that can be, or ``most`` of it, drawn.
    """
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
        elif scenario.compared(place / scenario.output) != reference:
            case.problem = f"{name} {what}: ended otherwise than undisturbed, in {place}"
        yield case
        if case.problem is None:
            shutil.rmtree(place)


def failing_envs(bench: Bench) -> Iterator[Case]:
    """Envs in worker processes that raise, die or hang in the midst of a run: it learns what it would have learnt."""
    weights: list[dict[str, str]] = []
    for trouble in ("", "raise", "die", "segfault", "hang"):
        scenario = Scenario(f"train doors ({trouble or 'well'})", train("doors"))
        place = bench.place(scenario)
        (place / "times").write_text("x")  # it strikes once: lost twice at one step, an episode is cut there
        args = f"world.args={{trouble: {trouble}, times: {place / 'times'}}}" if trouble else "~world.args"
        ended = run([*words_in(scenario, place), args, "world.timeout=5"], place)
        weights.append(digest(checkpoint.numbered(place / "out" / "checkpoints")[-1]) if not ended.status else {})
        kept = [{k: v for k, v in one.items() if k.endswith(".safetensors")} for one in (weights[0], weights[-1])]
        case = Case("env fails", scenario.name)
        if ended.status:
            case.problem = f"exit {ended.status}: {ended.error.strip()[-300:]}"
        elif kept[0] != kept[1]:
            case.problem = f"learnt otherwise than undisturbed, in {place}"
        if trouble:
            yield case


def lying_envs(bench: Bench) -> Iterator[Case]:
    """Envs that give a reward which is none, in this process and in workers: told in one line, with what was learnt."""
    for workers in (0, 2):
        scenario = Scenario(f"train doors (lies, {workers} workers)", train("doors"))
        place = bench.place(scenario)
        args = ["world.args={trouble: lie}", f"world.num_workers={workers}"]
        ended = run([*words_in(scenario, place), *args], place)
        yield Case("env lies", scenario.name, problem=clear_line(ended))


def dead_processes(bench: Bench, scenario: Scenario, times: int) -> Iterator[Case]:
    """Of two processes of torchrun's one is killed, or torchrun itself: none stays, and the run can be gone on with."""
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
            case.problem = f"processes {alive} go on"
        began = time.monotonic()
        if case.problem is None and (status := launched(words_in(scenario, place), place).wait()):
            case.problem = f"exit {status}: {errors_of(place)[-300:]}"
        case.recovery = time.monotonic() - began
        if case.problem is None and scenario.compared(place / scenario.output) != reference:
            case.problem = f"ended otherwise than undisturbed, in {place}"
        yield case
