"""Sheets on which people rate what runs have written, and what their answers come to.

`write_likert` and `write_pairwise` make a folder of a form (``form.html``, which works without a network and lets a
rater download their answers), the same as a spreadsheet (``sheet.csv``) and the key (``key.json``), which says what
came from which system and is not for the raters. `read_answers` puts filled sheets and downloads together again.
"""

import csv
import hashlib
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import jinja2
import numpy as np

from groundling.errors import ConfigError, GroundlingError
from groundling.evaluation.agreement import krippendorff_alpha
from groundling.io.csv_files import harmless_cell, open_csv
from groundling.io.documents import read_lines, read_object
from groundling.io.files import write_atomically
from groundling.registry import unknown
from groundling.reports.rating_tasks import LIKERT_POINTS, RatingTask, find_rating_task

Kind = Literal["likert", "pairwise"]
TIE = "tie"
_FORM, _SHEET, _KEY = "form.html", "sheet.csv", "key.json"
_SIDES = ("A", "B")


@dataclass(frozen=True)
class Item:
    """What is rated at once: one text, or two side by side."""

    id: str
    prompt: str
    texts: tuple[str, ...]
    sample: str
    """Which sample of the predictions it is."""
    systems: tuple[str, ...]
    """Who wrote each of the texts; not shown."""


@dataclass(frozen=True)
class Rating:
    """What people say of a system with regard to one question."""

    system: str
    question: str
    mean: float
    """Of the answers from 1 to 5; of pairs the share that it won, ties counted half."""
    num_answers: int
    agreement: float
    """Krippendorff's alpha of the question, over all systems; NaN where no two raters can be compared."""


def write_likert(
    predictions: Mapping[str, Path], folder: Path, task: str = "general", num_samples: int = 50, seed: int = 0
) -> Path:
    """Write a form on which each text is rated by itself, in an order that does not tell its system.

    Args:
        predictions: By system, a JSONL file with ``prompt`` and ``generation`` (``sample_id`` where prompts repeat), as
            runs write it.
        folder: Is made; must not hold a form already.
        task: Of `RATING_TASKS`.
        num_samples: How many samples are drawn; every system's text of each is rated.
        seed: Of the draw and the order.

    Returns:
        The form.

    Raises:
        ConfigError: no such task, fewer samples, or the folder is taken.
        GroundlingError: a file that cannot be read, no samples in common, or samples whose prompts differ.
    """
    if not predictions:
        raise ConfigError("name at least one system and its predictions")
    find_rating_task(task)
    rng = np.random.default_rng(seed)
    drawn = _draw(predictions, num_samples, rng)
    shown = [(sample, system) for sample in drawn for system in predictions]
    items = []
    for number, place in enumerate(rng.permutation(len(shown))):
        sample, system = shown[place]
        row = drawn[sample][system]
        items.append(Item(f"item{number:04d}", row["prompt"], (row["generation"],), sample, (system,)))
    return _write(folder, "likert", task, items)


def write_pairwise(
    predictions: Mapping[str, Path], folder: Path, task: str = "general", num_samples: int = 50, seed: int = 0
) -> Path:
    """Write a form on which the texts of two systems are compared; who is A is drawn for each pair anew.

    Arguments, result and errors as those of `write_likert`, with two systems.
    """
    if len(predictions) != 2:
        raise ConfigError(f"a comparison needs two systems, got {', '.join(predictions) or 'none'}")
    find_rating_task(task)
    rng = np.random.default_rng(seed)
    drawn = _draw(predictions, num_samples, rng)
    items = []
    for number, (sample, rows) in enumerate(drawn.items()):
        first, second = (list(rows)[place] for place in rng.permutation(2))
        texts = (rows[first]["generation"], rows[second]["generation"])
        items.append(Item(f"pair{number:04d}", rows[first]["prompt"], texts, sample, (first, second)))
    return _write(folder, "pairwise", task, items)


def read_answers(folder: Path, answers: Sequence[Path]) -> list[Rating]:
    """What the answers to the form in `folder` come to, by question and system.

    Args:
        folder: Made by `write_likert` or `write_pairwise`.
        answers: CSV files with the columns ``rater``, ``item`` and the questions; an empty cell is no answer.

    Raises:
        GroundlingError: a file that cannot be read, an unknown item, an answer that is none, two answers of one rater.
    """
    key = _read_key(folder)
    systems = {item["id"]: item["systems"] for item in key["items"]}
    task = find_rating_task(key["task"])
    by_rater: dict[tuple[str, str, str], str] = {}  # (question, item, rater) -> answer
    for path in answers:
        for place, row in _answer_rows(path):
            item, rater = row["item"].strip(), row["rater"].strip()
            if item not in systems:
                raise GroundlingError(f"{place}: there is no item {item!r} in {folder / _KEY}")
            for question in task.questions:
                answer = (row.get(question.id) or "").strip()
                if answer:
                    _check_answer(place, question.id, answer, key["kind"])
                    if (question.id, item, rater) in by_rater:
                        raise GroundlingError(f"{place}: rater {rater!r} answers {item} twice")
                    by_rater[question.id, item, rater] = answer
    summarise = _likert_ratings if key["kind"] == "likert" else _pairwise_ratings
    return [
        rating
        for question in task.questions
        for rating in summarise(
            question.id,
            {place[1:]: answer for place, answer in by_rater.items() if place[0] == question.id},
            systems,
        )
    ]


def _draw(
    predictions: Mapping[str, Path], num_samples: int, rng: np.random.Generator
) -> dict[str, dict[str, dict[str, Any]]]:
    """By sample and system, the rows of samples that all systems have."""
    rows = {system: _predictions(path) for system, path in predictions.items()}
    first, *others = rows.values()
    common = [sample for sample in first if all(sample in other for other in others)]
    if not common:
        raise GroundlingError(f"{', '.join(rows)} have no sample in common: they must be of the same split")
    for sample in common:
        for system, other in rows.items():
            if other[sample]["prompt"] != first[sample]["prompt"]:
                raise GroundlingError(
                    f"{next(iter(rows))} and {system} have different prompts for sample {sample[:60]!r}: rate "
                    "systems whose predictions are of the same pool and split"
                )
    if not 1 <= num_samples <= len(common):
        raise ConfigError(f"num_samples={num_samples}: there are {len(common)} samples to draw from")
    chosen = rng.choice(len(common), num_samples, replace=False)
    return {common[i]: {system: rows[system][common[i]] for system in rows} for i in chosen}


def _predictions(path: Path) -> dict[str, dict[str, Any]]:
    """The rows of a JSONL file by sample: their ``sample_id`` (as runs have it), their ``id``, or their prompt."""
    if not path.is_file():
        raise ConfigError(f"there is no file {path}")
    rows: dict[str, dict[str, Any]] = {}
    for where, row in read_lines(path):
        try:
            prompt, generation = row["prompt"], row["generation"]
        except (KeyError, TypeError) as error:
            raise GroundlingError(
                f"{where} is not a JSON object with prompt and generation: {error}"
            ) from error
        if not isinstance(prompt, str) or not isinstance(generation, str):
            raise GroundlingError(f"{where}: prompt and generation must be texts")
        sample = str(row.get("sample_id", row.get("id", prompt)))
        if sample in rows:
            raise GroundlingError(
                f"{where}: sample {sample[:60]!r} comes twice: give each row a sample_id of its own"
            )
        rows[sample] = {"prompt": prompt, "generation": generation}
    return rows


def _write(folder: Path, kind: Kind, task_id: str, items: Sequence[Item]) -> Path:
    task = find_rating_task(task_id)
    if (folder / _KEY).exists():
        raise ConfigError(f"{folder} holds a form already, and its answers need its key: name another folder")
    folder.mkdir(parents=True, exist_ok=True)
    named = [{"id": item.id, "sample": item.sample, "systems": item.systems} for item in items]
    key = json.dumps({"kind": kind, "task": task_id, "items": named}, indent=1, ensure_ascii=False) + "\n"
    write_atomically(folder / _SHEET, "\ufeff" + _sheet(kind, task, items))  # Excel then takes it for UTF-8
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("groundling.reports", "."),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
    )
    page = environment.get_template("rating.html.j2").render(
        kind=kind,
        task=task,
        items=items,
        points=LIKERT_POINTS,
        sides=_SIDES,
        tie=TIE,
        form=hashlib.sha256(key.encode()).hexdigest()[:16],  # a browser keeps the answers to each form apart
    )
    write_atomically(folder / _FORM, page)
    write_atomically(folder / _KEY, key)  # last: a folder with a key holds a complete form
    return folder / _FORM


def _sheet(kind: Kind, task: RatingTask, items: Sequence[Item]) -> str:
    texts = ["text"] if kind == "likert" else [f"text_{side}" for side in _SIDES]
    lines = io.StringIO()
    writer = csv.writer(lines)
    writer.writerow(["rater", "item", "prompt", *texts, *(question.id for question in task.questions)])
    for item in items:
        cells = [harmless_cell(text) for text in (item.prompt, *item.texts)]
        writer.writerow(["", item.id, *cells, *[""] * len(task.questions)])
    return lines.getvalue()


def _read_key(folder: Path) -> dict[str, Any]:
    try:
        key = read_object(folder / _KEY)
        _check_key(key)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{folder / _KEY} cannot be read: name the folder that the form was written to"
        ) from error
    return key


def _check_key(key: Mapping[str, Any]) -> None:
    """Raise `ValueError` where a form's key is not as `_write` makes it."""
    items = key["items"]
    if (
        key["kind"] not in ("likert", "pairwise")
        or not isinstance(key["task"], str)
        or not isinstance(items, list)
    ):
        raise ValueError("kind, task and items")
    sides = 1 if key["kind"] == "likert" else 2
    for item in items:
        systems = item["systems"]
        if (
            not isinstance(item["id"], str)
            or len(systems) != sides
            or not all(isinstance(s, str) for s in systems)
        ):
            raise ValueError("id and systems of each item")


def _answer_rows(path: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """The rows of a CSV file, each with where it stands."""
    if not path.is_file():
        raise ConfigError(f"there is no file {path}")
    with open_csv(path) as rows:
        for column in ("rater", "item"):
            if column not in (rows.fieldnames or ()):
                raise GroundlingError(f"{path}: {unknown('column', column, rows.fieldnames or ())}")
        for number, row in enumerate(rows, start=1):
            yield f"{path}, row {number}", {name: value or "" for name, value in row.items() if name}


def _check_answer(place: str, question: str, answer: str, kind: Kind) -> None:
    allowed = [*map(str, range(1, LIKERT_POINTS + 1))] if kind == "likert" else [*_SIDES, TIE]
    if answer not in allowed:
        raise GroundlingError(f"{place}: {question} is {answer!r}, expected one of {', '.join(allowed)}")


def _likert_ratings(
    question: str, answers: Mapping[tuple[str, str], str], systems: Mapping[str, Sequence[str]]
) -> Iterator[Rating]:
    units: dict[str, list[float]] = {}
    given: dict[str, list[float]] = {writer: [] for (writer,) in systems.values()}
    for (item, _), answer in answers.items():
        units.setdefault(item, []).append(float(answer))
        given[systems[item][0]].append(float(answer))
    agreement = krippendorff_alpha(list(units.values()), "ordinal")
    for system, values in sorted(given.items()):
        mean = float(np.mean(values)) if values else float("nan")
        yield Rating(system, question, mean, len(values), agreement)


def _pairwise_ratings(
    question: str, answers: Mapping[tuple[str, str], str], systems: Mapping[str, Sequence[str]]
) -> Iterator[Rating]:
    units: dict[str, list[str]] = {}
    names = sorted({writer for pair in systems.values() for writer in pair})
    for (item, _), answer in answers.items():
        winner = TIE if answer == TIE else systems[item][_SIDES.index(answer)]
        units.setdefault(item, []).append(winner)
    agreement = krippendorff_alpha(list(units.values()), "nominal")
    winners = [winner for votes in units.values() for winner in votes]
    for system in names:
        won = winners.count(system) + winners.count(TIE) / 2
        yield Rating(
            system, question, won / len(winners) if winners else float("nan"), len(winners), agreement
        )
