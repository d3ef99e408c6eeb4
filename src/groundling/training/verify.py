"""`groundling verify`: whether what a command has written is whole, and what can be mended if it is not."""

import os
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from groundling.config.compose import from_file
from groundling.config.trust import TRAINING_ALONE
from groundling.errors import ConfigError, GroundlingError
from groundling.io.documents import DocumentError, read_object, read_parquet
from groundling.io.files import LOCK, PARTIAL, is_locked, lock_beside
from groundling.io.row_files import digest_of, scan_rows
from groundling.judges.preferences.opening import open_pairs
from groundling.judges.preferences.pairs import ANSWERS
from groundling.judges.reward_models import load_reward_model
from groundling.judges.reward_models.reward_model import DESCRIPTION as REWARD_MODEL
from groundling.training import checkpoint
from groundling.training.tracking import METRICS

_COLLECTION = "collection.json"
"""In a dataset of transitions: who played, where and how."""
_SPARSE_ROWS = ("validation.jsonl", "probes.jsonl", "samples/train.jsonl")
"""Rows of some updates, beside those of all in `METRICS`."""


@dataclass(frozen=True)
class Finding:
    """Something that was checked."""

    what: str
    """What was looked at, or the file that is wrong."""
    problem: str | None = None
    """None: it is whole."""
    mend: str = ""
    """What to do about the problem."""


def verify(folder: Path) -> list[Finding]:
    """Check a folder that a command has written: a run, a published policy, a reward model, a dataset.

    Nothing is written, and nothing that the folder holds is run. Of a folder that a process writes to, what is whole is
    described, without problems or advice: files may be incomplete or missing because they are being replaced.

    Args:
        folder: Its path.

    Raises:
        ConfigError: it is none of these.
    """
    if not folder.is_dir():
        raise ConfigError(f"{folder} is no folder: name a run's, a reward model's or a dataset's")
    written_to = _is_written_to(folder)
    findings, failure = list[Finding](), None
    try:
        findings = _findings(folder)
    except (GroundlingError, OSError) as error:  # a file that has been deleted meanwhile, say
        failure = error
    if written_to or _is_written_to(folder):  # also by a process that has begun or ended meanwhile
        whole = [one for one in findings if one.problem is None]
        return [
            *whole,
            Finding(str(folder), "is being written to by another process", "check it again afterwards"),
        ]
    if failure is not None:
        raise failure
    return findings


def _is_written_to(folder: Path) -> bool:
    """Return True if a process holds a lock in the folder, of it, or of the run whose checkpoint it is."""
    around = [parent / LOCK for parent in folder.absolute().parents[:2]]
    of_output = lock_beside(folder.with_name(folder.name.removesuffix(PARTIAL)))
    inside = chain(folder.rglob(f"*{LOCK}"), folder.glob(f"{ANSWERS}/claims/*"))
    return any(is_locked(path) for path in chain(around, [of_output], inside))


def _findings(folder: Path) -> list[Finding]:
    findings = list(_unreadable(folder))
    if findings:
        return findings  # what cannot be read cannot be checked
    if not os.access(folder, os.W_OK):
        findings.append(Finding(str(folder), "is not writable by you", "copy it, to go on with it"))
    if (folder / checkpoint.MANIFEST).exists():
        findings.append(_whole(folder))
        if (folder / "config.yaml").exists():  # a checkpoint's lies with its run
            findings += _config(folder)
    elif (folder / "config.yaml").exists():
        findings += [*_config(folder), *_trained(folder)]
    elif (folder / REWARD_MODEL).exists() or (folder / "checkpoints").is_dir():
        findings += [*_reward_model(folder), *_trained(folder)]
    elif (folder / _COLLECTION).exists():
        findings += list(_episodes(folder))
    elif (folder / "data").is_dir():
        findings += list(_pairs(folder))
    else:
        raise ConfigError(
            f"{folder} is neither a run (config.yaml) nor a published policy ({checkpoint.MANIFEST}), a reward model "
            f"({REWARD_MODEL}) or a dataset (data/)"
        )
    return [*findings, *_leftovers(folder)]


def _unreadable(folder: Path) -> Iterator[Finding]:
    for path in [folder, *sorted(folder.rglob("*"))]:
        wanted = os.R_OK | os.X_OK if path.is_dir() else os.R_OK
        if not os.access(path, wanted):
            mend = _by_command("ask its owner for permission", "chmod -R g+rX", folder)
            yield Finding(str(path), "is not readable by you", mend)


def _config(folder: Path) -> Iterator[Finding]:
    path, is_published = folder / "config.yaml", (folder / checkpoint.MANIFEST).exists()
    try:
        from_file(path, (), TRAINING_ALONE if is_published else ())
    except ConfigError as error:
        yield Finding(str(path), str(error), "")
    else:
        yield Finding(f"config.yaml: can be {'played' if is_published else 'run'} as it is")


def _trained(folder: Path) -> Iterator[Finding]:
    """The rows and checkpoints of a run, or of a distillation."""
    rows, damaged = scan_rows(folder / METRICS, consecutive=True)
    yield from (Finding(f"{METRICS}, line {one.line}", one.problem, one.mend) for one in damaged)
    if not damaged:
        yield Finding(f"{METRICS}: {len(rows)} rows, each update once")
    for name in _SPARSE_ROWS:
        if (folder / name).exists():
            _, wrong = scan_rows(folder / name)
            yield from (Finding(f"{name}, line {one.line}", one.problem, one.mend) for one in wrong)
    steps = {row["update"]: row["step"] for row in rows}
    whole = []
    checkpoints = checkpoint.numbered(folder / "checkpoints")
    for path in checkpoints:
        finding = _whole(path)
        yield finding
        if finding.problem is None:
            whole.append(path)
            if not damaged:
                yield from _rows_of(folder, path, steps)
    if checkpoints and not whole:
        yield Finding(str(folder / "checkpoints"), "holds no whole checkpoint", "bring one back from a copy")
    if whole:
        yield from _versions(whole[-1])


def _rows_of(folder: Path, path: Path, steps: Mapping[int, int]) -> Iterator[Finding]:
    """Whether the rows of figures are those that stood there when a checkpoint was written."""
    update, step = int(path.name), checkpoint.step_of(path)
    weights = shlex.quote(f"model.path={path}")
    mend = f"bring the file back from a copy, or begin a new run from these weights: {weights} run_dir=NEW"
    if steps.get(update) != step:
        problem = f"was taken after update {update} and step {step}, of which {METRICS} has no row"
        yield Finding(str(path), problem, mend)
        return
    kept = read_object(path / "run.json").get("rows_sha256")
    count = update + (min(steps) == 0)  # a distillation begins with update 0
    if kept is not None and kept != digest_of(folder / METRICS, count):
        problem = f"was written when {METRICS} had other figures in its first {count} lines"
        yield Finding(str(path), problem, mend)


def _whole(path: Path) -> Finding:
    problem = checkpoint.what_is_wrong(path)
    if problem is None:
        return Finding(f"{path.name}: {len(list(path.rglob('*')))} files as their manifest lists them")
    if path.parent.name == "checkpoints":
        return Finding(str(path), problem, "delete this folder: the run goes on from the one before it")
    return Finding(str(path), problem, "copy it again from where it came from")


def _versions(path: Path) -> Iterator[Finding]:
    there = read_object(path / "run.json").get("versions", {})
    here = checkpoint.versions()
    other = [
        f"{name} {there[name]} (here {here[name]})"
        for name in here
        if there.get(name, here[name]) != here[name]
    ]
    if other:
        yield Finding(
            str(path),
            f"was written with {', '.join(other)}",
            "the run can be continued; identical to the last bit only with the earlier versions",
        )


def _reward_model(folder: Path) -> Iterator[Finding]:
    if not (folder / REWARD_MODEL).exists():
        yield Finding(
            str(folder / REWARD_MODEL), "is missing", "run the same `groundling distill` again to the end"
        )
        return
    try:
        model = load_reward_model(folder)
    except GroundlingError as error:
        yield Finding(str(folder / REWARD_MODEL), str(error), "run the same `groundling distill` again")
    else:
        yield Finding(f"{REWARD_MODEL}: a {model.id} with its weights")


def _episodes(folder: Path) -> Iterator[Finding]:
    """The files of a dataset of transitions."""
    count, files = 0, sorted((folder / "data").glob("*.parquet"))
    for path in files:
        try:
            count += read_parquet(path).num_rows
        except DocumentError as error:
            mend = "delete this file and those after it, and run the same `groundling collect` again"
            yield Finding(str(path), f"cannot be read: {' '.join(str(error).split())}", mend)
            return
    yield Finding(f"data: {count:,} transitions in {len(files)} files")


def _pairs(folder: Path) -> Iterator[Finding]:
    try:
        pairs = open_pairs(folder)
        count = len(pairs)
        labels = {name: len(pairs.preferences(name)) for name in pairs.annotators()}
    except (GroundlingError, OSError, ValueError) as error:
        yield Finding(
            str(folder), str(error), "bring the file back from a copy, or collect into a new folder"
        )
    else:
        labelled = f", labelled by {', '.join(labels)}" if labels else ""
        yield Finding(f"data: {count:,} pairs{labelled}")


def _leftovers(folder: Path) -> Iterator[Finding]:
    for path in sorted(folder.rglob(f"*{PARTIAL}*")):
        if is_locked(path):  # `report` writes it, say, which takes no lock of the folder
            continue
        mend = _by_command("delete it", "rm -r", path)
        yield Finding(str(path), "was left by a process that was killed while it wrote", mend)


def _by_command(mend: str, command: str, path: Path) -> str:
    """How to mend something, with the command to be copied into a shell; whoever sent a folder chose the names in it.

    A name with characters that no terminal shows stands in no command: only where it is to be found is told.
    """
    if str(path).isprintable():
        return f"{mend}: {command} -- {shlex.quote(str(path))}"
    folder = next(one for one in path.parents if str(one).isprintable())
    return f"{mend}, in {folder}: its name has characters that are not shown"
