"""The user's own prompts, from a file or from Python."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from groundling.envs.text_generation.columns import Row
from groundling.errors import ConfigError
from groundling.io.files import write_atomically

DATA = "data"  # Subfolder of the run folder for rows that were passed in Python
_POOLS = {".jsonl": "jsonl", ".parquet": "parquet", ".csv": "csv", ".txt": "lines"}  # By file suffix


def pool_of(path: str | Path) -> str:
    """Return the id of the pool that reads a file; raise `ConfigError` if no pool does."""
    if (id := _POOLS.get(Path(path).suffix)) is None:
        raise ConfigError(f"{path} is not a file of prompts: expected {', '.join(f'*{suffix}' for suffix in _POOLS)}")
    return id


def rows_of(data: Any, name: str) -> list[Row]:
    """Return the rows of a list of prompts or dicts, or of a `datasets.Dataset`; error messages call it ``name``."""
    if isinstance(data, Mapping):  # also a DatasetDict
        raise ConfigError(f"{name} has keys {', '.join(map(str, data))}: pass one split, as in {name}=data['train']")
    if not isinstance(data, list | tuple) and not hasattr(data, "column_names"):
        raise ConfigError(
            f"{name} must be a file, a list of prompts, a list of dicts or a datasets.Dataset, got {type(data).__name__}"
        )
    rows = [{"prompt": row} if isinstance(row, str) else row for row in data]
    if not rows:
        raise ConfigError(f"{name} is empty: pass at least one prompt")
    for number, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise ConfigError(f"row {number} of {name} must be a prompt or a dict of columns, got {row!r:.80}")
    return [dict(row) for row in rows]


def _plain(value: Any) -> Any:
    """Return the Python value of a NumPy number or array."""
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")


def write_rows(run_dir: Path, name: str, rows: Iterable[Row]) -> None:
    """Write rows to a JSON Lines file in a run folder; raise `ConfigError` if it has a trained run with other rows."""
    lines, path = list[str](), run_dir / DATA / name
    for number, row in enumerate(rows):
        try:
            lines.append(json.dumps(row, ensure_ascii=False, default=_plain) + "\n")
            lines[-1].encode()
        except UnicodeEncodeError as error:
            raise ConfigError(
                f"row {number} of the data has a character that UTF-8 cannot encode "
                f"({error.object[error.start]!a}, half of a surrogate pair): remove it"
            ) from None
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"row {number} of the data cannot be saved as JSON ({error}): leave that column out"
            ) from error
    text, is_trained = "".join(lines), (run_dir / "checkpoints").exists()
    if is_trained and path.exists() and path.read_text("utf-8") != text:
        raise ConfigError(f"{path} differs from the data passed: pass the same data to resume, or a new run_dir")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, text)
