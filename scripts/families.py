"""Which families of models are scored and written with, and how exactly: results/families/table.csv, docs/families.md.

python -m scripts.families --jobs 2     # measures all, some 12 minutes of CPU time, and writes both anew
python -m scripts.families --page       # writes the page from the table
"""

import argparse
import csv
import multiprocessing
import os
import sys
import time
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
import transformers
from tests.lm.conftest import _tokenizer
from tests.lm.tiny import FAMILIES
from tests.lm.truth import EXACT, Row, lm_of, row_of, variants

from groundling.lm import LanguageModel

ROOT = Path(__file__).resolve().parents[1]
TABLE, PAGE = ROOT / "results" / "families" / "table.csv", ROOT / "docs" / "families.md"


def rows_of(family: str) -> list[Row]:
    """Of each variant that can be made small."""
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    tokenizers = {ends: _tokenizer(ends) for ends in (False, True)}
    rows = []
    try:
        named = list(variants(family))
    except Exception as error:
        print(f"{family}: no small config ({str(error).splitlines()[0]:.90})", file=sys.stderr)
        return []
    for variant, changes in named:
        try:
            lm = lm_of(family, changes, tokenizers)
            lm.model(**_smallest(lm))
        except Exception as error:  # a config that cannot be had small is no finding of ours
            print(f"{family}, {variant}: cannot be made small ({str(error)[:90]!r})", file=sys.stderr)
            continue
        rows.append(row_of(family, variant, lm))
    return rows


def _smallest(lm: LanguageModel) -> dict[str, Any]:
    tokens = torch.tensor([[5, 6, 7]])
    return {"input_ids": tokens, "use_cache": False} | ({"decoder_input_ids": tokens} if lm.is_encoder_decoder else {})


def read_table() -> list[Row]:
    """The committed rows."""
    with TABLE.open(newline="") as file:
        return [Row(**(row | {"read": float(row["read"])})) for row in csv.DictReader(file)]


_ANNOUNCED = {
    "score": ("read several candidates",),
    "shared": ("read several candidates",),
    "padded": ("writes to", "reads a text anew"),
    "sampled": ("writes by", "writes to", "reads a text anew"),
}
"""By what words a warning tells of a column."""


def page(rows: Iterable[Row]) -> str:
    """The page that tells the table."""
    rows = sorted(rows)
    families = {row.family for row in rows}
    refused = sorted({row.family for row in rows if _is_refused(row.score)})
    lines = [
        "# Families of models",
        "",
        "The results of `LanguageModel` for Transformers' families of generative models, compared with each model's",
        "plain forward pass of one text at a time. `python -m scripts.families` writes this page from",
        f"[table.csv](../results/families/table.csv) (CPU, float32): {len(families)} families, {len(rows)} variants.",
        "Each family has a tiny config; all matrices have standard deviation 0.15. Prompts of 3 to 65 tokens lie on",
        "both sides of windows of 24 tokens and of original contexts of 40; candidates cross these lengths.",
        "",
        f"- *exact*: no log-probability differs by more than {EXACT:.0e}.",
        "- *announced*: computed in a slower way; a warning says so once, with the reason.",
        "- *refused*: a message of one line, and no result.",
        "- *read*: tokens that go through the body for a prompt of 64 tokens and 6 candidates of 1 to 4 tokens,",
        "  divided by the prompt's tokens; for an encoder-decoder, tokens that go through the encoder.",
        "",
        f"Not scored: {', '.join(refused) or 'none'}.",
        "",
        "| family | variant | candidates | prompts with a common prefix | `generate`, padded | rollouts | read |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        cells = " | ".join(_cell(row, column) for column in _ANNOUNCED)
        lines.append(f"| {row.family} | {row.variant} | {cells} | {row.read:.2f} |")
    lines += ["", "## What is announced or refused", ""]
    lines += [f"- {line}" for line in sorted({line for row in rows for line in _lines(row)})]
    return "\n".join(lines) + "\n"


def _is_refused(text: str) -> bool:
    return text.startswith("refused: ")


def _cell(row: Row, column: str) -> str:
    text = getattr(row, column)
    if _is_refused(text):
        return "refused"
    exact = "exact" if float(text) <= EXACT else text
    announced = any(words in row.told for words in _ANNOUNCED[column])
    return f"{exact}, announced" if announced else exact


def _lines(row: Row) -> list[str]:
    refusals = [text.removeprefix("refused: ") for text in row[3:7] if _is_refused(text)]
    return refusals + [line for line in row.told.split(" | ") if line]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--page", action="store_true")
    options = parser.parse_args()
    if not options.page:
        os.environ["OMP_NUM_THREADS"] = "1"
        begun = time.time()
        with multiprocessing.get_context("spawn").Pool(options.jobs) as pool:
            rows = [row for rows in pool.imap_unordered(rows_of, FAMILIES, chunksize=1) for row in rows]
        TABLE.parent.mkdir(parents=True, exist_ok=True)
        with TABLE.open("w", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(Row._fields)
            writer.writerows(sorted(rows))
        print(f"{len(rows)} rows in {time.time() - begun:.0f} s")
    PAGE.write_text(page(read_table()))


if __name__ == "__main__":
    main()
