"""Messages and docstrings refer only to existing pages of the documentation."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TITLES = {
    line.removeprefix("# ").strip()
    for page in (ROOT / "docs").rglob("*.md")
    for line in page.read_text(encoding="utf-8").splitlines()
    if line.startswith("# ")
}
SOURCES = [path for path in (ROOT / "src").rglob("*.py") if "docs" in path.read_text(encoding="utf-8")]


def _texts(path: Path) -> Iterator[str]:
    """Yield the strings of a file, including the joined fixed parts of f-strings."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        parts = node.values if isinstance(node, ast.JoinedStr) else [node]
        text = "".join(p.value for p in parts if isinstance(p, ast.Constant) and isinstance(p.value, str))
        if text:
            yield text


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT / "src")))
def test_every_page_that_is_named_exists(path: Path) -> None:
    named = {title for text in _texts(path) for title in re.findall(r"'([^']+)' in the docs", text)}
    assert not {title for title in named if not any(t == title or t.startswith(f"{title}:") for t in TITLES)}
    files = {name for text in _texts(path) for name in re.findall(r"(?<![\w/])docs/[\w/]+\.md", text)}
    assert not {name for name in files if not (ROOT / name).is_file()}


def test_titles_in_messages_are_found() -> None:
    texts = [text for path in SOURCES for text in _texts(path)]
    assert sum("in the docs" in text for text in texts) >= 3
    assert sum(bool(re.search(r"'[^']+' in the docs", text)) for text in texts if "in the docs" in text) >= 3
