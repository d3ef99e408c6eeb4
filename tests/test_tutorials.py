"""The code in the tutorials and the README runs without changes from top to bottom, with fewer steps."""

import re
import shlex
import sys
import types
from collections.abc import Iterator
from pathlib import Path

import pytest

from groundling.cli.main import main
from groundling.worlds.text.config import TextConfig
from groundling.worlds.writing.config import WritingConfig
from tests.thorough import some_of

ROOT = Path(__file__).resolve().parents[1]
PAGES = [
    *sorted((ROOT / "docs" / "tutorials").glob("*.md")),
    ROOT / "docs" / "migration" / "trl.md",
    ROOT / "README.md",
]
_USUAL = [
    page
    for page in PAGES
    if page.stem not in ("conversation", "ground_a_model", "own_reward", "publish", "trl", "write_text")
]
_FEWER = {
    r"\bsteps=[\d_]+": "steps=8",
    r"\bepisodes=\d+": "episodes=1",
    r"--episodes \d+": "--episodes 1",
    r"--pairs \d+": "--pairs 12",
    r"\bepochs=5": "epochs=1",
    r"range\(400\)": "range(40)",
}
_NOT_RUN = ("pip ", "make ", "groundling ui")
"""Commands that install something, take long, or do not end."""
_FILES = {"digits.py": "def digits("}
"""The start of the block, by the file in which a page says to save it."""
_MODULES = {"doors": "Doors", "walker": "Walker", "my_rewards": "likes_keys"}
"""The contents, by the module that a page says to create."""


def blocks(page: Path) -> Iterator[tuple[str, str]]:
    """Yield the language and text of each block, with fewer steps."""
    for language, text in re.findall(r"^```(python|bash)\n(.*?)^```", page.read_text("utf-8"), re.M | re.S):
        for pattern, fewer in _FEWER.items():
            text = re.sub(pattern, fewer, text)
        yield language, text


def commands(text: str) -> Iterator[list[str]]:
    """Yield the command lines of a block, without those that are not run."""
    for line in text.replace("\\\n", " ").splitlines():
        if line.strip() and not line.startswith(_NOT_RUN) and "--upload" not in line:
            yield shlex.split(line, comments=True)


@pytest.fixture(autouse=True)
def _small_rollouts(monkeypatch: pytest.MonkeyPatch) -> None:
    small = {TextConfig: {"num_envs": 2, "num_steps": 4}, WritingConfig: {"num_texts": 2, "num_tokens": 4}}
    for config, defaults in small.items():
        for name, default in defaults.items():
            monkeypatch.setattr(config.model_fields[name], "default", default)


@pytest.mark.parametrize("page", some_of(PAGES, _USUAL), ids=lambda page: page.stem)
def test_a_tutorial_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    known: dict = {"__name__": page.stem}
    ran = 0
    for language, text in blocks(page):
        if language == "python":
            for name, what in _MODULES.items():
                if f"class {what}" in text:  # workers import it from a file
                    (tmp_path / f"{name}.py").write_text(text)
                    known["__name__"] = name
            for name, what in _FILES.items():
                if what in text:
                    (tmp_path / name).write_text(text)
            exec(compile(text, str(page), "exec"), known)
            ran += 1
            continue
        for words in commands(text):
            assert words[0] == "groundling", words
            for name, what in _MODULES.items():  # in this process, a page has already registered it
                if what in known:
                    module = types.ModuleType(name)
                    vars(module).update(known)
                    monkeypatch.setitem(sys.modules, name, module)
            if words[1] == "train" and not any("training." in word for word in words):
                words.append("training.epochs=1" if words[2] in ("dpo", "kto") else "training.steps=8")
            if words[1] == "evaluate" and "--episodes" not in words:
                words += ["--episodes", "1"]
            assert main(words[1:]) == 0, words
            ran += 1
    assert ran > 0


def test_the_readmes_code_is_short() -> None:
    (block,) = (text for language, text in blocks(ROOT / "README.md") if language == "python")
    assert len(block.splitlines()) <= 10


@pytest.mark.parametrize("name", ["policy", "judge", "writer"])
def test_a_notebook_is_its_tutorial(name: str) -> None:
    notebooks = pytest.importorskip("scripts.notebooks")
    written = (ROOT / "notebooks" / f"{name}.ipynb").read_text(encoding="utf-8")
    assert written == notebooks.notebook(notebooks.NOTEBOOKS[name]), "python -m scripts.notebooks"
    assert '"groundling ui' not in written  # a cell that would never end
