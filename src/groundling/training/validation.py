"""Texts that a policy writes to a pool's samples, and what the metrics say of them; also while a run trains."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from groundling.configs.schema import Config
from groundling.envs.text_generation import Sample, pools
from groundling.errors import ConfigError, RunError
from groundling.files import write_atomically
from groundling.metrics import Metric, MetricResult
from groundling.metrics.post_processing import post_processors
from groundling.policies.texts import TokenPrompt
from groundling.policies.token import TokenPolicy
from groundling.rewards import Reward
from groundling.training.build import make_metrics, make_prompt_encoder, make_reward
from groundling.training.tracking import RowFile
from groundling.training.writing import as_writer


@dataclass(frozen=True)
class Written:
    """What a policy wrote to a split, and its figures; lists with one entry for each sample."""

    samples: Sequence[Sample]
    generations: list[str]
    rewards: list[float] | None
    """Of the reward that it was trained on, if there is one."""
    results: Mapping[str, MetricResult]

    def figures(self) -> dict[str, float]:
        """By metric, the figure of the whole split; the mean of the rewards first."""
        told = {} if self.rewards is None else {"reward": sum(self.rewards) / len(self.rewards)}
        return told | {name: result.corpus for name, result in self.results.items()}

    def rows(self) -> list[dict[str, Any]]:
        """One for each sample, as predictions are written: prompt, generation, references and scores."""
        return [
            {
                "sample_id": sample.id,
                "prompt": sample.prompt,
                "generation": generation,
                "references": list(sample.references),
                "metrics": ({} if self.rewards is None else {"reward": self.rewards[i]})
                | {name: r.sentences[i] for name, r in self.results.items() if r.sentences is not None},
            }
            for i, (sample, generation) in enumerate(zip(self.samples, self.generations, strict=True))
        ]


def write_and_measure(
    policy: TokenPolicy,
    config: Config,
    samples: Sequence[Sample],
    metrics: Sequence[Metric],
    reward: Reward | None,
    on_text: Callable[[], None] = lambda: None,
) -> Written:
    """Let ``policy`` write to ``samples`` as evaluation.generation says, and measure what came of it.

    Draws from torch's global generator, which is left as it was: the texts depend on the config's seed alone.

    Raises:
        ConfigError: evaluation.generation is not what Transformers' generate takes.
        RunError: there are no samples, or a metric lacks what it needs of them.
    """
    if not samples:
        raise RunError(f"pool {config.pool.id!r} has no samples in this split")
    generations: list[str] = []
    process = post_processors.get(config.evaluation.post_process) if config.evaluation.post_process else str
    encode = make_prompt_encoder(config, policy)
    size = config.evaluation.batch_size
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(config.seed)
        for first in range(0, len(samples), size):
            batch = samples[first : first + size]
            generations += map(process, _write(policy, encode(batch), config))
            for _ in batch:
                on_text()
    prompts = [sample.prompt for sample in samples]
    references = [list(sample.references) for sample in samples]
    meta = [dict(sample.meta) for sample in samples]
    results: dict[str, MetricResult] = {}
    for metric in metrics:
        results |= metric.compute(prompts, generations, references, meta)
    rewards = None if reward is None else reward(prompts, generations, references, meta).tolist()
    return Written(samples, generations, rewards, results)


def _write(policy: TokenPolicy, prompts: Sequence[TokenPrompt], config: Config) -> list[str]:
    """A text to each prompt: as in training, or as Transformers' generate does with evaluation.generation."""
    lm, num_tokens, settings = policy.lm, config.training.steps_per_update, config.evaluation.generation
    if not settings:
        uniforms = torch.rand(len(prompts), num_tokens, dtype=torch.float64)
        written = [ids.tolist() for ids in policy.write(prompts, uniforms, num_tokens).token_ids()]
        return lm.tokenizer.batch_decode(written, skip_special_tokens=True)
    settings = {"max_new_tokens": num_tokens} | settings
    try:
        return [written.text for written in lm.generate([p.ids for p in prompts], **settings)]
    except (TypeError, ValueError) as error:  # what Transformers says of settings that it does not know
        raise ConfigError(f"evaluation.generation={dict(settings)} cannot be followed: {error}") from error


class ValidationLog:
    """Measures the validation split while a run writes; idle where evaluation.every is null.

    Appends to the run's ``validation.jsonl``, going on after the update that it resumes from, and writes
    ``predictions/val-UPDATE.jsonl``.
    """

    def __init__(self, config: Config, policy: Any, run_dir: Path, update: int) -> None:
        self._config, self._run_dir = config, run_dir
        self._every = config.evaluation.every
        if self._every is None:
            return
        assert config.pool.id is not None
        self._policy = as_writer(policy)
        self._samples = pools.create(config.pool.id, **config.pool.args).prepare("val")[
            : config.evaluation.episodes
        ]
        self._metrics, self._reward = make_metrics(config, self._policy), make_reward(config, self._policy)
        self._rows = RowFile(run_dir / "validation.jsonl", update)
        if not update and self._rows.is_empty:
            self._measure(0, 0)

    def log(self, row: Mapping[str, Any]) -> None:
        """Measure after the update whose figures are ``row``, if it is its turn."""
        if self._every is not None and row["update"] % self._every == 0:
            self._measure(row["update"], row["step"])

    def _measure(self, update: int, step: int) -> None:
        written = write_and_measure(self._policy, self._config, self._samples, self._metrics, self._reward)
        write_rows(self._run_dir / "predictions" / f"val-{update:06}.jsonl", written.rows())
        self._rows.append({"update": update, "step": step, "metrics": as_json(written.figures())})


def write_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """One JSON object a line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


def as_json(figures: Mapping[str, float]) -> dict[str, float | None]:
    """JSON knows no NaN: None where a figure is not defined."""
    return {name: value if math.isfinite(value) else None for name, value in figures.items()}
