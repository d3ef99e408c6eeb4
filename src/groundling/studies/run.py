"""`groundling study`: arms × seeds as ordinary runs, trained and evaluated, each thing once."""

import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from groundling.config.compose import compose
from groundling.config.schema import Config
from groundling.errors import ConfigError, GroundlingError, RunError, UnusedKey
from groundling.evaluation.evaluate import evaluate, played_with, read_evaluation
from groundling.evaluation.target import Target, config_of_agent
from groundling.io.locks import locked, output_lock
from groundling.runtime.parallel import CommandLine, run_parallel
from groundling.studies.definition import Arm, Study
from groundling.training import checkpoint
from groundling.training.build import world_of
from groundling.training.folder import open_run, write_settings
from groundling.training.train import train
from groundling.worlds import CannotPlay, agents, kind
from groundling.worlds.protocols import episode_recorder
from groundling.worlds.world import Player

LOG = "study.log"
"""In a run's folder: what its process said, where a study runs several."""
_DATA = "data"
"""In a clone's folder: what it learns from."""
Tell = Callable[[str], None]


@dataclass(frozen=True)
class Job:
    """One arm with one seed: a run and its evaluations."""

    arm: str
    seed: int
    agent: str
    """trained, or one of `groundling.worlds.agents`."""
    config: Config
    suites: tuple[str, ...]
    episodes: int
    arm_config: Config
    """Its arm's, in which seed and run_dir are not yet those of the run."""
    teacher: "Job | None" = None
    """Of whom this one is a clone."""

    @property
    def name(self) -> str:
        """What it is called, and its folder."""
        return f"{self.arm}-seed{self.seed}"

    @property
    def run_dir(self) -> Path:
        """The run's folder."""
        return Path(self.config.run_dir)

    def target(self) -> Target:
        """Who is evaluated.

        Raises:
            RunError: it is to be trained, and is not yet to the end.
        """
        if self.agent in agents():
            return Target(self.agent, self.run_dir, self.config)
        latest, training = (
            checkpoint.latest(self.run_dir / "checkpoints", warnings.warn),
            self.config.training,
        )
        if latest is None or not checkpoint.is_last(latest, training.steps, training.epochs):
            raise RunError(f"{self.name} has not been trained to the end yet")
        return Target(self.agent, self.run_dir, self.config, latest)

    def is_trained(self) -> bool:
        """Whether nothing of its training is left."""
        try:
            self.target()
        except RunError:
            return False
        return True

    def evaluation(self, suite: str) -> dict[str, Any] | None:
        """What was written about the trained agent under ``suite``; None if that was another agent, or unfinished.

        Raises:
            ConfigError: the suite does not suit it.
            RunError: it is not trained yet.
        """
        target = self.target()
        path = self.run_dir / "evaluation" / f"{suite}.json"
        there = target.under(suite)
        if not path.exists():
            return None
        try:
            content = read_evaluation(path)
            played = [name for name in target.players if name not in content.get("left_out", ())]
            same = (
                target.checkpoint_identity().items() <= content.items()
                and content["world"] == json.loads(json.dumps(there.world.settings))
                and content["played_with"] == played_with(there.config)
                and all(
                    self.episodes in (content.get("most_episodes"), content["agents"][name]["episodes"])
                    for name in played
                )
            )
        except (RunError, KeyError, TypeError, AttributeError):  # of an earlier version, or of fewer agents
            return None
        return content if same else None

    def evaluations(self) -> dict[str, dict[str, Any] | None]:
        """`evaluation` of each of its suites that suit it."""
        evaluations = {}
        for suite in self.suites:
            try:
                evaluations[suite] = self.evaluation(suite)
            except ConfigError:
                continue
        return evaluations

    def is_done(self) -> bool:
        """Whether nothing is left to do; not if another run stands in its place, which `run_job` tells."""
        if not self.is_trained():
            return False
        if self.agent not in agents():
            try:
                with open_run(self.run_dir, asdict(self.config)) as folder:
                    write_settings(folder, asdict(self.config))
            except GroundlingError:
                return False
        return all(self.evaluations().values())


def make_jobs(study: Study, arms: Mapping[str, Arm], runs: Path, config_dir: Path | None = None) -> list[Job]:
    """The jobs of ``arms``, seed by seed, so that all arms have a result early.

    Args:
        study: The study with all its arms, of which some may be others' teachers.
        arms: Those to be run.
        runs: The folder of the runs' folders.
        config_dir: A folder of the user's own experiments, as of `compose`.

    Raises:
        ConfigError: no such experiment, key, suite, …; the message names the arm. Or no arm has one of the seeds.
    """
    needed = set(arms)
    for name in reversed(study.arms):  # those that teach stand before those that they teach
        teacher = study.arms[name].data
        if name in needed and teacher in study.arms and teacher not in agents():
            needed.add(teacher)
    composed = {name: _config(study, name, config_dir) for name in study.arms if name in needed}
    configs = {name: config for name, (config, _) in composed.items()}
    for word in study.common if len(composed) == len(study.arms) else ():
        if not any(word in used for _, used in composed.values()):
            raise ConfigError(
                f"the study {study.name} sets {word} for all arms, and none of them uses it: leave it out"
            )
    every = [_jobs_of_seed(study, configs, seed, runs) for seed in study.seeds]
    chosen = [
        job
        for jobs in every
        for job in jobs
        if job.arm in arms and job.seed in (study.arms[job.arm].seeds or study.seeds)
    ]
    if not chosen:
        raise ConfigError(f"{', '.join(arms)} have none of the seeds {study.seeds}: name others")
    return chosen


def _config(study: Study, name: str, config_dir: Path | None) -> tuple[Config, list[str]]:
    """An arm's configuration, but for what differs between its seeds, and what it uses of what is said of all."""
    arm, common = study.arms[name], list(study.common)
    while True:
        overrides = [*common, *arm.overrides]
        try:
            if arm.experiment in agents():
                return config_of_agent(arm.experiment, overrides), common
            return compose(arm.experiment, [*overrides, f"name={name}"], config_dir), common
        except UnusedKey as error:
            # What is said of all arms is for those that use it.
            used = [text for text in common if text.partition("=")[0] != error.key]
            if used == common:
                raise ConfigError(f"arm {name}: {error}") from error
            common = used
        except ConfigError as error:
            raise ConfigError(f"arm {name}: {error}") from error


def _jobs_of_seed(study: Study, configs: Mapping[str, Config], seed: int, runs: Path) -> list[Job]:
    jobs: dict[str, Job] = {}
    for name, config in configs.items():
        arm = study.arms[name]
        run_dir = runs / f"{name}-seed{seed}"
        run_config = replace(config, seed=seed, run_dir=str(run_dir))
        teacher = None
        if arm.data is not None:
            teacher = _teacher(name, arm.data, run_config, seed) if arm.data in agents() else jobs[arm.data]
            recorder = episode_recorder(world_of(run_config))
            run_config = replace(run_config, world=recorder.learning_from(run_dir / _DATA))
        world = kind(run_config.world.id)
        named = study.suites if arm.suites is None else arm.suites
        named = [next(iter(world.suites))] if named is None else named
        suites = tuple(world.find_suites(",".join(named)))
        agent = arm.experiment if arm.experiment in agents() else "trained"
        jobs[name] = Job(name, seed, agent, run_config, suites, study.episodes, config, teacher)
    return list(jobs.values())


def _teacher(arm: str, agent: str, clone: Config, seed: int) -> Job:
    """Who shows a clone what to do, without learning it, in the clone's own world."""
    try:
        world_of(clone).check_player(Player(agent))
    except CannotPlay as error:
        raise ConfigError(f"arms.{arm}.data: {error}") from error
    place = clone.world.PLACE
    at_home = config_of_agent(agent, [f"world.{place}={getattr(clone.world, place)}"])
    return Job(agent, seed, agent, replace(at_home, world=clone.world, seed=seed), (), 0, at_home)


def run_job(job: Job, tell: Tell, console: Console, warn: Tell) -> None:
    """Train and evaluate what is not yet trained and evaluated.

    Raises:
        GroundlingError: something cannot go on; what was written stays.
        KeyboardInterrupt: it was asked to stop.
    """
    if job.agent not in agents():
        trained = job.run_dir.exists() and _is_trained_in(job, warn)
        if not trained:
            if job.teacher is not None:
                data = job.run_dir / _DATA
                with locked(output_lock(data), f"is collecting into {data}"):
                    _collect(job, job.teacher, tell)
            tell(f"{job.name}: training")
            if not train(job.config, console, warn):
                raise KeyboardInterrupt
    evaluations = job.evaluations()
    left_out = [suite for suite in job.suites if suite not in evaluations]
    if left_out:
        tell(
            f"{job.name}: without the tests {', '.join(left_out)}, which do not suit the arm's world or policy"
        )
    left = [suite for suite, evaluation in evaluations.items() if evaluation is None]
    for number, suite in enumerate(left, start=1):
        tell(f"{job.name}: evaluating {suite} ({number} of {len(left)})")
        evaluate(job.target(), suite, job.episodes, warn=warn)


def _is_trained_in(job: Job, warn: Tell) -> bool:
    """Whether the job's folder holds its run, trained, and not another arm's."""
    with open_run(job.run_dir, asdict(job.config)) as folder:
        trained = job.is_trained()
        if trained:
            write_settings(folder, asdict(job.config))
    return trained


def _collect(job: Job, teacher: Job, tell: Tell) -> None:
    """Let the teacher play until there are as many transitions as the clone learns from."""
    folder, needed = job.run_dir / _DATA, job.config.training.steps
    first = 1 + needed // 32  # episodes; as many as it then takes
    world = episode_recorder(world_of(job.config))
    begun = world.recorded(folder).transitions
    if 0 < begun < needed and checkpoint.numbered(job.run_dir / "checkpoints"):
        raise ConfigError(
            f"{job.name} learns from the {begun:,} transitions that it began with, and training.steps={needed} would "
            "need more: name another folder for the runs (--runs), or leave its training.steps as they were"
        )
    while (there := world.recorded(folder)).transitions < needed:
        more = first
        if there.transitions:  # a little more than it took so far
            more = 2 + (needed - there.transitions) * there.episodes * 21 // (there.transitions * 20)
        tell(
            f"{job.name}: {teacher.arm} plays {more:,} episodes ({there.transitions:,} of {needed:,} transitions)"
        )
        target = teacher.target()
        recorder = episode_recorder(target.world)
        recorder.record_episodes(target.demonstrator(), there.episodes + more, folder)


def run_here(jobs: Sequence[Job], tell: Tell, console: Console, warn: Tell) -> list[Job]:
    """Run the jobs one after the other; one that fails is told, and the rest goes on.

    Returns:
        Those that failed.
    """
    failed = []
    for number, job in enumerate(jobs, start=1):
        place = f"[{number}/{len(jobs)}]"
        try:
            run_job(job, lambda text, place=place: tell(f"{place} {text}"), console, warn)  # type: ignore[misc]
        except GroundlingError as error:
            failed.append(job)
            tell(f"{place} {job.name} failed: {' '.join(str(error).split())}")
    return failed


def run_jobs_beside(
    jobs: Sequence[Job], words: Callable[[Job], list[str]], processes: int, tell: Tell
) -> list[Job]:
    """Run the jobs in processes of one thread each, so many at a time; a clone waits for its teacher.

    Args:
        jobs: What to run; what is done already starts no process.
        words: What follows ``groundling`` on the command line that runs a job alone.
        processes: How many run at a time.
        tell: Is told of each job's start and end.

    Returns:
        Those that failed.
    """
    waiting = [job for job in jobs if not job.is_done()]
    tell(f"{len(jobs) - len(waiting)} of {len(jobs)} are done")
    lines = [
        CommandLine(job.name, words(job), job.run_dir / LOG, job.teacher.name if job.teacher else None)
        for job in waiting
    ]
    failed = run_parallel(lines, processes, tell)
    return [job for job in waiting if job.name in failed]
