"""Small runs of several roles, a judged dataset and a study, as shown by `groundling ui`."""

import os
from pathlib import Path

import pytest
from filelock import FileLock

from groundling.cli.main import main
from tests.rehearsal.paths import HAS_NETHACK


@pytest.fixture(scope="package")
def roots(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Created once, even for several workers of pytest-xdist, since no test changes them."""
    base = tmp_path_factory.getbasetemp()
    home = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "ui"
    with FileLock(f"{home}.lock"):
        if not (home / "results").exists():
            _make(home)
    return [home / "runs", home / "data", home / "results"]


def _make(home: Path) -> None:
    reader, writer, player = (home / "runs" / name for name in ("reader", "writer", "player"))
    small = ["world.num_envs=2", "world.num_steps=8", "training.steps=32", "device=cpu", "world.args.max_steps=6"]
    small += ["evaluation.num_envs=2", "algorithm.args.minibatch_size=8", "evaluation.baselines=[zero-shot]"]
    _run("train", "demo", *small, f"run_dir={reader}")
    _run("evaluate", str(reader), "--episodes", "6")  # more episodes than are recorded step by step
    few = ["world.num_texts=2", "world.num_tokens=3", "training.steps=7", "device=cpu"]
    _run("train", "rl4lms/increasing_numbers_ppo", *few, f"run_dir={writer}")
    _run("evaluate", str(writer), "--episodes", "2")
    if HAS_NETHACK:
        short = ["world.num_envs=2", "world.num_steps=32", "world.num_workers=0", "world.ahead=false"]
        short += ["training.steps=64", "device=cpu", "~reward.reward_model"]
        short += ["policy.args={hidden_size: 8, recurrence: 4}"]
        _run("train", "motif/score", *short, f"run_dir={player}")
        bounded = ["world.args.max_episode_steps=20", "evaluation.baselines=[random]"]
        _run("evaluate", str(player), "--episodes", "1", *bounded)
    pairs = str(home / "data" / "pairs")
    _run("collect", "random", "world.env=BabyAI-GoToLocal-v0", "--pairs", "30", "--output", pairs)
    _run("annotate", pairs, "--name", "chance", "--judge", "random")
    _run("annotate", pairs, "--name", "returns", "--judge", "return")
    study = home / "results" / "made"
    study.mkdir(parents=True)
    (study / "summary.csv").write_text("arm,success\nones,0.5\n")
    (study / "README.md").write_text(
        "# What was found <script>alert(1)</script>\n\n| arm | success |\n|---|---|\n| ones | 0.5 |\n\n![nine](curve.svg)\n"
    )
    (study / "curve.svg").write_text('<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"/>')
    (study / "elsewhere.svg").symlink_to("/etc/passwd")


def _run(*words: str) -> None:
    assert main(list(words)) == 0, words
