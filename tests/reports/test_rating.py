"""Rating forms: no generated text is interpreted as markup or a formula, and answers are assigned to their systems."""

import csv
import json
import math
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from groundling.cli.main import main
from groundling.envs.text_generation import Sample
from groundling.errors import ConfigError, GroundlingError
from groundling.reports.rating import krippendorff_alpha, rating_tasks, read_answers, write_form
from groundling.worlds.writing.measures import MeasuredTexts, write_rows

NASTY = "</p><script>alert(\"x\")</script> & 'q' {{ 7*7 }} ä\n2nd line"


class Page(HTMLParser):
    """The tags of a page, the texts of its paragraphs, and its inputs."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.texts: list[str] = []
        self.inputs: list[dict[str, Any]] = []
        self.links: list[str] = []
        self._inside = False
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        named = dict(attrs)
        self.links += [str(named[name]) for name in ("href", "src") if name in named]
        if tag == "input":
            self.inputs.append(named)
        if tag == "p" and "text" in (named.get("class") or "").split():
            self._inside = True
            self.texts.append("")

    def handle_endtag(self, tag: str) -> None:
        if tag == "p":
            self._inside = False

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.texts[-1] += data


def _predictions(folder: Path, system: str, count: int = 6, **fields: str) -> Path:
    path = folder / f"{system}.jsonl"
    rows = [
        {
            "id": f"val_{n}",
            "prompt": f"prompt {n}",
            "generation": f"{system} wrote {n}",
            "references": ["r"],
            "metrics": {"meteor": 0.1},
        }
        | fields
        for n in range(count)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def _key(folder: Path) -> Any:
    return json.loads((folder / "key.json").read_text())


def _sheet(folder: Path) -> list[dict[str, str]]:
    with (folder / "sheet.csv").open(encoding="utf-8-sig", newline="") as file:
        return list(csv.DictReader(file))


def _answer(folder: Path, path: Path, rater: str, answer: Any) -> Path:
    """Fill the sheet with `answer(item in the key, question)`."""
    rows = _sheet(folder)
    items = {item["id"]: item for item in _key(folder)["items"]}
    for row in rows:
        row["rater"] = rater
        for question in rating_tasks()[_key(folder)["task"]]["questions"]:
            row[question["id"]] = answer(items[row["item"]], question["id"])
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    return path


@pytest.mark.parametrize("task", sorted(rating_tasks()))
@pytest.mark.parametrize("kind", ["likert", "pairwise"])
def test_each_task_has_both_forms(task: str, kind: Any, tmp_path: Path) -> None:
    predictions = {name: _predictions(tmp_path, name) for name in ("ppo", "nlpo")}
    page = Page(write_form(kind, predictions, tmp_path / "form", task, num_samples=3))
    items = 6 if kind == "likert" else 3
    questions = len(rating_tasks()[task]["questions"])
    assert page.tags["section"] == len(_sheet(tmp_path / "form")) == items
    assert Counter(i["name"] for i in page.inputs if i["type"] == "radio") == {
        f"{item['id']}.{question['id']}": 5 if kind == "likert" else 3
        for item in _key(tmp_path / "form")["items"]
        for question in rating_tasks()[task]["questions"]
    }
    assert page.tags["fieldset"] == items * questions
    assert not page.links and page.tags["link"] == page.tags["img"] == 0  # self-contained


def test_texts_are_shown_unchanged(tmp_path: Path) -> None:
    predictions = {
        "one": _predictions(tmp_path, "one", 2, generation=NASTY, prompt="<b>prompt</b>"),
        "two": _predictions(tmp_path, "two", 2, generation="=HYPERLINK(1)", prompt="<b>prompt</b>"),
    }
    folder = tmp_path / "form"
    page = Page(write_form("pairwise", predictions, folder, num_samples=2))
    assert page.tags["script"] == 1 and page.tags["b"] == 0
    assert Counter(page.texts) == {"<b>prompt</b>": 2, NASTY: 2, "=HYPERLINK(1)": 2}
    cells = [row[name] for row in _sheet(folder) for name in ("text_A", "text_B")]
    assert Counter(cells) == {NASTY: 2, "'=HYPERLINK(1)": 2}


def test_raters_cannot_tell_the_systems(tmp_path: Path) -> None:
    predictions = {name: _predictions(tmp_path, name, 40, generation="same") for name in ("ppo", "nlpo")}
    kinds: Any = ("likert", "pairwise")
    for kind in kinds:
        folder = tmp_path / kind
        form = write_form(kind, predictions, folder, num_samples=40)
        assert "ppo" not in form.read_text() and "ppo" not in (folder / "sheet.csv").read_text()
        first = [item["systems"][0] for item in _key(folder)["items"]]
        assert 10 < sum(system == "ppo" for system in first[:40]) < 30  # the same system is neither always nor never A


def test_pairs_show_the_text_of_the_system_that_the_key_names(tmp_path: Path) -> None:
    predictions = {name: _predictions(tmp_path, name) for name in ("ppo", "nlpo")}
    write_form("pairwise", predictions, tmp_path / "form", num_samples=6)
    for item, row in zip(_key(tmp_path / "form")["items"], _sheet(tmp_path / "form"), strict=True):
        number = item["sample"].removeprefix("val_")
        assert row["prompt"] == f"prompt {number}"
        assert (row["text_A"], row["text_B"]) == tuple(f"{name} wrote {number}" for name in item["systems"])


def test_likert_answers_come_back_to_their_systems(tmp_path: Path) -> None:
    folder = tmp_path / "form"
    write_form("likert", {name: _predictions(tmp_path, name) for name in ("ppo", "nlpo")}, folder, num_samples=6)

    def strict(item: Any, question: str) -> str:
        return "" if question == "fluency" else "4" if item["systems"] == ["ppo"] else "2"

    def lenient(item: Any, question: str) -> str:
        return "5" if item["systems"] == ["ppo"] else "2"

    answers = [
        _answer(folder, tmp_path / "ann.csv", "Ann", strict),
        _answer(folder, tmp_path / "bob.csv", "Bob", lenient),
    ]
    ratings = {(r.question, r.system): r for r in read_answers(folder, answers)}
    assert {place: (r.mean, r.num_answers) for place, r in ratings.items()} == {
        ("quality", "ppo"): (4.5, 12),
        ("quality", "nlpo"): (2.0, 12),
        ("fluency", "ppo"): (5.0, 6),
        ("fluency", "nlpo"): (2.0, 6),
    }
    # Coincidences: twelve 2s, six 4s and six 5s; 2 always agrees, 4 and 5 meet six times in each direction. The
    # squared ranks between 4 and 5 are 6² = 36, between 2 and 4 9² = 81, between 2 and 5 15² = 225.
    observed = 2 * 6 * 36
    expected = 2 * (12 * 6 * 81 + 12 * 6 * 225 + 6 * 6 * 36) / 23
    assert ratings["quality", "ppo"].agreement == pytest.approx(1 - observed / expected)
    assert math.isnan(ratings["fluency", "ppo"].agreement)  # one rater


def test_pairwise_answers_count_wins_on_either_side(tmp_path: Path) -> None:
    folder = tmp_path / "form"
    write_form("pairwise", {name: _predictions(tmp_path, name, 8) for name in ("ppo", "nlpo")}, folder, num_samples=8)

    def prefers_ppo(item: Any, question: str) -> str:
        return "AB"[item["systems"].index("ppo")]

    def undecided(item: Any, question: str) -> str:
        return "tie"

    answers = [
        _answer(folder, tmp_path / "a.csv", "Ann", prefers_ppo),
        _answer(folder, tmp_path / "b.csv", "Bob", prefers_ppo),
        _answer(folder, tmp_path / "c.csv", "Cem", undecided),
    ]
    won = {r.system: r for r in read_answers(folder, answers) if r.question == "quality"}
    assert won["ppo"].mean == pytest.approx((16 + 4) / 24) and won["nlpo"].mean == pytest.approx(4 / 24)
    agreeing = {r.system: r for r in read_answers(folder, answers[:2]) if r.question == "quality"}
    assert (agreeing["ppo"].mean, agreeing["ppo"].num_answers) == (1.0, 16)


def test_the_command_writes_forms_and_reads_answers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [f"{name}={_predictions(tmp_path, name)}" for name in ("ppo", "nlpo")]
    folder = tmp_path / "form"
    assert main(["rate", str(folder), *files, "--pairwise", "--task", "imdb", "--samples", "3"]) == 0
    assert str(folder.resolve() / "form.html") in capsys.readouterr().out
    answers = [str(_answer(folder, tmp_path / f"{rater}.csv", rater, lambda *_: "A")) for rater in "xy"]
    assert main(["rate", str(folder), "--answers", *answers]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:3] for line in lines[1:3]] == [["sentiment", "nlpo", "6"], ["sentiment", "ppo", "6"]]
    assert sum(float(line.split()[3]) for line in lines[1:3]) == pytest.approx(1, abs=2e-3)
    for vain in (["--pairwise"], files):
        assert main(["rate", str(folder), *vain, "--answers", *answers]) == 1
        assert "remove --pairwise and SYSTEM=FILE" in capsys.readouterr().err
    assert main(["rate", str(tmp_path / "other"), "ppo"]) == 1
    assert "as in ppo=predictions.jsonl" in capsys.readouterr().err


def test_predictions_of_runs_with_any_text_are_read(tmp_path: Path) -> None:
    """This includes repeated prompts, and texts with line ends that Unicode recognises but JSONL does not."""
    samples = [Sample(f"val_{n}", "the same prompt", ("r",)) for n in range(3)]
    texts = ["one\u2028line", "one\x85line", "one\x0bline"]
    files = {name: tmp_path / f"{name}.jsonl" for name in ("ppo", "nlpo")}
    for path in files.values():
        write_rows(path, MeasuredTexts(samples, texts, None, {}).rows())
    page = Page(write_form("pairwise", files, tmp_path / "form", num_samples=3))
    assert {item["sample"] for item in _key(tmp_path / "form")["items"]} == {"val_0", "val_1", "val_2"}
    assert Counter(page.texts) == {"the same prompt": 3} | dict.fromkeys(texts, 2)


def test_a_draw_is_repeatable_and_only_of_common_samples(tmp_path: Path) -> None:
    predictions = {"ppo": _predictions(tmp_path, "ppo", 9), "nlpo": _predictions(tmp_path, "nlpo", 7)}
    pages = []
    for number, seed in enumerate((0, 0, 1)):
        folder = tmp_path / str(number)
        pages.append(write_form("likert", predictions, folder, num_samples=5, seed=seed).read_text())
        assert {item["sample"] for item in _key(folder)["items"]} <= {f"val_{n}" for n in range(7)}
    assert pages[0] == pages[1] != pages[2]


def test_bad_predictions_are_reported(tmp_path: Path) -> None:
    good = _predictions(tmp_path, "ppo")
    form = tmp_path / "form"
    with pytest.raises(ConfigError, match="num_samples=50: expected 1 to 6"):
        write_form("likert", {"ppo": good}, form)
    with pytest.raises(ConfigError, match="two systems and their predictions, got ppo"):
        write_form("pairwise", {"ppo": good}, form)
    with pytest.raises(ConfigError, match=r"unknown rating task 'imbd'.*imdb"):
        write_form("likert", {"ppo": good}, form, "imbd")  # reported before the number of samples
    broken = tmp_path / "broken.jsonl"
    broken.write_text('{"prompt": "a"}\n')
    with pytest.raises(GroundlingError, match=r"broken\.jsonl:1 .*prompt and generation"):
        write_form("likert", {"ppo": broken}, form)
    broken.write_text('{"prompt": "a", "generation": "b"}\n' * 2)
    with pytest.raises(GroundlingError, match=r"broken\.jsonl:2: sample 'a' occurs twice"):
        write_form("likert", {"ppo": broken}, form)
    broken.write_text('{"prompt": "a", "generation": "b"}\n')
    with pytest.raises(GroundlingError, match="ppo, x have no sample in common"):
        write_form("pairwise", {"ppo": good, "x": broken}, form, num_samples=1)
    other = _predictions(tmp_path, "other", prompt="of another pool")
    with pytest.raises(GroundlingError, match="ppo and other have different prompts for sample 'val_0'"):
        write_form("pairwise", {"ppo": good, "other": other}, form, num_samples=2)
    broken.write_bytes('{"prompt": "a", "generation": "Bär"}\n'.encode("latin-1"))
    with pytest.raises(
        GroundlingError, match=r"broken\.jsonl:1 is not UTF-8 \(it has the byte 0xe4\): save it as UTF-8"
    ):
        write_form("likert", {"x": broken}, form, num_samples=1)
    assert not form.exists()
    write_form("likert", {"ppo": good}, form, num_samples=2)
    with pytest.raises(ConfigError, match="already contains a form"):
        write_form("likert", {"ppo": good}, form, num_samples=2)


def test_bad_answers_are_reported(tmp_path: Path) -> None:
    folder = tmp_path / "form"
    write_form("likert", {"ppo": _predictions(tmp_path, "ppo")}, folder, num_samples=6)
    answers = tmp_path / "answers.csv"
    for text, message in (
        ("item,quality\nitem0000,3\n", "unknown column 'rater'"),
        ("rater,item,quality\nAnn,item0000,6\n", "row 1: quality is '6', expected one of 1, 2, 3, 4, 5"),
        ("rater,item,quality\nAnn,item9999,3\n", "row 1: there is no item 'item9999'"),
        ("rater,item,quality\nAnn,item0000,3\nAnn,item0000,3\n", "row 2: rater 'Ann' answered item0000 twice"),
    ):
        answers.write_text(text)
        with pytest.raises(GroundlingError, match=message):
            read_answers(folder, [answers])
    answers.write_bytes("rater,item,quality\nJürgen,item0000,3\n".encode("latin-1"))
    with pytest.raises(GroundlingError, match=r"answers\.csv is not UTF-8 \(it has the byte 0xfc\)"):
        read_answers(folder, [answers])
    with pytest.raises(ConfigError, match=r"key\.json cannot be read"):
        read_answers(tmp_path, [answers])


def test_a_spreadsheet_keeps_the_sheets_cells(tmp_path: Path) -> None:
    """Excel reads a file as UTF-8 if it has a byte order mark, and texts may exceed the csv module's limit."""
    folder, long = tmp_path / "form", "ä" * 200_000
    write_form("likert", {"ppo": _predictions(tmp_path, "ppo", 1, generation=long)}, folder, num_samples=1)
    sheet = (folder / "sheet.csv").read_bytes()
    assert sheet.startswith(b"\xef\xbb\xbfrater,item,")
    answers = tmp_path / "answers.csv"
    answers.write_bytes(sheet.replace(b"\r\n,item0000", b"\r\nJ\xc3\xbcrgen,item0000").replace(b",,\r\n", b",5,\r\n"))
    csv.field_size_limit(131_072)  # as in a new process
    quality = read_answers(folder, [answers])[0]
    assert (quality.question, quality.mean) == ("quality", 5)


# Krippendorff 2011, section C: four observers and twelve units, some of which not all observers have seen.
_TABLE = [
    [1, 2, 3, 3, 2, 1, 4, 1, 2, None, None, None],
    [1, 2, 3, 3, 2, 2, 4, 1, 2, 5, None, 3],
    [None, 3, 3, 3, 2, 3, 4, 2, 2, 5, 1, None],
    [1, 2, 3, 3, 2, 4, 4, 1, 2, 5, 1, None],
]


@pytest.mark.parametrize(("level", "alpha"), [("nominal", 0.743), ("ordinal", 0.815)])
def test_alpha_of_the_published_example(level: Any, alpha: float) -> None:
    units = [[value for value in unit if value is not None] for unit in zip(*_TABLE, strict=True)]
    assert krippendorff_alpha(units, level) == pytest.approx(alpha, abs=5e-4)


@given(
    units=st.lists(st.lists(st.integers(1, 5), min_size=2, max_size=4), min_size=1, max_size=12),
    seed=st.integers(0, 99),
)
def test_alpha_is_invariant_to_order_and_scale(units: list[list[int]], seed: int) -> None:
    shuffled = [list(np.random.default_rng(seed).permutation(unit)) for unit in units[::-1]]
    for level in ("nominal", "ordinal"):
        alpha = krippendorff_alpha(units, level)  # type: ignore[arg-type]
        again = krippendorff_alpha(shuffled, level)  # type: ignore[arg-type]
        stretched = krippendorff_alpha([[value**3 for value in unit] for unit in units], level)  # type: ignore[arg-type]
        assert again == pytest.approx(alpha, nan_ok=True) and stretched == pytest.approx(alpha, nan_ok=True)
        assert math.isnan(alpha) or alpha <= 1


def test_alpha_of_agreement_chance_and_nothing() -> None:
    assert krippendorff_alpha([[1, 1], [2, 2, 2]], "nominal") == 1
    assert krippendorff_alpha([["x", "y"], ["y", "x"]], "nominal") == pytest.approx(1 - 1 / (8 / 12))
    for nothing in ([], [[1]], [[1, 1], [1, 1]]):
        assert math.isnan(krippendorff_alpha(nothing, "ordinal"))
