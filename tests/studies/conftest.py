"""The file of a tiny study; images are empty unless a test requests them."""

from pathlib import Path
from typing import Any

import pytest

from groundling.reports import plots
from tests.studies import STUDY


@pytest.fixture(autouse=True)
def _blank_pictures(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Save empty images, which saves seconds; tests that need images use `all_figures`."""

    def save(figure: Any, path: Path) -> None:
        for suffix in (".svg", ".png"):
            path.with_suffix(suffix).touch()

    if "all_figures" not in request.fixturenames:
        monkeypatch.setattr(plots, "save", save)


@pytest.fixture
def study(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.yaml"
    path.write_text(STUDY)
    return path
