"""Who is evaluated: a run's checkpoint, an experiment before any training, or an agent without a policy."""

import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from groundling.config.checking import naming_modules
from groundling.config.compose import changed, check_config_dir, compose, experiments, from_file
from groundling.config.flat import flat
from groundling.config.schema import Config
from groundling.config.trust import TRAINING_ALONE
from groundling.errors import ConfigError, GroundlingError, RunError
from groundling.evaluation import hub
from groundling.io.redaction import shareable, shareable_words
from groundling.lm.load.loading import resolve
from groundling.policies.policy import Policy, has_model
from groundling.registry import unknown
from groundling.training import checkpoint
from groundling.training.build import make_policy, world_of
from groundling.training.checkpoint import Hold
from groundling.training.folder import CLONE, changes_no_result
from groundling.worlds import CannotPlay, World, agents, home_of
from groundling.worlds.protocols import Suites
from groundling.worlds.world import Demonstrator

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")
_OF_THE_CHECKPOINT = ("model.path=", "model.init=", "policy.id=", "algorithm.", "cloning.")


@dataclass(frozen=True)
class Target:
    """Who is evaluated, and where."""

    agent: str
    """What the results call it: trained, zero-shot, or one of `groundling.worlds.agents`."""
    run_dir: Path
    config: Config
    checkpoint: Path | None = None
    overrides: tuple[str, ...] = ()
    """What the caller changed of the configuration: has the last word, also over a suite."""
    suffix: str = ""
    """What the results' names end in: of a checkpoint that was asked for, its name; and what `named` adds."""
    suite: str | None = None
    """Suite that its configuration was changed for, by `under`."""
    hold: Hold | None = field(default=None, repr=False, compare=False)
    """Keeps a run in training from deleting the checkpoint."""

    @property
    def world(self) -> World:
        """Where it plays."""
        return world_of(self.config, self.checkpoint, self.suite)

    @property
    def changes(self) -> list[str]:
        """Its overrides that change a result, without paths and servers."""
        return [
            word
            for word in shareable_words(self.overrides)
            if not changes_no_result(word.lstrip("+~").partition("=")[0])
        ]

    def checkpoint_identity(self) -> dict[str, str | None]:
        """The checkpoint's update and digest (`checkpoint.digest_of`), by which results name it."""
        if self.checkpoint is None:
            return {"checkpoint": None}
        digest = checkpoint.digest_of(self.checkpoint)
        return {"checkpoint": self.checkpoint.name, "checkpoint_sha256": digest}

    def heading(self, suite: str, count: int) -> str:
        """What stands above the figures of so many episodes: where they were played, and what was changed of a run."""
        parts = [self.under(suite).world.spec.name, suite, f"{count} {self.world.presentation.episodes}"]
        changes = [] if self.checkpoint is None else self.changes
        return " · ".join([*parts, *(one for one in changes if not one.startswith("evaluation.baselines"))])

    def named(self, name: str | None) -> "Target":
        """It, whose results lie beside those of its suites, in ``evaluation/SUITE-NAME.json``; None: it as it is.

        Raises:
            ConfigError: the name is not a word, or is a checkpoint's.
        """
        if name is None:
            return self
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise ConfigError(
                f"results cannot be called {name!r:.80}: give a word of letters, digits, - and _ that begins with a "
                "letter, as in other-goal"
            )
        if (self.run_dir / "checkpoints" / name).exists():
            raise ConfigError(
                f"results cannot be called {name}: so are those of a checkpoint: give another name"
            )
        return replace(self, suffix=f"{self.suffix}-{name}")

    @property
    def players(self) -> list[str]:
        """Who plays when it is evaluated: itself and, if it is no agent that needs none, its baselines."""
        baselines = self.config.evaluation.baselines if self.agent not in agents() else []
        return list(dict.fromkeys([self.agent, *baselines]))

    def under(self, suite: str) -> "Target":
        """It, where its configuration is changed as a suite has it.

        Raises:
            ConfigError: the suite does not suit it, as replaced words do not suit a policy that sees symbols, or a
                swapped mission a room with one thing.
        """
        if suite not in self.world.suites:
            raise ConfigError(unknown("suite", suite, self.world.suites))
        try:
            config = changed(self.config, self.overrides_under(suite), TRAINING_ALONE)
            there = replace(self, config=config, suite=suite)
            if isinstance(world := there.world, Suites):
                world.check_suite()
            return there
        except ConfigError as error:
            raise ConfigError(f"suite {suite!r} does not suit this run: {error}") from error

    def overrides_under(self, suite: str) -> list[str | Mapping[str, Any]]:
        """Return a suite's overrides followed by the caller's.

        Raises:
            ConfigError: The suite does not suit the run.
        """
        world = self.world
        return (
            world.suite_overrides(suite, self.overrides) if isinstance(world, Suites) else [*self.overrides]
        )

    def demonstrator(self) -> Demonstrator:
        """It, as one who plays and is recorded.

        Raises:
            ConfigError: the policy does not suit the world.
        """
        checkpoint = self.checkpoint
        named = (None, None) if checkpoint is None else (self.run_dir.name, checkpoint.name)
        return Demonstrator(
            self.agent,
            self.policy(self.agent),
            world=self.world,
            settings=flat(shareable(asdict(self.config))),
            run=named[0],
            checkpoint=named[1],
        )

    def policy(self, agent: str) -> Policy | None:
        """Whom one of its `players` follows; None of those that need no policy.

        Raises:
            CannotPlay: it is the model that training began with, or the run's clone, whose folder is not here.
            ConfigError: the policy does not suit the world.
        """
        if agent in agents():
            return None
        config, checkpoint_of = self.config, self.checkpoint
        if agent == "clone":
            checkpoint_of = checkpoint.latest(self.run_dir / CLONE / "checkpoints", warnings.warn)
            if checkpoint_of is None:
                raise CannotPlay(f"the run of the clone, {self.run_dir / CLONE}, is not here")
        if agent == "zero-shot" and self.checkpoint is not None and has_model(config.policy.id):
            try:
                resolve(config.model.path)
            except GroundlingError as error:
                raise CannotPlay(f"the model that training began with is not here ({error})") from error
        world = world_of(config, None if agent == "zero-shot" else checkpoint_of)
        with naming_modules(config.imports, self.run_dir):
            return make_policy(config.policy, config.model, config.algorithm, world)


def find(
    name: str,
    overrides: Sequence[str],
    warn: Callable[[str], None],
    unused: Sequence[str] = TRAINING_ALONE,
    config_dir: Path | None = None,
    revision: str | None = None,
) -> Target:
    """Find who ``name`` means.

    Args:
        name: A run's folder, one of its checkpoints, a published policy or its hub id, an experiment, or one of
            `groundling.worlds.agents`.
        overrides: Changes to the configuration, such as ``device=cpu`` or ``world.env=BabyAI-GoToLocal-v0``.
        warn: Is told of broken checkpoints that are passed over.
        unused: What the caller makes nothing of, as in `groundling.config.from_file`.
        config_dir: A folder of the user's own experiments, as of `compose`.
        revision: Of a hub id: branch, tag or commit.

    Raises:
        ConfigError: it is none of these, an override is wrong, or the run needs what only the command line can say.
        RunError: the checkpoint is broken, or the run has no whole one; or the hub cannot be reached.
    """
    check_config_dir(config_dir)
    path, changes, results = Path(name).resolve(), tuple(overrides), None
    if _is_on_hub(name, config_dir):
        # The hub's cache is not written to.
        path, results = hub.fetch(name, revision), Path("runs") / name.replace("/", "--")
    elif revision is not None:
        raise ConfigError(f"revision={revision} is for a hub id, and {name} is none: leave it out")
    is_run = (path / "config.yaml").exists() or path.parent.name == "checkpoints"
    for text in changes if is_run else ():
        if text.startswith(_OF_THE_CHECKPOINT):
            raise ConfigError(
                f"{text} would change how the checkpoint of {path} was trained, which no evaluation can change: "
                "leave it out, or train another run"
            )
    if (path / "config.yaml").exists():
        config = from_file(path / "config.yaml", overrides, unused)
        if (
            path / checkpoint.MANIFEST
        ).exists():  # what `groundling publish` wrote is run and checkpoint in one
            _check_whole(path)
            return Target("trained", results or path, config, path, changes)
        newest = checkpoint.hold_latest(path / "checkpoints", warn)
        if newest is None:
            raise RunError(f"{path} has no checkpoint: train first, with `groundling train`")
        return Target("trained", path, config, newest[0], changes, hold=newest[1])
    if path.parent.name == "checkpoints" and path.parent.is_dir():
        run_dir, hold = path.parent.parent, Hold(path)
        if not hold.exists:
            there = ", ".join(one.name for one in checkpoint.numbered(path.parent))
            raise RunError(
                f"there is no checkpoint {path}: its run keeps the last ones (training.keep_checkpoints); name one of "
                f"{there}, or {run_dir} for the latest"
            )
        _check_whole(path)
        config = from_file(run_dir / "config.yaml", overrides, unused)
        return Target("trained", run_dir, config, path, changes, f"-{path.name}", hold=hold)
    if name in agents():
        config = config_of_agent(name, overrides)
        return Target(name, Path(config.run_dir), config, None, changes)
    if name in experiments(config_dir):
        config = compose(name, overrides, config_dir, unused)
        return Target("zero-shot", Path(config.run_dir), config, None, changes)
    if (path / "config.json").exists():
        raise ConfigError(
            f"{name} is a language model, and no agent yet: name an experiment and give it as model.path, as in "
            f"`groundling evaluate demo model.path={name}` or groundling.load('demo', overrides=['model.path={name}'])"
        )
    raise ConfigError(
        f"{name} is neither a run's or a published folder (with config.yaml) nor a checkpoint, a hub id, an "
        f"experiment, {' or '.join(agents())}"
    )


def _is_on_hub(name: str, config_dir: Path | None) -> bool:
    """Whether nothing here is called so, and a repository of the hub could be."""
    if not hub.is_id(name) or Path(name).exists() or name in experiments(config_dir):
        return False
    if Path(name).parent.is_dir():
        raise ConfigError(
            f"there is no folder {name}. {Path(name).parent} is a folder here, so the hub is not asked for {name}"
        )
    return True


def _check_whole(path: Path) -> None:
    """Raise `RunError` where a checkpoint, or a published policy, is not what was written."""
    if (problem := checkpoint.what_is_wrong(path)) is not None:
        raise RunError(
            f"checkpoint {path} is broken ({problem}): name another one, or the run's folder; a published one is to be "
            "copied again"
        )


def config_of_agent(name: str, overrides: Sequence[str]) -> Config:
    """The configuration of one of `groundling.worlds.agents`: a main experiment's world, and a policy of no model."""
    home = home_of(name, overrides)
    run_dir = f"run_dir=runs/${{name}}/${{world.{home.config_class.PLACE}}}"
    words = [f"name={name}", run_dir, "policy.id=random", "model.path=starter", *overrides]
    experiment = home.experiment
    assert experiment is not None
    if experiment.endswith(".yaml"):
        return from_file(Path(experiment), words)
    return compose(experiment, words)
