"""`groundling train … --slurm partition=gpu array=seeds`: write a job, show it, submit it.

The job runs ``groundling train`` as it was typed. Before the time limit SLURM sends the run's processes `_SIGNAL`; the
run stops after its current update with the exit status `TO_BE_REQUEUED`, the job requeues itself, and the same command
resumes from the last checkpoint. submitit writes the sbatch file and reads the job's number; its executors are not
used, because they hand a pickled function to the job, and a command needs none.
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

from groundling.errors import ConfigError, RunError, TimeIsUp, unknown
from groundling.fields import Ge
from groundling.registry import check_bounds

TO_BE_REQUEUED = 75  # Exit status of a run that stopped before its time limit (EX_TEMPFAIL)
_SIGNAL = signal.SIGUSR2


@dataclass
class Job:
    """Keys of ``--slurm``; ``sbatch.NAME=VALUE`` passes on any other parameter of sbatch."""

    name: str = "groundling"
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    nodes: Annotated[int, Ge(1)] = 1
    gpus_per_node: Annotated[int, Ge(0)] = 0  # ``gpus`` for short. Each gets a process of its own.
    tasks_per_node: Annotated[int, Ge(0)] = 0  # Processes on each node; 0: one for each GPU, or one
    cpus_per_task: Annotated[int | None, Ge(1)] = None
    mem_gb: Annotated[float | None, Ge(0)] = None  # Memory of each node
    time: str | None = None  # Minutes, or [days-]hours:minutes:seconds; default: the partition's limit
    signal_delay_s: Annotated[int, Ge(1)] = 300
    """Seconds before the time limit at which the run is asked to stop: more than one update takes."""
    array: str | None = None  # ``seeds``: a job array with one task for each run of the sweep, such as seed=1,2,3
    array_parallelism: Annotated[int, Ge(1)] = 256  # Tasks of the array that may run at once
    folder: str | None = None
    """For job files and logs, on a disk that the nodes share; default: slurm/ next to the first run's folder."""

    def __post_init__(self) -> None:
        check_bounds(self, "--slurm ")
        if self.array not in (None, "seeds"):
            raise ConfigError(f"--slurm array must be seeds (one task for each run of the sweep), got {self.array!r}")
        self.tasks_per_node = self.tasks_per_node or max(self.gpus_per_node, 1)


def submit(text: str, folder: Path) -> str:
    """Submit a job; return its number, under which the job file stays next to the logs in ``folder``."""
    if shutil.which("sbatch") is None:
        raise RunError("sbatch is not on PATH: submit from a node of the cluster, or show the job with --dry-run")
    file = folder / f"submission-{time.time_ns()}.sh"
    folder.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    done = subprocess.run(["sbatch", str(file)], capture_output=True, text=True)
    if done.returncode:
        raise RunError(f"sbatch refused {file}: {done.stderr.strip() or f'exit status {done.returncode}'}")
    submitit = _submitit()
    try:
        number: str = submitit.SlurmExecutor._get_job_id_from_submission_command(done.stdout)
    except submitit.core.utils.FailedSubmissionError:
        raise RunError(f"sbatch took {file}, but printed no job number: {done.stdout.strip()!r}") from None
    file.rename(submitit.core.utils.JobPaths(folder, job_id=number).submission_file)
    return number


def parse(settings: Sequence[str]) -> tuple[Job, dict[str, str]]:
    """Read the words after ``--slurm``: the job, and the parameters of ``sbatch.NAME=VALUE``."""
    types = {field.name: str(field.type) for field in fields(Job)}
    values: dict[str, Any] = {}
    more: dict[str, str] = {}
    for setting in settings:
        key, _, text = setting.partition("=")
        if not text:
            raise ConfigError(f"--slurm takes key=value, such as partition=gpu, got {setting!r}")
        if key.startswith("sbatch."):
            name = key.removeprefix("sbatch.").replace("_", "-")
            more[name] = text
            continue
        key = "gpus_per_node" if key == "gpus" else key
        if key not in types:
            other = f"sbatch.{key}={text} passes it on to sbatch, and overrides of the experiment go before --slurm"
            raise ConfigError(f"{unknown('--slurm key', key, types)}; {other}")
        try:
            values[key] = int(text) if "int" in types[key] else float(text) if "float" in types[key] else text
        except ValueError:
            raise ConfigError(f"--slurm {key} must be a number, got {text!r}") from None
    return Job(**values), more


def job_file(
    job: Job, more: dict[str, str], commands: Sequence[Sequence[str]], run_dirs: Sequence[str]
) -> tuple[str, Path]:
    """Return a job file, of one command or an array of them, and the folder for it; ``more`` is for sbatch."""
    if job.array is not None and len(commands) < 2:
        raise ConfigError("--slurm array=seeds needs a sweep of several runs, such as seed=1,2,3")
    folder = (Path(job.folder) if job.folder else Path(run_dirs[0]).parent / "slurm").resolve()
    processes = job.nodes * job.tasks_per_node
    setup = [f"set -- {shlex.join([sys.executable, '-m', 'groundling', *words])}" for words in commands]
    if job.array is not None:
        cases = [f"  {number}) {line} ;;" for number, line in enumerate(setup)]
        setup = ['case "$SLURM_ARRAY_TASK_ID" in', *cases, "esac"]
    if processes > 1:  # the variables of torchrun, which itself would die of the signal to stop
        setup += [
            'export MASTER_ADDR="$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)"',
            'export MASTER_PORT="$((20000 + SLURM_JOB_ID % 20000))"',
            f"export WORLD_SIZE={processes} LOCAL_WORLD_SIZE={job.tasks_per_node}",
        ]
    srun = ["--wait=120"]  # seconds; if one process fails, the others do not wait for ever
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
    """Treat the signal before a job's time limit as a first Ctrl-C; yield a function that returns True if it came.
    Outside of a run's loop, for instance while a model is loaded, `TimeIsUp` ends the process instead. The job is then
    requeued only if ``has_advanced()``: one that never advances would be requeued for ever.
    """
    came = False

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal came
        if came:  # a second stop signal would end the run at once
            return
        came = True
        if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:  # a run's loop handles it
            signal.raise_signal(signal.SIGTERM)
        elif has_advanced():
            raise TimeIsUp(TO_BE_REQUEUED)
        else:
            raise TimeIsUp(
                "error: the job's time is nearly up, and it has not reached a new checkpoint: give it more time "
                "(--slurm time=…), or a job for each run of a sweep (array=seeds)"
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
"""Sets the variables that differ between processes."""


def _submitit() -> ModuleType:
    try:
        import submitit
    except ImportError:
        raise ConfigError("--slurm needs submitit: pip install 'groundling[slurm]'") from None
    return submitit
