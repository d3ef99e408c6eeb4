"""`groundling train … --slurm partition=gpu array=seeds`: write the job, show it, submit it.

The job runs ``groundling train`` as it was typed. Some minutes before the time limit SLURM sends the run's processes
`_SIGNAL`; the run ends after its present update with the exit status `TO_BE_REQUEUED`, and the job puts itself back
into the queue. The same command then goes on from the last checkpoint. If the signal comes between two runs of a sweep
or while one is made, the job is requeued where it has come on.

submitit writes the sbatch file and reads the job's number; its executors are not used, because they hand a pickled
function to the job, and call it again from that pickle when it is requeued. A command needs neither.
"""

import re
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
from typing import Any

from groundling.errors import ConfigError, RunError, TimeIsUp
from groundling.registry import unknown

TO_BE_REQUEUED = 75
"""Exit status of a run that stopped because its time is nearly up (EX_TEMPFAIL: try again later)."""
_SIGNAL = signal.SIGUSR2
_OURS = ("array", "chdir", "error", "open-mode", "output", "requeue", "signal", "wckey")
"""What the job sets by itself, and ``sbatch.…`` may not."""
_BY_KEY = {
    "nodes": "nodes",
    "ntasks-per-node": "tasks_per_node",
    "gpus-per-node": "gpus_per_node",
    "cpus-per-task": "cpus_per_task",
    "job-name": "name",
    **{name: name for name in ("partition", "account", "qos", "constraint", "time")},
}
"""What ``sbatch.…`` may not say either, and the key that does: the job reckons with some of them."""


@dataclass
class Job:
    """What a job asks SLURM for: the keys of ``--slurm``, of which ``sbatch.NAME=VALUE`` passes on any other."""

    name: str = "groundling"
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    nodes: int = 1
    gpus_per_node: int = 0
    """``gpus`` for short. Each gets a process of its own."""
    tasks_per_node: int = 0
    """Processes on each node; 0: one for each GPU, or one."""
    cpus_per_task: int | None = None
    mem_gb: float | None = None
    """Memory of each node."""
    time: str | None = None
    """Minutes, or [days-]hours:minutes:seconds; the partition's own limit if it is left out."""
    signal_delay_s: int = 300
    """How long before the time limit the run is asked to stop: longer than one update takes."""
    array: str | None = None
    """``seeds``: a job array with one task for each run of the sweep, such as seed=1,2,3."""
    array_parallelism: int = 256
    """How many tasks of the array may run at once."""
    folder: str | None = None
    """Where job files and logs go, on a disk that the nodes share; slurm/ beside the first run's folder."""

    def __post_init__(self) -> None:
        """Raise `ConfigError` on what no job can ask for."""
        for key in ("nodes", "signal_delay_s", "array_parallelism"):
            if getattr(self, key) < 1:
                raise ConfigError(f"--slurm {key} must be at least 1, got {getattr(self, key)}")
        for key in ("gpus_per_node", "tasks_per_node", "cpus_per_task", "mem_gb"):
            if (getattr(self, key) or 0) < 0:
                raise ConfigError(f"--slurm {key} must be at least 0, got {getattr(self, key)}")
        if self.array not in (None, "seeds"):
            raise ConfigError(
                f"--slurm array must be seeds (one task for each run of the sweep), got {self.array!r}"
            )
        if self.time is not None and _seconds(self.time) <= self.signal_delay_s:
            raise ConfigError(
                f"--slurm time={self.time} leaves nothing before the signal to stop, {self.signal_delay_s} seconds "
                "before its end: give more time, or a smaller signal_delay_s"
            )
        self.tasks_per_node = self.tasks_per_node or max(self.gpus_per_node, 1)


@dataclass
class Submission:
    """A job file, and where it goes."""

    text: str
    folder: Path

    def submit(self) -> str:
        """Hand the job to sbatch.

        Returns:
            The job's number. The job file stays beside the logs, under that number.

        Raises:
            RunError: there is no sbatch here, or it refuses the job.
        """
        if shutil.which("sbatch") is None:
            raise RunError(
                "sbatch is not on PATH: submit from a node of the cluster, or only look with --dry-run"
            )
        file = self.folder / f"submission-{time.time_ns()}.sh"
        self.folder.mkdir(parents=True, exist_ok=True)
        file.write_text(self.text, encoding="utf-8")
        done = subprocess.run(["sbatch", str(file)], capture_output=True, text=True)
        if done.returncode:
            raise RunError(
                f"sbatch refused {file}: {done.stderr.strip() or f'exit status {done.returncode}'}"
            )
        submitit = _submitit()
        try:
            number: str = submitit.SlurmExecutor._get_job_id_from_submission_command(done.stdout)
        except submitit.core.utils.FailedSubmissionError:
            raise RunError(f"sbatch took {file}, but said no job number: {done.stdout.strip()!r}") from None
        paths = submitit.core.utils.JobPaths(self.folder, job_id=number)
        file.rename(paths.submission_file)
        return number


def parse(settings: Sequence[str]) -> tuple[Job, dict[str, str]]:
    """Read the words after ``--slurm``.

    Returns:
        The job, and what ``sbatch.NAME=VALUE`` gave.

    Raises:
        ConfigError: a word that is no key=value, an unknown key, or a value of the wrong type.
    """
    types = {field.name: field.type for field in fields(Job)}
    values: dict[str, Any] = {}
    more: dict[str, str] = {}
    for setting in settings:
        key, equals, text = setting.partition("=")
        if not equals or not text:
            raise ConfigError(f"--slurm takes key=value, such as partition=gpu, got {setting!r}")
        if key.startswith("sbatch."):
            name = key.removeprefix("sbatch.").replace("_", "-")
            if name in _OURS:
                raise ConfigError(f"--slurm {key} cannot be set: the job needs its own {name}")
            if name in _BY_KEY:
                raise ConfigError(
                    f"--slurm {key}={text} would go past the job's own key: give {_BY_KEY[name]}={text}"
                )
            more[name] = text
            continue
        key = "gpus_per_node" if key == "gpus" else key
        if key not in types:
            raise ConfigError(
                f"{unknown('--slurm key', key, types)}; sbatch.{key}={text} passes it on to sbatch, and overrides "
                "of the experiment go before --slurm"
            )
        values[key] = _value(key, text, str(types[key]))
    return Job(**values), more


def submission(
    job: Job, more: dict[str, str], commands: Sequence[Sequence[str]], run_dirs: Sequence[str]
) -> Submission:
    """Write the job file for these commands: a task of the array for each, or one after the other.

    Args:
        job: What to ask for.
        more: Further parameters of sbatch.
        commands: The words of each run's ``groundling train …``, after ``groundling``.
        run_dirs: The runs' folders.

    Raises:
        ConfigError: an array of one run, or submitit is not installed.
    """
    if job.array is not None and len(commands) < 2:
        raise ConfigError("--slurm array=seeds needs a sweep of several runs, such as seed=1,2,3")
    folder = Path(job.folder) if job.folder else Path(run_dirs[0]).parent / "slurm"
    processes = job.nodes * job.tasks_per_node
    srun = ["--wait=120"]  # if one process fails, the others do not wait for it for ever
    if job.cpus_per_task:
        srun.append(f"--cpus-per-task={job.cpus_per_task}")  # which srun does not take over from sbatch
    text: str = _submitit().slurm.slurm._make_sbatch_string(
        command=_PROCESS if processes > 1 else '"$@"',
        folder=folder.resolve(),
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
        setup=[*_choice(job, commands), *(_rendezvous(job) if processes > 1 else [])],
        teardown=_REQUEUE,
        srun_args=srun,
        additional_parameters={
            "signal": f"{_SIGNAL.name.removeprefix('SIG')}@{job.signal_delay_s}",
            "requeue": True,
            "chdir": Path.cwd(),
            **more,
        },
    )
    return Submission(text, folder.resolve())


@contextmanager
def time_limit(has_come_on: Callable[[], bool]) -> Iterator[Callable[[], bool]]:
    """Take the signal of a job whose time is nearly up as a first Ctrl-C.

    Outside a run's loop, as while its model is loaded, there is no update to stop after: `TimeIsUp` ends the process.

    Args:
        has_come_on: Says whether the job is then to be requeued. One that never comes further would be for ever.

    Yields:
        A function that says whether the signal came.
    """
    came = False

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal came
        if came:  # a second signal to stop would end the run at once
            return
        came = True
        if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:  # a run's loop takes it
            signal.raise_signal(signal.SIGTERM)
        elif has_come_on():
            raise TimeIsUp(TO_BE_REQUEUED)
        else:
            raise TimeIsUp(
                "error: the job's time is nearly up, and it has not come to a new checkpoint: give it more time "
                "(--slurm time=…), or each run of a sweep a job of its own (array=seeds)"
            )

    previous = signal.signal(_SIGNAL, handle)
    try:
        yield lambda: came
    finally:
        signal.signal(_SIGNAL, previous)


_REQUEUE = [
    "status=$?",
    f'if [ "$status" -eq {TO_BE_REQUEUED} ]; then  # the time was nearly up: a checkpoint is written, go on later',
    '  exec scontrol requeue "${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}${SLURM_ARRAY_TASK_ID:+_$SLURM_ARRAY_TASK_ID}"',
    "fi",
    'exit "$status"',
    "",
]


def _choice(job: Job, commands: Sequence[Sequence[str]]) -> list[str]:
    """Bash that puts the run's command into ``"$@"``."""
    lines = [f"set -- {shlex.join([sys.executable, '-m', 'groundling', *words])}" for words in commands]
    if job.array is None:
        assert len(lines) == 1
        return lines
    cases = [f"  {number}) {line} ;;" for number, line in enumerate(lines)]
    return ['case "$SLURM_ARRAY_TASK_ID" in', *cases, "esac"]


def _rendezvous(job: Job) -> list[str]:
    """Bash that sets what torchrun would set: where torch.distributed meets, and how many processes there are.

    srun starts the processes itself, because torchrun would die of the signal that asks them to stop.
    """
    return [
        'export MASTER_ADDR="$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)"',
        'export MASTER_PORT="$((20000 + SLURM_JOB_ID % 20000))"',
        f"export WORLD_SIZE={job.nodes * job.tasks_per_node} LOCAL_WORLD_SIZE={job.tasks_per_node}",
    ]


_PROCESS = """bash -c 'export RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID; exec "$@"' process "$@\""""
"""Each process's own part of that."""


def _value(key: str, text: str, type_name: str) -> Any:
    try:
        if "int" in type_name:
            return int(text)
        if "float" in type_name:
            return float(text)
    except ValueError:
        raise ConfigError(f"--slurm {key} must be a number, got {text!r}") from None
    return text


def _seconds(limit: str) -> int:
    """A time limit in seconds."""
    if limit.isdecimal():
        return 60 * int(limit)
    match = re.fullmatch(r"(?:(\d+)-)?(\d+):(\d\d):(\d\d)", limit)
    if match is None:
        raise ConfigError(f"--slurm time must be minutes or [days-]hours:minutes:seconds, got {limit!r}")
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return ((24 * days + hours) * 60 + minutes) * 60 + seconds


def _submitit() -> ModuleType:
    try:
        import submitit
    except ImportError:
        raise ConfigError("--slurm needs submitit: pip install 'groundling[slurm]'") from None
    return submitit
