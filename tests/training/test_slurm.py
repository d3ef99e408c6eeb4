"""`--slurm`, tested with stand-ins for SLURM's commands."""

import itertools
import multiprocessing
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from groundling.cli.main import main
from groundling.config.schema import Config
from groundling.errors import ConfigError
from groundling.training import slurm, trainer
from groundling.training.build import make_policy
from groundling.training.tracking import read_metrics
from tests.runs import error_of
from tests.thorough import THOROUGH

_STAND_INS = {
    "sbatch": """
printf '%s\\n' "$@" > "$RECORDS/sbatch"
cp "$1" "$RECORDS/job.sh"
echo 'Submitted batch job 4242'
""",
    "scontrol": """
if [ "$1" = show ]; then echo 127.0.0.1; else printf '%s\\n' "$@" > "$RECORDS/scontrol"; fi
""",
    # Start the processes of the job, send SIGUSR2 once $USR2_AT exists, and return the highest exit status.
    "srun": """
printf '%s\\n' "$@" > "$RECORDS/srun"
while [[ "$1" == --* ]]; do case "$1" in --output|--error) shift 2;; *) shift;; esac; done
pids=()
for ((i = 0; i < ${NTASKS:-1}; i++)); do SLURM_PROCID=$i SLURM_LOCALID=$i "$@" & pids+=($!); done
if [ -n "${USR2_AT:-}" ]; then
  while [ ! -s "$USR2_AT" ] && kill -0 "${pids[0]}"; do sleep 0.01; done
  kill -USR2 "${pids[@]}"
fi
highest=0
for pid in "${pids[@]}"; do wait "$pid"; status=$?; if ((status > highest)); then highest=$status; fi; done
exit "$highest"
""",
}
_SMALL = [
    *("world.num_envs=2", "training.steps=24", "world.num_steps=2"),
    *("algorithm.args.minibatch_size=4", "algorithm.args.epochs=1", "device=cpu"),
]


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder for records of the stand-ins, which are first on PATH; its parent is the working directory."""
    records, bin = tmp_path / "records", tmp_path / "bin"
    records.mkdir(), bin.mkdir()
    for name, script in _STAND_INS.items():
        (bin / name).write_text(f"#!/bin/bash\n{script}")
        (bin / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{bin}:{os.environ['PATH']}")
    monkeypatch.setenv("RECORDS", str(records))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(str(Path(p).resolve()) for p in _python_path()))
    monkeypatch.chdir(tmp_path)
    return records


def _python_path() -> list[str]:
    return [str(Path(slurm.__file__).parents[2]), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]


def _run_job(cluster: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "SLURM_JOB_ID": "4243", "SLURM_JOB_NODELIST": "node[1-2]", **environment}
    return subprocess.run(["bash", str(cluster / "job.sh")], env=env, capture_output=True, text=True, timeout=300)


def _submit_array(runs: Path) -> None:
    overrides = ["seed=1,2", f"run_dir={runs}/${{seed}}", *_SMALL]
    job = ["partition=long", "time=0:30:00", "mem_gb=1.5", "array=seeds", "sbatch.mail-type=END"]
    assert main(["train", "demo-easy", *overrides, "--slurm", *job]) == 0


def test_an_array_is_submitted(cluster: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = tmp_path / "runs"
    _submit_array(runs)
    shown = capsys.readouterr()
    assert "submitted job 4242" in shown.err
    script = (cluster / "job.sh").read_text()
    assert script in shown.out
    for parameter in ("array=0-1%2", "partition=long", "time=0:30:00", "mem=1536MB", "mail-type=END"):
        assert f"#SBATCH --{parameter}\n" in script
    assert "#SBATCH --requeue\n#SBATCH --signal=USR2@300\n" in script and f"--chdir={tmp_path}\n" in script
    assert Path((cluster / "sbatch").read_text().strip()).parent == runs / "slurm"
    assert [p.name for p in (runs / "slurm").iterdir()] == ["4242_submission.sh"]


@THOROUGH
def test_an_array_task_is_requeued_before_its_time_limit_and_resumes(cluster: Path, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    _submit_array(runs)
    task = {"SLURM_ARRAY_JOB_ID": "4242", "SLURM_ARRAY_TASK_ID": "1"}
    first = _run_job(cluster, **task, USR2_AT=str(runs / "2" / "metrics.jsonl"))
    assert first.returncode == 0, first.stderr
    assert (cluster / "scontrol").read_text().split() == ["requeue", "4242_1"]
    done = len(read_metrics(runs / "2"))
    assert 0 < done < 6 and not (runs / "1").exists()

    (cluster / "scontrol").unlink()
    second = _run_job(cluster, **task)
    assert second.returncode == 0 and f"resuming after update {done}" in second.stdout, second.stderr
    assert len(read_metrics(runs / "2")) == 6 and not (cluster / "scontrol").exists()


def test_a_signal_during_a_sweep_requeues_the_remaining_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    began: list[str] = []

    def train(config: Config, *_: object) -> bool:
        began.append(config.run_dir)
        signal.raise_signal(signal.SIGUSR2)
        return True

    previous = signal.signal(signal.SIGTERM, lambda *_: None)
    monkeypatch.setattr("groundling.training.train.train", train)
    try:
        assert main(["train", "demo-easy", "seed=1,2"]) == slurm.TO_BE_REQUEUED
        assert main(["train", "demo-easy", "seed=3"]) == 0  # it was already complete
    finally:
        signal.signal(signal.SIGTERM, previous)
    assert began == ["runs/demo-easy-seed1", "runs/demo-easy-seed3"]


def _train_with_signal(seeds: str, at: int) -> None:
    """Train, and end the process; the signal is sent when the ``at``-th policy is created, or never."""
    made = itertools.count(1)

    def make(*args: Any, **options: Any) -> Any:
        if next(made) == at:
            signal.raise_signal(signal.SIGUSR2)
        return make_policy(*args, **options)

    torch.set_num_threads(1)
    trainer.make_policy = make  # type: ignore[attr-defined]
    sys.exit(main(["train", "demo-easy", f"seed={seeds}", *_SMALL]))


def test_a_signal_outside_of_the_loop_requeues_only_a_job_that_advances(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def status(seeds: str, at: int) -> int | None:
        child = multiprocessing.get_context("fork").Process(target=_train_with_signal, args=(seeds, at))
        child.start()
        child.join()
        return child.exitcode

    monkeypatch.chdir(tmp_path)
    assert status("1,2,3", at=1) == 1 and "give it more time" in capfd.readouterr().err
    assert status("1,2,3", at=2) == slurm.TO_BE_REQUEUED  # the first run is now complete
    assert status("1,2,3", at=2) == 1 and "array=seeds" in capfd.readouterr().err  # there was no progress
    assert status("1,2", at=0) == 0
    assert status("1,2,3", at=2) == slurm.TO_BE_REQUEUED  # the second run has a checkpoint
    assert not (tmp_path / "runs" / "demo-easy-seed3").exists()


@THOROUGH
def test_several_processes_find_each_other(cluster: Path, tmp_path: Path) -> None:
    (tmp_path / "probe.py").write_text(
        "import os, pathlib, torch\n"
        "torch.distributed.init_process_group('gloo')\n"
        "total = torch.tensor([torch.distributed.get_rank() + 1])\n"
        "torch.distributed.all_reduce(total)\n"
        "name = os.environ['LOCAL_RANK'] + '-' + os.environ['LOCAL_WORLD_SIZE']\n"
        "pathlib.Path('sum-' + name).write_text(str(total.item()))\n"
        "torch.distributed.destroy_process_group()\n"
    )
    job, more = slurm.parse(["nodes=1", "gpus=2", "cpus_per_task=3", "folder=logs"])
    command = ["list", "algorithms", "--import", "probe"]
    text, folder = slurm.job_file(job, more, [command], ["runs/1"])
    assert "--gpus-per-node=2\n" in text and "--ntasks-per-node=2\n" in text
    assert slurm.submit(text, folder) == "4242" and folder == tmp_path / "logs"
    done = _run_job(cluster, NTASKS="2")
    assert done.returncode == 0, done.stderr
    assert "--cpus-per-task=3" in (cluster / "srun").read_text()
    assert [(tmp_path / f"sum-{i}-2").read_text() for i in (0, 1)] == ["3", "3"]


def test_the_job_repeats_the_typed_command(cluster: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "own" / "experiment").mkdir(parents=True)
    (tmp_path / "own" / "experiment" / "mine.yaml").write_text(
        "# @package _global_\nname: mine\nworld: {id: text, env: BabyAI-GoToObj-v0}\n"
    )
    (tmp_path / "registers.py").write_text("")
    typed = ["mine", "name='a b'", "seed=1,2", "--config-dir", "own", "--import", "registers"]
    assert main(["train", *typed, "--slurm", "nodes=2", "--dry-run"]) == 0
    script = capsys.readouterr().out
    assert f"train mine --config-dir {tmp_path}/own --import registers 'name='\"'\"'a b'\"'\"'' seed=1,2\n" in script
    assert "WORLD_SIZE=2 LOCAL_WORLD_SIZE=1" in script and "--nodes=2\n" in script
    assert not list(cluster.iterdir()) and not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("partitio=gpu", "'partition'.*sbatch.partitio=gpu"),
        ("seed=3", "before --slurm"),
        ("gpu", "key=value"),
        ("nodes=two", "nodes must be a number"),
        ("nodes=0", "at least 1"),
        ("gpus=-1", "at least 0"),
        ("array=3", "array must be seeds"),
    ],
)
def test_an_invalid_setting_is_reported_in_one_line(setting: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        slurm.parse([setting])
    assert "\n" not in str(caught.value)


def test_failures_of_a_submission_are_reported_in_one_line(
    cluster: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def error(*arguments: str) -> str:
        return error_of(["train", "demo-easy", *arguments], capsys)

    assert "seed=1,2,3" in error("--slurm", "array=seeds")
    sbatch = cluster.parent / "bin" / "sbatch"
    sbatch.write_text("#!/bin/bash\necho 'invalid partition' >&2\nexit 1\n")
    assert "invalid partition" in error("--slurm", "partition=none")
    sbatch.write_text("#!/bin/bash\necho queued\n")
    assert "queued" in error("--slurm")
    sbatch.unlink()
    assert "--dry-run" in error("--slurm")
    monkeypatch.setitem(sys.modules, "submitit", None)
    assert "groundling[slurm]" in error("--slurm")
