"""Pages, access control and limits of `groundling ui`."""

import html
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from groundling.reports.ui import folders
from groundling.reports.ui.folders import find_folders
from tests.thorough import one_in

testclient = pytest.importorskip("starlette.testclient")
app = pytest.importorskip("groundling.reports.ui.app")

ADDRESS = "http://127.0.0.1:8000"
TOKEN = "a-token"


@pytest.fixture(scope="module")
def client(roots: list[Path]) -> Iterator:
    with testclient.TestClient(app.make_app(roots, TOKEN), base_url=ADDRESS) as client:
        assert client.get(f"/?token={TOKEN}").status_code == 200
        yield client


def test_requests_need_the_token(roots: list[Path]) -> None:
    asked = testclient.TestClient(app.make_app(roots, TOKEN), base_url=ADDRESS, follow_redirects=False)
    for path in ("/", "/?token=another", "/static/ui.css", "/metrics?id=runs/reader"):
        answer = asked.get(path)
        assert answer.status_code == 403 and "runs" not in answer.text.replace("`groundling ui`", "")
    answer = asked.get(f"/compare?run=a&token={TOKEN}&run=b")
    (name,) = asked.cookies
    asked.cookies.clear()
    asked.cookies.set(name, "another")
    assert asked.get("/").status_code == 403
    assert (answer.status_code, answer.headers["location"]) == (303, "/compare?run=a&run=b")
    assert "HttpOnly" in answer.headers["set-cookie"] and "samesite=strict" in answer.headers["set-cookie"].lower()


def test_other_names_of_this_machine_are_refused(roots: list[Path]) -> None:
    asked = testclient.TestClient(app.make_app(roots, TOKEN), base_url="http://evil.example")
    assert asked.get(f"/?token={TOKEN}").status_code == 400


def test_answers_forbid_foreign_scripts(client) -> None:
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
        "/metrics?id=runs/reader&rows=-1",
        "/metrics?id=runs/reader&rows=1e3",
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
def test_nothing_outside_of_the_roots_is_opened(client, path: str) -> None:
    answer = client.get(path)
    assert answer.status_code == 404 and "root:" not in answer.text


def test_all_folders_are_listed(client) -> None:
    page = client.get("/").text
    for id in ("runs/reader", "runs/writer", "data/pairs", "results/made"):
        assert f">{id}<" in page


def test_runs_have_columns_to_filter_and_values_to_sort_by(client) -> None:
    page = client.get("/").text
    for column in ("state", "seed", "model", "world", "policy", "algorithm"):
        assert f"<th data-filter>{column}</th>" in page
    (row,) = [one for one in page.split("<tr>") if "/run?id=runs/reader" in one]
    cells = re.findall(r"<td[^>]*>(.*?)</td>", row.replace("\n", ""))
    assert cells[2:8] == ["finished", "1", "starter-causal", "BabyAI-MixedTrainLocal-v0", "action_scoring", "ppo"]
    assert 'data-value="32"' in row


def test_settings_that_differ_are_compared(client) -> None:
    page = client.get("/compare?run=runs/reader&run=runs/writer").text
    table = page.partition("Settings that differ")[2].partition("</table>")[0]
    rows = dict(re.findall(r"<tr><td>([\w.]+)</td>(.*?)</tr>", table))
    assert re.findall(r">([^<]+)<", rows["policy.id"]) == ["action_scoring", "token"]
    assert re.findall(r">([^<]+)<", rows["world.pool"])[0] == "–"  # the text world has no pool
    assert "run_dir" not in rows and "seed" not in rows
    same = client.get("/compare?run=runs/reader&run=runs/reader").text
    assert "<p>None.</p>" in same


def test_any_episode_is_shown(client) -> None:
    rows = client.get("/run?id=runs/reader").text.partition('id="held-out"')[2].split("<tr>")[2:]
    kept = [re.findall(r"<td>(recorded|replayable)</td>", row)[0] for row in rows]
    assert kept == ["recorded"] * 4 + ["replayable"] * 2
    numbers = [int(re.findall(r'<td class="number">(\d+)</td>', row)[0]) for row in rows]
    assert sorted(numbers) == list(range(6))
    for number in (0, 5):
        page = client.get(f"/episode?id=runs/reader&suite=held-out&number={number}").text
        moments = json.loads(html.unescape(page.partition("data-moments='")[2].partition("'>")[0]))
        assert moments and all(one["action"] and one["lines"] and one["picture"] for one in moments)
        assert all(bool(one["probabilities"]) == bool(one["prompt"]) == (number == 0) for one in moments)


def test_a_run_in_an_unavailable_env_shows_its_figures(roots: list[Path], client) -> None:
    elsewhere = roots[0] / "elsewhere"
    shutil.copytree(roots[0] / "reader", elsewhere)
    settings = (elsewhere / "config.yaml").read_text()
    (elsewhere / "config.yaml").write_text(settings.replace("BabyAI-MixedTrainLocal-v0", "Lift-v0"))
    try:
        assert "Lift-v0" in client.get("/").text and 'class="problem"' not in client.get("/").text
        page = client.get("/run?id=runs/elsewhere")
        assert page.status_code == 200 and "All metrics: held-out" in page.text
        moments = client.get("/episode?id=runs/elsewhere&suite=held-out&number=0")
        assert moments.status_code == 200 and 'id="replay"' in moments.text
        replayed = client.get("/episode?id=runs/elsewhere&suite=held-out&number=5")
        assert (
            replayed.status_code == 422 and "cannot be replayed here" in replayed.text and "Lift-v0" in replayed.text
        )
    finally:
        shutil.rmtree(elsewhere)


def test_curves_are_sent_once_and_for_requested_figures(client) -> None:
    whole = client.get("/metrics?id=runs/reader&rows=0&figure=entropy&figure=nothing").json()
    assert (whole["rows"], whole["live"]) == (2, False) and list(whole["curves"]) == ["entropy"]
    assert whole["curves"]["entropy"]["x"] == [16, 32]
    again = client.get("/metrics?id=runs/reader&rows=2&figure=entropy").json()
    assert again == {"rows": 2, "curves": None, "live": False}


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


def test_files_are_shown_as_text(client) -> None:
    page = client.get("/study?id=results/made").text
    assert "&lt;script&gt;" in page and "<script>alert" not in page
    assert '<div class="scroll"><table>' in page and "<td>ones</td>" in page.partition("summary.csv")[0]
    assert page.count("<img") == 1 and 'src="/picture?id=results%2Fmade&amp;name=curve.svg"' in page
    answer = client.get("/picture?id=results/made&name=curve.svg")
    assert answer.headers["content-security-policy"].startswith("sandbox")


def test_two_instances_have_their_own_cookies(roots: list[Path]) -> None:
    """Browsers send cookies to every port of a host."""
    browser: dict[str, str] = {}
    instances = [(testclient.TestClient(app.make_app(roots, t), base_url=ADDRESS), t) for t in ("one", "two")]
    for instance, token in instances:
        assert instance.get(f"/static/ui.css?token={token}").status_code == 200
        browser |= dict(instance.cookies)
    for instance, _ in instances:
        instance.cookies.clear()
        instance.cookies.update(browser)
        assert instance.get("/static/ui.css").status_code == 200


@pytest.fixture
def shown(roots: list[Path], tmp_path: Path) -> Iterator:
    """Yield a folder for damaged files, next to a complete run, and its pages."""
    home = tmp_path / "home"
    shutil.copytree(roots[0] / "reader", home / "whole")
    with testclient.TestClient(app.make_app([home], TOKEN), base_url=ADDRESS) as client:
        assert client.get(f"/static/ui.css?token={TOKEN}").status_code == 200
        yield home, client


def _damage(name: str, to: str | bytes, find: str = "") -> Callable[[Path], None]:
    def change(run: Path) -> None:
        path = run / name
        content = path.read_bytes() if find else b""
        new = to if isinstance(to, bytes) else to.encode()
        path.write_bytes(re.sub(find.encode(), new, content) if find else new)

    return change


@pytest.mark.parametrize(
    ("change", "problem"),
    one_in(
        3,
        [
            (_damage("metrics.jsonl", r'"entropy": "high"', r'"entropy": [^,}]*'), "entropy=&#39;high&#39; in update"),
            (_damage("metrics.jsonl", r'"return_mean": [1]', r'"return_mean": [^,}]*'), "return_mean=[1] in update"),
            (_damage("metrics.jsonl", b"\xff\n"), "is not a row of metrics"),
            (_damage("config.yaml", b"name: \xff"), "config.yaml"),
            (_damage("config.yaml", "name: [<b>"), "config.yaml"),
            (_damage("samples/held-out.json", '[{"overrides": [], "task": 5, "success": {}}]'), None),
            (
                _damage("evaluation/held-out.json", '{"agents": {"a": {"figures": {"x": {"value": "many"}}}}}'),
                "cannot be read by this version",
            ),
            (_damage("validation.jsonl", '{"update": 1, "step": 1}\n'), "is damaged: KeyError"),
        ],
    ),
)
def test_a_damaged_run_is_shown_as_damaged_next_to_the_others(
    change: Callable[[Path], None], problem: str | None, shown
) -> None:
    home, client = shown
    shutil.copytree(home / "whole", home / "damaged")
    change(home / "damaged")
    page = client.get("/")
    assert page.status_code == 200 and "home/whole" in page.text and "home/damaged" in page.text
    assert page.text.count('class="problem"') == (problem is not None) and "<b>" not in page.text
    assert problem is None or problem in page.text
    for path in ("run", "metrics", "episode"):
        assert client.get(f"/{path}?id=home/damaged&figure=entropy").status_code in (200, 404, 422)
    assert client.get("/compare?run=home/whole&run=home/damaged").status_code == (422 if problem else 200)
    assert client.get("/run?id=home/whole").status_code == 200


def test_pipes_are_no_files_of_a_study(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("x")
    os.mkfifo(tmp_path / "summary.csv")  # reading it would block forever
    assert not find_folders([tmp_path])


def test_names_and_tables_that_are_not_utf8_are_shown(shown) -> None:
    home, client = shown
    strange = Path(os.fsdecode(os.fsencode(home) + b"/caf\xe9"))
    shutil.copytree(home / "whole", strange)
    shutil.copytree(home / "whole", Path(os.fsdecode(os.fsencode(home) + b"/caf\xe8")))
    (strange / "evaluation" / os.fsdecode(b"h\xe9.json")).write_bytes(
        (home / "whole/evaluation/held-out.json").read_bytes()
    )
    study = home / "study"
    study.mkdir()
    (study / "README.md").write_bytes(b"caf\xe9")
    (study / "summary.csv").write_bytes(b"arm,success\ncaf\xe9,0.5\n")
    page = client.get("/").text
    for id in ("home/caf\ufffd", "home/caf\ufffd+"):
        assert f">{id}</a>" in page
        assert client.get("/run", params={"id": id}).status_code == 200
        assert client.get("/metrics", params={"id": id, "rows": 0, "figure": "entropy"}).json()["rows"] == 2
    assert "caf\ufffd" in client.get("/study?id=home/study").text


def test_links_of_a_dataset_and_of_predictions_are_not_followed(roots: list[Path], shown) -> None:
    home, client = shown
    (home / "outside.jsonl").write_text('{"prompt": "root:", "generation": "", "metrics": {}, "references": []}\n')
    shutil.copytree(roots[0] / "writer", home / "writer")
    (home / "writer" / "predictions" / "test-trained-2.jsonl").symlink_to(home / "outside.jsonl")
    shutil.copytree(roots[1] / "pairs", home / "pairs")
    label = next((home / "pairs" / "preference").iterdir())
    label.rename(home / "elsewhere")
    label.symlink_to(home / "elsewhere")
    for path in ("/run?id=home/writer", "/judge?id=home/pairs"):
        answer = client.get(path)
        assert answer.status_code == 422 and "is a symlink, which is not followed" in answer.text
        assert "root:" not in answer.text
    assert "is a symlink" in client.get("/").text


def test_a_long_run_is_read_when_it_changes_and_drawn_with_few_points(shown) -> None:
    home, client = shown
    path, count = home / "whole" / "metrics.jsonl", 20_000
    rows = [{"update": n + 1, "step": n + 1, "entropy": float(n == 7777)} for n in range(count)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    asked = "/metrics?id=home/whole&figure=entropy&rows="
    first = client.get(f"{asked}0")
    curve = first.json()["curves"]["entropy"]
    assert len(first.content) < 150_000 and max(curve["y"]) == 1.0 and curve["x"][-1] == count
    assert len(curve["smooth_x"]) <= 1000 and curve["smooth_x"][-1] == count
    with path.open("a") as file:
        file.write(json.dumps({"update": count + 1, "step": count + 1, "entropy": 2.0}) + "\n" + '{"update": 20002, ')
    second = client.get(f"{asked}{count}").json()
    assert second["rows"] == count + 1 and second["curves"]["entropy"]["y"][-1] == 2.0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(folders, "read_metrics", None)  # an unchanged file is not read again
        assert client.get(f"{asked}{count + 1}").json()["rows"] == count + 1
    path.write_text("".join(json.dumps(row) + "\n" for row in rows[:3]))  # a different run in its place
    assert client.get(f"{asked}{count + 1}").json()["rows"] == 3
