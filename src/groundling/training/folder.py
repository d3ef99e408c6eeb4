"""A run's folder: its lock and its configuration."""

import math
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from groundling.config.compose import recorded
from groundling.config.facts import has_fact
from groundling.errors import ConfigError, GroundlingError, RunError
from groundling.fields import MayChangeOnResume, NoEffectOnResults, flat
from groundling.io.files import LOCK, locked, write_atomically
from groundling.training import checkpoint
from groundling.training.tracking import read_metrics

SETTINGS_FILE = "config.yaml"  # In a run's folder: its whole configuration
DEMONSTRATIONS, CLONE = "demonstrations", "clone"
"""Folders of a run that clones first: the dataset, and the run of the clone."""


@contextmanager
def open_run(folder: Path, settings: Mapping[str, Any]) -> Iterator[Path]:
    """Create or reopen a run's folder, and lock it; a folder of a run that is refused at once is removed again."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    with locked(folder / LOCK, f"is training in {folder}", "set run_dir to another folder"):
        try:
            _check_settings(folder, settings)
            yield folder
        except GroundlingError:
            if missing and not (folder / SETTINGS_FILE).exists():
                shutil.rmtree(folder, ignore_errors=True)
                with suppress(OSError):  # another run may be there by now
                    for path in missing[1:]:
                        path.rmdir()
            raise


def _check_settings(folder: Path, settings: Mapping[str, Any]) -> None:
    """Raise `ConfigError` if the folder belongs to a run with other settings that affect its result."""
    path = folder / SETTINGS_FILE
    rows = read_metrics(folder)
    if not rows and not (folder / "checkpoints").exists():
        return  # the run has not trained yet
    if not path.exists():
        raise ConfigError(f"{folder} holds a run but no config.yaml: set run_dir to a new folder")
    there, wanted = flat(recorded(path)), flat(settings)
    free = (MayChangeOnResume, NoEffectOnResults)
    different = [
        f"{key}={there.get(key)!r} (now {wanted.get(key)!r})"
        for key in sorted({*there, *wanted})
        if there.get(key) != wanted.get(key) and not any(has_fact(fact, key, settings) for fact in free)
    ]
    if different:
        raise ConfigError(f"{folder} holds a run with {', '.join(different)}: set run_dir to a new folder")
    _check_length(folder, rows, settings["training"])


def _check_length(folder: Path, rows: Sequence[Mapping[str, Any]], training: Mapping[str, Any]) -> None:
    """Raise `ConfigError` if the run would be shorter than its latest checkpoint."""
    checkpoints = checkpoint.list_checkpoints(folder / "checkpoints")
    known = [path for path in checkpoints if rows and int(path.name) <= rows[-1]["update"]]
    if not known:
        return
    newest = known[-1]
    before = [row["step"] for row in rows if row["update"] < int(newest.name)]
    key, wanted = "training.steps", training["steps"]
    if training["epochs"] is not None:
        key, wanted = "training.epochs", training["epochs"]
        length = checkpoint.length_of(newest)
        wanted = math.inf if length is None else wanted * length["steps"] / length["epochs"]
    if before and before[-1] >= wanted:
        asked = f"{key}={training[key.partition('.')[2]]}"
        raise ConfigError(f"{folder} holds a run that is longer than {asked}: set run_dir to a new folder")


def write_settings(folder: Path, settings: Mapping[str, Any]) -> None:
    """Write a run's ``config.yaml``, which claims the folder."""
    path = folder / SETTINGS_FILE
    try:
        write_atomically(path, OmegaConf.to_yaml(OmegaConf.create(dict(settings))))
    except OSError as error:
        raise RunError(f"cannot write {path}: {error}; free some space or set run_dir to another") from error
