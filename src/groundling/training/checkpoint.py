"""A run's folder: its lock, configuration and checkpoints. A checkpoint is either complete or absent, is verified
against its manifest when read, and is never unpickled.
"""

import fcntl
import hashlib
import json
import math
import os
import random
import shutil
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from filelock import lock_descriptor
from omegaconf import OmegaConf
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file

from groundling.config.compose import recorded
from groundling.config.facts import has_fact
from groundling.errors import ConfigError, GroundlingError, RunError, pass_out_of_memory
from groundling.fields import MayChangeOnResume, NoEffectOnResults, flat
from groundling.io.documents import DocumentError, parse_json, read_object
from groundling.io.files import LOCK, PARTIAL, locked, new_folder, share_mode, sync, write_atomically
from groundling.training.tracking import METRICS, read_metrics

_NUMPY_WORDS = 624  # State size of NumPy's legacy generator, a Mersenne Twister


def save_random_states(generators: dict[str, torch.Generator], path: Path) -> None:
    """Write the states of ``generators`` and of the global generators of torch, CUDA, NumPy and Python."""
    tensors = {f"generator.{name}": g.get_state() for name, g in generators.items()}
    tensors["torch"] = torch.get_rng_state()
    for i, state in enumerate(torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []):
        tensors[f"cuda.{i}"] = state
    _, keys, *rest = np.random.get_state()  # noqa: NPY002 - users' components may use it
    version, words, gauss = random.getstate()
    tensors["numpy"] = torch.from_numpy(np.array(keys, dtype=np.int64))
    tensors["python"] = torch.tensor(words, dtype=torch.int64)
    # Use one metadata entry: safetensors writes several in any order, but a state must always yield the same file.
    save_file(tensors, path, metadata={"others": json.dumps({"numpy": rest, "python": [version, gauss]})})


def load_random_states(generators: dict[str, torch.Generator], path: Path) -> None:
    """Load states written by `save_random_states`; reject invalid positions, which NumPy would accept."""
    tensors = load_file(path)
    with safe_open(path, framework="pt") as file:
        others = parse_json((file.metadata() or {})["others"], str(path))
    for name, generator in generators.items():
        generator.set_state(tensors[f"generator.{name}"])
    torch.set_rng_state(tensors["torch"])
    for i in range(torch.cuda.device_count()):
        if f"cuda.{i}" in tensors:
            torch.cuda.set_rng_state(tensors[f"cuda.{i}"], i)
    position = others["numpy"][0]
    if type(position) is not int or not 0 <= position <= _NUMPY_WORDS:
        raise ValueError(f"NumPy's generator is at position {position!r:.80}, expected 0 to {_NUMPY_WORDS}")
    np.random.set_state(("MT19937", tensors["numpy"].numpy().astype(np.uint32), *others["numpy"]))  # noqa: NPY002
    version, gauss = others["python"]
    random.setstate((version, tuple(tensors["python"].tolist()), gauss))


MANIFEST = "manifest.json"  # File sizes and hashes of a checkpoint or a published policy
_ATTEMPTS = 20  # Maximum number of attempts to read checkpoints that a training run keeps deleting


def save(folder: Path, update: int, write: Callable[[Path], None], keep: int) -> Path:
    """Write the checkpoint ``folder/NNNNNN`` atomically or raise `RunError`; delete all but the latest ``keep``."""
    target = folder / f"{update:06d}"
    try:
        shutil.rmtree(target, ignore_errors=True)  # broken, since a complete one would have been resumed
        with new_folder(target) as partial:
            write(partial)
            seal(partial)
    except (OSError, SafetensorError) as error:
        raise RunError(
            f"could not write checkpoint {target}: {error}; earlier checkpoints are intact: free some space and run "
            "the same command again to resume from the last checkpoint"
        ) from error
    delete_old(folder, update, keep)
    return target


class Hold:
    """A shared lock on a checkpoint that prevents a training run from deleting it while this object exists."""

    def __init__(self, path: Path) -> None:
        self._file: IO[bytes] | None = None
        try:
            self._file = (path / MANIFEST).open("rb")
            fcntl.flock(self._file, fcntl.LOCK_SH)
            # False if the run has already deleted the checkpoint.
            self.exists = os.path.samestat((path / MANIFEST).stat(), os.fstat(self._file.fileno()))
        except OSError:  # no manifest, unreadable, or locks unsupported; `find_problem` reports it
            self.exists = path.exists()

    def __del__(self) -> None:
        if self._file is not None:
            self._file.close()


def latest(folder: Path, warn: Callable[[str], None]) -> Path | None:
    """Return a run's latest complete checkpoint, like `hold_latest` but without a lock, if the run is not training."""
    found = hold_latest(folder, warn)
    return None if found is None else found[0]


def hold_latest(folder: Path, warn: Callable[[str], None]) -> tuple[Path, Hold] | None:
    """Return a run's latest complete checkpoint and a lock on it, if any; raise `RunError` if all are broken."""
    for _ in range(_ATTEMPTS):
        # A listing can miss a checkpoint that is renamed into place while an older one is deleted.
        checkpoints = list_checkpoints(folder) or list_checkpoints(folder)
        for path in reversed(checkpoints):
            hold = Hold(path)
            problem = find_problem(path)
            if not (hold.exists and path.exists()):  # deleted in the meantime, so there is a newer one
                break
            if problem is None:
                return path, hold
            warn(f"checkpoint {path} is broken ({problem}); trying the previous one")
        else:
            if not checkpoints:
                return None
            names = ", ".join(path.name for path in checkpoints)
            raise RunError(f"{folder} contains only broken checkpoints ({names}): restore one from a backup")
    raise RunError(
        f"the training run deleted the checkpoints in {folder} while they were being read, {_ATTEMPTS} times: "
        "try again, or train with a larger training.keep_checkpoints"
    )


def list_checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoints in a folder, complete or broken, earliest first."""
    folders = [p for p in folder.glob("[0-9]*") if p.is_dir() and p.name.isdecimal()]
    return sorted(folders, key=lambda path: int(path.name))


def seal(folder: Path) -> None:
    """Write a manifest with the sizes and hashes of a folder's files, and flush everything to disk."""
    files = sorted(p for p in folder.rglob("*") if p.is_file())
    manifest = {p.relative_to(folder).as_posix(): {"bytes": p.stat().st_size, "sha256": _hash(p)} for p in files}
    write_json(folder / MANIFEST, manifest)
    for path in files:
        share_mode(path, folder / MANIFEST)
    for path in [*files, folder / MANIFEST, folder]:
        sync(path)


def find_problem(folder: Path) -> str | None:
    """Return why a checkpoint is broken, or None if it is complete; raise `RunError` if permission is denied."""
    try:
        manifest = read_object(folder / MANIFEST)
        if "run.json" not in manifest:
            return f"{MANIFEST} does not list run.json"
        for name, expected in manifest.items():
            status = (folder / name).stat()
            # Reading a device file might never end, and files outside the checkpoint may change.
            if Path(name).is_absolute() or ".." in Path(name).parts or not stat.S_ISREG(status.st_mode):
                return f"{MANIFEST} lists {name!r:.80}, which is not a file of this checkpoint"
            if status.st_size != expected["bytes"]:
                return f"{name} has {status.st_size} bytes instead of {expected['bytes']}"
            if _hash(folder / name) != expected["sha256"]:
                return f"{name} has changed since it was written"
    except FileNotFoundError as error:
        return f"{Path(error.filename or '').name} is missing"
    except PermissionError as error:
        raise RunError(f"you are not allowed to read {error.filename}: ask its owner for permission") from error
    except (OSError, ValueError, TypeError, AttributeError, KeyError) as error:
        return f"{MANIFEST} cannot be read: {error}"
    return None


def digest_of(folder: Path) -> str:
    """Return the SHA-256 of a checkpoint's files except ``run.json``, whose timings differ even between equal runs."""
    manifest = read_object(folder / MANIFEST)
    files = {name: entry["sha256"] for name, entry in manifest.items() if name != "run.json"}
    return hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()


def versions() -> dict[str, str]:
    """Return the versions of the packages that affect a run's results."""
    return {package: version(package) for package in ("groundling", "torch", "transformers")}


def step_of(folder: Path) -> int:
    """Return the number of steps before a checkpoint of a run or a distillation."""
    return int(counters_of(folder, ("step",))["step"])


def counters_of(folder: Path, needed: Sequence[str] = ("update", "step")) -> dict[str, Any]:
    with fitting(folder, "run.json"):
        return check_counters(read_object(folder / "run.json")["counters"], needed)


def check_counters(counters: Any, needed: Sequence[str] = ("update", "step")) -> dict[str, Any]:
    """Return the counters; raise `ValueError` unless they map names, including the ``needed`` ones, to counts."""
    if not isinstance(counters, dict) or not set(needed) <= counters.keys():
        raise ValueError(f"counters={counters!r:.80} must be a mapping with {' and '.join(needed)}")
    for name, value in counters.items():
        types = (int, float) if name == "seconds" else (int,)
        if type(value) not in types or not 0 <= value < math.inf:
            raise ValueError(f"counters.{name}={value!r:.80} is not a count")
    return counters


def is_last(folder: Path, steps: int, epochs: int | None) -> bool:
    """Return True if a run of this length (in epochs if set, else in steps) was complete at a checkpoint."""
    length = length_of(folder)
    if epochs is not None:
        return length is not None and length["epochs"] == epochs and step_of(folder) >= length["steps"]
    return step_of(folder) >= steps


def length_of(folder: Path) -> dict[str, int] | None:
    """Return ``epochs`` and ``steps`` of a checkpoint's run, or None if its length is unreadable or set in steps."""
    try:
        length = read_object(folder / "run.json")["length"]
        return {"epochs": max(1, int(length["epochs"])), "steps": int(length["steps"])}
    except (OSError, ValueError, KeyError, TypeError):
        return None


@contextmanager
def fitting(folder: Path, name: str) -> Iterator[None]:
    """Convert any failure to read a checkpoint's file, which may be from a different run, into a `RunError`."""
    try:
        yield
    except Exception as error:
        pass_out_of_memory(error)
        if isinstance(error, GroundlingError) and not isinstance(error, DocumentError):
            raise
        cause = str(error) if isinstance(error, ValueError | RuntimeError) else repr(error)
        raise RunError(
            f"the checkpoint {folder} does not belong to this run: {name} does not match "
            f"({' '.join(cause.split())[:300]}); restore the run's own checkpoint, or delete this one to resume from "
            "the previous one"
        ) from error


def write_json(path: Path, content: Any) -> None:
    """Write JSON from which floats can be restored exactly."""
    path.write_text(json.dumps(content), encoding="utf-8")


def remove_partial(folder: Path) -> None:
    """Delete checkpoints that a killed process left half written or half deleted."""
    for path in folder.glob(f"{PARTIAL}-*"):
        shutil.rmtree(path, ignore_errors=True)


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def delete_old(folder: Path, update: int, keep: int) -> None:
    """Delete checkpoints after ``update`` and, unless held (`Hold`), all but the last ``keep`` of the earlier ones."""
    checkpoints = list_checkpoints(folder)
    earlier = [path for path in checkpoints if int(path.name) <= update]
    for path in earlier[:-keep]:
        try:
            with (path / MANIFEST).open("r+b") as file:
                if lock_descriptor(file.fileno(), blocking=False):
                    _delete(path)
        except OSError:  # broken, so no process reads it
            _delete(path)
    for path in checkpoints[len(earlier) :]:
        _delete(path)
    remove_partial(folder)


def _delete(path: Path) -> None:
    # Rename it first, so that a killed process leaves no half-deleted checkpoint under a valid name.
    doomed = path.rename(path.with_name(f"{PARTIAL}-{path.name}"))
    shutil.rmtree(doomed, ignore_errors=True)


SETTINGS_FILE = "config.yaml"  # A run's complete configuration, in its folder
DEMONSTRATIONS, CLONE = "demonstrations", "clone"
"""Folders of a run that starts with cloning: the dataset, and the clone's own run."""


@contextmanager
def open_run(folder: Path, settings: Mapping[str, Any]) -> Iterator[Path]:
    """Create or reopen a run's folder and lock it; a new folder is removed again if the run is rejected."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    with locked(folder / LOCK, f"is training in {folder}", "set run_dir to a different folder"):
        try:
            _check_settings(folder, settings)
            yield folder
        except GroundlingError:
            if missing and not (folder / SETTINGS_FILE).exists():
                shutil.rmtree(folder, ignore_errors=True)
                with suppress(OSError):  # another run may have been created there by now
                    for path in missing[1:]:
                        path.rmdir()
            raise


def check_folder(folder: Path) -> None:
    """Raise `ConfigError` if a folder is not a run's but contains a model or, like ``runs``, other runs."""
    if not (folder / SETTINGS_FILE).exists():
        if (folder / "config.json").exists():
            raise ConfigError(f"{folder} contains a model, so a run cannot use it: set run_dir to a new folder")
        found = [path.parent for pattern in ("*", "*/*") for path in folder.glob(f"{pattern}/{METRICS}")]
        if names := sorted(str(path.relative_to(folder)) for path in found if (path / SETTINGS_FILE).exists()):
            more = ", …" if len(names) > 1 else ""
            raise ConfigError(f"{folder} contains runs ({names[0]}{more}): set run_dir to a new folder, {folder}/NAME")


def _check_settings(folder: Path, settings: Mapping[str, Any]) -> None:
    """Raise `ConfigError` if the folder belongs to a run with different settings that affect its results."""
    if any((*folder.glob("*/*"), *folder.glob("config.json"))):
        check_folder(folder)
    path = folder / SETTINGS_FILE
    rows = read_metrics(folder)
    if not rows and not (folder / "checkpoints").exists():
        return  # the run has not trained yet
    if not path.exists():
        raise ConfigError(f"{folder} contains a run but no config.yaml: set run_dir to a new folder")
    there, wanted = flat(recorded(path)), flat(settings)
    free = (MayChangeOnResume, NoEffectOnResults)
    different = [
        f"{key}={there.get(key)!r} (now {wanted.get(key)!r})"
        for key in sorted({*there, *wanted})
        if there.get(key) != wanted.get(key) and not any(has_fact(fact, key, settings) for fact in free)
    ]
    if different:
        raise ConfigError(f"{folder} contains a run with {', '.join(different)}: set run_dir to a new folder")
    _check_length(folder, rows, settings["training"])


def _check_length(folder: Path, rows: Sequence[Mapping[str, Any]], training: Mapping[str, Any]) -> None:
    """Raise `ConfigError` if the run would be shorter than its latest checkpoint."""
    checkpoints = list_checkpoints(folder / "checkpoints")
    known = [path for path in checkpoints if rows and int(path.name) <= rows[-1]["update"]]
    if not known:
        return
    newest = known[-1]
    before = [row["step"] for row in rows if row["update"] < int(newest.name)]
    key, wanted = "training.steps", training["steps"]
    if training["epochs"] is not None:
        key, wanted = "training.epochs", training["epochs"]
        length = length_of(newest)
        wanted = math.inf if length is None else wanted * length["steps"] / length["epochs"]
    if before and before[-1] >= wanted:
        asked = f"{key}={training[key.partition('.')[2]]}"
        raise ConfigError(f"{folder} contains a run that is longer than {asked}: set run_dir to a new folder")


def write_settings(folder: Path, settings: Mapping[str, Any]) -> None:
    """Write a run's ``config.yaml``, which marks the folder as belonging to the run."""
    path = folder / SETTINGS_FILE
    try:
        write_atomically(path, OmegaConf.to_yaml(OmegaConf.create(dict(settings))))
    except OSError as error:
        raise RunError(f"cannot write {path}: {error}; free some space or set a different run_dir") from error
