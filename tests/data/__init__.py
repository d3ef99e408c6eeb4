"""Cases recorded from the original GLAM code: states, prompts, resets, episodes."""

import gzip
import json
from pathlib import Path
from typing import Any


def golden(name: str) -> list[dict[str, Any]]:
    """Return the recorded cases called ``name``."""
    with gzip.open(Path(__file__).parent / f"{name}.jsonl.gz", "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]
