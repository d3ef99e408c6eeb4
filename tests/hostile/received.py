"""Files that users may receive (a run, pairs with answers, a reward model), and commands that must reject them."""

import importlib
from dataclasses import dataclass
from pathlib import Path

import pytest

from groundling.cli.main import main

SMALL = (
    *("world.env=BabyAI-GoToObj-v0", "world.num_envs=2", "world.num_steps=8", "training.steps=16"),
    *("algorithm.args.minibatch_size=8", "evaluation.num_envs=2", "evaluation.baselines=[]"),
    *("world.args.max_steps=4", "policy.args.recurrence=4", "device=cpu"),
)


@dataclass
class Things:
    """Files that commands read."""

    run: Path
    pairs: Path
    model: Path
    root: Path


@pytest.fixture(scope="session")
def things(tmp_path_factory: pytest.TempPathFactory) -> Things:
    """Create the files; tests copy those that they change."""
    importlib.import_module("examples.shelf")  # registers its env
    root = tmp_path_factory.mktemp("hostile")
    run, pairs, model = root / "run", root / "pairs", root / "model"
    assert main(["train", "glam/symbolic", f"run_dir={run}", *SMALL]) == 0
    assert main(["evaluate", str(run), "--episodes", "2"]) == 0
    collect = [*("collect", "random", "world.env=Shelf-v0", "evaluation.num_envs=2"), f"run_dir={root / 'random'}"]
    assert main([*collect, "--pairs", "12", "--output", str(pairs)]) == 0
    assert main(["annotate", str(pairs), "--name", "rules", "--judge", "rules", "rules=[[see, 1]]"]) == 0
    distill = ["distill", str(pairs), "--preferences", "rules", "--output", str(model)]
    assert main([*distill, "epochs=1", "device=cpu", "model.args={channels: 4}"]) == 0
    return Things(run, pairs, model, root)


def refusal_of(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Run a command that must fail with a single line, and return standard error."""
    capsys.readouterr()
    try:
        status = main(words)
    except SystemExit as error:  # raised by argparse
        status = int(error.code or 0)
        output = capsys.readouterr().err
        assert status == 2 and output.startswith("usage: "), output
        return output
    output = capsys.readouterr().err
    assert status != 0, words
    lines = [line for line in output.splitlines() if not line.startswith("warning: ")]
    assert len(lines) == 1 and lines[0].startswith("error: "), output
    assert "Traceback" not in output
    return output
