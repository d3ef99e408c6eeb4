"""Forms for human ratings of generated texts, and summaries of the answers.

A folder contains a form (``form.html``, which works offline and downloads the answers), the same form as a spreadsheet
(``sheet.csv``), and the key (``key.json``), which records the system behind each text and must be hidden from raters.
"""

import csv
import functools
import hashlib
import io
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Literal, Self

import jinja2
import numpy as np
import yaml
from pydantic import BaseModel, ConfigDict, Field, model_validator

from groundling.errors import ConfigError, unknown
from groundling.io.documents import read_lines, read_object
from groundling.io.files import write_atomically
from groundling.io.row_files import harmless_cell, open_csv

LIKERT_POINTS = 5


@functools.cache
def rating_tasks() -> dict[str, dict[str, Any]]:
    """Return the entries of ``rating_tasks.yaml`` by task; ``general`` is for any other task."""
    text = (resources.files("groundling.reports") / "rating_tasks.yaml").read_text(encoding="utf-8")
    tasks: dict[str, dict[str, Any]] = yaml.safe_load(text)
    return tasks


def find_rating_task(id: str) -> dict[str, Any]:
    """Return a task; raise `ConfigError` for an unknown id."""
    if id not in rating_tasks():
        raise ConfigError(unknown("rating task", id, rating_tasks()))
    return rating_tasks()[id]


Kind = Literal["likert", "pairwise"]
TIE = "tie"
_FORM, _SHEET, _KEY = "form.html", "sheet.csv", "key.json"
_SIDES = ("A", "B")


class RatedItem(BaseModel):
    """One text to rate, or two to compare; the texts are not stored in the key."""

    model_config = ConfigDict(strict=True)

    id: str
    sample: str = ""  # the sample's id in the predictions
    systems: list[str]  # systems that wrote the texts; not shown to raters
    prompt: str = Field("", exclude=True)
    texts: list[str] = Field([], exclude=True)


class _Key(BaseModel):
    model_config = ConfigDict(strict=True)

    kind: Kind
    task: str
    items: list[RatedItem]

    @model_validator(mode="after")
    def _check_systems(self) -> Self:
        sides = 1 if self.kind == "likert" else 2
        if any(len(item.systems) != sides for item in self.items):
            raise ValueError(f"expected {sides} systems for each item")
        return self


@dataclass(frozen=True)
class Rating:
    """Human ratings of a system for one question."""

    system: str
    question: str
    mean: float  # mean answer from 1 to 5; for pairs, the share of wins, counting ties as half
    num_answers: int
    agreement: float  # Krippendorff's alpha for the question, over all systems; NaN if undefined


def write_form(
    kind: Kind,
    predictions: Mapping[str, Path],
    folder: Path,
    task: str = "general",
    num_samples: int = 50,
    seed: int = 0,
) -> Path:
    """Write a form for rating texts, which are shown in random order, and return its path.

    Args:
        kind: ``likert`` rates each text separately; ``pairwise`` compares the texts of two systems, in a random order
            for each pair.
        predictions: JSONL file of each system with ``prompt`` and ``generation`` (and ``sample_id`` if prompts
            repeat), as written by runs.
        folder: Output folder, which must not contain a form yet.
        num_samples: Number of samples to draw; for each sample, every system's text is rated.
    """
    if len(predictions) != 2 and (kind == "pairwise" or not predictions):
        needed = "two systems" if kind == "pairwise" else "at least one system"
        raise ConfigError(f"the form needs {needed} and their predictions, got {', '.join(predictions) or 'none'}")
    rating_task = find_rating_task(task)
    rng = np.random.default_rng(seed)
    drawn = _draw(predictions, num_samples, rng)
    items = _items(kind, drawn, rng)
    if (folder / _KEY).exists():
        raise ConfigError(f"{folder} already contains a form and the key to its answers: choose a different folder")
    folder.mkdir(parents=True, exist_ok=True)
    key = json.dumps(_Key(kind=kind, task=task, items=items).model_dump(), indent=1, ensure_ascii=False) + "\n"
    write_atomically(folder / _SHEET, "\ufeff" + _sheet(kind, rating_task, items))  # Excel recognises UTF-8 by the BOM
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("groundling.reports", "."), autoescape=True, undefined=jinja2.StrictUndefined
    )
    page = environment.get_template("rating.html.j2").render(
        kind=kind,
        task=rating_task,
        items=items,
        points=LIKERT_POINTS,
        sides=_SIDES,
        tie=TIE,
        form=hashlib.sha256(key.encode()).hexdigest()[:16],  # id under which a browser stores the answers
    )
    write_atomically(folder / _FORM, page)
    write_atomically(folder / _KEY, key)  # written last, so a folder with a key has a complete form
    return folder / _FORM


def read_answers(folder: Path, answers: Sequence[Path]) -> list[Rating]:
    """Summarise the answers to the form in ``folder``, by question and system.

    ``answers`` are CSV files with columns for ``rater``, ``item`` and each question; an empty cell means no answer.
    """
    try:
        key = _Key.model_validate(read_object(folder / _KEY))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{folder / _KEY} cannot be read: pass the folder that the form was written to") from error
    allowed = [*map(str, range(1, LIKERT_POINTS + 1))] if key.kind == "likert" else [*_SIDES, TIE]
    systems = {item.id: item.systems for item in key.items}
    questions = [question["id"] for question in find_rating_task(key.task)["questions"]]
    given: dict[str, dict[tuple[str, str], str]] = {question: {} for question in questions}  # by (item, rater)
    for path in answers:
        for place, row in _answer_rows(path):
            item, rater = row["item"].strip(), row["rater"].strip()
            if item not in systems:
                raise ConfigError(f"{place}: there is no item {item!r} in {folder / _KEY}")
            for question in questions:
                if answer := row.get(question, "").strip():
                    if answer not in allowed:
                        raise ConfigError(f"{place}: {question} is {answer!r}, expected one of {', '.join(allowed)}")
                    if (item, rater) in given[question]:
                        raise ConfigError(f"{place}: rater {rater!r} answered {item} twice")
                    given[question][item, rater] = answer
    return [rating for question in questions for rating in _ratings(key.kind, question, given[question], systems)]


def _draw(
    predictions: Mapping[str, Path], num_samples: int, rng: np.random.Generator
) -> dict[str, dict[str, dict[str, Any]]]:
    """Choose random samples that all systems have; return their rows by sample and system."""
    rows = {system: _predictions(path) for system, path in predictions.items()}
    first, *others = rows.values()
    common = [sample for sample in first if all(sample in other for other in others)]
    if not common:
        raise ConfigError(f"{', '.join(rows)} have no sample in common: use predictions for the same split")
    for sample in common:
        for system, other in rows.items():
            if other[sample]["prompt"] != first[sample]["prompt"]:
                raise ConfigError(
                    f"{next(iter(rows))} and {system} have different prompts for sample {sample[:60]!r}: use "
                    "predictions for the same pool and split"
                )
    if not 1 <= num_samples <= len(common):
        raise ConfigError(f"num_samples={num_samples}: expected 1 to {len(common)}, the number of common samples")
    chosen = rng.choice(len(common), num_samples, replace=False)
    return {common[i]: {system: rows[system][common[i]] for system in rows} for i in chosen}


def _predictions(path: Path) -> dict[str, dict[str, Any]]:
    """Return the rows of a JSONL file, keyed by ``sample_id`` (which runs write), ``id`` or prompt."""
    if not path.is_file():
        raise ConfigError(f"there is no file {path}")
    rows: dict[str, dict[str, Any]] = {}
    for where, row in read_lines(path):
        try:
            prompt, generation = row["prompt"], row["generation"]
        except (KeyError, TypeError) as error:
            raise ConfigError(f"{where} is not a JSON object with prompt and generation: {error}") from error
        if not isinstance(prompt, str) or not isinstance(generation, str):
            raise ConfigError(f"{where}: prompt and generation must be strings")
        sample = str(row.get("sample_id", row.get("id", prompt)))
        if sample in rows:
            raise ConfigError(f"{where}: sample {sample[:60]!r} occurs twice: give each row its own sample_id")
        rows[sample] = {"prompt": prompt, "generation": generation}
    return rows


def _items(
    kind: Kind, drawn: Mapping[str, Mapping[str, Mapping[str, Any]]], rng: np.random.Generator
) -> list[RatedItem]:
    """Create a form's items, in random order, from the rows by sample and system."""
    if kind == "likert":
        each = [(sample, [system]) for sample, rows in drawn.items() for system in rows]
        shown = [each[place] for place in rng.permutation(len(each))]
    else:
        shown = [(sample, [list(rows)[place] for place in rng.permutation(2)]) for sample, rows in drawn.items()]
    return [
        RatedItem(
            id=f"{'item' if kind == 'likert' else 'pair'}{number:04d}",
            sample=sample,
            systems=systems,
            prompt=drawn[sample][systems[0]]["prompt"],
            texts=[drawn[sample][system]["generation"] for system in systems],
        )
        for number, (sample, systems) in enumerate(shown)
    ]


def _sheet(kind: Kind, task: Mapping[str, Any], items: Sequence[RatedItem]) -> str:
    texts = ["text"] if kind == "likert" else [f"text_{side}" for side in _SIDES]
    lines = io.StringIO()
    writer = csv.writer(lines)
    writer.writerow(["rater", "item", "prompt", *texts, *(question["id"] for question in task["questions"])])
    for item in items:
        cells = [harmless_cell(text) for text in (item.prompt, *item.texts)]
        writer.writerow(["", item.id, *cells, *[""] * len(task["questions"])])
    return lines.getvalue()


def _answer_rows(path: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the rows of a CSV file, each with its location for error messages."""
    if not path.is_file():
        raise ConfigError(f"there is no file {path}")
    with open_csv(path) as rows:
        for column in ("rater", "item"):
            if column not in (rows.fieldnames or ()):
                raise ConfigError(f"{path}: {unknown('column', column, rows.fieldnames or ())}")
        for number, row in enumerate(rows, start=1):
            yield f"{path}, row {number}", {name: value or "" for name, value in row.items() if name}


def _ratings(
    kind: Kind, question: str, answers: Mapping[tuple[str, str], str], systems: Mapping[str, Sequence[str]]
) -> Iterator[Rating]:
    """Summarise the answers to a question; ``answers`` are keyed by item and rater."""
    units: dict[str, list[Any]] = {}  # numbers or winners, by item
    for (item, _), answer in answers.items():
        winner = answer if answer not in _SIDES else systems[item][_SIDES.index(answer)]
        units.setdefault(item, []).append(float(answer) if kind == "likert" else winner)
    agreement = krippendorff_alpha(list(units.values()), "ordinal" if kind == "likert" else "nominal")
    for system in sorted({writer for writers in systems.values() for writer in writers}):
        if kind == "likert":
            scores = [value for item, values in units.items() if systems[item] == [system] for value in values]
        else:
            scores = [0.5 if one == TIE else float(one == system) for winners in units.values() for one in winners]
        yield Rating(system, question, float(np.mean(scores)) if scores else math.nan, len(scores), agreement)


def krippendorff_alpha(units: Sequence[Sequence[Any]], level: Literal["nominal", "ordinal"]) -> float:
    """Return Krippendorff's alpha: 1 minus the ratio of observed to expected disagreement.

    This follows Krippendorff 2011, *Computing Krippendorff's alpha-reliability*. Values are compared within each unit,
    and units are weighted by their number of values. Units with fewer than two values are ignored. ``ordinal`` uses
    only the order of the numbers. The result is NaN if all values are equal.
    """
    compared = [unit for unit in units if len(unit) > 1]
    values = sorted({value for unit in compared for value in unit})
    place = {value: index for index, value in enumerate(values)}
    coincidences = np.zeros((len(values), len(values)))
    for unit in compared:
        counts = np.bincount([place[value] for value in unit], minlength=len(values)).astype(float)
        coincidences += (np.outer(counts, counts) - np.diag(counts)) / (len(unit) - 1)
    totals = coincidences.sum(1)
    if level == "nominal":
        distances = 1 - np.eye(len(values))
    else:  # square of: the counts between two values plus half the counts of the two values
        middle = np.cumsum(totals) - totals / 2
        distances = np.square(middle[:, None] - middle[None, :])
    observed = (coincidences * distances).sum()
    expected = ((np.outer(totals, totals) - np.diag(totals)) * distances).sum() / (totals.sum() - 1 or 1)
    return float(1 - observed / expected) if expected else float("nan")
