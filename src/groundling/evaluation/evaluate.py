"""`groundling evaluate`: a run's policy and its baselines on the same held-out episodes."""

import csv
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from groundling.configs.compose import from_file
from groundling.configs.schema import Config
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
from groundling.policies import RandomPolicy
from groundling.policies.policy import Policy
from groundling.registry import unknown
from groundling.training import checkpoint
from groundling.training.build import make_envs, make_policy

BASELINES = ("zero-shot", "random", "expert")
SUITES: dict[str, str] = {"held-out": "episodes of the run's own env, on seeds that no training sees"}
_NUM_SAMPLES = 4


@dataclass(frozen=True)
class Target:
    """What is evaluated: a run's folder and one of its checkpoints."""

    run_dir: Path
    checkpoint: Path
    config: Config


def find(path: Path, warn: Callable[[str], None]) -> Target:
    """Find the run and the checkpoint that ``path`` (a run's folder or a checkpoint's) means.

    Raises:
        ConfigError: ``path`` is neither.
        RunError: the run has no whole checkpoint.
    """
    if (path / "run.json").exists():
        run_dir, chosen = path.parent.parent, path
    elif (path / "config.yaml").exists():
        run_dir, found = path, checkpoint.latest(path / "checkpoints", warn)
        if found is None:
            raise RunError(f"{path} has no whole checkpoint: train first, with `groundling train`")
        chosen = found
    else:
        raise ConfigError(
            f"{path} is neither a run's folder (with config.yaml) nor a checkpoint (with run.json)"
        )
    return Target(run_dir, chosen, from_file(run_dir / "config.yaml"))


def evaluate(
    target: Target,
    suite: str,
    num_episodes: int,
    on_agent: Callable[[str], Callable[[], None]] = lambda name: lambda: None,
) -> dict[str, Summary]:
    """Play ``num_episodes`` held-out episodes with the trained policy and each of its baselines.

    Writes ``evaluation/SUITE.json`` (figures, checkpoint), ``evaluation/SUITE.csv`` (one row per episode) and
    ``samples/SUITE.json`` (some of the trained policy's episodes, step by step) into the run's folder.

    Args:
        target: What to evaluate.
        suite: One of `SUITES`.
        num_episodes: How many episodes each agent plays.
        on_agent: Called with each agent's name; what it gives is called after each episode.

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
        episodes[name] = play(player(), envs, num_episodes, on_agent(name))
        envs.close()
    summaries = {name: summarise(played) for name, played in episodes.items()}
    _write(target, suite, summaries, episodes)
    _write_samples(target, suite, trained, episodes["trained"])
    return summaries


def _players(config: Config, trained: Policy) -> dict[str, Callable[[], Player]]:
    deterministic, seed = config.evaluation.deterministic, config.seed
    make: dict[str, Callable[[], Player]] = {
        "zero-shot": lambda: policy_player(make_policy(config), deterministic, seed),
        "random": lambda: policy_player(RandomPolicy(), False, seed),
        "expert": expert_player,
    }
    for name in config.evaluation.baselines:
        if name not in make:
            raise ConfigError(unknown("value of evaluation.baselines", name, make))
    return {
        "trained": lambda: policy_player(trained, deterministic, seed),
        **{name: make[name] for name in config.evaluation.baselines},
    }


def _write(
    target: Target, suite: str, summaries: dict[str, Summary], episodes: dict[str, list[Episode]]
) -> None:
    folder = target.run_dir / "evaluation"
    folder.mkdir(exist_ok=True)
    content = {
        "suite": suite,
        "env": target.config.env.id,
        "checkpoint": target.checkpoint.name,
        "deterministic": target.config.evaluation.deterministic,
        "agents": {name: asdict(summary) for name, summary in summaries.items()},
    }
    (folder / f"{suite}.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    with (folder / f"{suite}.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["agent", "episode", "seed", "mission", "success", "return", "steps"])
        for name, played in episodes.items():
            for k, e in enumerate(played):
                writer.writerow(
                    [name, k, e.seed, e.mission, int(e.success), f"{e.episode_return:.6g}", len(e.actions)]
                )


def _write_samples(target: Target, suite: str, policy: Policy, episodes: list[Episode]) -> None:
    """Keep a few of the trained policy's episodes: successes first, and a failure if there is one."""
    successes = [e for e in episodes if e.success]
    failures = [e for e in episodes if not e.success]
    chosen = successes[: _NUM_SAMPLES - bool(failures)] + failures
    folder = target.run_dir / "samples"
    folder.mkdir(exist_ok=True)
    samples = [record(target.config, policy, e) for e in chosen[:_NUM_SAMPLES]]
    (folder / f"{suite}.json").write_text(
        json.dumps(samples, indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
    )
