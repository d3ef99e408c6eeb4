"""A world in which a policy generates texts for the prompts of a pool."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar, Self, cast

import torch

from groundling.algorithms.algorithm import Algorithm
from groundling.algorithms.preferences import PreferenceLearning
from groundling.envs.text_env import Experience, WorldSpec
from groundling.envs.text_generation import Sample, SampleOrder, pools
from groundling.envs.text_generation.pools import Split
from groundling.errors import ConfigError, RunError, warn_caller
from groundling.io.row_files import BEFORE_ALL, Log, ValidationListener
from groundling.policies.policy import Policy
from groundling.policies.token import TokenPolicy
from groundling.tokenization.detokenize import Continuation
from groundling.worlds.config import ValidationLog
from groundling.worlds.episode import PRESENTATIONS, Episode, Frame, Played, Summary
from groundling.worlds.protocols import Actor
from groundling.worlds.world import Collector, Player, World
from groundling.worlds.writing import pairs
from groundling.worlds.writing.collect import WrittenTexts, as_writer, check_lengths, reward_inputs
from groundling.worlds.writing.config import (
    WritingConfig,
    WritingEvaluation,
    check_prompts,
    make_prompt_encoder,
    samples_of,
)
from groundling.worlds.writing.measures import TextMeasures, make_measured_reward, write, write_rows, write_texts
from groundling.worlds.writing.preferences import OFFLINE, held_out

_ALTERNATIVES = 5


class WritingActor(Actor):
    """A policy that generates texts for prompts, as in evaluation."""

    def __init__(self, world: World, policy: TokenPolicy, generator: torch.Generator) -> None:
        self._policy, self._generator = policy, generator
        self._encode = make_prompt_encoder(world.config, policy)
        self._num_tokens, self._generation = world.config.num_tokens, world.evaluation.generation

    def act(self, observation: Any, info: Mapping[str, Any]) -> str:
        """Generate a text for a prompt; raise `ConfigError` if the prompt is not a string."""
        if not isinstance(observation, str):
            raise ConfigError(f"the prompt must be a string, got {observation!r:.80}")
        encoded = self._encode([Sample("prompt", observation)])
        (ids,) = write(self._policy, encoded, self._num_tokens, self._generation, self._generator)
        return self._policy.lm.continuation(encoded[0].ids).append(*ids)


_SHORT_TEXTS = 8


class WritingWorld(World):
    """A pool of prompts for which a policy generates texts, or from whose references it learns."""

    config: WritingConfig
    evaluation: WritingEvaluation
    offers = WorldSpec(
        "a pool", frozenset({"prompt"}), "token", evidence=frozenset({"captions", "references"}), subject="writing"
    )
    suites: ClassVar[Mapping[str, str]] = {split: f"the pool's {split} split" for split in ("test", "val", "train")}
    experiment = open_experiment = "writing"
    presentation = PRESENTATIONS["writing"]

    @classmethod
    def has(cls, place: str) -> bool:
        return place in pools

    @cached_property
    def spec(self) -> WorldSpec:
        learned = frozenset[Experience]({"acted", "demonstrated"})
        if getattr(pools.get(self.config.pool), "has_preferences", False):
            learned |= frozenset[Experience]({"preferred"})
        return replace(
            self.offers, name=f"pool {self.config.title}", experience=learned, group_size=self.config.texts_per_prompt
        )

    @property
    def settings(self) -> dict[str, Any]:
        # Settings that do not affect the texts: pools have no seeds, and only chat templates use a system prompt.
        left_out = ("episode_seeds", "metrics", *(() if self.config.chat else ("chat", "system")))
        return {name: value for name, value in super().settings.items() if name not in left_out}

    @cached_property
    def _training_samples(self) -> Sequence[Sample]:
        return samples_of(self.config, "train")

    @property
    def _split(self) -> Split:
        return cast(Split, self.suite or "test")

    def collector(self, policy: Policy, algorithm: Algorithm, rows: slice) -> Collector:
        config, writer, samples = self.config, as_writer(policy), self._training_samples
        num_texts, num_tokens, encode = config.num_texts, config.num_tokens, make_prompt_encoder(config, writer)
        if algorithm.offline:
            has_both = any(one.references for one in samples) and any(one.rejected for one in samples)
            if algorithm.learns_from == "labels" and not has_both:
                warn_caller("all texts have the same label, but KTO needs both: add texts with the other label")
            order = SampleOrder(samples, self.seed, replacement=False)
            collect = OFFLINE[algorithm.learns_from]
            return collect(order, encode, num_texts, rows, num_tokens, writer.lm.is_encoder_decoder)
        if not writer.sampling.do_sample:
            raise ConfigError(
                "policy.args.generation.do_sample=false decodes greedily, but training requires sampling: remove it; "
                "to evaluate with greedy decoding, set evaluation.generation.do_sample=false"
            )
        check_lengths(writer, encode.max_prompt_length, num_tokens)
        order = SampleOrder(samples, self.seed, config.replacement)
        reward = self.begin_reward(policy, algorithm.processes, samples)
        return WrittenTexts(order, encode, reward, num_texts, rows, num_tokens, config.texts_per_prompt)

    def shortened(self, recurrence: int, steps_per_gradient: int) -> Self:
        """Return a copy with fewer texts per rollout; the texts keep their length."""
        group = self.config.texts_per_prompt
        texts = min(self.config.num_texts, group * -(-_SHORT_TEXTS // group))
        return self._with_free_judges({"num_texts": texts})

    def check_measures(self, policy: Policy) -> None:
        if self.evaluation.every is not None:
            TextMeasures.of_split(self, as_writer(policy), "val")

    def logs(
        self,
        policy: Policy,
        algorithm: Algorithm,
        run_dir: Path,
        update: int,
        last_step: int,
        listeners: Sequence[ValidationListener],
    ) -> list[Log]:
        every = self.evaluation.every
        writer, predictions = as_writer(policy), run_dir / "predictions"
        encode = make_prompt_encoder(self.config, writer)
        check_prompts(self.config, encode, self._training_samples, every is not None)
        if every is None:
            return []
        measures = TextMeasures.of_split(self, writer, "val")
        for path in predictions.glob("val-[0-9]*.jsonl"):
            if int(path.stem.partition("-")[2]) > (
                update or BEFORE_ALL
            ):  # their rows in validation.jsonl are dropped too
                path.unlink()

        samples = measures.samples[: self.evaluation.episodes]
        compare = self._comparison(writer, algorithm, samples)

        def measure(update: int) -> dict[str, float]:
            measures.forget()
            measured = measures.measure(list(write_texts(writer, self, samples)))
            write_rows(predictions / f"val-{update:06}.jsonl", measured.rows())
            return measured.figures() | compare()

        return [ValidationLog(measure, every, run_dir, update, last_step, listeners)]

    def _comparison(
        self, writer: TokenPolicy, algorithm: Algorithm | None, samples: Sequence[Sample]
    ) -> Callable[[], dict[str, float]]:
        """Return a function that measures held-out preferences, if the algorithm learns from preferences."""
        if not isinstance(algorithm, PreferenceLearning):
            return dict
        encode = make_prompt_encoder(self.config, writer)
        return partial(algorithm.measure, writer, held_out(samples, algorithm, writer, encode, self.config.num_tokens))

    record_pairs = staticmethod(pairs.record)

    def play(self, player: Player, num_episodes: int) -> Iterator[Episode]:
        """Generate texts; `measure` computes their metrics."""
        self.check_player(player)
        writer = as_writer(player.policy)
        self._measures = TextMeasures.of_split(self, writer, self._split)
        texts = write_texts(writer, self, self._measures.samples[:num_episodes])
        for number, text in enumerate(texts):
            yield Episode({}, number, {"sample": text.sample.id}, text)

    def measure(self, player: Player, episodes: Sequence[Episode]) -> Played:
        measured = self._measures.measure([episode.record for episode in episodes])
        compare = self._comparison(as_writer(player.policy), player.algorithm, measured.samples)
        rows = zip(episodes, measured.rows(), strict=True)
        return Played(
            [replace(e, figures=row["metrics"], prediction=row) for e, row in rows], measured.figures() | compare()
        )

    @torch.no_grad()
    def watch(self, player: Player, number: int) -> Iterator[Frame]:
        """Generate a text as in training; each frame shows a token and the most likely alternatives."""
        self.check_player(player)
        policy, config = as_writer(player.policy), self.config
        samples = samples_of(config, self._split)
        if number >= len(samples):
            raise RunError(f"the {self._split} split of {self.spec.name} has only {len(samples)} samples: watch fewer")
        sample, prompts = samples[number], make_prompt_encoder(config, policy)([samples[number]])
        generator = torch.Generator().manual_seed(self.seed + number)
        uniforms = torch.rand(1, config.num_tokens, dtype=torch.float64, generator=generator)
        writing = policy.write(prompts, uniforms, config.num_tokens)
        ids = writing.token_ids()[0].tolist()
        actions = writing.actions[: len(ids)].T  # (1, length)
        likely = policy.evaluate(writing.observations, actions).log_distributions()[0].exp()  # (length, tokens)
        tokenizer, read = policy.lm.tokenizer, () if policy.lm.is_encoder_decoder else prompts[0].ids
        text, written = "", Continuation(tokenizer, read)
        for position, token in enumerate(ids):
            values, tokens = likely[position].topk(min(_ALTERNATIVES, likely.shape[-1]))
            likeliest = dict(zip(tokens.tolist(), values.tolist(), strict=True))
            likeliest[token] = likely[position, token].item()
            before = [*read, *ids[:position]]
            named = {one: repr(Continuation(tokenizer, before, False).append(one)) for one in likeliest}
            text = written.append(token)
            yield Frame(
                [sample.prompt, f"> {text}"],
                action=named[token],
                probabilities={named[one]: value for one, value in likeliest.items()},
                is_notable=False,
            )
        title = f"text {number} · {len(ids)} tokens"
        reward = make_measured_reward(self, policy, samples)
        if reward is not None and not reward.per_token:
            worth = reward(reward_inputs([sample], [[text]])).total.sum().item()
            title += f" · reward {worth:.4g}"
        yield Frame([sample.prompt, f"> {text}"], summary=Summary(title))

    def actor(self, policy: Policy, generator: torch.Generator) -> WritingActor:
        return WritingActor(self, as_writer(policy), generator)
