"""What `groundling ui` shows, to whom, and what it does not."""

import html
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

testclient = pytest.importorskip("starlette.testclient")
app = pytest.importorskip("groundling.ui.app")

ADDRESS = "http://127.0.0.1:8000"
TOKEN = "a-token"


@pytest.fixture(scope="module")
def client(roots: list[Path]) -> Iterator:
    with testclient.TestClient(app.make_app(roots, TOKEN), base_url=ADDRESS) as client:
        assert client.get(f"/?token={TOKEN}").status_code == 200
        yield client


def test_only_who_has_the_token_is_let_in(roots: list[Path]) -> None:
    asked = testclient.TestClient(app.make_app(roots, TOKEN), base_url=ADDRESS, follow_redirects=False)
    for path in ("/", "/?token=another", "/static/ui.css", "/metrics?id=runs/reader"):
        answer = asked.get(path)
        assert answer.status_code == 403 and "runs" not in answer.text.replace("`groundling ui`", "")
    asked.cookies.set("groundling", "another")
    assert asked.get("/").status_code == 403
    answer = asked.get(f"/compare?run=a&token={TOKEN}&run=b")
    assert (answer.status_code, answer.headers["location"]) == (303, "/compare?run=a&run=b")
    assert (
        "HttpOnly" in answer.headers["set-cookie"]
        and "samesite=strict" in answer.headers["set-cookie"].lower()
    )


def test_another_pages_name_for_this_machine_is_refused(roots: list[Path]) -> None:
    asked = testclient.TestClient(app.make_app(roots, TOKEN), base_url="http://evil.example")
    assert asked.get(f"/?token={TOKEN}").status_code == 400


def test_answers_forbid_scripts_of_others(client) -> None:
    policy = client.get("/").headers["content-security-policy"]
    assert "default-src 'self'" in policy and "script-src" not in policy and "unsafe-eval" not in policy


@pytest.mark.parametrize(
    "path",
    [
        "/run?id=../etc",
        "/run?id=runs/..",
        "/run?id=runs/reader/checkpoints",
        "/run?id=data/pairs",
        "/metrics?id=/etc/passwd",
        "/metrics?id=runs/reader&after=-1",
        "/metrics?id=runs/reader&after=1e3",
        "/episode?id=runs/reader&suite=held-out&number=99",
        "/episode?id=runs/reader&suite=nowhere&number=0",
        "/judge?id=data/pairs&label=perhaps",
        "/picture?id=results/made&name=../made/README.md",
        "/picture?id=results/made&name=README.md",
        "/picture?id=results/made&name=elsewhere.svg",
        "/static/../app.py",
        "/static/%2e%2e/app.py",
        "/compare",
        "/nothing",
    ],
)
def test_nothing_else_is_opened(client, path: str) -> None:
    answer = client.get(path)
    assert answer.status_code == 404 and "root:" not in answer.text


def test_all_that_is_there_is_listed(client) -> None:
    page = client.get("/").text
    for id in ("runs/reader", "runs/writer", "data/pairs", "results/made"):
        assert f">{id}<" in page


def test_a_broken_run_is_listed_with_what_is_wrong(roots: list[Path], client) -> None:
    broken = roots[0] / "broken"
    broken.mkdir()
    (broken / "config.yaml").write_text("name: [<b>")
    (broken / "metrics.jsonl").write_text("")
    try:
        page = client.get("/").text
        assert "runs/broken" in page and 'class="problem"' in page and "<b>" not in page
        assert client.get("/run?id=runs/broken").status_code == 422
    finally:
        for path in broken.iterdir():
            path.unlink()
        broken.rmdir()


def test_a_run_in_an_env_that_is_not_here_shows_its_figures(roots: list[Path], client) -> None:
    elsewhere = roots[0] / "elsewhere"
    shutil.copytree(roots[0] / "reader", elsewhere)
    settings = (elsewhere / "config.yaml").read_text()
    (elsewhere / "config.yaml").write_text(settings.replace("BabyAI-MixedTrainLocal-v0", "Lift-v0"))
    try:
        assert "Lift-v0" in client.get("/").text and 'class="problem"' not in client.get("/").text
        page = client.get("/run?id=runs/elsewhere")
        assert page.status_code == 200 and "All figures: held-out" in page.text
        moments = client.get("/episode?id=runs/elsewhere&suite=held-out&number=0")
        assert moments.status_code == 200 and "You see" in moments.text  # as recorded, without pictures
        assert "&#34;picture&#34;: null" in moments.text or '"picture": null' in moments.text
    finally:
        shutil.rmtree(elsewhere)


def test_metrics_go_on_from_where_they_were(client) -> None:
    whole = client.get("/metrics?id=runs/reader").json()
    assert [row["step"] for row in whole["rows"]] == [16, 32] and whole["live"] is False
    assert client.get("/metrics?id=runs/reader&after=1").json()["rows"] == whole["rows"][1:]


def test_a_figure_that_never_changes_is_drawn_last(roots: list[Path], client) -> None:
    still = roots[0] / "still"
    shutil.copytree(roots[0] / "reader", still)
    rows = [json.loads(line) for line in (still / "metrics.jsonl").read_text().splitlines()]
    rows = [row | {"aaa": 0, "zzz": number} for number, row in enumerate(rows)]
    (still / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    try:
        (drawn,) = re.findall(r"data-figures='([^']*)'", client.get("/run?id=runs/still").text)
    finally:
        shutil.rmtree(still)
    figures = json.loads(html.unescape(drawn))
    assert figures.index("zzz") < figures.index("aaa") and figures[0] == "success_rate"


def test_judges_are_counted_filtered_and_compared(client) -> None:
    def matching(**asked: str) -> int:
        query = "&".join(f"{key}={value}" for key, value in asked.items())
        text = client.get(f"/judge?id=data/pairs&{query}").text
        return int(text.partition('id="matching">')[2].partition(" pairs")[0])

    by_label = [matching(judge="chance", label=label) for label in ("first", "second", "tie", "none")]
    assert matching(judge="chance") == sum(by_label) == 30
    disagreeing = matching(judge="chance", against="returns")
    assert 0 < disagreeing <= 30 and matching(judge="returns", against="chance") == disagreeing
    assert matching(judge="chance", words="you see") > 0 == matching(judge="chance", words="nowhere")
    assert client.get("/judge?id=data/pairs&judge=nobody").status_code == 422
    assert client.get("/judge?id=data/pairs&first=20").text.count("<article") == 10


def test_what_is_shown_of_files_is_text(client) -> None:
    page = client.get("/study?id=results/made").text
    assert "&lt;script&gt;" in page and "<script>alert" not in page
    answer = client.get("/picture?id=results/made&name=curve.svg")
    assert answer.headers["content-security-policy"].startswith("sandbox")
