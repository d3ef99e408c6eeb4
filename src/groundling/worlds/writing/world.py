"""The world of texts that are written to a pool's prompts."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Self, get_args

import torch

from groundling.algorithms.algorithm import Algorithm
from groundling.envs.spec import WorldSpec
from groundling.envs.text_generation import Sample, SampleOrder, pools
from groundling.envs.text_generation.pools import Split
from groundling.errors import ConfigError
from groundling.io.row_files import Log, ValidationListener
from groundling.policies.policy import Policy
from groundling.worlds.collector import Collector
from groundling.worlds.episode import HeldOutEpisode, Played
from groundling.worlds.recording import Recording
from groundling.worlds.showing import Moment
from groundling.worlds.world import Actor, Demonstrator, World
from groundling.worlds.writing import pairs
from groundling.worlds.writing.actor import WritingActor
from groundling.worlds.writing.collect import References, WrittenTexts, as_writer, check_lengths
from groundling.worlds.writing.config import WritingConfig, WritingEvaluation
from groundling.worlds.writing.parts import (
    make_measured_reward,
    make_metrics,
    make_prompt_encoder,
    samples_of,
    warn_of_shared_prompts,
)
from groundling.worlds.writing.showing import watched
from groundling.worlds.writing.validation import ValidationLog, make_validation, write_and_measure

_REHEARSED_TEXTS = 8


class WritingWorld(World[WritingConfig, WritingEvaluation]):
    """A pool's prompts, to which a policy writes; or its references, which it learns."""

    config_class = WritingConfig
    evaluation_class = WritingEvaluation
    offers = WorldSpec(
        "a pool",
        frozenset({"prompt"}),
        "token",
        evidence=frozenset({"captions", "references"}),
        subject="writing",
    )
    unit = "tokens"
    episodes = "texts"
    curves: ClassVar[Mapping[str, str | None]] = {
        "return_mean": "reward",
        "kl_mean": "KL to the reference",
        "kl_coefficient": "KL coefficient",
        "episode_length": "tokens of a text",
        "entropy": "entropy",
        "value_loss": "value loss",
        "explained_variance": None,
        "log_prob": None,
        "loss": None,
        "probability": "probability of the references",
    }
    suites: ClassVar[Mapping[str, str]] = {
        split: f"the pool's {split} split" for split in ("test", "val", "train")
    }

    @classmethod
    def has(cls, place: str) -> bool:
        return place in pools

    @classmethod
    def start_from(cls, model: str | None) -> str:
        return "rl4lms/increasing_numbers_ppo"

    @cached_property
    def spec(self) -> WorldSpec:
        return replace(
            self.offers,
            name=f"pool {self.config.pool}",
            experience=frozenset({"acted", "demonstrated"}),
            group_size=self.config.texts_per_prompt,
        )

    @property
    def settings(self) -> dict[str, Any]:
        names = ["pool", "args", "max_prompt_length", "prompt_truncation_side", "num_tokens"]
        # Told of conversations alone: evaluations of other prompts stay equal to those from before there were any.
        names += ["chat", "system"] if self.config.chat else []
        return {name: getattr(self.config, name) for name in names} | {
            name: getattr(self.evaluation, name) for name in ("generation", "post_process")
        }

    # --------------------------------------------------------------------------------------------- training

    @cached_property
    def _training(self) -> Sequence[Sample]:
        return samples_of(self.config, "train")

    def collector(self, policy: Policy, algorithm: Algorithm, rows: slice) -> Collector:
        config, writer = self.config, as_writer(policy)
        num_texts, num_tokens = config.num_texts, config.num_tokens
        samples = self._training
        encode = make_prompt_encoder(config, writer)
        if algorithm.demonstrated:
            order = SampleOrder(samples, self.seed, replacement=False)
            return References(order, encode, num_texts, rows, num_tokens, writer.lm.is_encoder_decoder)
        if not writer.sampling.do_sample:
            raise ConfigError(
                "policy.args.generation.do_sample=false writes the likeliest tokens, and training needs texts that "
                "are drawn: leave it out, and to measure the likeliest texts set "
                "evaluation.generation.do_sample=false"
            )
        check_lengths(writer, encode.max_prompt_length, num_tokens)
        order = SampleOrder(samples, self.seed, config.replacement)
        reward = self.begin_reward(policy, algorithm.processes, samples)
        return WrittenTexts(order, encode, reward, num_texts, rows, num_tokens, config.texts_per_prompt)

    def rehearsal(self, recurrence: int, steps_per_gradient: int) -> Self:
        """See `World.rehearsal`: texts are only written whole, so there are few of them."""
        group = self.config.texts_per_prompt
        texts = min(self.config.num_texts, group * -(-_REHEARSED_TEXTS // group))
        return self._rehearsing({"num_texts": texts})

    def check_measures(self, policy: Policy) -> None:
        if self.evaluation.every is not None:
            make_validation(self, as_writer(policy))

    def logs(
        self,
        policy: Policy,
        algorithm: Algorithm,
        run_dir: Path,
        update: int,
        last_step: int,
        listeners: Sequence[ValidationListener],
    ) -> list[Log]:
        warn_of_shared_prompts(self.config, self._training, self.evaluation.every is not None)
        return [ValidationLog(self, policy, run_dir, update, last_step, listeners)]

    def record_pairs(
        self,
        players: Sequence[Demonstrator],
        recording: Recording,
        on_segment: Callable[[], None] = lambda: None,
    ) -> int:
        """See `World.record_pairs` and `groundling.worlds.writing.pairs.record`."""
        recording.refuse_screens()
        return pairs.record(players, recording, on_segment)

    # ------------------------------------------------------------------------------------------- evaluation

    def play(
        self,
        agent: str,
        policy: Policy | None,
        suite: str,
        num_episodes: int,
        on_episode: Callable[[], None] = lambda: None,
    ) -> Played:
        """See `World.play`.

        Raises:
            GroundlingError: the split cannot be had, or what a metric or the reward needs is missing.
        """
        self.check_agent(agent, policy)
        assert policy is not None
        writer = as_writer(policy)
        assert suite in get_args(Split)
        split = samples_of(self.config, suite)  # type: ignore[arg-type]
        samples = split[:num_episodes]
        metrics = make_metrics(self.evaluation.metrics, writer, split)
        reward = make_measured_reward(self.reward_parts, self.spec, writer, self.device, split)
        written = write_and_measure(writer, self, samples, metrics, reward, on_episode)
        episodes = [
            HeldOutEpisode(number, row["metrics"], {"sample": row["sample_id"]}, row)
            for number, row in enumerate(written.rows())
        ]
        return Played(episodes, written.figures())

    def watch(self, agent: str, policy: Policy | None, suite: str, number: int) -> Iterator[Moment]:
        self.check_agent(agent, policy)
        assert policy is not None
        assert suite in get_args(Split)
        yield from watched(self, as_writer(policy), suite, number)  # type: ignore[arg-type]

    def actor(self, policy: Policy, generator: torch.Generator) -> Actor:
        return WritingActor(self, as_writer(policy), generator)

    def predictions(self, episodes: Sequence[HeldOutEpisode]) -> list[dict[str, Any]]:
        return [episode.record for episode in episodes]
