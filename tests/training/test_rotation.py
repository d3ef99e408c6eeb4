"""During training, old checkpoints are deleted, except those that other processes are reading."""

import json
import threading
from pathlib import Path

import pytest

from groundling.errors import RunError
from groundling.evaluation.target import find
from groundling.training import checkpoint
from tests.training.test_resume import _corridor, _train


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rotation") / "run"
    _train(_corridor(folder))
    return folder


def _save(folder: Path, update: int) -> Path:
    def write(partial: Path) -> None:
        (partial / "weights").write_bytes(bytes([update % 256]) * 2**16)
        checkpoint.write_json(partial / "run.json", {"counters": {"update": update, "step": update}})

    return checkpoint.save(folder, update, write, keep=1)


def test_a_checkpoint_is_deleted_once_no_process_reads_it(tmp_path: Path) -> None:
    first = _save(tmp_path, 1)
    found = checkpoint.hold_latest(tmp_path, pytest.fail)
    assert found is not None and found[0] == first
    second = _save(tmp_path, 2)
    assert checkpoint.list_checkpoints(tmp_path) == [first, second]
    assert checkpoint.find_problem(first) is None
    del found
    third = _save(tmp_path, 3)
    assert checkpoint.list_checkpoints(tmp_path) == [third]


def test_a_loader_never_fails_while_checkpoints_rotate(tmp_path: Path) -> None:
    done = threading.Event()

    def rotate() -> None:
        update = 1
        while not done.is_set():
            _save(tmp_path, update := update + 1)

    _save(tmp_path, 1)
    rotating = threading.Thread(target=rotate)
    rotating.start()
    try:
        for _ in range(100):
            found = checkpoint.hold_latest(tmp_path, pytest.fail)
            assert found is not None
            path, hold = found
            update = json.loads((path / "run.json").read_text())["counters"]["update"]
            assert (path / "weights").read_bytes() == bytes([update % 256]) * 2**16
            del found, hold
    finally:
        done.set()
        rotating.join()


def test_a_deleted_checkpoint_is_reported_with_the_remaining_ones(run_dir: Path) -> None:
    latest = checkpoint.list_checkpoints(run_dir / "checkpoints")[-1]
    with pytest.raises(RunError, match=rf"there is no checkpoint .*000001: .* Pass one of .*{latest.name}"):
        find(str(run_dir / "checkpoints" / "000001"), [], pytest.fail)
