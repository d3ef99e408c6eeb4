"""Writing files so that they are whole or as they were."""

from pathlib import Path


def write_atomically(path: Path, text: str) -> None:
    """Write ``text`` beside ``path`` and rename it into place; on an error ``path`` stays as it was."""
    partial = path.with_name(path.name + ".partial")
    try:
        partial.write_text(text, encoding="utf-8")
        partial.replace(path)
    except OSError:
        partial.unlink(missing_ok=True)
        raise
