"""`groundling list` and `groundling doctor`, and their imports."""

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import groundling
from groundling.cli import doctor
from groundling.cli import list as list_command
from groundling.cli.main import main
from groundling.lm.load.model_files import STARTERS
from tests.thorough import some_of, thorough

_ROOT = Path(__file__).resolve().parents[1]
_HEAVY = "[m for m in ('torch', 'transformers', 'hydra', 'accelerate', 'matplotlib') if m in sys.modules]"


def _python(code: str, folder: Path = _ROOT) -> str:
    """Return the output of a program in a new process."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_importing_groundling_is_light() -> None:
    output = _python(f"import sys, groundling; print({_HEAVY}, [m for m in sys.modules if m[:10] == 'groundling'])")
    envs = ["envs", "envs.bundled", "envs.text_env"]
    known = ["groundling", *(f"groundling.{name}" for name in [*envs, "errors"])]
    heavy, _, modules = output.strip().partition("] ")
    assert heavy == "[" and sorted(re.findall(r"[\w.]+", modules)) == sorted(known)


def test_names_of_the_package_are_imported_lazily() -> None:
    for module in (groundling, groundling.envs):
        names = [name for name in module.__all__ if not hasattr(module, name)]
        assert not names
        with pytest.raises(AttributeError, match="no attribute 'nobody'"):
            _ = module.nobody
    code = "import gymnasium, groundling; print(gymnasium.make('BabyAI-MixedTestLocal-v0').unwrapped)"
    assert "LocalLevel" in _python(code)


def test_list_imports_neither_torch_nor_transformers() -> None:
    code = f"import sys; from groundling.cli.main import main; main(['list']); print({_HEAVY})"
    assert _python(code).endswith("\n[]\n")


_MISSPELT = {
    "train demoo": "did you mean 'demo'",
    "train demo foo=3": "unknown config key 'foo'",
    "train demo training.setps=1_000": "did you mean 'training.steps'",
    "train demo algorithm.id=popo": "unknown algorithm 'popo': did you mean 'ppo'",
    "check-env demo policy.idd=x": "unknown config key 'policy.idd'",
    "evaluate runs/nope": "there is no folder runs/nope",
    "report runs/nope": "runs/nope/config.yaml does not exist",
    "check-env Foo-v0": "unknown env 'Foo-v0'",
}


def test_misspelt_names_are_reported_before_torch_is_imported(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    code = (
        f"import sys; from groundling.cli.main import main; [main(c.split()) for c in {[*_MISSPELT]}]; print({_HEAVY})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout == "[]\n", done.stderr
    lines = done.stderr.splitlines()
    assert len(lines) == len(_MISSPELT)
    for line, message in zip(lines, _MISSPELT.values(), strict=True):
        assert line.startswith("error: ") and message in line


def test_list_agrees_with_the_registries() -> None:
    listing = (
        "from groundling.cli.main import main; from groundling.cli.list import inventory; "
        "[main(['list', kind]) for kind in inventory()]"
    )
    output, _, written = _python(
        f"import scripts.bundled as b; {listing}; print('---'); print(b.table(), end='')"
    ).partition("---\n")
    assert list_command.BUNDLED.read_text(encoding="utf-8") == written, "run python -m scripts.bundled"
    assert _python(listing) == output


def test_registries_are_in_slow_packages() -> None:
    source = Path(groundling.__file__).parent
    made = re.compile(r"^\w+(: \w*Registry\[.*\])? = \w*Registry\(", re.MULTILINE)
    paths = [path.relative_to(source) for path in source.rglob("*.py") if made.search(path.read_text("utf-8"))]
    assert len(paths) > 9 and {path.parts[0] for path in paths} <= {*list_command.SLOW, "envs", "prompts"}


_REGISTERING = {
    "pools": (
        "from groundling.envs.text_generation import pools\n"
        "@pools.register('mine')\nclass Mine:\n    'A pool of mine.'\n"
        "import gymnasium\ngymnasium.register('Mine-v0', entry_point='mine:Mine')\n"
    ),
    "rewards": (
        "from groundling.metrics import Metric, metrics\n"
        "@metrics.register('mine')\nclass Mine(Metric):\n    'A metric of mine.'\n"
    ),
}


@pytest.mark.parametrize("kind", some_of(_REGISTERING, ["pools"]))
def test_list_shows_components_of_imported_modules(kind: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(_REGISTERING[kind])
    listed = f"[main(['list', kind, '--import', 'mine']) for kind in ('envs', '{kind}')]"
    output = _python(f"import sys; from groundling.cli.main import main; {listed}; print({_HEAVY})", tmp_path)
    section = re.split(rf"^{kind} \(\d+\):\n", output, flags=re.MULTILINE)[1]
    assert re.search(r"^  mine +A (pool|metric) of mine\.$", section, re.MULTILINE), section
    if kind == "pools":
        assert output.endswith("\n[]\n") and re.search(r"^  Mine-v0 +yours$", output, re.MULTILINE)


def _doctor(capsys: pytest.CaptureFixture[str], *options: str) -> tuple[int, dict[str, str]]:
    """Return the exit status, and the lines by their subject."""
    status = main(["doctor", *options])
    lines = capsys.readouterr().out.splitlines()
    return status, {line[4:20].strip(): f"{line[:3].strip()} {line[21:]}" for line in lines}


def test_doctor_reads_the_starter_and_lets_it_score_if_asked_to(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    status, checks = _doctor(capsys)
    assert status == 0 and re.match(r"ok read \d+ weights and \d+ tokens", checks["starter model"])
    assert checks["env"] == "ok BabyAI-Text describes 3 things" and checks["torch"].startswith("ok 2.")
    status, checks = _doctor(capsys, "--score")
    assert status == 0 and checks["starter model"] == "ok scored 2 candidates"
    shutil.copytree(STARTERS["starter"], tmp_path / "starter")
    weights = tmp_path / "starter" / "model.safetensors"
    os.truncate(weights, weights.stat().st_size - 1)
    monkeypatch.setattr(doctor, "_STARTER", tmp_path / "starter")
    status, checks = _doctor(capsys)
    assert status == 1 and checks["starter model"].startswith("NO SafetensorError: ")


def test_doctor_finds_versions_that_do_not_suit(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    versions = {"torch": "2.5.1+cpu", "transformers": "5.3.0rc1", "minigrid": "3.0.0"}
    real = importlib.metadata.version
    monkeypatch.setattr(importlib.metadata, "version", lambda name: versions.get(name) or real(name))
    asked = ["torch>=2.6", "transformers>=5.3", "transformers>=9; extra == 'dev'", "minigrid>=3"]
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: asked)
    status, checks = _doctor(capsys)
    assert status == 1 and checks["torch"] == "NO 2.5.1+cpu, but groundling needs >=2.6: run make install"
    assert checks["transformers"].startswith("NO 5.3.0rc1") and checks["minigrid"] == "ok 3.0.0"


@pytest.mark.parametrize("broken", ["torch", *thorough("transformers")])
def test_doctor_reports_a_library_that_cannot_be_imported(broken: str, tmp_path: Path) -> None:
    (tmp_path / f"{broken}.py").write_text("raise ImportError('a file is missing')")
    done = subprocess.run(
        [sys.executable, "-m", "groundling", "doctor"],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])},
    )
    assert done.returncode == 1 and not done.stderr
    assert re.search(rf"^NO  {broken} .* cannot be imported: ImportError: a file is missing$", done.stdout, re.M)
    assert re.search(r"^ok  env +BabyAI-Text describes 3 things$", done.stdout, re.M)
