"""The results folder of a study: CSVs, pictures, and a README."""

import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from groundling.config.sharing import shareable
from groundling.evaluation.tables import write_csv
from groundling.io.files import write_atomically
from groundling.io.locks import remove_partial_files
from groundling.reports import plots
from groundling.studies.definition import Study
from groundling.studies.results import SUMMARY, write_arms
from groundling.studies.run import StudyJob


@dataclass(frozen=True)
class StudyPage:
    """Content of a results folder."""

    explanation: str  # first paragraph of the README: how figures are computed
    sections: Sequence[str]  # further paragraphs, in Markdown
    tables: Mapping[str, tuple[Sequence[str], Iterable[Sequence[Any]]]]  # CSV header and rows, by name
    pictures: Mapping[str, Any]  # matplotlib figures, by name without suffix
    figures: Sequence[Mapping[str, Any]]  # the figures of summary.json
    unfinished: Sequence[str]  # names of jobs that are missing or incomplete
    about: Mapping[str, Any]  # further entries of summary.json
    arms: Sequence[StudyJob] = ()  # jobs whose arms' settings are written


def write_page(study: Study, page: StudyPage, output: Path, command: Sequence[str]) -> None:
    """Write a results folder; ``summary.json``, written last, marks it as complete. ``command`` made the results."""
    made_by = shlex.join(["groundling", *command])
    output.mkdir(parents=True, exist_ok=True)
    remove_partial_files(output)
    (output / SUMMARY).unlink(missing_ok=True)
    if page.arms:
        write_arms(output, page.arms)
    for name, (header, rows) in page.tables.items():
        write_csv(output / f"{name}.csv", header, rows)
    for name, picture in page.pictures.items():
        plots.save(picture, output / name)
    head = [f"# {study.title or study.name}", "Command:", f"```\n{made_by}\n```", page.explanation]
    if study.note:
        head.append(study.note.strip())
    if page.unfinished:
        head.append(
            f"**Unfinished or failed: {', '.join(page.unfinished)}. Their results are missing or incomplete.**"
        )
    write_atomically(output / "README.md", shareable("\n\n".join([*head, *page.sections]) + "\n"))
    summary = {
        "study": study.name,
        "command": made_by,
        "seeds": study.seeds,
        "episodes": study.episodes,
        **page.about,
        "unfinished": page.unfinished,
        "figures": page.figures,
    }
    write_atomically(output / SUMMARY, json.dumps(shareable(summary), indent=1) + "\n")


def curves_table(
    runs: Iterable[tuple[StudyJob, Iterable[Mapping[str, Any]]]], columns: Iterable[str]
) -> tuple[list[str], list[list[Any]]]:
    """Make ``curves.csv`` from jobs and rows of ``metrics.jsonl``: a row for each update, with these columns."""
    kept = ["step", "seconds", "episodes", *columns]
    rows = [[job.arm, job.seed, *(row.get(c) for c in kept)] for job, updates in runs for row in updates]
    return ["arm", "seed", *kept], rows
