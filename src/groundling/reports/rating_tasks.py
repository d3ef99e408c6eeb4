"""Wording of rating forms, by task."""

import functools
from importlib import resources

import yaml
from pydantic import BaseModel, TypeAdapter

from groundling.errors import ConfigError, unknown

LIKERT_POINTS = 5


class RatingQuestion(BaseModel):
    """A question about a text, answered from 1 to `LIKERT_POINTS`."""

    id: str
    text: str  # for a single text
    comparison: str  # for two texts side by side
    low: str  # meaning of 1
    high: str  # meaning of the highest answer


class RatingTask(BaseModel):
    """Texts of a form."""

    title: str
    instructions: str
    prompt_label: str
    text_label: str
    questions: tuple[RatingQuestion, ...]


@functools.cache
def rating_tasks() -> dict[str, RatingTask]:
    """Return the bundled tasks by id; ``general`` is for any other task."""
    text = (resources.files("groundling.reports") / "rating_tasks.yaml").read_text(encoding="utf-8")
    return TypeAdapter(dict[str, RatingTask]).validate_python(yaml.safe_load(text))


def find_rating_task(id: str) -> RatingTask:
    """Return a task; raise `ConfigError` for an unknown id."""
    if id not in rating_tasks():
        raise ConfigError(unknown("rating task", id, rating_tasks()))
    return rating_tasks()[id]
