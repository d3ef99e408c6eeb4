"""CSV and Markdown with names from untrusted sources."""

import csv
from pathlib import Path

import pytest

from groundling.evaluation.evaluate import as_code, in_markdown, markdown_table, write_csv


def test_names_are_no_formulas_and_no_markup(tmp_path: Path) -> None:
    formulas = ["=cmd|'/C calc'!A0", "+1+A1", "-1-A1", "@SUM(1)", "\t=1"]
    same = ["trained", "-1.5", "+3", "-1e-07", "-inf", "GoTo-v0", "a=b", "'=1", "a\n=1"]
    write_csv(tmp_path / "a.csv", ["=1", "agent"], [[*formulas, *same], [None, 1, -0.5, 1 / 3, "a\r=1", "\r=1"]])
    with (tmp_path / "a.csv").open(newline="") as file:
        rows = list(csv.reader(file))
    assert rows == [
        ["'=1", "agent"],
        [*(f"'{text}" for text in formulas), *same],
        ["", "1", "-0.5", "0.333333", "a\n=1", "'\n=1"],  # spreadsheets must respect the quotes
    ]
    theirs = "x |\r\n\n# Retracted\u2028<img src=x>`\x1b[2J![](http://host)"
    table = markdown_table(["test", theirs], [["**-0.250 [-0.500, 0.100]**", "pick_up – “it”"]])
    assert table.split("\n") == [
        "| test | x &#124;  # Retracted &lt;img src=x>&#96;�[2J![&#93;(http://host) |",
        "| --- | --- |",
        "| **-0.250 [-0.500, 0.100]** | pick_up – “it” |",
    ]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("![i][r]", "![i&#93;[r]"),
        ("[r]: javascript:x", "[r&#93;: javascript:x"),
        ("[l](u)", "[l&#93;(u)"),
        ("0.5 [0.4, 0.6]", "0.5 [0.4, 0.6]"),
    ],
)
def test_names_are_no_links_and_no_pictures(text: str, shown: str) -> None:
    assert in_markdown(text) == shown


@pytest.mark.parametrize(
    ("text", "code"),
    [("ppo", "`ppo`"), ("a|<b>\nc", "`a|<b> c`"), ("x `y`` z", "``` x `y`` z ```"), ("`", "`` ` ``"), ("", "`  `")],
)
def test_any_name_is_code(text: str, code: str) -> None:
    assert as_code(text) == code
