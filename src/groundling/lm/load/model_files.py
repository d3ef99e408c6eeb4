"""Check the files of a model folder before Transformers, tokenizers or peft open any of them."""

import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from groundling.errors import GroundlingError

_LARGE = ("tokenizer.json", "vocab.json", "added_tokens.json")  # Vocabularies, which name no files
_READ_WHOLE = (".json", ".jinja", ".txt", ".model")  # Suffixes of files that are read into memory at once
_MOST_BYTES = 2**28  # Limit of such a file; the largest vocabularies take some 30 MB
_TEMPLATES = "additional_chat_templates"  # Folder inside a model folder whose files Transformers reads, too
# Suffixes of keys that record a model's origin, which is not opened as a file.
_NOT_OPENED = ("name_or_path", "special_tokens_map_file")


def check_model_files(folder: str | Path) -> None:
    """Refuse a model folder with anything but regular files, or whose JSON files name files outside of it.

    Links are followed: a file of the Hugging Face cache lies among the ``blobs`` of the same repository. Only JSON is
    opened, so devices and pipes are refused before they are read. Files that are read whole must not exceed 256 MiB.
    Anything but a folder, such as a hub id, is not checked.
    """
    folder = Path(folder)
    if not folder.is_dir():
        return
    roots = [folder.resolve()]
    if roots[0].parent.name == "snapshots":
        roots.append(roots[0].parent.parent / "blobs")
    files = [path for path in (*folder.iterdir(), *folder.glob(f"{_TEMPLATES}/*")) if _is_file(path)]
    for path in files:
        _check(path, roots, f"{folder} has the file {path.relative_to(folder)}")
        if path.suffix in _READ_WHOLE and (size := path.stat().st_size) > _MOST_BYTES:
            raise GroundlingError(
                f"{path} has {size:,} bytes, and is read into memory at once: expected {_MOST_BYTES:,} at most; "
                "replace it by the file of the model's author"
            )
    for path in files:
        if path.suffix == ".json" and path.name not in _LARGE and path.parent == folder:
            for name in dict.fromkeys(_texts(_json(path))):
                place = folder / name  # an absolute name replaces the folder
                if os.path.lexists(place) and not place.is_dir():
                    _check(place, roots, f"{path} names the file {name!r:.80}")


def _json(path: Path) -> Any:
    """Read JSON as Transformers does, without the limits of `groundling.io.documents`; None if it is invalid."""
    try:
        return json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        return None  # Transformers reports it


def _is_file(path: Path) -> bool:
    """Return True for anything but a folder or a broken link."""
    try:
        return not stat.S_ISDIR(path.stat().st_mode)
    except OSError:
        return False


def _check(path: Path, roots: list[Path], what: str) -> None:
    place = Path(os.path.realpath(path))  # resolve() raises for circular links
    if not any(place.is_relative_to(root) for root in roots):
        raise GroundlingError(
            f"{what}, which lies outside of the folder, at {place}: copy it into the folder and name it there"
        )
    if _is_file(place) and not stat.S_ISREG(place.stat().st_mode):
        raise GroundlingError(f"{what}, which is no regular file but a device, pipe or socket: replace it")


def _texts(node: Any) -> Iterator[str]:
    """Yield values in nested JSON that may name a file."""
    if isinstance(node, str):
        yield node
    elif isinstance(node, list):
        for value in node:
            yield from _texts(value)
    elif isinstance(node, dict):
        for key, value in node.items():
            if not key.endswith(_NOT_OPENED):
                yield from _texts(value)
