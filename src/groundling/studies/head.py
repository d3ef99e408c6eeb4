"""Head of a study's results: how they were made, and what is missing."""

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from groundling.io.files import write_atomically
from groundling.io.redaction import shareable
from groundling.studies.definition import Study


@dataclass(frozen=True)
class StudyHead:
    """What the results of every study say first: how they were made, and what is missing."""

    study: Study
    command: Sequence[str]
    """The words after ``groundling`` that made them."""
    unfinished: list[str]
    """Jobs that are not, or not wholly, in the results."""
    more: Mapping[str, Any] = field(default_factory=dict)
    """What ``summary.json`` has beside it, by its name there."""

    def markdown(self, explanation: str) -> list[str]:
        """The first paragraphs of the ``README.md``.

        Args:
            explanation: What the figures are: a paragraph.
        """
        text = [
            f"# {self.study.title or self.study.name}",
            "Made by",
            f"```\n{self._command}\n```",
            explanation,
        ]
        if self.study.note:
            text.append(self.study.note.strip())
        if self.unfinished:
            text.append(
                f"**Unfinished or failed, so missing or incomplete here: {', '.join(self.unfinished)}.**"
            )
        return text

    def write_summary(self, output: Path, figures: Sequence[Mapping[str, Any]]) -> None:
        """Write ``summary.json`` into the folder ``output``, as the last file: with it the results are complete.

        Args:
            output: The results' folder.
            figures: As JSON.
        """
        summary = {
            "study": self.study.name,
            "command": self._command,
            "seeds": self.study.seeds,
            "episodes": self.study.episodes,
            **self.more,
            "unfinished": self.unfinished,
            "figures": figures,
        }
        write_atomically(output / "summary.json", json.dumps(shareable(summary), indent=1) + "\n")

    @property
    def _command(self) -> str:
        return shlex.join(["groundling", *self.command])
