"""`groundling verify`: check that files are complete, and suggest what to do if they are not."""

import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path

from groundling.config.compose import from_file
from groundling.errors import ConfigError, GroundlingError
from groundling.io.documents import read_object, read_parquet
from groundling.io.files import LOCK, PARTIAL, is_locked, output_lock
from groundling.io.row_files import digest_of, scan_rows
from groundling.judges.preferences import open_pairs
from groundling.judges.preferences.pairs import ANSWERS
from groundling.judges.reward_models import load_reward_model
from groundling.judges.reward_models.reward_model import DESCRIPTION as REWARD_MODEL
from groundling.training import checkpoint
from groundling.training.tracking import METRICS

_COLLECTION = "collection.json"  # Describes how a dataset of transitions was collected
_SPARSE_ROWS = ("validation.jsonl", "probes.jsonl", "samples/train.jsonl")
"""Files with rows for only some updates; `METRICS` has a row for every update."""


@dataclass(frozen=True)
class CheckResult:
    what: str  # Subject of the check, or the file with the problem
    problem: str | None = None  # None if there is no problem
    advice: str = ""  # How to fix the problem


def verify(folder: Path) -> list[CheckResult]:
    """Check a run, a checkpoint, a published policy, a reward model or a dataset, without changing anything.
    While another process writes to the folder, problems may be temporary, so a single note replaces them.
    """
    if not folder.is_dir():
        raise ConfigError(f"{folder} is not a folder: pass the path of a run, a reward model or a dataset")
    was_written_to = _is_written_to(folder)
    findings, failure = list[CheckResult](), None
    try:
        findings = _findings(folder)
    except (GroundlingError, OSError) as error:  # for example, a file was deleted in the meantime
        failure = error
    if was_written_to or _is_written_to(folder):
        complete = [one for one in findings if one.problem is None]
        note = CheckResult(str(folder), "is being written to by another process", "check again when it is done")
        return [*complete, note]
    if failure is not None:
        raise failure
    return findings


def _is_written_to(folder: Path) -> bool:
    """Return True if a process holds a lock in the folder, or the lock of the run that a checkpoint belongs to."""
    around = [parent / LOCK for parent in folder.absolute().parents[:2]]
    inside = chain(folder.rglob(f"*{LOCK}"), folder.glob(f"{ANSWERS}/claims/*"))
    return any(is_locked(path) for path in chain(around, [output_lock(folder)], inside))


def _findings(folder: Path) -> list[CheckResult]:
    has_config = (folder / "config.yaml").exists()
    checks = list[Iterator[CheckResult]]()
    if (folder / checkpoint.MANIFEST).exists():
        checks = [iter([_manifest(folder)]), *([_config(folder)] if has_config else [])]
    elif has_config:
        checks = [_config(folder), _trained(folder)]
    elif (folder / REWARD_MODEL).exists() or (folder / "checkpoints").is_dir():
        checks = [_reward_model(folder), _trained(folder)]
    elif (folder / _COLLECTION).exists():
        checks = [_episodes(folder)]
    elif (folder / "data").is_dir():
        checks = [_pairs(folder)]
    else:
        raise ConfigError(
            f"{folder} is not a run (config.yaml), a published policy ({checkpoint.MANIFEST}), a reward model "
            f"({REWARD_MODEL}) or a dataset (data/)"
        )
    left = [path for path in sorted(folder.rglob(f"*{PARTIAL}*")) if not is_locked(path)]
    advice = "was left behind by a process that was killed while writing", "delete it"
    return [*chain(*checks), *(CheckResult(str(path), *advice) for path in left)]


def _read(path: Path, advice: str, read: Callable[[], str]) -> Iterator[CheckResult]:
    """Yield the summary that ``read`` returns, or its error as a problem with ``path``."""
    try:
        yield CheckResult(read())
    except (GroundlingError, OSError, ValueError) as error:
        yield CheckResult(str(path), " ".join(str(error).split()), advice)


def _config(folder: Path) -> Iterator[CheckResult]:
    is_published = (folder / checkpoint.MANIFEST).exists()

    def read() -> str:
        from_file(folder / "config.yaml", (), "playing" if is_published else "training")
        return f"config.yaml: can be {'played' if is_published else 'run'} as is"

    return _read(folder / "config.yaml", "", read)


def _trained(folder: Path) -> Iterator[CheckResult]:
    """Check the rows and checkpoints of a run or a distillation."""
    rows, damaged = scan_rows(folder / METRICS, consecutive=True)
    yield from (CheckResult(f"{METRICS}, line {one.line}", one.problem, one.advice) for one in damaged)
    if not damaged:
        yield CheckResult(f"{METRICS}: {len(rows)} rows, one per update")
    for name in _SPARSE_ROWS:
        for one in scan_rows(folder / name)[1]:
            yield CheckResult(f"{name}, line {one.line}", one.problem, one.advice)
    steps = {row["update"]: row["step"] for row in rows}
    complete = []
    checkpoints = checkpoint.list_checkpoints(folder / "checkpoints")
    for path in checkpoints:
        finding = _manifest(path)
        yield finding
        if finding.problem is None:
            complete.append(path)
            if not damaged:
                yield from _rows_of_checkpoint(folder, path, steps)
    if checkpoints and not complete:
        yield CheckResult(str(folder / "checkpoints"), "contains no complete checkpoint", "restore one from a backup")


def _rows_of_checkpoint(folder: Path, path: Path, steps: Mapping[int, int]) -> Iterator[CheckResult]:
    """Check that the rows of metrics match the digest in a checkpoint."""
    update, step = int(path.name), checkpoint.step_of(path)
    weights = shlex.quote(f"model.path={path}")
    advice = f"restore the file from a backup, or start a new run from these weights: {weights} run_dir=NEW"
    if steps.get(update) != step:
        problem = f"was saved after update {update}, step {step}, but {METRICS} has no such row"
        yield CheckResult(str(path), problem, advice)
        return
    recorded = read_object(path / "run.json").get("rows_sha256")
    count = update + (min(steps) == 0)  # a distillation starts with a row for update 0
    if recorded is not None and recorded != digest_of(folder / METRICS, count):
        problem = f"does not match {METRICS}, whose first {count} lines have changed since"
        yield CheckResult(str(path), problem, advice)


def _manifest(path: Path) -> CheckResult:
    problem = checkpoint.find_problem(path)
    if problem is None:
        return CheckResult(f"{path.name}: {len(list(path.rglob('*')))} files match the manifest")
    if path.parent.name == "checkpoints":
        return CheckResult(str(path), problem, "delete this folder; the run then resumes from the previous checkpoint")
    return CheckResult(str(path), problem, "copy it again from its source")


def _reward_model(folder: Path) -> Iterator[CheckResult]:
    advice = "run the same `groundling distill` command again until it finishes"
    return _read(
        folder / REWARD_MODEL, advice, lambda: f"{REWARD_MODEL}: {load_reward_model(folder).id} model with its weights"
    )


def _count(path: Path) -> str:
    return f"{path.name}: {read_parquet(path).num_rows:,} transitions"


def _episodes(folder: Path) -> Iterator[CheckResult]:
    files = sorted((folder / "data").glob("*.parquet"))
    advice = "delete this file and all later ones, then run the same `groundling collect` command again"
    for path in files:
        yield from _read(path, advice, partial(_count, path))


def _pairs(folder: Path) -> Iterator[CheckResult]:
    def read() -> str:
        pairs = open_pairs(folder)
        labels = {name: len(pairs.preferences(name)) for name in pairs.annotators()}
        labelled = f", labelled by {', '.join(labels)}" if labels else ""
        return f"data: {len(pairs):,} pairs{labelled}"

    return _read(folder, "restore the file from a backup, or collect into a new folder", read)
