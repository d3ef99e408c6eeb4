"""`groundling train … --slurm partition=gpu array=seeds`: write a job file, then show or submit it.

The job runs the ``groundling train`` command as typed. Before the time limit, SLURM sends `_SIGNAL` to the processes.
The run then stops after the current update with exit status `TO_BE_REQUEUED`, the job requeues itself, and the same
command resumes from the last checkpoint. submitit formats the sbatch file; its executors are not used.
"""

import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from types import FrameType, ModuleType
from typing import Annotated, Any

from groundling.errors import ConfigError, RunError, TimeIsUp, importing, unknown
from groundling.fields import Ge
from groundling.registry import check_bounds

TO_BE_REQUEUED = 75  # Exit status of a run that stopped before its time limit (EX_TEMPFAIL)
_SIGNAL = signal.SIGUSR2


@dataclass
class Job:
    """Keys of ``--slurm``; ``sbatch.NAME=VALUE`` passes any other parameter to sbatch."""

    name: str = "groundling"
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    nodes: Annotated[int, Ge(1)] = 1
    gpus_per_node: Annotated[int, Ge(0)] = 0  # ``gpus`` for short; each GPU gets its own process
    tasks_per_node: Annotated[int, Ge(0)] = 0  # Processes per node; 0 means one per GPU, or one without GPUs
    cpus_per_task: Annotated[int | None, Ge(1)] = None
    mem_gb: Annotated[float | None, Ge(0)] = None  # Memory per node
    time: str | None = None  # Minutes, or [days-]hours:minutes:seconds; defaults to the partition's limit
    signal_delay_s: Annotated[int, Ge(1)] = 300
    """Number of seconds before the time limit at which the run is asked to stop; an update must take less time."""
    array: str | None = None  # ``seeds`` creates a job array with one task per run of the sweep, such as seed=1,2,3
    array_parallelism: Annotated[int, Ge(1)] = 256  # Maximum number of array tasks that run at the same time
    folder: str | None = None
    """Folder for job files and logs on a shared file system; defaults to slurm/ next to the first run's folder."""

    def __post_init__(self) -> None:
        check_bounds(self, "--slurm ")
        if self.array not in (None, "seeds"):
            raise ConfigError(f"--slurm array must be seeds (one task per run of the sweep), got {self.array!r}")
        self.tasks_per_node = self.tasks_per_node or max(self.gpus_per_node, 1)


def submit(text: str, folder: Path) -> str:
    """Submit a job and return its ID; the job file is kept under this ID next to the logs in ``folder``."""
    if shutil.which("sbatch") is None:
        raise RunError("sbatch is not on PATH: run this on a cluster node, or show the job with --dry-run")
    file = folder / f"submission-{time.time_ns()}.sh"
    folder.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    done = subprocess.run(["sbatch", str(file)], capture_output=True, text=True)
    if done.returncode:
        raise RunError(f"sbatch rejected {file}: {done.stderr.strip() or f'exit status {done.returncode}'}")
    submitit = _submitit()
    try:
        number: str = submitit.SlurmExecutor._get_job_id_from_submission_command(done.stdout)
    except submitit.core.utils.FailedSubmissionError:
        raise RunError(f"sbatch accepted {file} but printed no job ID: {done.stdout.strip()!r}") from None
    file.rename(submitit.core.utils.JobPaths(folder, job_id=number).submission_file)
    return number


def parse(settings: Sequence[str]) -> tuple[Job, dict[str, str]]:
    """Parse the settings after ``--slurm``; return the job and the ``sbatch.NAME=VALUE`` parameters."""
    types = {field.name: str(field.type) for field in fields(Job)}
    values: dict[str, Any] = {}
    more: dict[str, str] = {}
    for setting in settings:
        key, _, text = setting.partition("=")
        if not text:
            raise ConfigError(f"--slurm expects key=value, such as partition=gpu, got {setting!r}")
        if key.startswith("sbatch."):
            name = key.removeprefix("sbatch.").replace("_", "-")
            more[name] = text
            continue
        key = "gpus_per_node" if key == "gpus" else key
        if key not in types:
            other = f"use sbatch.{key}={text} to pass it to sbatch; overrides of the experiment go before --slurm"
            raise ConfigError(f"{unknown('--slurm key', key, types)}; {other}")
        try:
            values[key] = int(text) if "int" in types[key] else float(text) if "float" in types[key] else text
        except ValueError:
            raise ConfigError(f"--slurm {key} must be a number, got {text!r}") from None
    return Job(**values), more


def job_file(
    job: Job, more: dict[str, str], commands: Sequence[Sequence[str]], run_dirs: Sequence[str]
) -> tuple[str, Path]:
    """Return a job file for one command or an array of commands, and its folder; ``more`` is passed to sbatch."""
    if job.array is not None and len(commands) < 2:
        raise ConfigError("--slurm array=seeds needs a sweep of several runs, such as seed=1,2,3")
    folder = (Path(job.folder) if job.folder else Path(run_dirs[0]).parent / "slurm").resolve()
    processes = job.nodes * job.tasks_per_node
    setup = [f"set -- {shlex.join([sys.executable, '-m', 'groundling', *words])}" for words in commands]
    if job.array is not None:
        cases = [f"  {number}) {line} ;;" for number, line in enumerate(setup)]
        setup = ['case "$SLURM_ARRAY_TASK_ID" in', *cases, "esac"]
    if processes > 1:  # set torchrun's variables here, since the stop signal would kill torchrun
        setup += [
            'export MASTER_ADDR="$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)"',
            'export MASTER_PORT="$((20000 + SLURM_JOB_ID % 20000))"',
            f"export WORLD_SIZE={processes} LOCAL_WORLD_SIZE={job.tasks_per_node}",
        ]
    srun = ["--wait=120"]  # seconds, so that the other processes do not wait forever if one fails
    if job.cpus_per_task:
        srun.append(f"--cpus-per-task={job.cpus_per_task}")  # srun does not inherit it from sbatch
    text: str = _submitit().slurm.slurm._make_sbatch_string(
        command=_PROCESS if processes > 1 else '"$@"',
        folder=folder,
        job_name=job.name,
        wckey=None,
        partition=job.partition,
        account=job.account,
        qos=job.qos,
        constraint=job.constraint,
        time=job.time,
        nodes=job.nodes,
        ntasks_per_node=job.tasks_per_node,
        gpus_per_node=job.gpus_per_node or None,
        cpus_per_task=job.cpus_per_task,
        mem=f"{round(job.mem_gb * 1024)}MB" if job.mem_gb else None,
        map_count=len(commands) if job.array else None,
        array_parallelism=job.array_parallelism,
        signal_delay_s=job.signal_delay_s,
        setup=setup,
        teardown=_REQUEUE,
        srun_args=srun,
        additional_parameters={
            "signal": f"{_SIGNAL.name.removeprefix('SIG')}@{job.signal_delay_s}",
            "requeue": True,
            "chdir": Path.cwd(),
            **more,
        },
    )
    return text, folder


@contextmanager
def time_limit(has_advanced: Callable[[], bool]) -> Iterator[Callable[[], bool]]:
    """Treat the signal sent before the time limit like Ctrl-C; yield a function that returns True once it has arrived.
    Outside the training loop, for example while a model is loading, `TimeIsUp` ends the process instead. The job is
    then requeued only if ``has_advanced()``; a job that never advances would be requeued forever.
    """
    came = False

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal came
        if came:  # a second stop signal would end the run immediately
            return
        came = True
        if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:  # a run's loop handles SIGTERM
            signal.raise_signal(signal.SIGTERM)
        elif has_advanced():
            raise TimeIsUp(TO_BE_REQUEUED)
        else:
            raise TimeIsUp(
                "error: the job's time is nearly up, but it has not reached a new checkpoint: give it more time "
                "(--slurm time=…), or submit each run of a sweep as its own job (array=seeds)"
            )

    previous = signal.signal(_SIGNAL, handle)
    try:
        yield lambda: came
    finally:
        signal.signal(_SIGNAL, previous)


_REQUEUE = [
    "status=$?",
    f'if [ "$status" -eq {TO_BE_REQUEUED} ]; then  # the time was nearly up, and there is a checkpoint',
    '  exec scontrol requeue "${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}${SLURM_ARRAY_TASK_ID:+_$SLURM_ARRAY_TASK_ID}"',
    "fi",
    'exit "$status"',
    "",
]


_PROCESS = """bash -c 'export RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID; exec "$@"' process "$@\""""
"""Shell command that sets the variables that differ between processes."""


def _submitit() -> ModuleType:
    with importing("submitit", "slurm"):
        import submitit
    return submitit
