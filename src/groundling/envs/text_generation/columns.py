"""Pools that read columns of the user's own data: from the config, JSONL, CSV or Parquet files, or the hub."""

import json
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
from annotated_types import Ge, MinLen

from groundling.envs.text_generation.pools import Pool, Sample, Split, pools
from groundling.errors import ConfigError, GroundlingError, importing, pass_out_of_memory, unknown
from groundling.fields import ReadByModel
from groundling.io.documents import lines_of, read_card, read_lines
from groundling.io.row_files import check_columns, open_csv

Row = dict[str, Any]


class LocatedRow(Row):  # a row with its file and line, for error messages
    where: str


PARQUET_BRANCH = "refs/convert/parquet"
"""Hub branch with Parquet conversions of script-based datasets, ``CONFIG/SPLIT/NNNN.parquet``; it may change."""
MESSAGES = "prompt"
"""Key in a sample's meta for the messages of its prompt, if the prompt is a conversation."""
_BUNDLED = Path(__file__).parent / "offline"
HUB_NAMES: dict[Split, str] = {"train": "train", "val": "validation", "test": "test"}  # split names on the hub


@dataclass(frozen=True)
class DatasetSource:
    dataset: str  # id on the hub
    revision: str  # a commit's full hash, or `PARQUET_BRANCH`
    files: str  # pattern of a split's Parquet files in the repository; ``{split}`` stands for the split's name
    sample: str  # name of the bundled sample, written for this project with the same columns
    columns: tuple[str, ...] | None = None  # columns to read, with dots in nested names; None for all
    split: str = ""  # name of the split in the bundled sample

    def bundled(self) -> Iterator[Row]:
        text = (_BUNDLED / f"{self.sample}.jsonl").read_text("utf-8")
        lines = (json.loads(line) for line in text.split("\n") if line)
        return (line["row"] for line in lines if line["split"] == self.split)

    def downloaded(self) -> Iterator[Row]:
        """Yield the rows of the files on the hub in order, after downloading missing files into the hub's cache."""
        from huggingface_hub import snapshot_download

        count = sum(1 for _ in self.bundled())
        offline = f"use the bundled sample of {count} rows with offline=true, or your copy as jsonl, csv or parquet"
        try:
            folder = snapshot_download(
                self.dataset, repo_type="dataset", revision=self.revision, allow_patterns=self.files
            )
        except Exception as error:
            raise _not_loaded(f"{self.dataset} at {self.revision}", error, offline) from error
        paths = [path for path in Path(folder).rglob("*") if path.is_file()]
        paths = sorted(path for path in paths if fnmatch(path.relative_to(folder).as_posix(), self.files))
        if not paths:
            raise ConfigError(f"dataset {self.dataset} at {self.revision} has no files {self.files}: {offline}")
        for path in paths:
            yield from parquet_rows(path, self.columns)


def _not_loaded(dataset: str, error: Exception, advice: str) -> ConfigError:
    """Return a one-line error for any exception that a library raised."""
    pass_out_of_memory(error)
    reason = (str(error) or type(error).__name__).strip().splitlines()[0]
    return ConfigError(f"dataset {dataset} cannot be loaded ({reason}): {advice}")


def parquet_rows(path: Path, columns: tuple[str, ...] | None = None) -> Iterator[Row]:
    """Yield the rows of a Parquet file, read in batches; raise `GroundlingError` if it cannot be read."""
    with importing("pyarrow", "data"):
        import pyarrow as pa
        import pyarrow.parquet as pq
    try:
        with pq.ParquetFile(path) as file:
            check_columns(file.schema_arrow.names, path)
            for batch in file.iter_batches(1024, columns=columns and list(columns)):
                batch.validate(full=True)  # checks that strings are valid UTF-8
                yield from batch.to_pylist()
    except (OSError, pa.ArrowException, ValueError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ConfigError(f"{path} cannot be read as Parquet: {reason}") from error


@dataclass(kw_only=True)
class DatasetPool(Pool):
    """Base class for pools that read a dataset on the hub. Subclasses set `hub` and turn rows into samples.

    Args:
        offline: Read the few dozen rows that ship with the package instead of the hub's dataset.
        max_size: Maximum number of samples, taken from the start; None for all.
    """

    hub: ClassVar[DatasetSource]
    offline: bool = False
    max_size: Annotated[int, Ge(1)] | None = None

    def source(self, split: Split) -> DatasetSource:
        """Return the source of a split's rows."""
        name = HUB_NAMES[split]
        return replace(self.hub, files=self.hub.files.format(split=name), split=name)

    @abstractmethod
    def samples(self, rows: Iterable[Row], split: Split) -> Iterable[Sample]:
        """Create samples from a split's rows."""

    def prepare(self, split: Split) -> list[Sample]:
        source = self.source(split)
        rows = source.bundled() if self.offline else source.downloaded()
        samples = list(islice(self.made(rows, split), self.max_size))
        if not samples:
            raise ConfigError(f"dataset {source.dataset} has no samples for split {split} with {self}")
        return samples

    def made(self, rows: Iterable[Row], split: Split) -> Iterator[Sample]:
        """Create samples; raise `GroundlingError` if the dataset's columns or types have changed."""
        dataset = self.source(split).dataset
        try:
            yield from self.samples(rows, split)
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            raise ConfigError(
                f"a row of dataset {dataset} does not have the format that its pool expects ({error!r}): use the "
                "bundled sample with offline=true"
            ) from error


_ROWS = 1024  # Rows in a batch


_PROMPT_NAMES = ("question", "problem", "instruction", "query", "input", "prompts", "text", "content")
"""Likely names of the prompt column, for suggestions."""


@dataclass(kw_only=True)
class ColumnPool(Pool):
    """Base class for pools that build each sample from the columns of a row. TRL's prompt formats are supported.

    A prompt is a string or a list of messages, ``{"role": …, "content": …}``, which requires ``world.chat=true``.

    Args:
        prompt_column: Column of the prompt. Rows with ``messages`` instead of ``prompt`` are whole conversations, in
            which the last answer is the reference.
        reference_column: Column of the reference or a list of references. If None, ``completion`` is used if it
            exists.
        id_column: Column of each sample's id; if None, samples are numbered.
        meta_columns: Columns of the metadata, which reward functions receive. If None, all other columns are used.
        prompt_prefix: Text before each prompt.
        prompt_suffix: Text after each prompt.
    """

    prompt_column: str = "prompt"
    reference_column: str | None = None
    id_column: str | None = None
    meta_columns: Sequence[str] | None = None
    prompt_prefix: Annotated[str, ReadByModel] = ""
    prompt_suffix: Annotated[str, ReadByModel] = ""

    @abstractmethod
    def rows(self, split: Split) -> Iterable[Row]:
        """Return the rows of a split."""

    def prepare(self, split: Split) -> list[Sample]:
        samples = []
        for number, row in enumerate(self.rows(split)):
            try:
                samples.append(self._sample(f"{split}_{number}", row))
            except ConfigError as error:
                raise ConfigError(f"{getattr(row, 'where', f'row {split}_{number}')}: {error}") from None
        if not samples:
            raise ConfigError(f"no samples for split {split} with {self}: add rows, or change fractions")
        return samples

    def prompt_name(self, row: Row) -> str:
        """Return the name of the column that contains a row's prompt."""
        name = self.prompt_column
        return "messages" if name == ColumnPool.prompt_column and name not in row and "messages" in row else name

    def _sample(self, name: str, row: Row) -> Sample:
        asked = self.prompt_name(row)
        reference = self.reference_column or ("completion" if "completion" in row else None)
        for column in filter(None, (asked, reference, self.id_column, *(self.meta_columns or ()))):
            if column not in row:
                raise ConfigError(unknown("column", column, row, _advice(row) if column == asked else ""))
        used, names = {asked, reference, self.id_column, MESSAGES}, self.meta_columns
        meta = {column: row[column] for column in row if (column not in used if names is None else column in names)}
        id, prompt = str(row[self.id_column]) if self.id_column else name, row[asked]
        references = row[reference] if reference else ()
        references = (references,) if isinstance(references, str) else references or ()
        if not isinstance(prompt, str | list) or not isinstance(references, list | tuple):
            wrong = references if isinstance(prompt, str | list) else prompt
            raise ConfigError(f"prompt and references must be strings, got {wrong!r:.80}")
        if others := {one.get("role") for one in references if isinstance(one, Mapping)} - {"assistant", None}:
            raise ConfigError(f"{reference} must be an answer, but has roles {others}: move these to the prompt")
        references = tuple(one.get("content") if isinstance(one, Mapping) else one for one in references)
        if isinstance(prompt, str):
            return Sample(id, self.prompt_prefix + prompt + self.prompt_suffix, references, meta, data=(prompt,))
        if self.prompt_prefix or self.prompt_suffix:
            raise ConfigError("prompt_prefix and prompt_suffix have no effect on messages: put them into a message")
        has_answer = bool(prompt) and isinstance(prompt[-1], Mapping) and prompt[-1].get("role") == "assistant"
        if has_answer and asked == "prompt":
            raise ConfigError("the prompt ends with an answer: move it to a column named completion")
        meta[MESSAGES] = prompt[:-1] if has_answer else prompt
        return Sample.of_messages(id, prompt, references=references, meta=meta)


def _advice(row: Row) -> str:
    """Return advice about a row without a prompt, to be shown before the list of its columns."""
    if row.keys() >= {"chosen", "rejected"}:
        return (
            "chosen and rejected texts are preferences, not prompts: use `groundling train dpo world.args.path=FILE`; "
        )
    likely = next((name for name in _PROMPT_NAMES if name in row), "COLUMN")
    return f"set world.args.prompt_column={likely}, or rename that column to prompt; "


@pools.register("listed")
@dataclass(kw_only=True)
class Listed(ColumnPool):
    """Rows listed in the config; every split contains all of them.

    Args:
        samples: The rows, such as ``[{prompt: "2 + 3 =", answer: "5"}]``.
    """

    has_splits: ClassVar[bool] = False
    samples: Annotated[Sequence[Row], MinLen(1)]

    def rows(self, split: Split) -> Iterable[Row]:
        return self.samples


@dataclass(kw_only=True)
class FilePool(ColumnPool):
    """Base class for pools that read files.

    Args:
        path: One file, whose prompts are split by `fractions`, or a file for each split:
            ``{train: …, val: …, test: …}``.
        fractions: Shares of a single file's distinct prompts in train, val and test; rows with equal prompts stay
            together.
        seed: Seed for assigning prompts to splits.
    """

    path: str | Mapping[str, str]
    fractions: Sequence[float] = (0.8, 0.1, 0.1)
    seed: int = 0

    def __post_init__(self) -> None:
        shares = self.fractions
        if len(shares) != 3 or min(shares) < 0 or not np.isclose(sum(shares), 1):
            raise ConfigError(f"fractions={list(shares)}: expected shares of train, val and test that sum to 1")
        if isinstance(self.path, Mapping) and (tuple(shares), self.seed) != (FilePool.fractions, FilePool.seed):
            raise ConfigError("fractions and seed have no effect if path has a file for each split: remove them")

    @abstractmethod
    def read(self, path: Path) -> Iterable[Row]:
        """Return the rows of one file."""

    def rows(self, split: Split) -> Iterable[Row]:
        if isinstance(self.path, Mapping) and split not in self.path:
            raise ConfigError(f"path has no file for split {split}, only for {', '.join(self.path)}")
        path = Path(self.path[split] if isinstance(self.path, Mapping) else self.path)
        if not path.is_file():
            raise ConfigError(f"there is no file {path}: pass the prompts with --prompts FILE, or set world.args.path")
        if not (rows := list(self.read(path))):
            raise ConfigError(f"{path} is empty: add rows")
        if isinstance(self.path, Mapping):
            return rows
        places: dict[str, list[int]] = {}
        for place, row in enumerate(rows):
            places.setdefault(repr(row.get(self.prompt_name(row))), []).append(place)
        prompts = list(places.values())
        order = np.random.default_rng(self.seed).permutation(len(prompts))
        first, second = (np.cumsum(self.fractions)[:2] * len(prompts)).round().astype(int)
        shares: dict[str, Any] = {"train": order[:first], "val": order[first:second], "test": order[second:]}
        others = {"train": [], "val": ["test", "train"], "test": ["val", "train"]}[split]
        if dict(zip(shares, self.fractions, strict=True))[split] == 0:
            others = []
        # With few prompts, val and test share theirs; one or two prompts are in all splits, with a warning.
        chosen = next((shares[name] for name in (split, *others) if len(shares[name])), ())
        return [rows[place] for place in sorted(place for i in chosen for place in prompts[i])]


@pools.register("jsonl")
@dataclass(kw_only=True)
class Jsonl(FilePool):
    """A file with one JSON object per line."""

    def read(self, path: Path) -> Iterator[Row]:
        for where, row in read_lines(path):
            if not isinstance(row, dict):
                raise ConfigError(f"{where} is not a JSON object with columns as its keys")
            located = LocatedRow(row)
            located.where = where
            yield located


@pools.register("lines")
@dataclass(kw_only=True)
class Lines(FilePool):
    """A text file with one prompt per line."""

    def read(self, path: Path) -> Iterator[Row]:
        try:
            # splitlines would also split at separators within a prompt, such as U+2028.
            lines = [line.decode("utf-8").rstrip("\r\n") for line in lines_of(path)]
        except UnicodeDecodeError as error:
            raise ConfigError(f"{path} is not UTF-8: save it as UTF-8") from error
        return ({"prompt": line} for line in lines if line.strip())


@pools.register("csv")
@dataclass(kw_only=True)
class Csv(FilePool):
    """A file of comma-separated values whose first line contains the column names.

    Args:
        delimiter: Separator between values; a tab for TSV files.
    """

    delimiter: str = ","

    def read(self, path: Path) -> Iterator[Row]:
        with open_csv(path, self.delimiter) as rows:
            for number, row in enumerate(rows, start=1):
                if None in row or None in row.values():
                    raise ConfigError(f"{path}: row {number} has a different number of values from the first line")
                yield row


@pools.register("parquet")
@dataclass(kw_only=True)
class Parquet(FilePool):
    """A Parquet file."""

    def read(self, path: Path) -> Iterator[Row]:
        return parquet_rows(path)


@pools.register("huggingface")
@dataclass(kw_only=True)
class HuggingFace(ColumnPool):
    """Any dataset that Hugging Face's ``load_dataset`` can open, from the hub or a folder.

    Args:
        dataset: Id or path.
        name: Name of the dataset's configuration.
        revision: Commit, branch or tag of a dataset on the hub.
        splits: The dataset's names for train, val and test; slices such as ``train[:90%]`` are allowed.
    """

    dataset: str
    name: str | None = None
    revision: str | None = None
    splits: Mapping[Split, str] = field(default_factory=lambda: dict(HUB_NAMES))

    def rows(self, split: Split) -> Iterable[Row]:
        with importing("datasets", "data"):
            import datasets
        if split not in self.splits:
            raise ConfigError(f"splits has no {split}, only {', '.join(self.splits)}")
        try:
            _refuse_servers(Path(self.dataset))
            loaded: Any = datasets.load_dataset(
                self.dataset, self.name, split=self.splits[split], revision=self.revision
            )
        except GroundlingError:
            raise
        except Exception as error:
            advice = (
                "check its id, name, revision, splits and your connection, or use jsonl, csv or parquet with your "
                "own file"
            )
            raise _not_loaded(self.dataset, error, advice) from error
        # Images and audio are not decoded, since decoding could fetch them from any URL in a row.
        check_columns(loaded.column_names, f"dataset {self.dataset}")
        for table in loaded.with_format("arrow").iter(_ROWS):
            yield from table.to_pylist()


def _refuse_servers(folder: Path) -> None:
    """Raise `GroundlingError` if a dataset folder refers to files on a server, or if its card exceeds a limit."""
    # The datasets library reads both of these files without limits.
    card, more = folder / "README.md", folder / ".huggingface.yaml"
    cards = [read_card(path) for path in (card, more) if path.exists()]
    if "://" in str([about.get("configs") for about in cards]):
        raise ConfigError(
            f"{folder} refers to files on a server, which a dataset folder may not do: remove the URLs from the "
            f"configs of {card.name} and {more.name}, or set dataset to that dataset's own id"
        )
