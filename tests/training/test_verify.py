"""Damaged rows and checkpoints, and two processes in one folder, are detected, and `verify` gives advice."""

import json
import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from rich.console import Console

from groundling.cli.main import main
from groundling.errors import ConfigError, RunError
from groundling.io.files import LOCK, locked, output_lock, replace_file
from groundling.training import checkpoint
from groundling.training.tracking import METRICS
from groundling.training.train import train
from groundling.training.verify import verify
from tests.training.test_resume import _corridor, _train


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run_dir = tmp_path_factory.mktemp("verify") / "run"
    _train(_corridor(run_dir))
    return run_dir


@pytest.fixture
def run_dir(whole: Path, tmp_path: Path) -> Path:
    """Return a copy of a complete run."""
    return Path(shutil.copytree(whole, tmp_path / "run"))


def _edit(run_dir: Path, change: str) -> None:
    path = run_dir / METRICS
    lines = path.read_text().splitlines(keepends=True)
    match change:
        case "deleted in the middle":
            del lines[2]
        case "deleted at the beginning":
            del lines[0]
        case "deleted at the end" | "cut":
            del lines[-1]
        case "doubled":
            lines.insert(3, lines[2])
        case "doubled otherwise":
            lines.insert(3, json.dumps(json.loads(lines[2]) | {"loss": 7}) + "\n")
        case "of another run":
            lines.append(json.dumps({"update": 2, "step": 80}) + "\n")
        case "no row":
            lines.insert(1, "[]\n")
        case "changed":
            lines[2] = json.dumps(json.loads(lines[2]) | {"return_mean": 7.0}) + "\n"
        case "all deleted":
            lines = []
    path.write_text("".join(lines) + ('{"update": 6, "st' if change == "cut" else ""))


CHANGES = {
    "deleted in the middle": "is for update 4, but the rows after update 2 are missing",
    "deleted at the beginning": "is for update 2, but the rows after update 0 are missing",
    "deleted at the end": "has only 5 of the 6 lines",
    "cut": "has only 5 of the 6 lines",
    "all deleted": "has only 0 of the 6 lines",
    "doubled": "repeats the row of update 3: delete it",
    "doubled otherwise": "is a second, different row for update 3",
    "of another run": "is out of order (update 2, step 80, after update 6, step 240)",
    "no row": "line 2 of",
    "changed": "the first 6 lines of",
}


@pytest.mark.parametrize("change", CHANGES)
def test_damaged_rows_are_reported_and_refused_on_resume(
    change: str, run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", str(run_dir)]) == 0
    assert "WRONG" not in capsys.readouterr().out
    _edit(run_dir, change)
    assert main(["verify", str(run_dir)]) == 1
    assert "WRONG" in capsys.readouterr().out
    longer = _corridor(run_dir)
    longer.training.steps += 40
    with pytest.raises(RunError) as caught:
        train(longer, Console(quiet=True))
    assert CHANGES[change] in str(caught.value)


def _broken(run_dir: Path, what: str) -> str:
    """Damage the last checkpoint, and return the expected message."""
    last = checkpoint.list_checkpoints(run_dir / "checkpoints")[-1]
    weights = last / "optimizer.safetensors"
    match what:
        case "missing":
            weights.unlink()
            return "optimizer.safetensors is missing"
        case "flipped":
            content = bytearray(weights.read_bytes())
            content[-1] ^= 1
            weights.write_bytes(content)
            return "optimizer.safetensors has changed since it was written"
        case "cut":
            weights.write_bytes(weights.read_bytes()[:-1])
            return "bytes instead of"
        case _:
            (last.parent / ".partial-000007").mkdir()
            return "was left behind by a process that was killed"


@pytest.mark.parametrize("what", ["missing", "flipped", "cut", "left over"])
def test_a_damaged_checkpoint_is_reported(what: str, run_dir: Path) -> None:
    problem = _broken(run_dir, what)
    (wrong,) = [one for one in verify(run_dir) if one.problem is not None]
    assert problem in f"{wrong.what} {wrong.problem}" and wrong.advice


def test_datasets_are_checked(run_dir: Path, tmp_path: Path) -> None:
    episodes, pairs = tmp_path / "episodes", tmp_path / "pairs"
    assert main(["collect", str(run_dir), "--episodes", "3", "--output", str(episodes)]) == 0
    assert main(["collect", str(run_dir), "--pairs", "3", "--output", str(pairs)]) == 0
    assert main(["annotate", str(pairs), "--judge", "return"]) == 0
    (whole,) = verify(episodes)
    assert whole.problem is None and whole.what.endswith(" transitions")
    assert [one.what for one in verify(pairs)] == ["data: 3 pairs, labelled by return"]
    (path,) = episodes.glob("data/*.parquet")
    path.write_bytes(path.read_bytes()[:100])
    (wrong,) = verify(episodes)
    assert wrong.what == str(path) and wrong.problem is not None and "delete" in wrong.advice


def test_an_unknown_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not a run"):
        verify(tmp_path)
    with pytest.raises(ConfigError, match="is not a folder"):
        verify(tmp_path / "nowhere")


@pytest.fixture
def umask() -> Iterator[None]:
    before = os.umask(0o002)
    yield
    os.umask(before)


@pytest.mark.usefixtures("umask")
def test_weights_have_the_permissions_of_the_umask(tmp_path: Path) -> None:
    _train(_corridor(tmp_path / "run"))
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "run").rglob("*") if path.is_file()}
    assert modes["optimizer.safetensors"] == 0o664 and set(modes.values()) == {0o664}


def test_an_unreadable_checkpoint_is_not_called_broken(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    last = checkpoint.list_checkpoints(run_dir / "checkpoints")[-1]

    def forbidden(self: Path, *args: object, **kwargs: object) -> None:
        raise PermissionError(13, "Permission denied", str(self))  # root, as in CI, never gets this error

    monkeypatch.setattr(Path, "open", forbidden)
    with pytest.raises(RunError, match="you are not allowed to read") as caught:
        checkpoint.find_problem(last)
    assert "broken" not in str(caught.value)


def test_a_folder_in_use_is_refused(run_dir: Path, tmp_path: Path) -> None:
    with locked(run_dir / LOCK, "is at work"):
        with pytest.raises(RunError, match=f"another process is training in {run_dir}"):
            train(_corridor(run_dir), Console(quiet=True))
        assert any(one.problem == "is being written to by another process" for one in verify(run_dir))
    _train(_corridor(run_dir))
    assert not (run_dir / LOCK).exists()


@pytest.mark.parametrize("moment", ["before", "begun meanwhile", "ended meanwhile"])
def test_problems_of_a_run_in_training_are_not_reported(
    moment: str, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new checkpoint is half written, or an old checkpoint is half deleted."""
    (run_dir / "checkpoints" / ".partial-000007").mkdir()
    _broken(run_dir, "cut")
    lock, with_lock = ExitStack(), locked(run_dir / LOCK, "is at work")
    step_of = checkpoint.step_of

    def change_the_lock(path: Path) -> int:
        lock.enter_context(with_lock) if moment == "begun meanwhile" else lock.close()
        return step_of(path)

    if moment != "begun meanwhile":
        lock.enter_context(with_lock)
    if moment != "before":
        monkeypatch.setattr(checkpoint, "step_of", change_the_lock)
    with lock:
        *whole, last = verify(run_dir)
    assert all(one.problem is None for one in whole) and len(whole) >= 2
    assert last.problem == "is being written to by another process" and last.advice == "check again when it is done"


def test_leftovers_of_killed_processes_are_deleted_on_resume(run_dir: Path) -> None:
    name = f".metrics.jsonl.{'0a' * 16}.partial"
    left = [run_dir / name, run_dir / "samples" / name, run_dir / "notes.partial"]
    for path in left:
        path.parent.mkdir(exist_ok=True)
        path.touch()

    def write(partial: Path) -> None:  # as if another process wrote a report
        partial.write_text("page")
        _train(_corridor(run_dir))

    replace_file(run_dir / "report.html", write)
    assert [path.exists() for path in left] == [False, False, True]
    assert (run_dir / "report.html").read_text() == "page"


def test_a_pipe_is_not_accepted_as_a_lock(run_dir: Path) -> None:
    os.mkfifo(run_dir / LOCK)
    asked = threading.Thread(target=verify, args=(run_dir,), daemon=True)
    asked.start()
    asked.join(20)
    assert not asked.is_alive()
    with (
        pytest.raises(RunError, match="is not a regular file, but Groundling needs a lock file there: delete it"),
        locked(run_dir / LOCK, "is at work"),
    ):
        pass


@pytest.mark.parametrize("command", ["collect", "evaluate", "publish"])
def test_each_command_that_writes_has_its_lock(
    command: str, run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "output"
    words, lock = {
        "collect": (["collect", str(run_dir), "--episodes", "2", "--output", str(output)], output_lock(output)),
        "evaluate": (["evaluate", str(run_dir), "--episodes", "2"], run_dir / "evaluation" / f".held-out{LOCK}"),
        "publish": (["publish", str(run_dir), "--output", str(output)], output_lock(output)),
    }[command]
    with locked(lock, "is at work"):
        assert main(words) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: another process is ") and error.count("\n") == 1
    assert not output.exists()
    assert main(words) == 0
    assert not lock.exists()
