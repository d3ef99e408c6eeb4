"""Runs from Python: train one, see what came of it, and take its agent along."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import gymnasium

from groundling.agent import Agent
from groundling.config.compose import compose, from_file
from groundling.config.grammar import write
from groundling.config.schema import Config, WorldConfig
from groundling.config.trust import ENV, EVERYTHING
from groundling.envs.make import TextEnvMaker
from groundling.envs.text_generation import pools
from groundling.errors import ConfigError, RunError
from groundling.evaluation.evaluate import evaluate
from groundling.evaluation.tables import figures_table
from groundling.evaluation.target import find
from groundling.io.console import episode_bars, make_console, warn
from groundling.lm.load.sources import STARTERS
from groundling.registry import did_you_mean
from groundling.reports import plots
from groundling.training.build import world_of
from groundling.training.tracking import read_metrics
from groundling.training.train import train as train_run
from groundling.worlds import World, kind, worlds
from groundling.worlds.episode import Figure, Played

_KNOWN = ("__main__", "groundling.", "gymnasium.", "minigrid.", "nle.")
"""Where modules begin of which nobody is told to import them: ours are, and a script cannot be."""


def train(
    experiment: str | None = None,
    *,
    world: str | None = None,
    model: str | None = None,
    policy: str | None = None,
    algorithm: str | None = None,
    reward: str | Mapping[str, float] | None = None,
    steps: int | None = None,
    seed: int | None = None,
    run_dir: str | Path | None = None,
    overrides: Sequence[str] = (),
    config_dir: str | Path | None = None,
) -> "Run":
    """Train, or go on with a run that was stopped: the same call with the same folder resumes it.

    Whatever is None is as the experiment has it. Where no experiment is named, the world and the model decide from
    which one training starts, and the run is called after them: its learning rate and the like suit the bundled models,
    or GLAM's for others, and are yours to change by ``overrides``.

    Args:
        experiment: One of ``groundling list experiments``, or of ``config_dir``.
        world: An env's id as Gymnasium knows it, one of NetHack's tasks, or a pool of texts.
        model: A bundled model, a folder, a GGUF file, or a hub id.
        policy: How the model acts: one of ``groundling list policies``; another one than the experiment's has its usual
            settings.
        algorithm: One of ``groundling list algorithms``; another one than the experiment's has its usual settings.
        reward: What is learnt from, in the place of the experiment's parts: a part's id, or coefficients by id. The
            world's own pay is ``env``.
        steps: Env steps, or tokens, in all.
        seed: Of the run.
        run_dir: Its folder.
        overrides: Words such as ``"algorithm.args.learning_rate=1e-4"``, in Hydra's syntax, as on the command line;
            they have the last word.
        config_dir: A folder with ``experiment/*.yaml`` of your own.

    Raises:
        ConfigError: there is no such world, model, …, or two of them do not suit each other.
        RunError: the folder is another run's, or training cannot go on; the last checkpoint stays.
        KeyboardInterrupt: it was stopped (Ctrl-C), after the present update and with a checkpoint.
    """
    folder = None if config_dir is None else Path(config_dir)
    chosen = _Chosen(world, model, policy, algorithm, reward, steps, seed, run_dir)
    config = compose(experiment or chosen.experiment(), chosen.words(experiment, folder, overrides), folder)
    config = replace(config, imports=[*config.imports, *_modules_of(config.world)])
    if not train_run(config, make_console(), warn):
        raise KeyboardInterrupt(f"stopped; the same call goes on from the last checkpoint of {config.run_dir}")
    return Run(config.run_dir)


def make_world(place: str, *, seed: int = 1, device: str = "auto", **settings: Any) -> World:
    """A world for a loop of your own.

    Args:
        place: As ``world`` of `train`.
        seed: Of the training episodes.
        device: Where reward models compute.
        settings: Those of the config's section ``world``, such as ``num_envs``, ``num_steps`` or ``history``; and
            ``reward``, as of `train`.

    Raises:
        ConfigError: there is no such world, or a setting is wrong.
    """
    chosen = _Chosen(world=place, reward=settings.pop("reward", None), seed=seed)
    words = [write(f"world.{key}", value) for key, value in settings.items()]
    return world_of(compose(chosen.experiment(), chosen.words(None, None, [*words, write("device", device)])))


@dataclass(frozen=True)
class _Chosen:
    """What `train` is told, apart from the experiment."""

    world: str | None = None
    model: str | None = None
    policy: str | None = None
    algorithm: str | None = None
    reward: str | Mapping[str, float] | None = None
    steps: int | None = None
    seed: int | None = None
    run_dir: str | Path | None = None

    def _kind(self) -> type[World]:
        """The kind of world that has the one that is named; of several the youngest, as of `home_of`.

        Raises:
            ConfigError: no world is named, or none is called so.
        """
        if self.world is None:
            raise ConfigError("name an experiment, or a world: groundling list experiments, groundling list envs")
        for one in reversed([kind(id) for id in worlds.in_order()]):
            if one.has(self.world):
                return one
        known = [*gymnasium.registry, *pools]
        raise ConfigError(
            f"there is no world {self.world!r}: {did_you_mean(self.world, known, 0.7)}give an env's id as Gymnasium "
            "knows it (import the module that registers it first), one of NetHack's tasks, or a pool; see "
            "`groundling list envs` and `… pools`"
        )

    def experiment(self) -> str:
        """From which one training starts where none is named."""
        kind = self._kind()
        is_small = self.model is None or self.model in STARTERS
        experiment = kind.starter_experiment if is_small else None
        if (experiment := experiment or kind.experiment) is None:
            raise ConfigError(f"a {kind.__name__} names no experiment to start from: give one")
        return experiment

    def words(self, experiment: str | None, config_dir: Path | None, overrides: Sequence[str]) -> list[str]:
        """What it changes of an experiment, None for the one that it starts from, and the caller's words after that.

        Raises:
            ConfigError: the words or the reward are of another type.
        """
        if isinstance(overrides, str):
            raise ConfigError(f"overrides must be a list of words, got a text: overrides=[{overrides!r}]")
        if self.reward is not None and not isinstance(self.reward, str | Mapping):
            raise ConfigError(
                f"reward must be a part's id, or coefficients by id, got {self.reward!r:.80}: register a function of "
                "yours with @groundling.rewards.register(ID), and give ID"
            )
        there = compose(experiment or self.experiment(), (), config_dir)
        words, place = [], there.world.PLACE
        if experiment is None:
            parts = (self.world, self.policy, self.algorithm or there.algorithm.id)
            baselines = ["zero-shot", *({"random"} & {*self._kind().baselines})]
            words += [
                write("name", "-".join(part for part in parts if part)),
                write("evaluation.baselines", baselines),
            ]
        if self.world is not None and self.world != getattr(there.world, place):
            words += [*_without(getattr(there.world, "args", {}), "world.args"), write(f"world.{place}", self.world)]
        for section, id in (("policy", self.policy), ("algorithm", self.algorithm)):
            present = getattr(there, section)
            if id is not None and id != present.id:
                words += [*_without(present.args, f"{section}.args"), write(f"{section}.id", id)]
        words += self._reward_words(there, is_named=experiment is not None)
        for key, value in (
            ("model.path", self.model),
            ("training.steps", self.steps),
            ("seed", self.seed),
            ("run_dir", None if self.run_dir is None else str(self.run_dir)),
        ):
            if value is not None:
                words.append(write(key, value))
        return [*words, *overrides]

    def _reward_words(self, there: Config, is_named: bool) -> list[str]:
        """Those that set the parts of the reward; of an experiment that is not named, the world's own pay alone."""
        pays = "env" in kind(there.world.id).offers.evidence
        given = {self.reward: 1.0} if isinstance(self.reward, str) else self.reward
        if given is None and is_named:
            return []
        if given is None and not pays:
            raise ConfigError(
                f'{self.world} gives no reward: name one, as reward="rouge"; see `groundling list rewards`'
            )
        kept = {"env"} if given is None else {*given}
        present = {*there.reward, *(["env"] if pays else [])}
        return [
            *(f"reward.{name}=null" for name in sorted(present - kept)),
            *(write(f"reward.{name}.coefficient", value) for name, value in (given or {}).items()),
        ]


def _modules_of(world: WorldConfig) -> list[str]:
    """The caller's module that registers the env: whoever has the run's folder is told what to import."""
    spec = gymnasium.registry.get(getattr(world, world.PLACE))
    module = None if spec is None else TextEnvMaker.of(spec.id).module
    return [] if module is None or module.startswith(_KNOWN) else [module]


def _without(args: Mapping[str, Any], key: str) -> list[str]:
    return [f"~{key}"] if args else []


class Run:
    """A run's folder, and what it tells: ``gl.Run("runs/demo")`` comes back to one, in another script, too.

    Its `metrics` and `plot` need no module of yours. To `evaluate` it, import the modules first that register the env
    and components of yours; its `agent` needs those of its policy and prompt alone.

    Args:
        folder: Where `train`, or ``groundling train``, wrote it.

    Raises:
        ConfigError: there is no run.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self._config: Config = from_file(self.folder / "config.yaml", unused=EVERYTHING)

    def __repr__(self) -> str:
        return f"Run({str(self.folder)!r})"

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """One row for each update, as ``metrics.jsonl`` has them; ``pandas.DataFrame(run.metrics)`` is a table."""
        return read_metrics(self.folder)

    def evaluate(
        self,
        suite: str | None = None,
        episodes: int | None = None,
        overrides: Sequence[str] = (),
        name: str | None = None,
    ) -> "Evaluation":
        """Let the trained agent and its baselines play the same held-out episodes.

        Args:
            suite: Which test; None: the usual one, held-out episodes or the test split.
            episodes: How many; None: as many as the run's config says.
            overrides: Changes to the configuration, as on the command line.
            name: What the results are called beside the suite, as ``evaluation/SUITE-NAME.json``; None: they take the
                place of the suite's own, and those of other overrides move to ``evaluation/replaced/``.

        Raises:
            ConfigError: the suite does not suit the run, or the name is not a word or is a checkpoint's.
            RunError: there is no checkpoint.
        """
        target = find(str(self.folder), overrides, warn).named(name)
        world = target.world
        chosen = suite or next(iter(world.suites))
        if len(world.find_suites(chosen)) != 1:
            raise ConfigError(f"suite={chosen!r} names several: evaluate one after the other")
        (chosen,) = world.find_suites(chosen)
        if episodes is not None and episodes < 1:
            raise ConfigError(f"episodes must be at least 1, or None for the run's own number, got {episodes}")
        count = episodes or target.config.evaluation.episodes
        with episode_bars(make_console(), count, world.presentation.episodes) as on_agent:
            played = evaluate(target, chosen, count, on_agent, warn)
        heading = target.heading(chosen, len(played[target.agent].episodes))
        return Evaluation(chosen, target.under(chosen).world.spec.name, world.presentation.episodes, played, heading)

    def plot(self, *figures: str) -> Any:
        """Draw learning curves.

        Args:
            figures: Columns of `metrics`; none: the success rate, or the return in a world without success.

        Returns:
            A Matplotlib figure, which notebooks show; ``run.plot().savefig("curve.png")`` keeps it.

        Raises:
            RunError: no update has such a figure.
        """
        rows = self.metrics
        for name in figures:
            if all(row.get(name) is None for row in rows):
                known = sorted({key for row in rows for key, value in row.items() if value is not None})
                raise RunError(f"{self.folder} has no figure {name}: there are {', '.join(known)}")
        usual = next(
            (name for name in ("success_rate", "return_mean", "loss") if any(r.get(name) is not None for r in rows)),
            None,
        )
        if usual is None:
            raise RunError(f"{self.folder} has no figures yet: train first")
        names = figures or (usual,)
        unit, groups = kind(self._config.world.id).presentation.unit, {self._config.name: [rows]}
        if len(names) == 1:
            label = names[0].replace("_", " ")
            return plots.draw_learning_curve(groups, names[0], label, {}, unit, 7.2, names[0] == "success_rate")
        return plots.draw_curves(groups, {name: name for name in names}, {})

    def agent(self) -> Agent:
        """The trained agent, as `groundling.load` gives it."""
        return Agent.of(find(str(self.folder), [], warn, ENV))


@dataclass(frozen=True)
class Evaluation:
    """What agents did in a test."""

    suite: str
    world: str
    """What it is called."""
    unit: str
    """What was played: episodes, or texts."""
    played: Mapping[str, Played]
    """By agent, the trained one first; each episode with its figures."""
    heading: str
    """World, suite, number of episodes, and the overrides that change a result."""

    @property
    def figures(self) -> dict[str, dict[str, Figure]]:
        """By agent and name, means with 95 % intervals: ``evaluation.figures["trained"]["success"].value``."""
        return {name: one.figures() for name, one in self.played.items()}

    def table(self) -> None:
        """Print the figures, a column for each agent."""
        make_console().print(figures_table(self.heading, self.figures))
