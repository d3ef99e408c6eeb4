"""Agents to evaluate: a run's checkpoint, an untrained experiment, or a baseline without a policy."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from groundling.algorithms.algorithm import Algorithm, algorithms
from groundling.config.compose import changed, compose, experiments, from_file
from groundling.config.facts import Purpose, has_fact, shareable, shareable_words
from groundling.config.schema import Config
from groundling.errors import ConfigError, GroundlingError, RunError, unknown, warn_caller
from groundling.evaluation import hub
from groundling.fields import FixedByTraining, NoEffectOnResults, annotation, flat
from groundling.io.documents import read_object
from groundling.io.files import refuse_missing
from groundling.lm.load.model import load_config
from groundling.lm.load.model_files import Source, fingerprint, resolve
from groundling.policies.policy import Policy, has_model
from groundling.registry import naming_modules
from groundling.training import checkpoint
from groundling.training.build import make_policy, world_of
from groundling.training.checkpoint import CLONE, Hold
from groundling.worlds import CannotPlay, World, agents, home_of
from groundling.worlds.protocols import Suites
from groundling.worlds.world import Demonstrator

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")


@dataclass(frozen=True)
class Target:
    """An agent to evaluate, and the folder for its results."""

    agent: str  # its name in results: trained, zero-shot, or one of `groundling.worlds.agents`
    run_dir: Path
    config: Config
    checkpoint: Path | None = None
    overrides: tuple[str, ...] = ()  # the caller's overrides, which take precedence over a suite's
    suffix: str = ""  # suffix of result files: a selected checkpoint's name and the name passed to `named`
    suite: str | None = None  # the suite that changed the configuration; set by `under`
    hold: Hold | None = field(default=None, repr=False, compare=False)  # prevents deletion of the checkpoint

    @property
    def world(self) -> World:
        return world_of(self.config, self.checkpoint, self.suite)

    @property
    def changes(self) -> list[str]:
        """The overrides that affect results; paths and servers do not."""
        words = shareable_words(self.overrides)
        return [word for word in words if not has_fact(NoEffectOnResults, _key(word))]

    @property
    def players(self) -> list[str]:
        """The agents in the evaluation: this one and, if it has a policy, its baselines."""
        baselines = self.config.evaluation.baselines if self.agent not in agents() else []
        return list(dict.fromkeys([self.agent, *baselines]))

    def checkpoint_identity(self) -> dict[str, str | None]:
        """Return the checkpoint's name and digest (`checkpoint.digest_of`), which identify it in results."""
        if self.checkpoint is None:
            return {"checkpoint": None}
        digest = checkpoint.digest_of(self.checkpoint)
        return {"checkpoint": self.checkpoint.name, "checkpoint_sha256": digest}

    def heading(self, suite: str, count: int) -> str:
        """Return a table's heading: the world, the suite, the number of episodes, and the overridden settings."""
        unit = self.world.presentation.episodes.removesuffix("s" if count == 1 else "")
        parts = [self.under(suite).world.spec.name, suite, f"{count} {unit}"]
        changes = [] if self.checkpoint is None else self.changes
        return " · ".join([*parts, *(one for one in changes if not one.startswith("evaluation.baselines"))])

    @property
    def note(self) -> str:
        """A note on how actions are chosen and how to change this; empty if the world has no such setting."""
        deterministic = getattr(self.config.evaluation, "deterministic", None)
        if deterministic is None:
            return ""
        how = "the most likely actions" if deterministic else "sampled actions"
        other = "samples them" if deterministic else "chooses the most likely"
        return f"; {how} (evaluation.deterministic={str(not deterministic).lower()} {other})"

    def named(self, name: str | None) -> "Target":
        """Return the same agent with results in ``evaluation/SUITE-NAME.json``, or in ``SUITE.json`` if None."""
        if name is None:
            return self
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise ConfigError(
                f"invalid name for results, {name!r:.80}: use at most 64 letters, digits, - and _, starting with a "
                "letter, as in other-goal"
            )
        if (self.run_dir / "checkpoints" / name).exists():
            raise ConfigError(f"results cannot be named {name}, which is a checkpoint's name: choose a different one")
        return replace(self, suffix=f"{self.suffix}-{name}")

    def under(self, suite: str) -> "Target":
        """Return the agent with its configuration changed by a suite; raise `ConfigError` if it does not apply."""
        if suite not in self.world.suites:
            raise ConfigError(unknown("suite", suite, self.world.suites))
        try:
            config = changed(self.config, self.overrides_under(suite), "playing")
            in_suite = replace(self, config=config, suite=suite)
            if isinstance(world := in_suite.world, Suites):
                world.check_suite()
            return in_suite
        except ConfigError as error:
            raise ConfigError(f"suite {suite!r} does not apply to this run: {error}") from error

    def overrides_under(self, suite: str) -> list[str | Mapping[str, Any]]:
        """Return a suite's overrides followed by the caller's."""
        world = self.world
        return world.suite_overrides(suite, self.overrides) if isinstance(world, Suites) else [*self.overrides]

    def demonstrator(self) -> Demonstrator:
        """Return the agent as a source of recorded episodes."""
        settings, checkpoint = flat(shareable(self.config.model_dump())), self.checkpoint
        made = Demonstrator(self.agent, self.policy(self.agent), world=self.world, settings=settings)
        return made if checkpoint is None else replace(made, run=self.run_dir.name, checkpoint=checkpoint.name)

    def compared_by(self, warn: Callable[[str], None]) -> Algorithm | None:
        """Return the algorithm that compares a policy with its reference, the initial model, if the run has both. Raise
        `RunError` if that model is missing and there are no other metrics.
        """
        config = self.config
        if not getattr(algorithms.get(config.algorithm.id), "needs_reference", False):
            return None
        try:
            if not Path(place := resolve(config.model.path)).exists():
                load_config(Source(place, config.model.revision))
        except GroundlingError as error:
            lacks = f"{config.algorithm.id} needs the initial model for its metrics, but it is missing ({error})"
            if not (getattr(config.evaluation, "metrics", ()) or config.reward):
                raise RunError(f"{lacks}: restore it, or set evaluation.metrics, as in [{{id: rouge}}]") from error
            warn(lacks)
            return None
        return algorithms.create(config.algorithm.id, **config.algorithm.args)

    def policy(self, agent: str, *, with_reference: bool = False) -> Policy | None:
        """Create a player's policy, or return None if it has none; raise `CannotPlay` if the model is missing."""
        if agent in agents():
            return None
        config, loaded = self.config, None if agent == "zero-shot" else self.checkpoint
        if agent == "clone":
            loaded = checkpoint.latest(self.run_dir / CLONE / "checkpoints", warn_caller)
            if loaded is None:
                raise CannotPlay(f"the clone's run, {self.run_dir / CLONE}, is missing")
        if agent == "zero-shot" and self.checkpoint is not None and (self.checkpoint / "run.json").exists():
            saved = read_object(self.checkpoint / "run.json").get("sources", {})
            for path, digest in fingerprint(config.model.path).items():
                if isinstance(saved, dict) and saved.get(path, digest) != digest:
                    raise CannotPlay(f"{path} has changed since training, so it is not the run's initial model")
        world = world_of(config, loaded)
        with naming_modules(config.imports, self.run_dir, config.objects):
            try:
                return make_policy(config.policy, config.model, config.algorithm, world, learns=with_reference)
            except GroundlingError as error:
                if agent != "zero-shot" or self.checkpoint is None or not has_model(config.policy.id):
                    raise
                raise CannotPlay(f"the initial model of the training run is missing ({error})") from error


def _key(override: str) -> str:
    return override.lstrip("+~").partition("=")[0]


def find(
    name: str,
    overrides: Sequence[str],
    warn: Callable[[str], None],
    purpose: Purpose = "playing",
    config_dir: Path | None = None,
    revision: str | None = None,
) -> Target:
    """Find an agent by a run's folder, one of its checkpoints, a published policy or its hub id (with a revision), an
    experiment, or one of `groundling.worlds.agents`. ``warn`` is called with each corrupt checkpoint that is skipped.

    Raises:
        ConfigError: The name is unknown, or an override is invalid or missing.
        RunError: The checkpoint is corrupt, the run has no complete one, or the hub cannot be reached.
    """
    known = experiments(config_dir)
    if config_dir is not None and name not in known:
        raise ConfigError(f"--config-dir {config_dir} has no experiment {name!r} and thus no effect: remove it")
    path, changes, results = Path(name).resolve(), tuple(overrides), None
    if name not in known and _is_on_hub(name):
        path, results = (hub.fetch(name, revision), Path("runs") / name.replace("/", "--"))  # not in the hub's cache
    elif revision is not None:
        raise ConfigError(f"revision={revision} requires a hub id, and {name} is not one: remove it")
    is_run = (path / "config.yaml").exists()
    if is_run or (path.parent.name == "checkpoints" and path.parent.is_dir()):
        for text in changes:
            if has_fact(FixedByTraining, _key(text)):
                raise ConfigError(
                    f"{text} is fixed by training and cannot be changed for {path}: remove it, or "
                    "train a new run with it"
                )
        run_dir = path if is_run else path.parent.parent
        config = from_file(run_dir / "config.yaml", overrides, purpose)
        return _trained(Target("trained", run_dir, config, None, changes), path, results, warn)
    if name in agents():
        config = config_of_agent(name, overrides)
        return Target(name, Path(config.run_dir), config, None, changes)
    if name in known:
        config = compose(name, overrides, config_dir, purpose)
        return Target("zero-shot", Path(config.run_dir), config, None, changes)
    if (path / "config.json").exists():
        raise ConfigError(
            f"{name} is a language model, not an agent: pass an experiment and set model.path, as in "
            f"`groundling evaluate demo model.path={name}` or groundling.load('demo', overrides=['model.path={name}'])"
        )
    raise ConfigError(
        f"{name} is not the folder of a run or published policy (with config.yaml), nor a checkpoint, a hub id, an "
        f"experiment, {' or '.join(agents())}"
    )


def _trained(target: Target, path: Path, results: Path | None, warn: Callable[[str], None]) -> Target:
    """Set the checkpoint: the published policy's, the run's latest, or the selected one; raise if it is broken."""
    is_run = path == target.run_dir
    if is_run and not (path / checkpoint.MANIFEST).exists():
        newest = checkpoint.hold_latest(path / "checkpoints", warn)
        if newest is None:
            raise RunError(f"{path} has no checkpoint: train it first with `groundling train`")
        return replace(target, checkpoint=newest[0], hold=newest[1])
    hold = None if is_run else Hold(path)
    if hold is not None and not hold.exists:
        present = ", ".join(one.name for one in checkpoint.list_checkpoints(path.parent))
        raise RunError(
            f"there is no checkpoint {path}: its run keeps only the latest (training.keep_checkpoints). Pass one "
            f"of {present}, or {target.run_dir} for the latest"
        )
    if (problem := checkpoint.find_problem(path)) is not None:
        raise RunError(
            f"checkpoint {path} is broken ({problem}): pass a different one or the run's folder; a published one can "
            "be downloaded again"
        )
    if is_run:
        return replace(target, checkpoint=path, run_dir=results or path)
    return replace(target, checkpoint=path, suffix=f"-{path.name}", hold=hold)


def _is_on_hub(name: str) -> bool:
    """Return True if no local file has this name and a hub repository could have it."""
    if hub.ID.fullmatch(name) is None or Path(name).exists():
        return False
    refuse_missing(name)
    return True


def config_of_agent(name: str, overrides: Sequence[str]) -> Config:
    """Return the config of one of `groundling.worlds.agents`: the world of its default experiment, without a model."""
    home = home_of(name, overrides)
    run_dir = f"run_dir=runs/${{name}}/${{world.{annotation(home, 'config').PLACE}}}"
    words = [f"name={name}", run_dir, "policy.id=random", "model.path=starter", *overrides]
    experiment = home.experiment
    assert experiment is not None
    if experiment.endswith(".yaml"):
        return from_file(Path(experiment), words)
    return compose(experiment, words)
