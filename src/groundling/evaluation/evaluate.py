"""`groundling evaluate`: a run's policy and its baselines on the same held-out episodes."""

import csv
import io
import json
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from groundling.configs.compose import from_file
from groundling.configs.schema import Config
from groundling.envs.babyai_text import ExpertError
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
from groundling.files import write_atomically
from groundling.policies import RandomPolicy
from groundling.policies.policy import Policy
from groundling.registry import unknown
from groundling.training import checkpoint
from groundling.training.build import make_envs, make_policy

SUITES: dict[str, str] = {"held-out": "episodes of the run's own env, on seeds that no training sees"}
_NUM_SAMPLES = 4


@dataclass(frozen=True)
class Target:
    """What is evaluated: a run's folder and one of its checkpoints."""

    run_dir: Path
    checkpoint: Path
    config: Config
    suffix: str = ""
    """What the results' names end in: of a checkpoint that was asked for, its name."""


def find(path: Path, overrides: Sequence[str], warn: Callable[[str], None]) -> Target:
    """Find the run and the checkpoint that ``path`` (a run's folder or a checkpoint's) means.

    Args:
        path: Of either.
        overrides: Changes to the run's configuration, such as ``device=cpu`` or ``evaluation.deterministic=true``.
        warn: Is told of broken checkpoints that are passed over.

    Raises:
        ConfigError: ``path`` is neither, or an override is wrong.
        RunError: the checkpoint is broken, or the run has no whole one.
    """
    if (path / "config.yaml").exists():
        run_dir, found, suffix = path, checkpoint.latest(path / "checkpoints", warn), ""
        if found is None:
            raise RunError(f"{path} has no whole checkpoint: train first, with `groundling train`")
    elif path.parent.name == "checkpoints" and path.is_dir():
        run_dir, found, suffix = path.parent.parent, path, f"-{path.name}"
        if (problem := checkpoint.what_is_wrong(path)) is not None:
            raise RunError(f"checkpoint {path} is broken ({problem}): name another one, or the run's folder")
    else:
        raise ConfigError(f"{path} is neither a run's folder (with config.yaml) nor one of its checkpoints")
    return Target(run_dir, found, from_file(run_dir / "config.yaml", overrides), suffix)


def evaluate(
    target: Target,
    suite: str,
    num_episodes: int,
    on_agent: Callable[[str], Callable[[], None]] = lambda name: lambda: None,
    warn: Callable[[str], None] = warnings.warn,
) -> dict[str, Summary]:
    """Play ``num_episodes`` held-out episodes with the trained policy and each of its baselines.

    Writes ``evaluation/SUITE.json`` (figures, checkpoint), ``evaluation/SUITE.csv`` (one row per episode) and
    ``samples/SUITE.json`` (some of the trained policy's episodes, step by step) into the run's folder, anew
    after each agent.

    Args:
        target: What to evaluate.
        suite: One of `SUITES`.
        num_episodes: How many episodes each agent plays.
        on_agent: Called with each agent's name; what it gives is called after each episode.
        warn: Is told of a baseline that cannot play this env.

    Returns:
        By agent ("trained" first), what its episodes come to.

    Raises:
        ConfigError: no such suite or baseline.
    """
    config = target.config
    if suite not in SUITES:
        raise ConfigError(unknown("suite", suite, SUITES))
    trained = make_policy(config, target.checkpoint)
    episodes: dict[str, list[Episode]] = {}
    for name, player in _players(config, trained).items():
        num_envs = min(config.evaluation.num_envs, num_episodes)
        envs = make_envs(config, num_envs, held_out_seed_of(num_envs))
        try:
            episodes[name] = play(player(), envs, num_episodes, on_agent(name))
        except ExpertError as error:
            warn(f"{name} is left out: {error}")
            continue
        finally:
            envs.close()
        _write(target, suite, episodes)
    _write_samples(target, suite, trained, episodes["trained"])
    return {name: summarise(played) for name, played in episodes.items()}


def _players(config: Config, trained: Policy) -> dict[str, Callable[[], Player]]:
    deterministic, seed = config.evaluation.deterministic, config.seed
    baselines: dict[str, Callable[[], Player]] = {
        "zero-shot": lambda: policy_player(make_policy(config), deterministic, seed),
        "random": lambda: policy_player(RandomPolicy(), False, seed),
        "expert": expert_player,
    }
    return {
        "trained": lambda: policy_player(trained, deterministic, seed),
        **{name: baselines[name] for name in config.evaluation.baselines},
    }


def _write(target: Target, suite: str, episodes: dict[str, list[Episode]]) -> None:
    folder = target.run_dir / "evaluation"
    folder.mkdir(exist_ok=True)
    content = {
        "suite": suite,
        "env": target.config.env.id,
        "checkpoint": target.checkpoint.name,
        "deterministic": target.config.evaluation.deterministic,
        "agents": {name: asdict(summarise(played)) for name, played in episodes.items()},
    }
    table = io.StringIO()
    writer = csv.writer(table, lineterminator="\n")
    writer.writerow(["agent", "episode", "seed", "mission", "success", "return", "steps"])
    for name, played in episodes.items():
        for k, e in enumerate(played):
            row = [name, k, e.seed, e.mission, int(e.success), f"{e.episode_return:.6g}", len(e.actions)]
            writer.writerow(row)
    write_atomically(folder / f"{suite}{target.suffix}.csv", table.getvalue())
    write_atomically(folder / f"{suite}{target.suffix}.json", json.dumps(content, indent=1) + "\n")


def _write_samples(target: Target, suite: str, policy: Policy, episodes: list[Episode]) -> None:
    """Keep a few of the trained policy's episodes: successes first, and a failure if there is one."""
    successes = [e for e in episodes if e.success]
    failures = [e for e in episodes if not e.success]
    chosen = successes[: _NUM_SAMPLES - bool(failures)] + failures
    folder = target.run_dir / "samples"
    folder.mkdir(exist_ok=True)
    samples = [record(target.config, policy, e) for e in chosen[:_NUM_SAMPLES]]
    text = json.dumps(samples, indent=1, ensure_ascii=False) + "\n"
    write_atomically(folder / f"{suite}{target.suffix}.json", text)
