"""Texts that a policy writes to a pool's samples, and what the metrics say of them; also while a run trains."""

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import GenerationConfig

from groundling.envs.text_generation import Sample
from groundling.errors import ConfigError, RunError
from groundling.io.files import write_atomically
from groundling.io.row_files import BEFORE_ALL, RowFile, ValidationListener, due
from groundling.lm.write.generation import sampling_from
from groundling.metrics import Metric, MetricResult
from groundling.metrics.post_processing import post_processors
from groundling.policies.texts import TokenPrompt
from groundling.policies.token import TokenPolicy
from groundling.rewards import RewardSum
from groundling.worlds.world import World
from groundling.worlds.writing.collect import as_writer, stretch_of, texts_so_far
from groundling.worlds.writing.config import WritingConfig, WritingEvaluation
from groundling.worlds.writing.parts import (
    make_measured_reward,
    make_metrics,
    make_prompt_encoder,
    samples_of,
)


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
        figures = {} if self.rewards is None else {"reward": sum(self.rewards) / len(self.rewards)}
        return figures | {name: result.corpus for name, result in self.results.items()}

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


def make_validation(
    world: World[WritingConfig, WritingEvaluation], policy: TokenPolicy
) -> tuple[Sequence[Sample], list[Metric], RewardSum | None]:
    """The first evaluation.episodes samples of the validation split, and the metrics and the reward of what is written.

    Raises:
        GroundlingError: the split cannot be had, or what a metric or the reward needs is missing.
    """
    split = samples_of(world.config, "val")
    reward = make_measured_reward(world.reward_parts, world.spec, policy, world.device, split)
    metrics = make_metrics(world.evaluation.metrics, policy, split)
    return split[: world.evaluation.episodes], metrics, reward


def write_and_measure(
    policy: TokenPolicy,
    world: World[WritingConfig, WritingEvaluation],
    samples: Sequence[Sample],
    metrics: Sequence[Metric],
    reward: RewardSum | None,
    on_text: Callable[[], None] = lambda: None,
) -> Written:
    """Let ``policy`` write to ``samples`` as evaluation.generation says, and measure what came of it.

    The texts depend on the config's seed alone; torch's global generator is left as it was.

    Raises:
        ConfigError: evaluation.generation is not what Transformers' generate takes, or two metrics give figures of one
            name.
        RunError: there are no samples, or a metric lacks what it needs of them.
    """
    if not samples:
        raise RunError(f"pool {world.config.pool!r} has no samples in this split")
    rows: list[list[int]] = []
    prompt_tokens: list[TokenPrompt] = []
    evaluation = world.evaluation
    process = post_processors.get(evaluation.post_process) if evaluation.post_process else str
    encode = make_prompt_encoder(world.config, policy)
    size = evaluation.batch_size
    generator = torch.Generator().manual_seed(world.seed)
    sampling = sampling_from(world.seed) if evaluation.generation else nullcontext()
    with sampling, torch.no_grad():
        for first in range(0, len(samples), size):
            batch = samples[first : first + size]
            encoded = encode(batch)
            prompt_tokens += encoded
            rows += write(policy, encoded, world.config.num_tokens, evaluation.generation, generator)
            for _ in batch:
                on_text()
    per_token = reward is not None and reward.per_token
    texts = texts_so_far(policy.lm, prompt_tokens, rows, per_token)
    generations = [process(text[-1] if text else "") for text in texts]
    prompts = [sample.prompt for sample in samples]
    references = [list(sample.references) for sample in samples]
    meta = [dict(sample.meta) for sample in samples]
    results: dict[str, MetricResult] = {}
    owners: dict[str, Metric] = {}
    for metric in metrics:
        for name, result in metric.compute(prompts, generations, references, meta).items():
            if name in results:
                raise ConfigError(
                    f"evaluation.metrics: {owners[name]!r} and {metric!r} both give {name}, which can be reported "
                    "only once: keep one of them"
                )
            results[name], owners[name] = result, metric
    rewards: list[float] | None = None
    if reward is not None:
        # At every token, as training's return_mean has it: as they were written, not of what became of the text.
        texts = texts if per_token else [[text] for text in generations]
        rewards = reward(stretch_of(samples, texts, rows if per_token else ())).total.sum(0).tolist()
    return Written(samples, generations, rewards, results)


def write(
    policy: TokenPolicy,
    prompts: Sequence[TokenPrompt],
    num_tokens: int,
    settings: dict[str, Any],
    generator: torch.Generator,
) -> list[list[int]]:
    """The tokens of a text to each prompt: as in training, or as Transformers' generate does with the settings."""
    lm = policy.lm
    if not settings:
        uniforms = torch.rand(len(prompts), num_tokens, dtype=torch.float64, generator=generator)
        return [ids.tolist() for ids in policy.write(prompts, uniforms, num_tokens).token_ids()]
    ends = list(lm.end_tokens.ids) if policy.sampling.terminate_on_eos else []
    settings = {"max_new_tokens": num_tokens, "eos_token_id": ends or None} | settings
    try:
        with _only_what_is_set(policy):
            generations = lm.generate([p.ids for p in prompts], **settings)
    except (TypeError, ValueError) as error:  # what Transformers says of settings that it does not know
        raise ConfigError(f"evaluation.generation={dict(settings)} cannot be used: {error}") from error
    if len(generations) != len(prompts):
        raise ConfigError(
            f"evaluation.generation={dict(settings)} gives {len(generations)} texts to {len(prompts)} prompts, and one "
            "to each is measured: leave num_return_sequences"
        )
    return [written.token_ids.tolist() for written in generations]


@contextmanager
def _only_what_is_set(policy: TokenPolicy) -> Iterator[None]:
    """Let generate begin texts as training does, without the other settings of the model's generation config.

    Transformers takes from there every setting that is not given: forced tokens, a temperature, no_repeat_ngram_size.
    """
    lm, start_token = policy.lm, policy.context_start_token
    kept = lm.model.generation_config
    lm.model.generation_config = GenerationConfig(
        decoder_start_token_id=lm.start_token if start_token is None else start_token,
        bos_token_id=lm.tokenizer.bos_token_id,
    )
    try:
        yield
    finally:
        lm.model.generation_config = kept


class ValidationLog:
    """Measures the validation split while a run writes; idle where evaluation.every is null.

    Measures before the first update, then as often as evaluation.every says, and after the last. Appends to the run's
    ``validation.jsonl``, going on after the update that it resumes from, writes ``predictions/val-UPDATE.jsonl``, and
    tells the ``others`` the figures as ``validation/NAME``.
    """

    def __init__(
        self,
        world: World[WritingConfig, WritingEvaluation],
        policy: Any,
        run_dir: Path,
        update: int,
        last_step: int,
        others: Sequence[ValidationListener] = (),
    ) -> None:
        self._world, self._run_dir, self._last_step, self._others = world, run_dir, last_step, others
        self._every = world.evaluation.every
        if self._every is None:
            return
        self._policy = as_writer(policy)
        self._samples, self._metrics, self._reward = make_validation(world, self._policy)
        self._rows = RowFile(run_dir / "validation.jsonl", update or BEFORE_ALL)
        for path in (run_dir / "predictions").glob("val-[0-9]*.jsonl"):
            if int(path.stem.partition("-")[2]) > (update or BEFORE_ALL):  # as of the rows that were dropped
                path.unlink()
        if not update:
            self._measure(0, 0)

    def log(self, row: Mapping[str, Any]) -> None:
        """Measure after the update whose figures are ``row``, if it is its turn, or the last."""
        if self._every is not None and due(self._every, self._last_step, row):
            self._measure(row["update"], row["step"])

    def _measure(self, update: int, step: int) -> None:
        if self._reward is not None:
            self._reward.forget()  # no measurement depends on those before it
        written = write_and_measure(self._policy, self._world, self._samples, self._metrics, self._reward)
        write_rows(self._run_dir / "predictions" / f"val-{update:06}.jsonl", written.rows())
        self._rows.append({"update": update, "step": step, "metrics": as_json(written.figures())})
        figures = {f"validation/{name}": value for name, value in written.figures().items()}
        for other in self._others:
            other.log_validation(figures, update, step)


def write_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """One JSON object a line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


def as_json(figures: Mapping[str, float]) -> dict[str, float | None]:
    """JSON knows no NaN: None where a figure is not defined."""
    return {name: value if math.isfinite(value) else None for name, value in figures.items()}
