"""Where the rows of the known datasets are: Parquet files on the Hugging Face hub, or the bundled samples."""

import json
from abc import abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from itertools import islice
from pathlib import Path
from typing import Any

from groundling.envs.text_generation.pools import Pool, Sample, Split, check_split
from groundling.errors import ConfigError, GroundlingError, pass_out_of_memory
from groundling.io.csv_files import check_columns

Row = dict[str, Any]

PARQUET_BRANCH = "refs/convert/parquet"
"""Where the hub keeps the Parquet form of datasets whose own files are a script, which `datasets` 4 no longer runs.

Its files are ``CONFIG/SPLIT/NNNN.parquet``. It is a branch: what it holds can change, unlike at a commit.
"""
_BUNDLED = Path(__file__).parent / "offline"
HUB_NAMES: dict[Split, str] = {"train": "train", "val": "validation", "test": "test"}
"""What the hub's datasets call the splits."""


@dataclass(frozen=True)
class Source:
    """The rows of one split of a dataset."""

    dataset: str
    """Its id on the hub."""
    revision: str
    """A commit's full hash, or `PARQUET_BRANCH`."""
    files: str
    """Pattern of the split's Parquet files in the repository."""
    sample: str
    """Name of the bundled sample, whose rows have the same columns; written for this project."""
    split: str
    """Of the bundled sample."""
    columns: tuple[str, ...] | None = None
    """The columns to read, with dots inside nested ones; None for all."""

    def rows(self, offline: bool) -> Iterator[Row]:
        """The rows in the order of the dataset; the bundled ones if `offline`.

        Raises:
            GroundlingError: the files cannot be had from the hub.
        """
        return self._bundled() if offline else self._downloaded()

    def _bundled(self) -> Iterator[Row]:
        text = (_BUNDLED / f"{self.sample}.jsonl").read_text("utf-8")
        lines = (json.loads(line) for line in text.split("\n") if line)
        return (line["row"] for line in lines if line["split"] == self.split)

    def _downloaded(self) -> Iterator[Row]:
        paths = self._download()
        if not paths:
            raise GroundlingError(
                f"dataset {self.dataset} at {self.revision} has no files {self.files}: {self._way_out()}"
            )
        for path in paths:
            yield from parquet_rows(path, self.columns)

    def _download(self) -> list[Path]:
        """The split's files in the hub's cache, in order; downloaded if they are not there."""
        from huggingface_hub import snapshot_download

        try:
            folder = snapshot_download(
                self.dataset, repo_type="dataset", revision=self.revision, allow_patterns=self.files
            )
        except Exception as error:  # the hub's client raises what its many parts raise
            pass_out_of_memory(error)
            reason = (str(error) or type(error).__name__).strip().splitlines()[0]
            raise GroundlingError(
                f"dataset {self.dataset} at {self.revision} cannot be loaded from the hub ({reason}): "
                f"{self._way_out()}"
            ) from error
        paths = [path for path in Path(folder).rglob("*") if path.is_file()]
        return sorted(path for path in paths if fnmatch(path.relative_to(folder).as_posix(), self.files))

    def _way_out(self) -> str:
        return (
            f"offline=true takes the bundled sample of {sum(1 for _ in self._bundled())} rows instead, "
            "and jsonl, csv or parquet a copy of your own"
        )


def parquet_rows(path: Path, columns: tuple[str, ...] | None = None) -> Iterator[Row]:
    """The rows of a Parquet file, read a little at a time.

    Raises:
        GroundlingError: pyarrow is not installed, this is not a Parquet file, or two columns have one name.
    """
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise GroundlingError("Parquet files need pyarrow: pip install 'groundling[data]'") from error
    try:
        with pq.ParquetFile(path) as file:
            check_columns(file.schema_arrow.names, path)
            for batch in file.iter_batches(1024, columns=columns and list(columns)):
                batch.validate(full=True)  # texts may be no UTF-8
                yield from batch.to_pylist()
    except (OSError, pa.ArrowException, ValueError) as error:
        reason = " ".join(str(error).split())[:200]
        raise GroundlingError(f"{path} cannot be read as Parquet: {reason}") from error


@dataclass(kw_only=True)
class DatasetPool(Pool):
    """A pool over a dataset of the hub: a subclass says where its rows are, and what samples are made from them.

    Args:
        offline: Take the few dozen rows that come with the package in place of the hub's, by the same path.
        max_size: Take no more samples than this, the first ones; None for all.
    """

    offline: bool = False
    max_size: int | None = None

    @abstractmethod
    def source(self, split: Split) -> Source:
        """Where the rows of a split are."""

    @abstractmethod
    def samples(self, rows: Iterable[Row], split: Split) -> Iterable[Sample]:
        """The samples that the split's rows make."""

    def prepare(self, split: Split) -> list[Sample]:
        """See `Pool.prepare`."""
        check_split(split)
        if self.max_size is not None and not (isinstance(self.max_size, int) and self.max_size > 0):
            raise ConfigError(
                f"max_size must be a whole number, at least 1, or null for all, got {self.max_size!r}"
            )
        source = self.source(split)
        samples = list(islice(self.made(source.rows(self.offline), split), self.max_size))
        if not samples:
            raise GroundlingError(f"dataset {source.dataset} gives no samples for split {split} with {self}")
        return samples

    def made(self, rows: Iterable[Row], split: Split) -> Iterator[Sample]:
        """The samples that rows make, which may have changed since their pool was written.

        Raises:
            GroundlingError: a column is missing, or holds something else than it did.
        """
        dataset = self.source(split).dataset
        try:
            yield from self.samples(rows, split)
        except KeyError as error:
            raise GroundlingError(f"dataset {dataset} has no column {error} any more") from error
        except (TypeError, ValueError, IndexError, AttributeError) as error:
            raise GroundlingError(
                f"a row of dataset {dataset} has another form than when its pool was written ({error}): "
                "offline=true takes the bundled sample"
            ) from error
