"""`groundling evaluate` of a run that writes: texts to a pool's split, measured."""

import json
from collections.abc import Callable, Mapping
from typing import get_args

from groundling.envs.text_generation import pools
from groundling.envs.text_generation.pools import Split
from groundling.errors import ConfigError
from groundling.evaluation.evaluate import Target
from groundling.files import write_atomically
from groundling.registry import unknown
from groundling.training.build import make_metrics, make_policy, make_reward
from groundling.training.validation import Written, as_json, write_and_measure, write_rows
from groundling.training.writing import as_writer


def evaluate_texts(
    target: Target,
    split: str,
    num_samples: int,
    on_agent: Callable[[str], Callable[[], None]] = lambda name: lambda: None,
) -> dict[str, Written]:
    """Let the target, and its untrained self if evaluation.baselines has zero-shot, write to a pool's split.

    Writes ``evaluation/SPLIT.json`` (figures) and, of each agent, ``predictions/SPLIT-AGENT.jsonl`` (one row per text)
    into the run's folder.

    Args:
        target: Who is evaluated.
        split: train, val or test.
        num_samples: Only the first so many samples.
        on_agent: Called with each agent's name; what it gives is called after each text.

    Raises:
        ConfigError: no such split; the policy does not write.
    """
    if split not in get_args(Split):
        raise ConfigError(unknown("split", split, get_args(Split)))
    config = target.config
    assert config.pool.id is not None
    samples = pools.create(config.pool.id, **config.pool.args).prepare(split)[:num_samples]  # type: ignore[arg-type]
    checkpoints = {target.agent: target.checkpoint}
    if "zero-shot" in config.evaluation.baselines:
        checkpoints.setdefault("zero-shot", None)
    found = {}
    for name, checkpoint in checkpoints.items():
        policy = as_writer(make_policy(config, checkpoint))
        metrics, reward = make_metrics(config, policy), make_reward(config, policy)
        found[name] = write_and_measure(policy, config, samples, metrics, reward, on_agent(name))
        _write(target, split, name, found)
    return found


def _write(target: Target, split: str, agent: str, found: Mapping[str, Written]) -> None:
    folder = target.run_dir / "evaluation"
    folder.mkdir(parents=True, exist_ok=True)
    first = next(iter(found.values()))
    content = {
        "split": split,
        "pool": target.config.pool.id,
        "samples": len(first.samples),
        "checkpoint": target.checkpoint.name if target.checkpoint else None,
        "generation": target.config.evaluation.generation,
        "texts": {name: as_json(written.figures()) for name, written in found.items()},
    }
    write_atomically(folder / f"{split}{target.suffix}.json", json.dumps(content, indent=1) + "\n")
    write_rows(target.run_dir / "predictions" / f"{split}-{agent}{target.suffix}.jsonl", found[agent].rows())
