"""Rows of datasets: Parquet files on the Hugging Face hub, or bundled samples."""

import json
from abc import abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

from groundling.envs.text_generation.pools import Pool, Sample, Split, check_split
from groundling.errors import ConfigError, GroundlingError, pass_out_of_memory
from groundling.io.csv_files import check_columns

Row = dict[str, Any]

PARQUET_BRANCH = "refs/convert/parquet"
"""Hub branch with the Parquet files of script datasets, ``CONFIG/SPLIT/NNNN.parquet``, which can change."""
_BUNDLED = Path(__file__).parent / "offline"
HUB_NAMES: dict[Split, str] = {"train": "train", "val": "validation", "test": "test"}  # names in the hub's datasets


@dataclass(frozen=True)
class DatasetSource:
    dataset: str  # id on the hub
    revision: str  # a commit's full hash, or `PARQUET_BRANCH`
    files: str  # pattern of the split's Parquet files in the repository; ``{split}``: the split's name
    sample: str  # name of the bundled sample, written for this project, with the same columns
    columns: tuple[str, ...] | None = None  # the columns to read, with dots inside nested ones; None: all
    split: str = ""  # name of the split in the bundled sample

    def bundled(self) -> Iterator[Row]:
        text = (_BUNDLED / f"{self.sample}.jsonl").read_text("utf-8")
        lines = (json.loads(line) for line in text.split("\n") if line)
        return (line["row"] for line in lines if line["split"] == self.split)

    def downloaded(self) -> Iterator[Row]:
        """Yield the rows of the hub's files in their order; download missing files into the hub's cache."""
        from huggingface_hub import snapshot_download

        offline = (
            f"offline=true takes the bundled sample of {sum(1 for _ in self.bundled())} rows instead, and jsonl, csv or "
            "parquet a copy of your own"
        )
        try:
            folder = snapshot_download(
                self.dataset, repo_type="dataset", revision=self.revision, allow_patterns=self.files
            )
        except Exception as error:  # the hub's client raises errors of many kinds
            pass_out_of_memory(error)
            reason = (str(error) or type(error).__name__).strip().splitlines()[0]
            raise GroundlingError(
                f"dataset {self.dataset} at {self.revision} cannot be loaded from the hub ({reason}): {offline}"
            ) from error
        paths = [path for path in Path(folder).rglob("*") if path.is_file()]
        paths = sorted(path for path in paths if fnmatch(path.relative_to(folder).as_posix(), self.files))
        if not paths:
            raise GroundlingError(f"dataset {self.dataset} at {self.revision} has no files {self.files}: {offline}")
        for path in paths:
            yield from parquet_rows(path, self.columns)


def parquet_rows(path: Path, columns: tuple[str, ...] | None = None) -> Iterator[Row]:
    """Yield the rows of a Parquet file, read in batches; raise `GroundlingError` if it cannot be read."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise GroundlingError("Parquet files need pyarrow: pip install 'groundling[data]'") from error
    try:
        with pq.ParquetFile(path) as file:
            check_columns(file.schema_arrow.names, path)
            for batch in file.iter_batches(1024, columns=columns and list(columns)):
                batch.validate(full=True)  # texts may not be UTF-8
                yield from batch.to_pylist()
    except (OSError, pa.ArrowException, ValueError) as error:
        reason = " ".join(str(error).split())[:200]
        raise GroundlingError(f"{path} cannot be read as Parquet: {reason}") from error


@dataclass(kw_only=True)
class DatasetPool(Pool):
    """A pool of a dataset on the hub: a subclass sets `hub`, and makes samples of the rows.

    Args:
        offline: Read the few dozen rows that come with the package instead of the hub's.
        max_size: Number of samples at most, the first ones; None: all.
    """

    hub: ClassVar[DatasetSource]
    offline: bool = False
    max_size: int | None = None

    def source(self, split: Split) -> DatasetSource:
        """Return the rows of a split."""
        name = HUB_NAMES[split]
        return replace(self.hub, files=self.hub.files.format(split=name), split=name)

    @abstractmethod
    def samples(self, rows: Iterable[Row], split: Split) -> Iterable[Sample]:
        """Make samples of a split's rows."""

    def prepare(self, split: Split) -> list[Sample]:
        check_split(split)
        if self.max_size is not None and not (isinstance(self.max_size, int) and self.max_size > 0):
            raise ConfigError(f"max_size must be a whole number, at least 1, or null for all, got {self.max_size!r}")
        source = self.source(split)
        rows = source.bundled() if self.offline else source.downloaded()
        samples = list(islice(self.made(rows, split), self.max_size))
        if not samples:
            raise GroundlingError(f"dataset {source.dataset} gives no samples for split {split} with {self}")
        return samples

    def made(self, rows: Iterable[Row], split: Split) -> Iterator[Sample]:
        """Make samples; raise `GroundlingError` if the dataset's columns or their values have changed."""
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
