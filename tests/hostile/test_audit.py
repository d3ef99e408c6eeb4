"""Hostile files of every kind, with an audit hook: they start, send, import, unpickle and read nothing.

Other attempts are in ``tests/config/test_trust.py`` (settings) and ``test_files.py`` (incompatible files).
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from groundling.cli.main import main
from groundling.lm.load.model_files import STARTERS
from groundling.runtime.parallel import CommandLine, run_parallel
from tests.config.conftest import SECRET
from tests.config.test_trust import keep_modules_in
from tests.hostile.audit import auditing
from tests.hostile.cases import RUNS, STATES
from tests.hostile.model_cases import DATASETS, FILES, MODELS
from tests.hostile.plants import SCRIPT
from tests.hostile.received import Things

_RUN_WORDS = ("world.num_envs=2", "training.steps=4", "world.num_steps=2", "algorithm.args.minibatch_size=2")
_RUN_WORDS += ("algorithm.args.micro_batch_size=null", "device=cpu", "evaluation.num_envs=1")
_RUN_WORDS += ("evaluation.baselines=[]", "world.args.max_steps=4")


@pytest.fixture(scope="module")
def received(things: Things) -> Path:
    """Create a folder with everything that a user may receive."""
    root = things.root / "received"
    root.mkdir()
    for name in ("run", "pairs", "model"):
        shutil.copytree(getattr(things, name), root / name)
    lm = str(root / "lm")
    for line in (
        ["train", "demo-easy", f"run_dir={lm}", *_RUN_WORDS],
        ["evaluate", lm, "--episodes", "1"],
        ["collect", lm, "--episodes", "2", "--output", str(root / "data")],
        ["publish", lm, "--output", str(root / "pub")],
    ):
        assert main(line) == 0
    shutil.copytree(STARTERS["starter-causal"], root / "starter")
    return root


CASES = {**RUNS, **STATES, **MODELS, **FILES, **DATASETS}


def _line(words: str, root: Path) -> list[str]:
    places = {"RUN": "run", "LM": "lm", "PUB": "pub", "DATA": "data", "PAIRS": "pairs", "MODEL": "model", "OUT": "out"}
    for name, place in places.items():
        words = re.sub(rf"\b{name}\b", str(root / place), words)
    return words.replace("ROOT", str(root)).split()


def _copy(source: str, target: str) -> None:
    """Copy a file; large files (weights) are linked instead."""
    if source.endswith(".safetensors"):
        os.link(source, target)
    else:
        shutil.copyfile(source, target)


@pytest.mark.parametrize("name", CASES)
def test_a_hostile_file_does_nothing(
    name: str, received: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    case, root = CASES[name], tmp_path / "received"
    shutil.copytree(received, root, copy_function=_copy)
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside.txt").write_text("mine\n")
    case.plant(root)
    before = sorted(tmp_path.iterdir())
    monkeypatch.setenv("GROUNDLING_SECRET", SECRET)
    keep_modules_in(root / "modules", monkeypatch)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", str(root / "datasets"))
    monkeypatch.chdir(root)
    monkeypatch.syspath_prepend(str(root))
    capsys.readouterr()
    with auditing(root, monkeypatch) as audit:
        status = main(_line(case.words, root))
    output = capsys.readouterr()
    assert audit.acts == []
    assert "GROUNDLING_SECRET" not in audit.asked
    if case.message is None:
        assert status == 0, output.err
    else:
        assert status == 1 and re.search(case.message, output.err or output.out), output.err
        assert output.err.count("error: ") == (case.words.split()[0] != "verify") and "Traceback" not in output.err
    assert SECRET not in output.out + output.err
    shown = re.sub(r"\rGenerating [^\r\n]*", "", output.out + output.err)  # the progress bars of `datasets`
    assert "\n  ok     hostile" not in shown
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", shown)
    assert (tmp_path / "outside.txt").read_text() == "mine\n" and not list((tmp_path / "outside").iterdir())
    assert sorted(tmp_path.iterdir()) == before and not (root / "it-ran").exists()
    assert not any(name.startswith("hostile") for name in sys.modules)
    for path in root.rglob("*"):
        if path.is_file() and path.suffix != ".safetensors":
            content = path.read_bytes()
            assert SECRET.encode() not in content
            assert path.suffix != ".html" or SCRIPT.encode() not in content


def test_a_log_that_is_a_link_overwrites_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "outside.txt").write_text("mine\n")
    log = tmp_path / "held-out.log"
    log.symlink_to(tmp_path / "outside.txt")
    monkeypatch.setattr("groundling.runtime.parallel._start", lambda words, log: subprocess.Popen(words, stdout=log))
    assert run_parallel([CommandLine("a", ["echo", "ours"], log)], 1, print) == []
    assert (tmp_path / "outside.txt").read_text() == "mine\n" and log.read_text() == "ours\n"


def test_security_states_the_number_of_cases() -> None:
    """SECURITY.md states this number."""
    page = (Path(__file__).parents[2] / "SECURITY.md").read_text(encoding="utf-8")
    assert f"tests/hostile/test_audit.py) reads {len(CASES)} hostile files" in " ".join(page.split())
