"""The studies of docs/crosses.md: their arms can be composed, and train."""

import re
import shlex
from pathlib import Path

import pytest
from rich.console import Console

from groundling.cli.main import main
from groundling.studies.definition import read_study
from groundling.studies.run import make_jobs
from groundling.training.build import check_suits, world_of
from groundling.training.tracking import TrainingProgress
from groundling.training.train import clone_of
from groundling.training.trainer import Trainer

_PAGE = Path(__file__).resolve().parents[2] / "docs" / "crosses.md"
_SMALL = ["world.num_envs=2", "world.num_steps=4", "training.steps=32", "device=cpu"]
_ARMS = {"cross-count": "count", "cross-judge": "rules", "cross-mixture": "mixture", "cross-nlpo": "nlpo"}


def _judged(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the page's commands for the rules, with few pairs by the bot, in ``folder``."""
    monkeypatch.chdir(folder)
    text = _PAGE.read_text(encoding="utf-8").replace("\\\n", " ")
    lines = re.findall("^groundling (collect .*|.*rules.*)", text, re.MULTILINE)
    assert [line.split()[0] for line in lines] == ["collect", "annotate", "distill"]
    for line in lines:
        for usual, small in (("random,expert", "expert"), ("--pairs 2000", "--pairs 30"), ("epochs=5", "epochs=1")):
            line = line.replace(usual, small)
        words = shlex.split(line)
        assert main([*words, *(["device=cpu"] if words[0] == "distill" else [])]) == 0


@pytest.mark.parametrize("name", _ARMS)
def test_every_arm_has_five_seeds_and_one_arm_trains(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study, arms = read_study(name, _SMALL)
    jobs = make_jobs(study, arms, tmp_path)
    assert len(study.seeds) == 5 and len(jobs) == 5 * len(arms) and name in _PAGE.read_text(encoding="utf-8")
    if name == "cross-judge":
        pytest.importorskip("pyarrow")
        _judged(tmp_path, monkeypatch)
    config = next(job.config for job in jobs if job.arm == _ARMS[name])
    if config.cloning.episodes is not None:
        clone = clone_of(config)
        check_suits(clone.policy, clone.model, clone.algorithm, world_of(clone))
        assert clone.policy == config.policy
    run = Trainer(config, tmp_path, warn=pytest.fail)
    before = {name: p.detach().clone() for name, p in run.policy.named_parameters()}
    progress = TrainingProgress(Console(quiet=True), config.training.steps, 0)
    rows = [run.update(progress) for _ in range(2)]
    run.collector.close()
    assert [row["step"] for row in rows] == [8, 16] and all(row["grad_norm"] > 0 for row in rows)
    assert any(not p.equal(before[name]) for name, p in run.policy.named_parameters())
    wanted = {"cross-count": "reward/count", "cross-judge": "reward/reward_model", "cross-nlpo": "mask_age"}
    assert name not in wanted or wanted[name] in rows[1]
