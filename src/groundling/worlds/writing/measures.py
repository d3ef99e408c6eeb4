"""Generate texts for a pool's samples, and compute their metrics."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import GenerationConfig

from groundling.envs.text_generation import Sample
from groundling.envs.text_generation.pools import Split
from groundling.errors import ConfigError, RunError
from groundling.io.files import write_atomically
from groundling.lm.write.generation import sampling_from
from groundling.metrics import MetricResult, Scorer
from groundling.metrics.tokens import post_processors
from groundling.policies.text_states import TokenPrompt
from groundling.policies.token import TokenPolicy
from groundling.registry import ComponentConfig, provided
from groundling.rewards import RewardContext, RewardSum, chosen_parts, make_parts, measures
from groundling.worlds.world import World
from groundling.worlds.writing.collect import reward_inputs, texts_so_far
from groundling.worlds.writing.config import make_prompt_encoder, samples_of


@dataclass(frozen=True)
class WrittenText:
    sample: Sample
    prompt: TokenPrompt
    ids: Sequence[int]


@dataclass(frozen=True)
class MeasuredTexts:
    """Texts generated for a split's prompts, with their metrics; lists have one entry per sample."""

    samples: Sequence[Sample]
    generations: list[str]
    rewards: list[float] | None  # rewards as in training; None if the run has no reward
    results: Mapping[str, MetricResult]

    def figures(self) -> dict[str, float]:
        """Return the mean reward and the metrics of the whole split."""
        figures = {} if self.rewards is None else {"reward": sum(self.rewards) / len(self.rewards)}
        return figures | {name: result.corpus for name, result in self.results.items()}

    def rows(self) -> list[dict[str, Any]]:
        """Return one row per sample with the prompt, the generation, the references and the scores."""
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


@dataclass(frozen=True)
class TextMeasures:
    world: World
    policy: TokenPolicy
    samples: Sequence[Sample]
    metrics: Sequence[Scorer]
    reward: RewardSum | None

    @classmethod
    def of_split(cls, world: World, policy: TokenPolicy, split: Split) -> "TextMeasures":
        """Return the measures for a split of the pool; raise `GroundlingError` if a requirement is missing."""
        samples = samples_of(world.config, split)
        metrics = make_metrics(world.evaluation.metrics, policy, samples)
        return cls(world, policy, samples, metrics, make_measured_reward(world, policy, samples))

    def forget(self) -> None:
        """Forget earlier texts, so that the next measurement does not depend on them."""
        if self.reward is not None:
            self.reward.forget()

    def measure(self, texts: Sequence[WrittenText]) -> MeasuredTexts:
        """Compute the metrics of texts; raise `ConfigError` if two metrics return results with the same name."""
        samples, rows = [text.sample for text in texts], [text.ids for text in texts]
        name = self.world.evaluation.post_process
        process = post_processors.get(name) if name else str
        per_token = self.reward is not None and self.reward.per_token
        so_far = texts_so_far(self.policy.lm, [text.prompt for text in texts], rows, per_token)
        generations = [process(text[-1] if text else "") for text in so_far]
        prompts, meta = [sample.prompt for sample in samples], [dict(sample.meta) for sample in samples]
        references = [list(sample.references) for sample in samples]
        results: dict[str, MetricResult] = {}
        owners: dict[str, Scorer] = {}
        for metric in self.metrics:
            computed = metric.compute(prompts, generations, references, meta)
            if both := sorted(results.keys() & computed):
                raise ConfigError(
                    f"evaluation.metrics: {owners[both[0]]!r} and {metric!r} both return {both[0]}: remove one of them"
                )
            results, owners = {**results, **computed}, owners | dict.fromkeys(computed, metric)
        rewards: list[float] | None = None
        if self.reward is not None:
            # Per-token rewards are computed without post-processing, like training's return_mean.
            so_far = so_far if per_token else [[text] for text in generations]
            rewarded = self.reward(reward_inputs(samples, so_far, rows if per_token else ()))
            rewards = rewarded.total.sum(0).tolist()
        return MeasuredTexts(samples, generations, rewards, results)


def write_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


def write_texts(policy: TokenPolicy, world: World, samples: Sequence[Sample]) -> Iterator[WrittenText]:
    """Generate texts in batches, as set in evaluation.generation; torch's global generator is left unchanged."""
    if not samples:
        raise RunError(f"pool {world.config.pool!r} has no samples in this split")
    evaluation, size = world.evaluation, world.evaluation.batch_size
    encode = make_prompt_encoder(world.config, policy)
    generator = torch.Generator().manual_seed(world.seed)
    with sampling_from(world.seed) if evaluation.generation else nullcontext(), torch.no_grad():
        for first in range(0, len(samples), size):
            batch = samples[first : first + size]
            prompts = encode(batch)
            rows = write(policy, prompts, world.config.num_tokens, evaluation.generation, generator)
            yield from map(WrittenText, batch, prompts, rows)


def write(
    policy: TokenPolicy,
    prompts: Sequence[TokenPrompt],
    num_tokens: int,
    settings: dict[str, Any],
    generator: torch.Generator,
) -> list[list[int]]:
    """Return one text's tokens per prompt, sampled as in training or with ``settings`` by Transformers' generate."""
    lm = policy.lm
    if not settings:
        uniforms = torch.rand(len(prompts), num_tokens, dtype=torch.float64, generator=generator)
        return [ids.tolist() for ids in policy.write(prompts, uniforms, num_tokens).token_ids()]
    ends = list(lm.end_tokens.ids) if policy.sampling.terminate_on_eos else []
    settings = {"max_new_tokens": num_tokens, "eos_token_id": ends or None} | settings
    start, kept = policy.context_start_token, lm.model.generation_config
    # Texts start as in training. Transformers would also use the rest of the model's generation config, such as
    # forced tokens, a temperature or no_repeat_ngram_size, so it is replaced.
    start, bos = lm.start_token if start is None else start, lm.tokenizer.bos_token_id
    lm.model.generation_config = GenerationConfig(decoder_start_token_id=start, bos_token_id=bos)
    try:
        generations = lm.generate([p.ids for p in prompts], **settings)
    except (TypeError, ValueError) as error:  # raised by Transformers for unknown settings
        raise ConfigError(f"evaluation.generation={dict(settings)} cannot be used: {error}") from error
    finally:
        lm.model.generation_config = kept
    return [written.token_ids.tolist() for written in generations]


def make_measured_reward(world: World, policy: TokenPolicy, samples: Sequence[Sample] = ()) -> RewardSum | None:
    """Create the reward for texts generated for a split's ``samples``; return None if the config has no reward. Parts
    with an online reward model are omitted, because only training has the model, and querying judges costs money.
    """
    settled = {name: part for name, part in world.reward_parts.items() if part is None or not part.args.get("online")}
    if not chosen_parts(settled, world.spec):
        return None
    made = make_parts(settled, world.spec)
    made.begin(RewardContext(world.device, world=world.spec.subject, lm=policy.lm, samples=samples))
    return made


def make_metrics(
    named: Sequence[ComponentConfig], policy: TokenPolicy, samples: Sequence[Sample] = ()
) -> list[Scorer]:
    """Create each metric once, to score texts for some of ``samples``; the default language model is the policy's."""
    made = []
    for metric in [metric for place, metric in enumerate(named) if metric not in named[:place]]:
        given = {name: policy.lm for name, one in provided(measures.get(metric.id)).items() if one.role == "lm"}
        made.append(measures.create(metric.id, **given | metric.args))
        made[-1].check()  # before any text is generated
    for scorer in made:
        scorer.read_corpus(samples)
    return made
