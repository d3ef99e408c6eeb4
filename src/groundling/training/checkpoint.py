"""Checkpoints: written beside and renamed into place, verified when read, never unpickled."""

import hashlib
import json
import math
import os
import random
import shutil
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from groundling.errors import GroundlingError, RunError, pass_out_of_memory
from groundling.io.documents import DocumentError, parse_json, read_object
from groundling.io.files import lock_file, share_mode, sync

MANIFEST = "manifest.json"
"""What a checkpoint, or a published policy, consists of."""
_ATTEMPTS = 20
"""Listings of a folder, all of whose checkpoints a run in training deletes before they are held."""
_WORDS = 624
"""Of the state of NumPy's generator, a Mersenne twister."""


def save(folder: Path, update: int, write: Callable[[Path], None], keep: int) -> Path:
    """Write the checkpoint ``folder/NNNNNN`` so that it is either whole or not there.

    Args:
        folder: The run's ``checkpoints`` folder.
        update: The update it was taken after; its name.
        write: Writes the files into the folder that it is given.
        keep: How many of the latest checkpoints to keep.

    Raises:
        RunError: it could not be written (a full disk, say). Earlier checkpoints are as they were.
    """
    target, partial = folder / f"{update:06d}", folder / f".partial-{update:06d}"
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        write(partial)
        seal(partial)
        if target.exists():  # a broken one, or it would have been resumed from
            shutil.rmtree(target)
        partial.rename(target)
        sync(folder)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(partial, ignore_errors=True)
        raise RunError(
            f"could not write checkpoint {target}: {error}; what was written before is intact: free some space "
            "(or point run_dir elsewhere) and run the same command again to go on from the last checkpoint"
        ) from error
    _forget_old(folder, update, keep)
    return target


class Hold:
    """A shared lock on a checkpoint, for as long as this object lives: a run in training keeps what is being read.

    Args:
        path: The checkpoint's folder.

    Attributes:
        is_there: Whether it exists; False once the run has deleted it.
    """

    def __init__(self, path: Path) -> None:
        self._file: IO[bytes] | None = None
        try:
            self._file = (path / MANIFEST).open("rb")
            lock_file(self._file, lambda text: None, wait=True, shared=True)
            self.is_there = os.path.samestat((path / MANIFEST).stat(), os.fstat(self._file.fileno()))
        except OSError:  # without a manifest, or unreadable: `what_is_wrong` says so
            self.is_there = path.exists()

    def __del__(self) -> None:
        if self._file is not None:
            self._file.close()


def latest(folder: Path, warn: Callable[[str], None]) -> Path | None:
    """The latest whole checkpoint, of a run that no other process trains; otherwise as `hold_latest`."""
    found = hold_latest(folder, warn)
    return None if found is None else found[0]


def hold_latest(folder: Path, warn: Callable[[str], None]) -> tuple[Path, Hold] | None:
    """The latest whole checkpoint and a lock on it; None if the folder has no checkpoints.

    Args:
        folder: A run's ``checkpoints`` folder; the run may be in training and delete checkpoints meanwhile.
        warn: Called with each broken checkpoint that is passed over.

    Raises:
        RunError: there are checkpoints, and none is whole.
    """
    for _ in range(_ATTEMPTS):
        # A listing can miss a checkpoint that is renamed into place while an older one is deleted.
        checkpoints = numbered(folder) or numbered(folder)
        for path in reversed(checkpoints):
            hold = Hold(path)
            problem = what_is_wrong(path)
            if not (hold.is_there and path.exists()):  # the run has deleted it, and has a newer one
                break
            if problem is None:
                return path, hold
            warn(
                f"checkpoint {path} is broken ({problem}); falling back to the one before it, if there is one"
            )
        else:
            if not checkpoints:
                return None
            raise RunError(
                f"{folder} holds no whole checkpoint, only broken ones "
                f"({', '.join(path.name for path in checkpoints)}): bring one back, or begin again in a new folder"
            )
    raise RunError(
        f"the run in training deleted the checkpoints of {folder} while they were read, {_ATTEMPTS} times in a row: "
        "try again, or train with a larger training.keep_checkpoints"
    )


def digest_of(folder: Path) -> str:
    """The SHA-256 of a checkpoint's files, but for ``run.json``, which has times: equal runs have equal digests."""
    manifest = read_object(folder / MANIFEST)
    files = {name: entry["sha256"] for name, entry in manifest.items() if name != "run.json"}
    return hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()


def versions() -> dict[str, str]:
    """By package, the versions that a checkpoint is written with: others may give other figures."""
    return {package: version(package) for package in ("groundling", "torch", "transformers")}


def step_of(folder: Path) -> int:
    """How many steps had been taken when this checkpoint was."""
    step: int = counters_of(folder, ("step",))["step"]  # a distillation counts epochs, and no updates
    return step


def is_last(folder: Path, steps: int, epochs: int | None) -> bool:
    """Whether nothing was left to learn when this checkpoint was taken.

    Args:
        folder: The checkpoint.
        steps: How many there are to be, where no epochs are given.
        epochs: How often the data are gone through; then the checkpoint says how many steps that takes.

    Raises:
        RunError: its ``run.json`` does not say how many had been taken.
    """
    if epochs is not None:
        length = read_object(folder / "run.json").get("length", {"epochs": epochs, "steps": steps})
        if (
            not isinstance(length, dict)
            or length.get("epochs") != epochs
            or type(length.get("steps")) is not int
        ):
            return False
        steps = length["steps"]
    return step_of(folder) >= steps


def steps_of_an_epoch(folder: Path) -> float | None:
    """How many steps it takes to go through the data once, of a run whose length is in epochs; else None."""
    try:
        length = read_object(folder / "run.json")["length"]
        return float(length["steps"]) / int(length["epochs"])
    except (GroundlingError, ValueError, KeyError, TypeError, ArithmeticError):
        return None  # of another length, or broken, which is told where it is read


def counters_of(folder: Path, needed: Sequence[str] = ("update", "step")) -> dict[str, Any]:
    """What had been done when this checkpoint was taken.

    Args:
        folder: The checkpoint.
        needed: The counts that there must be.

    Raises:
        RunError: its ``run.json`` does not say.
    """
    try:
        counters = read_object(folder / "run.json")["counters"]
        check_counters(counters, needed)
    except (ValueError, KeyError, TypeError) as error:
        raise unfit(folder, "run.json", error) from error
    return dict(counters)


def numbered(folder: Path) -> list[Path]:
    """The checkpoints, whole or broken, earliest first."""
    folders = [p for p in folder.glob("[0-9]*") if p.is_dir() and p.name.isdecimal()]
    return sorted(folders, key=lambda path: int(path.name))


def save_random_states(generators: dict[str, torch.Generator], path: Path) -> None:
    """Write the state of ``generators`` and of the global generators of torch, CUDA, NumPy and Python."""
    tensors = {f"generator.{name}": g.get_state() for name, g in generators.items()}
    tensors["torch"] = torch.get_rng_state()
    for i, state in enumerate(torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []):
        tensors[f"cuda.{i}"] = state
    _, keys, *rest = np.random.get_state()  # noqa: NPY002  (users' own parts may draw from it)
    version, words, gauss = random.getstate()
    tensors["numpy"] = torch.from_numpy(np.array(keys, dtype=np.int64))
    tensors["python"] = torch.tensor(words, dtype=torch.int64)
    # In one entry: safetensors writes several in any order, and equal states are to be equal files.
    save_file(tensors, path, metadata={"others": json.dumps({"numpy": rest, "python": [version, gauss]})})


def load_random_states(generators: dict[str, torch.Generator], path: Path) -> None:
    """Read what `save_random_states` wrote.

    Raises:
        ValueError: NumPy's generator stands beyond its words, in memory of others.
    """
    from safetensors import safe_open

    tensors = load_file(path)
    with safe_open(path, framework="pt") as file:
        others = parse_json((file.metadata() or {})["others"], str(path))
    for name, generator in generators.items():
        generator.set_state(tensors[f"generator.{name}"])
    torch.set_rng_state(tensors["torch"])
    for i in range(torch.cuda.device_count()):
        if f"cuda.{i}" in tensors:
            torch.cuda.set_rng_state(tensors[f"cuda.{i}"], i)
    place = others["numpy"][0]
    if type(place) is not int or not 0 <= place <= _WORDS:  # which NumPy does not check
        raise ValueError(
            f"NumPy's generator is at position {place!r:.80} of its state, expected 0 to {_WORDS}"
        )
    np.random.set_state(("MT19937", tensors["numpy"].numpy().astype(np.uint32), *others["numpy"]))  # noqa: NPY002
    version, gauss = others["python"]
    random.setstate((version, tuple(tensors["python"].tolist()), gauss))


@contextmanager
def fitting(folder: Path, name: str) -> Iterator[None]:
    """Tell which file of a checkpoint does not fit, whatever goes wrong while the block takes it up.

    A checkpoint's hashes say that it is as it was written, and not who wrote it: somebody may have put them anew over
    other files.

    Raises:
        RunError: something but a `GroundlingError` went wrong.
    """
    try:
        yield
    except DocumentError as error:
        raise unfit(folder, name, error) from error
    except GroundlingError:
        raise
    except Exception as error:
        pass_out_of_memory(error)
        raise unfit(folder, name, error) from error


def unfit(folder: Path, name: str, error: Exception) -> RunError:
    """What to raise where a file of a checkpoint cannot be taken up."""
    cause = str(error) if isinstance(error, ValueError | RuntimeError) else repr(error)
    return RunError(
        f"the checkpoint {folder} does not belong to this run: {name} does not fit ({' '.join(cause.split())[:300]}); "
        "bring back the one that the run wrote, or delete this one to go on from the one before it"
    )


def check_counters(counters: Any, needed: Sequence[str] = ("update", "step")) -> None:
    """Raise `ValueError` unless these are counts by name, the ``needed`` ones among others."""
    if not isinstance(counters, dict) or not set(needed) <= counters.keys():
        raise ValueError(f"counters={counters!r:.80} have no {' and '.join(needed)}")
    for name, value in counters.items():
        if type(value) not in (int, float) or not 0 <= value < math.inf:
            raise ValueError(f"counters.{name}={value!r:.80} is no count")


def write_json(path: Path, content: Any) -> None:
    """Write ``content`` so that floats come back to the last bit."""
    path.write_text(json.dumps(content), encoding="utf-8")


def seal(folder: Path) -> None:
    """Write each file of a folder through to the disk, and last a manifest of their sizes and hashes.

    Who may read the manifest may read the others: safetensors writes files for their owner alone, whatever the umask.
    """
    files = sorted(p for p in folder.rglob("*") if p.is_file())
    manifest = {
        p.relative_to(folder).as_posix(): {"bytes": p.stat().st_size, "sha256": _hash(p)} for p in files
    }
    write_json(folder / MANIFEST, manifest)
    for path in files:
        share_mode(path, folder / MANIFEST)
    for path in [*files, folder / MANIFEST, folder]:
        sync(path)


def what_is_wrong(folder: Path) -> str | None:
    """What is wrong with a checkpoint, or None.

    Raises:
        RunError: this process may not read it; that is no fault of the checkpoint's.
    """
    try:
        manifest = read_object(folder / MANIFEST)
        if "run.json" not in manifest:
            return f"{MANIFEST} does not list run.json"
        for name, expected in manifest.items():
            status = (folder / name).stat()
            # A device would be read without end, and what lies elsewhere may change when it likes.
            if Path(name).is_absolute() or ".." in Path(name).parts or not stat.S_ISREG(status.st_mode):
                return f"{MANIFEST} names {name!r:.80}, which is no file of this checkpoint"
            if (size := status.st_size) != expected["bytes"]:
                return f"{name} has {size} bytes instead of {expected['bytes']}"
            if _hash(folder / name) != expected["sha256"]:
                return f"{name} is not what was written"
    except FileNotFoundError as error:
        return f"{Path(error.filename or '').name} is missing"
    except PermissionError as error:
        raise RunError(
            f"{error.filename} is not readable by you: ask its owner for permission (chmod -R g+rX RUN, "
            "say), or copy the run where you may"
        ) from error
    except (OSError, ValueError, TypeError, AttributeError, KeyError) as error:
        return f"{MANIFEST} cannot be read: {error}"
    return None


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _forget_old(folder: Path, update: int, keep: int) -> None:
    """Delete the checkpoints before the last ``keep``, and those after ``update``: the run went on from before them.

    One that another process reads (`Hold`) stays until a later call.
    """
    checkpoints = numbered(folder)
    earlier = [path for path in checkpoints if int(path.name) <= update]
    for path in earlier[:-keep]:
        try:
            with (path / MANIFEST).open("r+b") as file:
                if lock_file(file, lambda text: None):
                    _delete(path)
        except OSError:  # broken, so that nobody reads it
            _delete(path)
    for path in checkpoints[len(earlier) :]:
        _delete(path)
    remove_partial(folder)


def _delete(path: Path) -> None:
    # Renamed first, so that a kill in between leaves no half-deleted checkpoint to be found.
    doomed = path.rename(path.with_name(f".partial-{path.name}"))
    shutil.rmtree(doomed, ignore_errors=True)


def remove_partial(folder: Path) -> None:
    """Take out what a killed process left half written or half deleted."""
    for path in folder.glob(".partial-*"):
        shutil.rmtree(path, ignore_errors=True)
