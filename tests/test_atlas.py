"""docs/atlas.md is up to date, and its rows agree with the committed results."""

import csv

import pytest
from scripts.atlas import PAGE, page
from scripts.atlas_rows import ROOT, Row, rows


@pytest.fixture(scope="module")
def found() -> list[Row]:
    return rows()


def test_the_page_is_up_to_date(found: list[Row]) -> None:
    assert PAGE.read_text(encoding="utf-8") == page(found), "run python -m scripts.atlas"


def test_trained_arms_have_one_row_each(found: list[Row]) -> None:
    for summary in (ROOT / "results").rglob("summary.csv"):
        folder = summary.parent.relative_to(ROOT)
        if folder.name == "glam-tuning":
            continue
        with (summary.parent / "curves.csv").open() as file:
            arms = {line["arm"] for line in csv.DictReader(file)}
        assert sorted(one.arm for one in found if one.folder == folder) == sorted(arms)


def test_baselines_play_the_same_tasks(found: list[Row]) -> None:
    (eight,) = (one for one in found if one.folder.name == "demo-eight")
    with (ROOT / eight.folder / "evaluations.csv").open() as file:
        lines = {(line["arm"], line["suite"], line["task"]): line["success"] for line in csv.DictReader(file)}
    assert eight.baseline.startswith(f"random {float(lines['random', 'held-out', 'pickup']):.2f}")
