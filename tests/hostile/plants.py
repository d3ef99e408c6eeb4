"""Put hostile content into received files."""

import json
import os
import pickle
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch
import yaml
from safetensors.torch import load_file, save_file

from groundling.training.checkpoint import MANIFEST, seal

SERVER = "http://127.0.0.1:9/hostile"
SCRIPT = f"</td><script src='{SERVER}'></script>"
ESCAPE = "\x1b]0;hostile\x07\x1b[2J\x9b31m\rall is well"
"""Sequences that set a terminal's title, clear it and change its colour."""
JINJA = "{{ cycler.__init__.__globals__.os.system('true') }}"
Plant = Callable[[Path], None]
"""A function that puts a hostile file into a folder with copies of received files."""


class Bomb:
    """An object that starts a shell when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("true",)


def module(*names: str) -> Plant:
    """Add modules that start a shell, which are importable because the command runs in this folder."""
    return together(*(written(f"{name}.py", "import os\nos.system('true')\n") for name in names))


def _with_modules(root: Path, name: str, content: Any) -> None:
    """Add each module that a file names, both in the working directory and next to the file."""
    for found in set(re.findall(r"hostile_\w+", json.dumps(content))):
        module(found, str(Path(name).parent / found))(root)


def settings(name: str, changes: dict[str, Any], values: dict[str, Any] | None = None) -> Plant:
    """Change values at dotted keys of a YAML file, or of ``values``; create the modules that they name."""

    def plant(root: Path) -> None:
        content = values or yaml.safe_load((root / name).read_text())
        content = json.loads(json.dumps(content))
        for key, value in changes.items():
            *sections, last = key.split(".")
            node = content
            for section in sections:
                node = node.setdefault(section, {})
            node[last] = value
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text(yaml.safe_dump(content))
        _with_modules(root, name, content)

    return plant


def described(name: str, change: Callable[[Any], Any]) -> Plant:
    """Change a JSON file, and create the modules that it names."""

    def plant(root: Path) -> None:
        content = json.loads((root / name).read_text())
        changed = change(content)
        (root / name).write_text(json.dumps(content if changed is None else changed))
        _with_modules(root, name, changed)

    return plant


def entries(name: str, **more: Any) -> Plant:
    """Change entries of a JSON file."""
    return described(name, lambda content: {**content, **more})


def written(name: str, text: str) -> Plant:
    """Write a text file."""

    def plant(root: Path) -> None:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)

    return plant


def lines(name: str, **row: Any) -> Plant:
    """Write a file with one JSON line."""
    return written(name, json.dumps(row) + "\n")


def pickled(name: str) -> Plant:
    """Replace a file with a pickle; files with PyTorch's names are written with `torch.save`."""

    def plant(root: Path) -> None:
        if name.endswith((".bin", ".pt")):
            torch.save({"weight": Bomb()}, root / name)
        else:
            (root / name).unlink(missing_ok=True)  # it is a link
            (root / name).write_bytes(pickle.dumps(Bomb()))

    return plant


def without(name: str) -> Plant:
    return lambda root: (root / name).unlink()


def linked(name: str, to: str) -> Plant:
    """Replace a file or folder with a link."""

    def plant(root: Path) -> None:
        path = root / name
        if path.is_dir():
            shutil.rmtree(path)
        path.unlink(missing_ok=True)
        path.symlink_to(root.parent / to)

    return plant


def sealed(folder: str, *plants: Plant) -> Plant:
    """Add files to a checkpoint, with correct hashes."""

    def plant(root: Path) -> None:
        for one in plants:
            one(root)
        (root / folder / MANIFEST).unlink()
        seal(root / folder)

    return plant


def tensor(name: str, called: str) -> Plant:
    """Add a tensor to weights."""

    def plant(root: Path) -> None:
        weights = load_file(root / name)
        (root / name).unlink()  # it is a link
        save_file({**weights, called: torch.zeros(1)}, root / name, metadata={"format": "pt"})

    return plant


def together(*plants: Plant) -> Plant:
    def plant(root: Path) -> None:
        for one in plants:
            one(root)

    return plant


def all_parquet(folder: str, metadata: dict[bytes, bytes]) -> Plant:
    """Add a pickle to the types of all columns of existing files."""

    def plant(root: Path) -> None:
        for path in (root / folder).rglob("*.parquet"):
            table = pq.read_table(path)
            fields = [field.with_metadata(metadata) for field in table.schema]
            pq.write_table(table.cast(pa.schema(fields, metadata=metadata)), path)

    return plant
