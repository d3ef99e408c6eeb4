"""The Python API for runs: training, results and agents."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Never

import gymnasium
from gymnasium.envs.registration import EnvSpec

from groundling.agent import Agent
from groundling.config.compose import compose, from_file, is_open
from groundling.config.facts import Purpose
from groundling.config.overrides import Change, Overrides, parse
from groundling.config.schema import Config
from groundling.envs.controls import OtherGoal, using
from groundling.envs.make import TextEnvMaker, is_server
from groundling.envs.text_generation import pools
from groundling.envs.worker_pool import is_worker
from groundling.errors import ConfigError, RunError, did_you_mean
from groundling.evaluation.controls import ControlResults
from groundling.evaluation.evaluate import evaluate, figures_table
from groundling.evaluation.target import Target, find
from groundling.io.terminal import episode_bars, make_console, warn
from groundling.objects import Reward, coefficients_of, id_of_world, origins_of, saved_model
from groundling.reports import plots
from groundling.training.build import world_of
from groundling.training.defaults import compose_fitted
from groundling.training.tracking import read_metrics
from groundling.training.train import train as train_run
from groundling.worlds import World, kind, worlds
from groundling.worlds.episode import Figure, Played

_KNOWN = ("__main__", "groundling.", "gymnasium.", "minigrid.", "nle.")
"""Prefixes of modules that need no --import: they are already imported, or are scripts and cannot be imported."""


def train(
    experiment: str | None = None,
    *,
    world: Any = None,
    model: Any = None,
    tokenizer: Any = None,
    policy: str | None = None,
    algorithm: str | None = None,
    reward: Reward | None = None,
    steps: int | None = None,
    seed: int | None = None,
    run_dir: str | Path | None = None,
    overrides: Overrides = (),
    config_dir: str | Path | None = None,
    **unknown: Never,
) -> "Run":
    """Train an agent. To resume a stopped run, repeat the same call with the same folder.

    Arguments left at None keep the experiment's values. Without an experiment, the run is named after its components,
    and its settings are chosen for its world, model and algorithm; they are printed with their reasons, and
    ``overrides`` take precedence.

    Args:
        experiment: An experiment listed by ``groundling list experiments``, or one in ``config_dir``.
        world: A Gymnasium env id, a NetHack task or a prompt pool; or an env class, a function that creates an env, or
            an env, which is copied.
        model: A bundled model, a folder, a GGUF file or a hub id; or a Transformers model, which is saved in the run's
            folder and not modified.
        tokenizer: The tokenizer for a model object or a model without one: a folder, a hub id or a tokenizer.
        policy: An id (see ``groundling list policies``). A policy other than the experiment's uses its own defaults.
        algorithm: An id (see ``groundling list algorithms``). A different algorithm also uses its own defaults.
        reward: Replaces the experiment's reward: an id, a function of generations, or several of these as a list, a
            list of (reward, coefficient) pairs, or a mapping to coefficients. ``env`` is the world's own reward.
        steps: Total number of env steps or, for text generation, tokens.
        seed: Seed of the run.
        run_dir: Folder of the run.
        overrides: Overrides in Hydra's syntax, such as ``"algorithm.args.learning_rate=1e-4"``; they take precedence.
        config_dir: A folder with your own ``experiment/*.yaml``.

    Raises:
        ConfigError: a name is unknown, the components are incompatible, the model cannot be loaded, or the folder
            belongs to a different run.
        RunError: training failed, for example because your own code raised an error; the last checkpoint is kept.
        KeyboardInterrupt: training was stopped (Ctrl-C) after the current update, and a checkpoint was saved.
    """
    for name in unknown:
        advice = "pass settings as overrides, as in overrides=['algorithm.args.learning_rate=1e-4']"
        advice = did_you_mean(name, train.__annotations__, 0.7) or f"{advice} (see `groundling list keys`)"
        raise TypeError(f"train() got an unexpected keyword argument {name!r}: {advice}")
    if isinstance(overrides, str | Mapping):
        raise ConfigError(f"overrides must be a list of strings or mappings: use overrides=[{overrides!r:.200}]")
    if is_worker():  # Workers import the running script to get its definitions
        raise ConfigError("call groundling.train below `if __name__ == '__main__':`, since workers import this script")
    directory = None if config_dir is None else Path(config_dir)
    place, coefficients = id_of_world(world), coefficients_of(reward)
    values: dict[str, Any] = {
        "training.steps": int(steps) if isinstance(steps, float) and steps.is_integer() else steps,
        "seed": seed,
        "run_dir": None if run_dir is None else str(run_dir),
    }

    def config_with(model: Mapping[str, str], *, checked: bool = True) -> Config:
        given = {**values, **model}
        start, changes = _chosen(
            experiment,
            directory,
            overrides,
            world=place,
            policy=policy,
            algorithm=algorithm,
            reward=coefficients,
            **given,
        )
        if not is_open(start):
            return compose(start, [*changes, *overrides], directory, checked=checked)
        return compose_fitted(start, overrides, directory, changes, checked=checked)

    with saved_model(model, tokenizer, lambda: config_with({}, checked=False).run_dir) as settings:
        config = config_with(settings)
        config.objects.update(origins_of(world, model, reward))
        spec = gymnasium.registry.get(getattr(config.world, config.world.PLACE))
        module = "" if spec is None or spec.id in config.objects else TextEnvMaker.of(spec.id).module or ""
        if module and not module.startswith(_KNOWN):  # a user's module, which registers the env
            config.imports.append(module)
        if not train_run(config, make_console(), warn):
            raise KeyboardInterrupt(f"stopped; call again to continue from the last checkpoint of {config.run_dir}")
    run = Run(config.run_dir)
    run._spec = spec
    return run


def make_world(
    place: Any, *, seed: int = 1, device: str = "auto", reward: Reward | None = None, **settings: Any
) -> World:
    """Create a world for a custom loop.

    Args:
        place: A Gymnasium env id, a NetHack task, a prompt pool or an object, like ``world`` in `train`.
        seed: Seed of the training episodes.
        device: PyTorch device for reward models.
        reward: As in `train`.
        settings: Keys of the config's ``world`` section, such as ``num_envs``.

    Raises:
        ConfigError: the world is unknown, or a setting is invalid.
    """
    start, changes = _chosen(None, None, world=id_of_world(place), reward=coefficients_of(reward), seed=seed)
    return world_of(compose(start, [*changes, Change("world", settings), Change("device", device)]))


def _chosen(
    experiment: str | None,
    config_dir: Path | None,
    overrides: Overrides = (),
    *,
    world: str | None,
    policy: str | None = None,
    algorithm: str | None = None,
    reward: Mapping[str, float] | None,
    **values: Any,
) -> tuple[str, list[Change]]:
    """Return the experiment to start from, and the changes that the keyword arguments of `train` make to it."""
    is_named = experiment is not None
    experiment = experiment or _experiment_of(world)
    of_env = [] if is_named else [one for one in parse(overrides) if f"{one.key}.".startswith("world.args.")]
    base = compose(experiment, of_env, config_dir)
    home, place, changes = kind(base.world.id), base.world.PLACE, list[Change]()
    if not is_named:
        policy = policy or home.policy_for(world or "", getattr(base.world, "args", {}))
        called = re.sub(r"\W+", "-", world) if world is not None and is_server(world) else world  # for a folder's name
        name = "-".join(part for part in (called, policy, algorithm or base.algorithm.id) if part)
        baselines = ["zero-shot", *({"random"} & {*home.baselines})]
        changes += [Change("name", name), Change("evaluation.baselines", baselines)]
    if world is not None and world != getattr(base.world, place):
        if hasattr(base.world, "args"):
            changes.append(Change("world.args", takes_out=True))
        changes.append(Change(f"world.{place}", world))
    for section, id in (("policy", policy), ("algorithm", algorithm)):
        if id is not None and id != getattr(base, section).id:
            changes += [Change(f"{section}.args", takes_out=True), Change(f"{section}.id", id)]
    pays = "env" in home.offers.evidence
    if reward is None and not (is_named or pays):
        raise ConfigError(f'{world} has no reward: choose one, as in reward="rouge" (see `groundling list rewards`)')
    if reward is not None or not is_named:
        kept = {"env"} if reward is None else {*reward}
        present = {*base.reward, *(["env"] if pays else [])}
        changes += [Change(f"reward.{name}", None) for name in sorted(present - kept)]
        changes += [Change(f"reward.{name}.coefficient", value) for name, value in (reward or {}).items()]
    return experiment, [*changes, *(Change(key, value) for key, value in values.items() if value is not None)]


def _experiment_of(world: str | None) -> str:
    """Return the default experiment of a world. If several kinds of world match, the one registered last is used."""
    if world is None:
        raise ConfigError(
            "pass an experiment or a world: see `groundling list experiments` and `groundling list envs`"
        )
    home = next((one for one in reversed([kind(id) for id in worlds.in_order()]) if one.has(world)), None)
    if home is None:
        raise ConfigError(
            f"there is no world {world!r}: {did_you_mean(world, [*gymnasium.registry, *pools], 0.7)}pass a Gymnasium "
            "env id (first import the module that registers it), one of NetHack's tasks, or a pool; see "
            "`groundling list envs` and `groundling list pools`"
        )
    experiment = home.open_experiment or home.experiment
    if experiment is None:
        raise ConfigError(f"{home.__name__} has no default experiment: pass experiment=…")
    return experiment


class Run:
    """The results and the agent in a run's folder: ``gl.Run("runs/demo")``.

    `metrics` and `plot` do not need your own modules. Before calling `evaluate`, import the modules that register your
    env and components; before calling `agent`, only those that register its policy and prompt.

    Args:
        folder: A folder written by `train` or ``groundling train``.

    Raises:
        ConfigError: the folder contains no run.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self._config: Config = from_file(self.folder / "config.yaml", purpose="showing")
        self._spec: EnvSpec | None = None  # The env's spec, since its id may later be registered for another object

    def _find(self, overrides: Sequence[str] = (), purpose: Purpose = "playing") -> Target:
        if self._spec is not None:
            gymnasium.registry[self._spec.id] = self._spec
        return find(str(self.folder), overrides, warn, purpose)

    def __repr__(self) -> str:
        return f"Run({str(self.folder)!r})"

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """Rows of ``metrics.jsonl``, one per update; ``pandas.DataFrame(run.metrics)`` converts them to a table."""
        return read_metrics(self.folder)

    def evaluate(
        self,
        suite: str | None = None,
        episodes: int | None = None,
        overrides: Sequence[str] = (),
        name: str | None = None,
    ) -> "Evaluation":
        """Evaluate the trained agent and its baselines on the same held-out episodes.

        Args:
            suite: Test suite. If None, the held-out episodes or the test split are used.
            episodes: Number of episodes. If None, the run's ``evaluation.episodes`` is used.
            overrides: Overrides of the configuration, as on the command line.
            name: Suffix of the result files, ``evaluation/SUITE-NAME.json``. If None, they replace the suite's
                results; results obtained with other overrides are first moved to ``evaluation/replaced/``.

        Raises:
            ConfigError: the suite does not apply to the run, the name is invalid or a checkpoint's name, or the model
                cannot be loaded.
            RunError: the run has no checkpoint, or your own code raised an error.
        """
        target = self._find(overrides).named(name)
        world = target.world
        chosen = suite or next(iter(world.suites))
        if len(world.find_suites(chosen)) != 1:
            advice = "call controls()" if chosen == "controls" else "evaluate them one at a time"
            raise ConfigError(f"suite={chosen!r} is a group of suites: {advice}")
        (chosen,) = world.find_suites(chosen)
        if episodes is not None and episodes < 1:
            raise ConfigError(f"episodes must be at least 1, or None for evaluation.episodes, got {episodes}")
        count = episodes or target.config.evaluation.episodes
        with episode_bars(make_console(), count, world.presentation.episodes) as on_agent:
            played = evaluate(target, chosen, count, on_agent, warn)
        heading = target.heading(chosen, len(played[target.agent].episodes))
        return Evaluation(
            chosen, target.under(chosen).world.spec.name, world.presentation.episodes, played, heading, target.note
        )

    def controls(
        self, episodes: int | None = None, overrides: Sequence[str] = (), other_goal: OtherGoal | None = None
    ) -> ControlResults:
        """Test whether the agent reads its goal by evaluating it on the same episodes with and without each control.

        Args:
            episodes, overrides: As in `evaluate`.
            other_goal: Function that returns the goals shown by ``swapped`` (see `groundling.envs.controls.OtherGoal`).

        Returns:
            Success by control and agent, with 95% intervals. Controls that do not apply are skipped with a warning.

        Raises:
            ConfigError: no control applies to the env.
            RunError: the run has no checkpoint, or your own code raised an error.
        """
        target = self._find(overrides)
        original, played = next(iter(target.world.suites)), dict[str, Mapping[str, Played]]()
        with using(f"{getattr(other_goal, '__module__', '')}:{getattr(other_goal, '__qualname__', '')}", other_goal):
            for suite in (original, *target.world.suite_groups.get("controls", ())):
                try:
                    played[suite] = self.evaluate(suite, episodes, overrides).played
                except ConfigError as error:
                    if suite == original:
                        raise
                    warn(str(error))
        if len(played) < 2:
            raise ConfigError(f"no control applies to the world of {self.folder}")
        return ControlResults(target.agent, played)

    def plot(self, *figures: str) -> Any:
        """Plot learning curves and return the Matplotlib figure, which notebooks display and ``savefig`` saves.

        Args:
            figures: Columns of `metrics`; by default the success rate if the world defines success, else the return.

        Raises:
            RunError: a metric does not occur in any update, or there are no updates yet.
        """
        rows = self.metrics
        for name in figures:
            if all(row.get(name) is None for row in rows):
                known = sorted({key for row in rows for key, value in row.items() if value is not None})
                raise RunError(f"{self.folder} has no metric {name}; available: {', '.join(known)}")
        usual = next(
            (name for name in ("success_rate", "return_mean", "loss") if any(r.get(name) is not None for r in rows)),
            None,
        )
        if usual is None:
            raise RunError(f"{self.folder} has no metrics yet: train first")
        names = figures or (usual,)
        unit, groups = kind(self._config.world.id).presentation.unit, {self._config.name: [rows]}
        if len(names) == 1:
            label = names[0].replace("_", " ")
            return plots.draw_learning_curve(groups, names[0], label, {}, unit, 7.2, names[0] == "success_rate")
        return plots.draw_curves(groups, {name: name for name in names}, {})

    def agent(self) -> Agent:
        """Load the trained agent, as `groundling.load` does."""
        return Agent(self._find(purpose="acting"))


@dataclass(frozen=True)
class Evaluation:
    """Results of the agents on one test suite."""

    suite: str
    world: str
    """Name of the world."""
    unit: str
    """``episodes`` or ``texts``."""
    played: Mapping[str, Played]
    """Episodes and their metrics by agent, starting with the trained agent."""
    heading: str
    """World, suite, number of episodes, and the overrides that affect the results."""
    note: str = ""
    """How actions were chosen."""

    @property
    def figures(self) -> dict[str, dict[str, Figure]]:
        """Means with 95% intervals by agent and metric: ``evaluation.figures["trained"]["success"].value``."""
        return {name: one.figures() for name, one in self.played.items()}

    def table(self) -> None:
        """Print the metrics in a table with a column for each agent."""
        make_console().print(figures_table(self.heading, self.figures, self.note))
