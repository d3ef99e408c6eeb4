"""Datasets of transitions in Parquet files, which Hugging Face's ``load_dataset`` opens."""

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from groundling.errors import ConfigError, RunError
from groundling.io.documents import SETTINGS, read_object
from groundling.io.files import replace_file, write_atomically
from groundling.io.redaction import shareable

if TYPE_CHECKING:
    import pyarrow

DESCRIPTION = "collection.json"
"""Description of the agent and the world, next to the data."""
_CARD = """---
configs:
- config_name: default
  data_files:
{splits}
---
# Transitions of {agent} in {env}

Written by `groundling collect`; one row is one step of an episode. `datasets.load_dataset(FOLDER)` opens it, and
`groundling train glam/bc world.dataset=FOLDER` learns its actions. `{description}` describes the agent and the world.
"""


def schema() -> "pyarrow.Schema":
    """Return the columns of a dataset.

    Raises:
        ConfigError: pyarrow is not installed.
    """
    pa = _pyarrow()
    texts = pa.list_(pa.string())
    return pa.schema(
        {
            "episode": pa.int64(),
            "step": pa.int32(),
            "seed": pa.int64(),
            "task": pa.string(),
            "goal": pa.string(),
            "descriptions": pa.list_(texts),  # the recent observations, oldest first
            "past_actions": texts,
            "actions": texts,  # admissible actions
            "prompt": pa.string(),
            "action": pa.string(),
            "action_index": pa.int32(),
            "reward": pa.float32(),  # of the env
            "done": pa.bool_(),
            "success": pa.bool_(),  # of the whole episode
            "log_prob": pa.float32(),  # of the action; null for the expert
        }
    )


class DatasetFolder:
    """A folder of episodes, which grows by one complete file of each split at a time.

    Args:
        path: The folder; created if missing.
        description: Agent and world, as JSON.
        splits: Names of the splits; the files of the first are written last.

    Raises:
        ConfigError: The folder holds something else, or a dataset with another description.
    """

    def __init__(self, path: Path, description: dict[str, Any], splits: Sequence[str]) -> None:
        self.path, self.splits = path, splits
        self._schema = schema()
        description_path = path / DESCRIPTION
        if path.exists() and not path.is_dir():
            raise ConfigError(f"{path} is a file: name a folder for the dataset")
        if path.exists() and any(path.iterdir()) and not description_path.exists():
            raise ConfigError(f"{path} holds other files: name a new folder for the dataset")
        if self.num_episodes:  # without episodes the description may change
            different = _difference(shareable(read_description(path)), json.loads(json.dumps(description)))
            if different:
                raise ConfigError(
                    f"{path} holds another dataset ({different}): name a new folder, or repeat the same command"
                )
            return
        path.mkdir(parents=True, exist_ok=True)
        lines = "\n".join(f"  - split: {split}\n    path: data/{split}-*.parquet" for split in splits)
        card = _CARD.format(
            splits=lines, agent=description["agent"], env=description["world.env"], description=DESCRIPTION
        )
        write_atomically(description_path, json.dumps(description, indent=1, ensure_ascii=False) + "\n")
        write_atomically(path / "README.md", card)
        (path / "data").mkdir(exist_ok=True)

    @property
    def num_episodes(self) -> int:
        """Number of episodes of the files, including dropped ones."""
        return count_episodes(self.path, self.splits[0])

    def append(self, first: int, last: int, rows: dict[str, list[dict[str, Any]]]) -> None:
        """Write the rows of the episodes ``first`` to ``last``, by split."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        for split in reversed(self.splits):
            table = pa.Table.from_pylist(rows[split], schema=self._schema)
            path = self.path / "data" / f"{split}-{first:08d}-{last:08d}.parquet"
            # Files that a killed process left before that of the first split.
            for stale in path.parent.glob(f"*{split}-{first:08d}-*"):
                stale.unlink()
            replace_file(path, partial(pq.write_table, table, compression="zstd"))


def files_of(folder: Path, split: str) -> list[Path]:
    """Return a split's files in the order of their episodes."""
    return sorted((folder / "data").glob(f"{split}-*.parquet"))


def count_episodes(folder: Path, split: str = "train") -> int:
    """Return the number of episodes of a dataset's files, including dropped ones."""
    files = files_of(folder, split)
    return int(files[-1].stem.rpartition("-")[2]) + 1 if files else 0


def count_transitions(folder: Path, split: str = "train") -> int:
    """Return the number of rows of a dataset's files.

    Raises:
        ConfigError: pyarrow is not installed.
    """
    _pyarrow()
    import pyarrow.parquet as pq

    return sum(pq.ParquetFile(path).metadata.num_rows for path in files_of(folder, split))


def check_env(folder: Path, env: str) -> None:
    """Check that a dataset's episodes are of an env, if it has a description.

    Raises:
        ConfigError: They are of another env.
        RunError: Its description cannot be read.
    """
    if not (folder / DESCRIPTION).exists():
        return
    description = read_description(folder)
    played = description.get("world.env")
    if played not in (None, env):
        raise ConfigError(
            f"{folder} has episodes of {played}, and world.env={env}: set world.env={played}; `groundling evaluate "
            f"RUN world.env={env}` then tests what was learnt in another env"
        )


def read_description(folder: Path) -> dict[str, Any]:
    """Read the description of a dataset.

    Raises:
        RunError: It cannot be read.
    """
    path = folder / DESCRIPTION
    try:
        return read_object(path, SETTINGS)
    except ValueError as error:
        raise RunError(f"{path} cannot be read ({error}): collect into a new folder") from error


def _difference(there: dict[str, Any], wanted: dict[str, Any]) -> str:
    return ", ".join(
        f"{key}={there.get(key)!r} (now {wanted.get(key)!r})"
        for key in sorted({*there, *wanted})
        if there.get(key) != wanted.get(key)
    )


def _pyarrow() -> Any:
    try:
        import pyarrow
    except ImportError:
        raise ConfigError("datasets need pyarrow: pip install 'groundling[data]'") from None
    return pyarrow
