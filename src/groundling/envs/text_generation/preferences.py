"""Preferences between texts in TRL's formats: pairs of a chosen and a rejected text, or texts with a label."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from groundling.envs.text_generation.columns import FilePool, Jsonl, Parquet, Row
from groundling.envs.text_generation.pools import Pool, Sample, Split, pools
from groundling.errors import ConfigError

_READERS: dict[str, type[FilePool]] = {".jsonl": Jsonl, ".parquet": Parquet}
_EXPECTED = "chosen and rejected (with or without prompt), or prompt, completion and label"


@pools.register("preferences")
@dataclass(kw_only=True)
class Preferences(Pool):
    """Preferences between texts, in a file with the columns of TRL's datasets.

    A row has ``prompt``, ``chosen`` and ``rejected``; only ``chosen`` and ``rejected``, which both start with the
    prompt; or ``prompt``, ``completion`` and ``label`` (true for a good completion). Each text is a string or a list
    of messages, ``{"role": …, "content": …}``, which requires ``world.chat=true``.

    Args:
        path: One JSON Lines or Parquet file, whose prompts are split by `fractions`, or a file for each split:
            ``{train: …, val: …, test: …}``.
        fractions: Shares of a single file's distinct prompts in train, val and test; a prompt's rows stay together.
        seed: Seed for assigning prompts to splits.
    """

    has_preferences: ClassVar[bool] = True
    path: str | Mapping[str, str]
    fractions: Sequence[float] = FilePool.fractions
    seed: int = FilePool.seed

    def prepare(self, split: Split) -> list[Sample]:
        rows = _Rows(path=self.path, fractions=self.fractions, seed=self.seed).rows(split)
        samples = [replace(row["sample"], id=f"{split}_{number}") for number, row in enumerate(rows)]
        if not samples:
            raise ConfigError(
                f"no preferences for split {split} of {self}: add rows, or set fractions so that it has a prompt"
            )
        return samples


class _Rows(FilePool):
    """Rows that contain a sample and its prompt; `FilePool` assigns rows to splits by prompt."""

    def read(self, path: Path) -> Iterator[Row]:
        for sample in read_preferences(path):
            yield {"prompt": (sample.system, sample.earlier, sample.prompt), "sample": sample}


def read_preferences(path: Path) -> Iterator[Sample]:
    """Yield the preferences in a JSON Lines or Parquet file; good texts become references, bad ones `Sample.rejected`.

    Raises:
        ConfigError: The file has neither format, or its columns do not describe preferences.
    """
    reader = _READERS.get(path.suffix)
    if reader is None:
        raise ConfigError(f"{path} must be a JSON Lines or Parquet file, named *{' or *'.join(_READERS)}")
    for number, row in enumerate(reader(path=str(path)).read(path), start=1):
        yield preference(row, getattr(row, "where", f"{path}, row {number}"))


def preference(row: Row, where: str) -> Sample:
    """Return the preference in a row of one of TRL's formats; error messages call the row ``where``."""
    texts: dict[str, Any]
    present = {name: value for name, value in row.items() if value is not None}
    if {"chosen", "rejected"} <= present.keys():
        chosen, rejected, prompt = present["chosen"], present["rejected"], present.get("prompt")
        if type(chosen) is not type(rejected) or not isinstance(chosen, str | list):
            raise ConfigError(f"{where}: chosen and rejected must both be strings, or both lists of messages")
        # Some datasets also store a conversation's prompt as a string.
        if prompt is None or (isinstance(prompt, str) and not isinstance(chosen, str)):
            prompt, chosen, rejected = _without_prompt(chosen, rejected)
        texts = {"references": (_text(chosen, where),), "rejected": (_text(rejected, where),)}
        if texts["references"] == texts["rejected"]:
            raise ConfigError(f"{where}: chosen and rejected are equal, {_text(chosen, where)!r:.80}: remove the row")
    elif {"prompt", "completion", "label"} <= present.keys():
        prompt, label = present["prompt"], present["label"]
        if label not in (True, False):
            raise ConfigError(f"{where}: label must be true or false, got {label!r:.80}")
        texts = {"references" if label else "rejected": (_text(present["completion"], where),)}
    else:
        shown = ", ".join(f"{name} (null)" if value is None else str(name) for name, value in row.items()) or "(none)"
        raise ConfigError(f"{where} has the columns {shown}: expected {_EXPECTED}")
    if isinstance(prompt, str):
        if not prompt:
            raise ConfigError(f"{where}: the prompt is empty: add one, or start both texts with it")
        return Sample(where, prompt, data=(prompt,), **texts)
    if not (
        isinstance(prompt, list) and prompt and isinstance(prompt[-1], Mapping) and prompt[-1].get("role") == "user"
    ):
        raise ConfigError(f"{where}: the prompt must be a string, or messages that end with a user message")
    return Sample.of_messages(where, prompt, meta={"prompt": prompt}, **texts)


def _text(completion: Any, where: str) -> str:
    """Return a completion's text, from a string or a list with one assistant message."""
    if isinstance(completion, str):
        return completion
    if isinstance(completion, list) and len(completion) == 1 and isinstance(completion[0], Mapping):
        role, text = completion[0].get("role"), completion[0].get("content")
        if role == "assistant" and isinstance(text, str):
            return text
    raise ConfigError(f"{where}: expected a string, or a list with one assistant message, got {completion!r:.80}")


def _without_prompt(chosen: Any, rejected: Any) -> tuple[Any, Any, Any]:
    """Split off the longest common prefix of characters or messages, as TRL's ``extract_prompt`` does."""
    shortest = min(len(chosen), len(rejected))
    end = next((place for place in range(shortest) if chosen[place] != rejected[place]), shortest)
    if isinstance(chosen, str) and end and chosen[end - 1] == " ":  # the space belongs to the texts
        end -= 1
    return chosen[:end], chosen[end:], rejected[end:]
