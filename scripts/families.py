"""Compare `LanguageModel` with the plain forward pass of each model family.

python -m scripts.families --jobs 2     # measure all (12 minutes of CPU time), write results/families/table.csv and the page
python -m scripts.families --page       # write docs/families.md from the table
"""

import argparse
import csv
import multiprocessing
import os
import re
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
    """Return one row for each variant that has a tiny config."""
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
        except Exception as error:  # unrelated to Groundling
            print(f"{family}, {variant}: no small model ({str(error)[:90]!r})", file=sys.stderr)
            continue
        rows.append(row_of(family, variant, lm))
    return rows


def _smallest(lm: LanguageModel) -> dict[str, Any]:
    tokens = torch.tensor([[5, 6, 7]])
    return {"input_ids": tokens, "use_cache": False} | ({"decoder_input_ids": tokens} if lm.is_encoder_decoder else {})


def read_table() -> list[Row]:
    """Read the rows of the committed table."""
    with TABLE.open(newline="") as file:
        return [Row(**(row | {"read": float(row["read"])})) for row in csv.DictReader(file)]


_ANNOUNCED = {
    "score": ("read several candidates",),
    "shared": ("read several candidates",),
    "padded": ("one prompt at a time",),
    "sampled": ("Transformers' loop", "one prompt at a time"),
}
"""Phrases that identify the warnings about a column."""
_EFFECTS = {
    r"cannot read several candidates((?: in texts)? of \d+ tokens (?:and|or) more)? in one row exactly "
    r"\((.*)\): .*": "scores each candidate{} separately",
    r"(?:generates (?:by|with)|falls back to) Transformers' loop.*? "
    r"\((.*)\)": "samples rollouts with Transformers' `generate`",
    r"generates (?:for|from) one prompt at a time.*? \((.*)\)": "generates from one prompt at a time",
    r"cannot generate here: .*? \((.*)\); .*": "refuses to generate",
    r"cannot be scored here: .*? \((.*)\); .*": "refuses to score",
}
"""Effect of a message, by the message's pattern, whose last group is the reason."""
_REASONS = {
    "layers that see": "sliding window of",
    "steps do not agree exactly with its plain forward": "cached decoding differs from the plain forward pass",
    "token-by-token decoding does not exactly": "cached decoding differs from the plain forward pass",
    "layers of the kind linear_attention": "linear attention",
    "layers of the kind": "layers of type",
}


def page(rows: Iterable[Row]) -> str:
    """Return the page for the table's rows."""
    rows = sorted(rows)
    families = {row.family for row in rows}
    refused = sorted({row.family for row in rows if _is_refused(row.score)})
    lines = [
        "# Model families",
        "",
        "This page compares the results of `LanguageModel` with plain forward passes over one text at a time, for the",
        "generative model families in Transformers. `python -m scripts.families` generates it from",
        f"[table.csv](../results/families/table.csv) (CPU, float32: {len(families)} families, {len(rows)} variants). Each",
        "model is tiny, and its weight matrices have a standard deviation of 0.15. Prompts have 3 to 65 tokens, so some are",
        "shorter and some longer than sliding windows of 24 tokens and original contexts of 40. Some candidates extend",
        "beyond these limits. Models with longrope are given no more tokens than their original context, so longrope has",
        "no effect.",
        "",
        f"- *exact*: no log-probability differs by more than {EXACT:.0e}.",
        "- *announced*: computed by a slower method, with a warning that states the reason.",
        "- *refused*: an error is raised.",
        "- *read*: the number of tokens that pass through the model's layers (for an encoder-decoder, through its encoder)",
        "  for a prompt of 64 tokens and 6 candidates of 1 to 4 tokens, divided by the number of tokens in the prompt.",
        "",
        f"Not scored: {', '.join(refused) or 'none'}.",
        "",
        "| family | variant | candidates | prompts with a common prefix | `generate`, padded | rollouts | read |",
        "|---|---|---|---|---|---|---|",
    ]
    messages: dict[tuple[str, str], set[str]] = {}
    for row in rows:
        cells = " | ".join(_cell(row, column) for column in _ANNOUNCED)
        lines.append(f"| {row.family} | {row.variant} | {cells} | {row.read:.2f} |")
        for message in _messages(row):
            messages.setdefault(message, set()).add(row.family)
    lines += ["", "## Warnings and refusals", "", "| effect | reason | families |", "|---|---|---|"]
    lines += [
        f"| {effect} | {reason} | {', '.join(sorted(messages[effect, reason]))} |"
        for effect, reason in sorted(messages)
    ]
    return "\n".join(lines) + "\n"


def _is_refused(text: str) -> bool:
    return text.startswith("refused: ")


def _cell(row: Row, column: str) -> str:
    text = getattr(row, column)
    if _is_refused(text):
        return "refused"
    exact = "exact" if float(text) <= EXACT else text
    announced = any(words in row.warnings for words in _ANNOUNCED[column])
    return f"{exact}, announced" if announced else exact


def _messages(row: Row) -> list[tuple[str, str]]:
    """Return the effect and the reason of each refusal and warning."""
    texts = [text.removeprefix("refused: ") for text in row[3:7] if _is_refused(text)]
    return [_message(text) for text in texts + [line for line in row.warnings.split(" | ") if line]]


def _message(text: str) -> tuple[str, str]:
    text = text.partition(" ")[2]  # remove the class name
    for pattern, effect in _EFFECTS.items():
        if match := re.fullmatch(pattern, text):
            *groups, reason = match.groups()
            for words, plain in _REASONS.items():
                reason = reason.replace(words, plain)
            words = [(group or "").replace(" and more", " or more") for group in groups]
            return effect.format(*words), "; ".join(dict.fromkeys(reason.split("; ")))
    return text, ""


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
