"""Write the tutorials as notebooks, one per role: ``python -m scripts.notebooks``; a test keeps them up to date.

``python -m scripts.notebooks --run`` executes the notebooks, each in an empty folder and a new kernel.
"""

import argparse
import os
import re
import sys
import tempfile
import time
from pathlib import Path

import jupytext

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = {"policy": "ground_a_model", "judge": "judge", "writer": "write_text"}
"""The tutorial of each notebook."""


_KERNEL = "---\njupyter:\n  kernelspec: {name: python3, display_name: Python 3, language: python}\n---\n\n"
_FILES = {"class Walker(": "walker.py", "def digits(": "digits.py"}
"""The file in which a cell is saved, by a substring of the cell's text."""


def notebook(tutorial: str) -> str:
    """Convert a tutorial to the JSON of a notebook."""
    text = (ROOT / "docs" / "tutorials" / f"{tutorial}.md").read_text(encoding="utf-8")
    page = jupytext.reads(_KERNEL + text, fmt="md")
    for number, cell in enumerate(page.cells):
        cell["id"] = str(number)  # ids are random by default
        # Without -e, a cell fails only if its last command fails.
        cell.source = re.sub(r"^%%bash$", "%%bash -e", cell.source, flags=re.M)
        for part, file in _FILES.items():
            if cell.cell_type == "code" and part in cell.source:
                cell.source = f"%%writefile {file}\n{cell.source}"
    page.metadata.pop("jupytext", None)
    return str(jupytext.writes(page, fmt="ipynb")).rstrip() + "\n"


def run(name: str) -> None:
    """Execute a notebook.

    Raises:
        nbclient.exceptions.CellExecutionError: If a cell fails.
    """
    import nbclient
    import nbformat

    page = nbformat.read(ROOT / "notebooks" / f"{name}.ipynb", as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        nbclient.NotebookClient(page, timeout=3600, resources={"metadata": {"path": folder}}).execute()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--run", action="store_true", help="execute the notebooks instead of writing them")
    if parser.parse_args().run:
        commands = Path(sys.executable).parent  # contains the command `groundling`, which cells call
        os.environ["PATH"] = f"{commands}{os.pathsep}{os.environ['PATH']}"
        for name in NOTEBOOKS:
            start = time.monotonic()
            run(name)
            print(f"notebooks/{name}.ipynb ran in {(time.monotonic() - start) / 60:.1f} min", flush=True)
        return
    for name, tutorial in NOTEBOOKS.items():
        (ROOT / "notebooks" / f"{name}.ipynb").write_text(notebook(tutorial), encoding="utf-8")


if __name__ == "__main__":
    main()
