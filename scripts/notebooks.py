"""Notebooks of the tutorials, one for each role: ``python -m scripts.notebooks``; a test compares them."""

from pathlib import Path

import jupytext

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = {"policy": "ground_a_model", "judge": "judge", "writer": "write_text"}
"""By the notebook's name, the tutorial that it is made of."""


_KERNEL = "---\njupyter:\n  kernelspec: {name: python3, display_name: Python 3, language: python}\n---\n\n"
_FILES = {"class Walker(": "walker.py"}
"""By what a cell has in it, the file that its page tells to save it as."""


def notebook(tutorial: str) -> str:
    """A tutorial as a notebook's JSON."""
    text = (ROOT / "docs" / "tutorials" / f"{tutorial}.md").read_text(encoding="utf-8")
    page = jupytext.reads(_KERNEL + text, fmt="md")
    for number, cell in enumerate(page.cells):
        cell["id"] = str(number)  # which is drawn otherwise
        for part, file in _FILES.items():
            if cell.cell_type == "code" and part in cell.source:
                cell.source = f"%%writefile {file}\n{cell.source}"
    page.metadata.pop("jupytext", None)
    return str(jupytext.writes(page, fmt="ipynb")).rstrip() + "\n"


def main() -> None:
    for name, tutorial in NOTEBOOKS.items():
        (ROOT / "notebooks" / f"{name}.ipynb").write_text(notebook(tutorial), encoding="utf-8")


if __name__ == "__main__":
    main()
