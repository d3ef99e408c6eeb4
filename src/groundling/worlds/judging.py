"""The texts of ``judging.yaml``, by which judges are asked about the bundled kinds of world."""

from pathlib import Path

from groundling.io.documents import read_bundled
from groundling.judges.asking.subjects import Subject, register_subject


def register_subjects() -> None:
    """Register the text, NetHack and writing worlds for judges."""
    kinds = read_bundled(Path(__file__).with_suffix(".yaml"))
    for world, texts in kinds.items():
        tables = texts.pop("tables", {})
        rules = {
            goal: [(pattern, worth) for name in names for pattern, worth in tables[name]]
            for goal, names in texts.pop("rules", {}).items()
        }
        register_subject(world, Subject(**texts, rules=rules))
