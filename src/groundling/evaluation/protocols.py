"""Protocols of published benchmarks, which evaluate any kind of agent on several suites and compute one score."""

import hashlib
import json
import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from groundling.config.compose import compose, experiments
from groundling.config.overrides import given, parse
from groundling.errors import ConfigError, GroundlingError, RunError
from groundling.evaluation.evaluate import read_evaluation, summary_of
from groundling.evaluation.target import Target, find
from groundling.fields import leaves
from groundling.io.chat_server import check_address
from groundling.io.files import write_atomically
from groundling.lm.load.model_files import resolve
from groundling.worlds import agents
from groundling.worlds.episode import Figure

PROTOCOLS = {"balrog-babyai": "BALROG's BabyAI: the mean success rate over five tasks"}
"""Titles by protocol name, which its suites and experiment share; models and servers use the experiment's policy."""
MEAN = "mean"  # name of the score over all suites
_SCORED = "success"
_PLAYED = re.compile(r"world(\.(env|args)\b.*)?")  # config keys that would change a protocol's world


def find_player(
    name: str, protocol: str, overrides: Sequence[str], warn: Callable[[str], None], config_dir: Path | None = None
) -> Target:
    """Find an agent as `find_agent` does, or a server by its URL.

    ``overrides`` must not change the protocol's world; for a server, they must contain ``policy.args.model=NAME``.
    """
    for word in overrides:
        (change,) = parse([word])  # world={env: …} sets world.env
        keys = [change.key] if change.takes_out else [key for key, _ in leaves(change.key, change.value)]
        if any(map(_PLAYED.fullmatch, keys)):
            raise ConfigError(f"{word} would change the world of {protocol}: remove it, or use --suite")
    if re.match(r"https?://", name):
        check_address(name)  # before it becomes part of a folder's name
        models = [word.partition("=")[2] for word in overrides if word.startswith("policy.args.model=")]
        if not models:
            raise ConfigError(f"no model is specified for the chat server {name}: add policy.args.model=NAME")
        words = [
            "policy.id=chat_server",
            "model.path=starter",  # unused
            "~policy.args",
            f"policy.args={{base_url: '{name}', prompt: balrog, invalid_action: go forward}}",
        ]
        return _with_model(f"{models[-1]}-{urlsplit(name).netloc}", protocol, [*words, *overrides], overrides)
    return find_agent(name, protocol, overrides, warn, config_dir)


def find_agent(
    name: str, protocol: str, overrides: Sequence[str], warn: Callable[[str], None], config_dir: Path | None = None
) -> Target:
    """Find an agent as `find` does, or a language model (with the protocol's policy) by its folder, file or hub id."""
    path, known = Path(name), (*agents(), *experiments(config_dir))
    if name in known or (path / "config.yaml").exists() or path.parent.name == "checkpoints":
        return find(name, overrides, warn, config_dir=config_dir)
    if path.parent != Path() and path.parent.is_dir() and not path.exists():  # not a hub id
        raise ConfigError(f"{name} does not exist: {path.parent} contains no run or model with that name")
    try:
        resolve(name)
    except GroundlingError as error:
        raise ConfigError(
            f"{name} is not a run, checkpoint, experiment, agent, language model ({error}) or server URL, such as "
            "http://127.0.0.1:8000/v1"
        ) from error
    return _with_model(name, protocol, [f"model.path='{name}'", *overrides], overrides)


def _with_model(model: str, protocol: str, words: Sequence[str], overrides: Sequence[str]) -> Target:
    """Return the protocol's agent with a different model."""
    label = re.sub(r"[^\w.-]+", "-", model).strip("-.") or "model"
    if changed := sorted(word for word in overrides if re.match(r"~?policy\.args\.(?!model=)", word)):
        label += f"-{hashlib.sha256(repr(changed).encode()).hexdigest()[:8]}"  # a different agent with its own results
    config = compose(protocol, [f"run_dir=runs/{protocol}/{label}", *words])
    return Target("zero-shot", Path(config.run_dir), config, None, tuple(overrides))


def num_episodes(target: Target, protocol: str) -> int:
    """Return the protocol's number of episodes per task, unless the command line sets ``evaluation.episodes``."""
    config = target.config if "evaluation.episodes" in given(parse(target.overrides)) else compose(protocol)
    return config.evaluation.episodes


def mean_of_tasks(figures: Sequence[Figure]) -> Figure:
    """Return the mean over tasks, with a MOVER confidence interval (Zou and Donner 2008, Statistics in Medicine)."""
    value = sum(figure.value for figure in figures) / len(figures)
    lows = [0.0 if figure.low is None else figure.value - figure.low for figure in figures]
    highs = [0.0 if figure.high is None else figure.high - figure.value for figure in figures]
    low, high = value - math.hypot(*lows) / len(figures), value + math.hypot(*highs) / len(figures)
    return Figure(value, low, high, sum(figure.episodes for figure in figures))


def score(target: Target, protocol: str) -> dict[str, dict[str, Figure]]:
    """Score each agent on each suite and on average (``mean``); write ``evaluation/PROTOCOL.json``, as for a suite."""
    folder, same = target.run_dir / "evaluation", target.checkpoint_identity()
    by_agent: dict[str, dict[str, Figure]] = {}
    for suite in target.world.find_suites(protocol):
        path = folder / f"{suite}{target.suffix}.json"
        content = read_evaluation(path)
        if not same.items() <= content.items():
            raise RunError(
                f"{path} has results for checkpoint {content.get('checkpoint')}, but other suites have results for "
                f"{same['checkpoint']}: evaluate again after training has ended, or pass one of the run's checkpoints"
            )
        for agent, one in content["agents"].items():
            by_agent.setdefault(agent, {})[suite] = Figure(**one["figures"][_SCORED])
    for figures in by_agent.values():
        figures[MEAN] = mean_of_tasks(list(figures.values()))
    content = {
        "suite": protocol,
        "name": PROTOCOLS[protocol],
        "world": target.world.settings,
        "overrides": target.changes,
        **same,
        "agents": {agent: summary_of(figures[MEAN].episodes, figures) for agent, figures in by_agent.items()},
        "tasks": {},
        "left_out": {},
    }
    write_atomically(folder / f"{protocol}{target.suffix}.json", json.dumps(content, indent=1) + "\n")
    return by_agent
