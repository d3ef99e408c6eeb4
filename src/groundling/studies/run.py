"""`groundling study`: each arm and seed is an ordinary run, which is trained and evaluated once."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from groundling.config.compose import compose
from groundling.config.schema import Config
from groundling.errors import ConfigError, GroundlingError, RunError, UnusedKey, warn_caller
from groundling.evaluation.evaluate import evaluate, played_with, read_evaluation
from groundling.evaluation.target import Target, config_of_agent
from groundling.io.files import locked, output_lock
from groundling.runtime.parallel import CommandLine, run_parallel
from groundling.studies.definition import Arm, Study
from groundling.training import checkpoint
from groundling.training.build import world_of
from groundling.training.checkpoint import open_run, write_settings
from groundling.training.train import train
from groundling.worlds import CannotPlay, agents, kind
from groundling.worlds.protocols import episode_recorder
from groundling.worlds.world import Player

_LOG = "study.log"  # file in a run's folder with the output of its process, if the study uses several processes
_DATA = "data"  # dataset for cloning, in the run's folder
Report = Callable[[str], None]


@dataclass(frozen=True)
class StudyJob:
    """One arm with one seed: a run and its evaluations."""

    arm: str
    seed: int
    agent: str  # trained, or one of `groundling.worlds.agents`
    config: Config
    suites: tuple[str, ...]
    episodes: int
    arm_config: Config  # the arm's config, before the run's seed and run_dir are set
    teacher: "StudyJob | None" = None  # the job whose agent this one clones

    @property
    def name(self) -> str:
        return f"{self.arm}-seed{self.seed}"

    @property
    def run_dir(self) -> Path:
        return Path(self.config.run_dir)

    @property
    def learns(self) -> bool:
        return self.agent not in agents()

    def target(self) -> Target:
        """Return the agent to evaluate; raise `RunError` if its training is unfinished."""
        if not self.learns:
            return Target(self.agent, self.run_dir, self.config)
        latest = checkpoint.latest(self.run_dir / "checkpoints", warn_caller)
        training = self.config.training
        if latest is None or not checkpoint.is_last(latest, training.steps, training.epochs):
            raise RunError(f"{self.name} has not finished training yet")
        return Target(self.agent, self.run_dir, self.config, latest)

    def is_trained(self) -> bool:
        """Return True if training is finished or not needed."""
        try:
            self.target()
        except RunError:
            return False
        return True

    def evaluation(self, suite: str) -> dict[str, Any] | None:
        """Return the agent's evaluation on a suite, or None if it is missing, unfinished or for a different agent."""
        target = self.target()
        path = self.run_dir / "evaluation" / f"{suite}.json"
        in_suite = target.under(suite)
        if not path.exists():
            return None
        try:
            content = read_evaluation(path)
            players = [name for name in target.players if name not in content.get("left_out", ())]
            is_same = (
                target.checkpoint_identity().items() <= content.items()
                and content["world"] == json.loads(json.dumps(in_suite.world.settings))
                and content["played_with"] == played_with(in_suite.config)
                and all(
                    self.episodes in (content.get("most_episodes"), content["agents"][name]["episodes"])
                    for name in players
                )
            )
        except (RunError, KeyError, TypeError, AttributeError):  # written by an earlier version or for fewer agents
            return None
        return content if is_same else None

    def evaluations(self) -> dict[str, dict[str, Any] | None]:
        """Return the `evaluation` on each suite that applies to the agent."""
        evaluations = {}
        for suite in self.suites:
            try:
                evaluations[suite] = self.evaluation(suite)
            except ConfigError:
                continue
        return evaluations

    def is_done(self) -> bool:
        """Return True if nothing is left to do. A different run in the folder yields False; `run_job` reports it."""
        try:
            is_trained = self.is_trained() and (not self.learns or _is_trained_in_folder(self))
            return is_trained and all(self.evaluations().values())
        except GroundlingError:
            return False


def make_jobs(study: Study, arms: Mapping[str, Arm], runs: Path, config_dir: Path | None = None) -> list[StudyJob]:
    """Create the jobs for ``arms``, ordered by seed so that all arms have results early. Arms may teach other arms."""
    needed = set(arms)
    for name in reversed(study.arms):  # teachers come before their students
        teacher = study.arms[name].data
        if name in needed and teacher in study.arms:
            needed.add(teacher)
    composed = {name: _compose(study, name, config_dir) for name in study.arms if name in needed}
    if len(composed) == len(study.arms):
        for word in study.common:
            if not any(word in used for _, used in composed.values()):
                raise ConfigError(f"the study {study.name} sets {word}, but none of its arms uses it: remove it")
    configs = {name: config for name, (config, _) in composed.items()}
    jobs = [
        job
        for seed in study.seeds
        for job in _jobs_of_seed(study, configs, seed, runs)
        if job.arm in arms and seed in (study.arms[job.arm].seeds or study.seeds)
    ]
    if not jobs:
        raise ConfigError(f"none of the seeds {study.seeds} apply to {', '.join(arms)}: use different seeds")
    return jobs


def _compose(study: Study, name: str, config_dir: Path | None) -> tuple[Config, list[str]]:
    """Compose an arm's config without a seed and a folder; also return the common overrides that it uses."""
    arm, common = study.arms[name], list(study.common)
    while True:
        overrides = [*common, *arm.overrides]
        try:
            if arm.experiment in agents():
                return config_of_agent(arm.experiment, overrides), common
            return compose(arm.experiment, [*overrides, f"name={name}"], config_dir), common
        except UnusedKey as error:
            # Common overrides apply only to the arms that use them.
            used = [text for text in common if text.partition("=")[0] != error.key]
            if used == common:
                raise ConfigError(f"arm {name}: {error}") from error
            common = used
        except ConfigError as error:
            raise ConfigError(f"arm {name}: {error}") from error


def _jobs_of_seed(study: Study, configs: Mapping[str, Config], seed: int, runs: Path) -> list[StudyJob]:
    jobs: dict[str, StudyJob] = {}
    for name, config in configs.items():
        arm = study.arms[name]
        run_dir = runs / f"{name}-seed{seed}"
        run_config = config.model_copy(update={"seed": seed, "run_dir": str(run_dir)})
        teacher = None
        if arm.data is not None:
            teacher = _teacher(name, arm.data, run_config, seed) if arm.data in agents() else jobs[arm.data]
            recorder = episode_recorder(world_of(run_config))
            run_config = run_config.model_copy(update={"world": recorder.learning_from(run_dir / _DATA)})
        world = kind(run_config.world.id)
        named = arm.suites or study.suites or [next(iter(world.suites))]
        suites = tuple(world.find_suites(",".join(named)))
        agent = arm.experiment if arm.experiment in agents() else "trained"
        jobs[name] = StudyJob(name, seed, agent, run_config, suites, study.episodes, config, teacher)
    return list(jobs.values())


def _teacher(arm: str, agent: str, clone: Config, seed: int) -> StudyJob:
    """Create the job for an untrained agent that a clone learns from, in the clone's world."""
    try:
        world_of(clone).check_player(Player(agent))
    except CannotPlay as error:
        raise ConfigError(f"arms.{arm}.data: {error}") from error
    place = clone.world.PLACE
    config = config_of_agent(agent, [f"world.{place}={getattr(clone.world, place)}"])
    return StudyJob(agent, seed, agent, config.model_copy(update={"world": clone.world, "seed": seed}), (), 0, config)


def run_job(job: StudyJob, report: Report, console: Console, warn: Report) -> None:
    """Run a job's missing training and evaluations; raise `KeyboardInterrupt` if training was interrupted."""
    if job.learns and not (job.run_dir.exists() and _is_trained_in_folder(job)):
        if job.teacher is not None:
            data = job.run_dir / _DATA
            with locked(output_lock(data), f"is collecting into {data}"):
                _collect(job, job.teacher, report)
        report(f"{job.name}: training")
        if not train(job.config, console, warn):
            raise KeyboardInterrupt
    evaluations = job.evaluations()
    if unsuited := [suite for suite in job.suites if suite not in evaluations]:
        report(f"{job.name}: skipping the tests {', '.join(unsuited)}, which do not apply to its world or policy")
    missing = [suite for suite, evaluation in evaluations.items() if evaluation is None]
    for number, suite in enumerate(missing, start=1):
        report(f"{job.name}: evaluating {suite} ({number} of {len(missing)})")
        evaluate(job.target(), suite, job.episodes, warn=warn)


def _is_trained_in_folder(job: StudyJob) -> bool:
    """Return True if the job's folder contains its trained run; raise an error if it contains a different run."""
    with open_run(job.run_dir, job.config.model_dump()) as folder:
        trained = job.is_trained()
        if trained:
            write_settings(folder, job.config.model_dump())
            checkpoint.remove_partial(folder / "checkpoints")
    return trained


def _collect(job: StudyJob, teacher: StudyJob, report: Report) -> None:
    """Record the teacher's episodes until there are enough transitions for the clone."""
    folder, needed = job.run_dir / _DATA, job.config.training.steps
    world = episode_recorder(world_of(job.config))
    present = world.recorded(folder)
    if 0 < present.transitions < needed and checkpoint.list_checkpoints(job.run_dir / "checkpoints"):
        raise ConfigError(
            f"{job.name} learns from the {present.transitions:,} transitions that it started with, but "
            f"training.steps={needed} needs more: choose a different folder for the runs (--runs), or keep its "
            "training.steps unchanged"
        )
    while (present := world.recorded(folder)).transitions < needed:
        more = 1 + needed // 32  # first estimate of the number of episodes
        if present.transitions:  # then slightly more than the recorded episodes suggest
            more = 2 + (needed - present.transitions) * present.episodes * 21 // (present.transitions * 20)
        report(
            f"{job.name}: {teacher.arm} plays {more:,} episodes ({present.transitions:,} of {needed:,} transitions)"
        )
        target = teacher.target()
        recorder = episode_recorder(target.world)
        recorder.record_episodes(target.demonstrator(), present.episodes + more, folder)


def run_here(jobs: Sequence[StudyJob], report: Report, console: Console, warn: Report) -> list[StudyJob]:
    """Run the jobs one after another; report and return those that fail, and continue with the others."""
    failed = []
    for number, job in enumerate(jobs, start=1):
        place = f"[{number}/{len(jobs)}]"
        try:
            run_job(job, lambda text, place=place: report(f"{place} {text}"), console, warn)  # type: ignore[misc]
        except GroundlingError as error:
            failed.append(job)
            report(f"{place} {job.name} failed: {' '.join(str(error).split())}")
    return failed


def run_in_processes(
    jobs: Sequence[StudyJob], words: Callable[[StudyJob], list[str]], processes: int, report: Report
) -> list[StudyJob]:
    """Run the unfinished jobs in parallel single-threaded processes; return those that failed.

    ``words`` returns the command-line arguments that run a single job. A clone waits for its teacher.
    """
    waiting = [job for job in jobs if not job.is_done()]
    report(f"{len(jobs) - len(waiting)} of {len(jobs)} jobs are done")
    lines = [
        CommandLine(job.name, words(job), job.run_dir / _LOG, job.teacher.name if job.teacher else None)
        for job in waiting
    ]
    failed = run_parallel(lines, processes, report)
    return [job for job in waiting if job.name in failed]
