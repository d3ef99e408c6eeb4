"""`groundling evaluate`: a policy and its baselines on the same held-out episodes."""

import csv
import io
import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from groundling.configs.compose import changed, compose, experiments, from_file
from groundling.configs.schema import Config
from groundling.configs.trust import TRAINING_ALONE
from groundling.envs.babyai_text import CONTROLS, ExpertError, TranslationError
from groundling.envs.nethack import TASKS
from groundling.envs.vector import Episode
from groundling.errors import ConfigError, RunError
from groundling.evaluation.episodes import (
    Player,
    Summary,
    expert_player,
    held_out_seed_of,
    play,
    policy_player,
    summarise,
)
from groundling.evaluation.samples import record
from groundling.evaluation.suites import SUITES, find_suites
from groundling.files import write_atomically
from groundling.policies import RandomPolicy
from groundling.policies.policy import Policy
from groundling.training import checkpoint
from groundling.training.build import make_envs, make_policy

_NUM_SAMPLES = 4
AGENTS = {
    "random": "uniform over the admissible actions",
    "expert": "BabyAI's bot, which sees the whole world",
    "explorer": "NetHack's, by rules: it looks for the stairs and goes down",
}
"""What can be evaluated without a run, beside the experiments."""


@dataclass(frozen=True)
class Target:
    """Who is evaluated: a run's checkpoint, an experiment's policy before any training, or one of `AGENTS`."""

    agent: str
    """What the results call it: trained, zero-shot, random, expert or explorer."""
    run_dir: Path
    config: Config
    checkpoint: Path | None = None
    overrides: tuple[str, ...] = ()
    """What the caller changed of the configuration: has the last word, also over a suite."""
    suffix: str = ""
    """What the results' names end in: of a checkpoint that was asked for, its name."""

    def changes(self, suite: str) -> list[str | Mapping[str, Any]]:
        """What a suite and the caller change of the run's configuration.

        Where each env of the run keeps a task drawn by chance, held-out episodes draw theirs by their seeds instead: as
        often each, and the same for all agents.

        Raises:
            TranslationError: the run has actions of its own, and the suite speaks another language.
        """
        env = self.config.env
        if any(text.startswith("env.actions=") for text in self.overrides):
            env = replace(env, actions=None)  # the caller's need no translation
        by_seed = ["env.args.draw_task=reset"] if env.args.get("draw_task") == "construction" else []
        return [*SUITES[suite].changes(env), *self.overrides, *by_seed]

    def under(self, suite: str) -> Config:
        """The configuration as a suite changes it.

        Raises:
            ConfigError: the suite does not suit it, as replaced words do not suit a policy that sees symbols, or a
                swapped mission a room with one thing.
        """
        if suite in CONTROLS and any("env.args.control" in text for text in self.overrides):
            raise ConfigError(
                f"suite {suite!r} sets env.args.control itself: take yours out, or evaluate held-out"
            )
        try:
            config = changed(self.config, self.changes(suite))
            if SUITES[suite].is_tried:
                envs = make_envs(config, 1, held_out_seed_of(1))
                envs.reset()
                envs.close()
            return config
        except (ConfigError, TranslationError) as error:
            raise ConfigError(f"suite {suite!r} does not suit this run: {error}") from error


def find(
    name: str,
    overrides: Sequence[str],
    warn: Callable[[str], None],
    unused: Sequence[str] = TRAINING_ALONE,
) -> Target:
    """Find who ``name`` means.

    Args:
        name: A run's folder, one of its checkpoints, an experiment, or one of `AGENTS`.
        overrides: Changes to the configuration, such as ``device=cpu`` or ``env.id=BabyAI-GoToLocal-v0``.
        warn: Is told of broken checkpoints that are passed over.
        unused: What the caller makes nothing of, as in `groundling.configs.from_file`.

    Raises:
        ConfigError: it is none of these, an override is wrong, or the run needs what only the command line can say.
        RunError: the checkpoint is broken, or the run has no whole one.
    """
    path, changes = Path(name).resolve(), tuple(overrides)
    if (path / "config.yaml").exists():
        config = from_file(path / "config.yaml", overrides, unused)
        found = checkpoint.latest(path / "checkpoints", warn)
        if found is None:
            raise RunError(f"{path} has no checkpoint: train first, with `groundling train`")
        return Target("trained", path, config, found, changes)
    if path.parent.name == "checkpoints" and path.is_dir():
        if (problem := checkpoint.what_is_wrong(path)) is not None:
            raise RunError(f"checkpoint {path} is broken ({problem}): name another one, or the run's folder")
        run_dir = path.parent.parent
        config = from_file(run_dir / "config.yaml", overrides, unused)
        return Target("trained", run_dir, config, path, changes, f"-{path.name}")
    if name in AGENTS:
        config = config_of_agent(name, overrides)
        return Target(name, Path(config.run_dir), config, None, changes)
    if name in experiments():
        config = compose(name, overrides)
        return Target("zero-shot", Path(config.run_dir), config, None, changes)
    raise ConfigError(
        f"{name} is neither a run's folder (with config.yaml) nor one of its checkpoints, an experiment, "
        f"{' or '.join(AGENTS)}"
    )


def config_of_agent(name: str, overrides: Sequence[str]) -> Config:
    """The configuration of one of `AGENTS`: a main experiment's world, and a policy of no model."""
    own = [f"name={name}", "run_dir=runs/${name}/${env.id}", "policy.id=random"]
    plays_nethack = name == "explorer" or any(
        text.partition("=")[2] in TASKS for text in overrides if text.startswith("env.id=")
    )
    return compose("motif/score" if plays_nethack else "glam/mixed", [*own, *overrides])


def evaluate(
    target: Target,
    suite: str,
    num_episodes: int,
    on_agent: Callable[[str], Callable[[], None]] = lambda name: lambda: None,
    warn: Callable[[str], None] = warnings.warn,
) -> dict[str, Summary]:
    """Play ``num_episodes`` held-out episodes of a suite with the target and each of its baselines.

    Writes ``evaluation/SUITE.json`` (figures, also by family of tasks, and why which baseline is left out),
    ``evaluation/SUITE.csv`` (one row per episode) and ``samples/SUITE.json`` (some of the target's episodes, step by
    step) into the run's folder, anew after each agent.

    Args:
        target: Who is evaluated.
        suite: One of `SUITES`.
        num_episodes: How many episodes each agent plays.
        on_agent: Called with each agent's name; what it gives is called after each episode.
        warn: Is told of a baseline that cannot play this env.

    Returns:
        By agent (the target first), what its episodes come to.

    Raises:
        ConfigError: no such suite or baseline.
    """
    find_suites(suite)
    config = target.under(suite)
    if "explorer" in agents_of(target):
        raise ConfigError(f"explorer plays NetHack, not {config.env.id}: take it out of evaluation.baselines")
    policy = make_policy(config, target.checkpoint)
    episodes: dict[str, list[Episode]] = {}
    left_out: dict[str, str] = {}
    for name, plays in _players(target, config, policy).items():
        num_envs = min(config.evaluation.num_envs, num_episodes)
        envs = make_envs(config, num_envs, held_out_seed_of(num_envs))
        try:
            with plays() as player:
                episodes[name] = play(player, envs, num_episodes, on_agent(name))
        except ExpertError as error:
            if name == target.agent:
                raise
            left_out[name] = str(error)
            warn(f"{name} is left out: {error}")
        finally:
            envs.close()
        _write(target, config, suite, episodes, left_out)
    _write_samples(target, config, suite, policy, episodes[target.agent])
    return {name: summarise(played) for name, played in episodes.items()}


def agents_of(target: Target) -> list[str]:
    """Who plays when ``target`` is evaluated: itself and, if it is no agent that needs none, its baselines."""
    baselines = target.config.evaluation.baselines if target.agent not in AGENTS else []
    return list(dict.fromkeys([target.agent, *baselines]))


def _players(
    target: Target, config: Config, policy: Policy
) -> dict[str, Callable[[], AbstractContextManager[Player]]]:
    deterministic, seed = config.evaluation.deterministic, config.seed
    players: dict[str, Callable[[], AbstractContextManager[Player]]] = {
        "trained": lambda: policy_player(policy, deterministic, seed),
        "zero-shot": lambda: policy_player(make_policy(config), deterministic, seed),
        "random": lambda: policy_player(RandomPolicy(), False, seed),
        "expert": expert_player,
    }
    return {name: players[name] for name in agents_of(target)}


def _write(
    target: Target,
    config: Config,
    suite: str,
    episodes: dict[str, list[Episode]],
    left_out: Mapping[str, str],
) -> None:
    folder = target.run_dir / "evaluation"
    folder.mkdir(parents=True, exist_ok=True)
    content = {
        "suite": suite,
        "env": config.env.id,
        "world": asdict(config.env),
        "checkpoint": target.checkpoint.name if target.checkpoint else None,
        "deterministic": config.evaluation.deterministic,
        "agents": {name: asdict(summarise(played)) for name, played in episodes.items()},
        "tasks": {name: _by_task(played) for name, played in episodes.items()},
        "left_out": left_out,
    }
    write_atomically(folder / f"{suite}{target.suffix}.csv", _table(episodes))
    write_atomically(folder / f"{suite}{target.suffix}.json", json.dumps(content, indent=1) + "\n")


def _table(episodes: Mapping[str, Sequence[Episode]]) -> str:
    """One row per episode, as CSV; what was first dealt with where any of them tells."""
    tells = any(e.first is not None for played in episodes.values() for e in played)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    header = ["agent", "episode", "seed", "task", "mission", "success", "return", "steps"]
    writer.writerow([*header, *(["first", "chance"] if tells else [])])
    for name, played in episodes.items():
        for k, e in enumerate(played):
            row = [
                name,
                k,
                e.seed,
                e.task,
                e.mission,
                int(e.success),
                f"{e.episode_return:.6g}",
                len(e.actions),
            ]
            if tells and e.first is not None:
                row += [e.first.target, "" if e.first.chance is None else f"{e.first.chance:.6g}"]
            elif tells:
                row += ["", ""]
            writer.writerow(row)
    return text.getvalue()


def _by_task(episodes: list[Episode]) -> dict[str, dict[str, float]]:
    """What the episodes of each family of tasks come to."""
    tasks = sorted({e.task for e in episodes})
    return {task: asdict(summarise([e for e in episodes if e.task == task])) for task in tasks}


def _write_samples(
    target: Target, config: Config, suite: str, policy: Policy, episodes: list[Episode]
) -> None:
    """Keep a few of the target's episodes: successes first, and a failure if there is one."""
    successes = [e for e in episodes if e.success]
    failures = [e for e in episodes if not e.success]
    chosen = successes[: _NUM_SAMPLES - bool(failures)] + failures
    folder = target.run_dir / "samples"
    folder.mkdir(exist_ok=True)
    world = {"suite": suite, "overrides": target.changes(suite)}
    samples = [world | record(config, policy, e) for e in chosen[:_NUM_SAMPLES]]
    text = json.dumps(samples, indent=1, ensure_ascii=False) + "\n"
    write_atomically(folder / f"{suite}{target.suffix}.json", text)
