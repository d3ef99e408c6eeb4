"""The world of texts that are written to a pool's prompts."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, get_args

from groundling.algorithms.algorithm import Algorithm
from groundling.envs.spec import WorldSpec
from groundling.envs.text_generation import SampleOrder
from groundling.envs.text_generation.pools import Split
from groundling.policies.policy import Policy
from groundling.rows import Log, Told
from groundling.worlds.collector import Collector
from groundling.worlds.episode import HeldOutEpisode, Played
from groundling.worlds.recording import Demonstrator, Recording
from groundling.worlds.showing import Moment
from groundling.worlds.world import World
from groundling.worlds.writing import pairs
from groundling.worlds.writing.collect import References, WrittenTexts, as_writer, check_lengths
from groundling.worlds.writing.parts import (
    make_measured_reward,
    make_metrics,
    make_prompt_encoder,
    samples_of,
    spec_of,
)
from groundling.worlds.writing.showing import watched
from groundling.worlds.writing.validation import ValidationLog, make_validation, write_and_measure

_REHEARSED_TEXTS = 8


class WritingWorld(World):
    """A pool's prompts, to which a policy writes; or its references, which it learns."""

    unit = "tokens"
    episodes = "texts"
    suites: ClassVar[Mapping[str, str]] = {
        split: f"the pool's {split} split" for split in ("test", "val", "train")
    }

    @cached_property
    def spec(self) -> WorldSpec:
        return spec_of(self.config.pool)

    @property
    def settings(self) -> dict[str, Any]:
        config = self.config
        return {"pool": asdict(config.pool), "prompts": config.env.args} | {
            name: getattr(config.evaluation, name) for name in ("generation", "post_process")
        }

    # --------------------------------------------------------------------------------------------- training

    def collector(self, policy: Policy, algorithm: Algorithm, rows: slice) -> Collector:
        config, writer, pool = self.config, as_writer(policy), self.config.pool
        num_texts, num_tokens = config.env.num_envs, config.training.steps_per_update
        samples = samples_of(pool, "train")
        encode = make_prompt_encoder(config.env, writer)
        if algorithm.demonstrated:
            order = SampleOrder(samples, config.seed, replacement=False)
            return References(order, encode, num_texts, rows, num_tokens, writer.lm.is_encoder_decoder)
        check_lengths(writer, encode.max_prompt_length, num_tokens)
        order = SampleOrder(samples, config.seed, pool.replacement)
        reward = self.begin_reward(policy, algorithm.processes)
        return WrittenTexts(order, encode, reward, num_texts, rows, num_tokens, pool.texts_per_prompt)

    def rehearsal(self, recurrence: int, steps_per_gradient: int) -> World:
        """See `World.rehearsal`: texts are only written whole, so there are few of them."""
        config, group = self._unpaid(), self.config.pool.texts_per_prompt
        texts = min(config.env.num_envs, group * -(-_REHEARSED_TEXTS // group))
        return WritingWorld(replace(config, env=replace(config.env, num_envs=texts)))

    def check_measures(self, policy: Policy) -> None:
        if self.config.evaluation.every is not None:
            make_validation(self.config, as_writer(policy))

    def logs(
        self, policy: Policy, algorithm: Algorithm, run_dir: Path, update: int, told: Sequence[Told]
    ) -> list[Log]:
        return [ValidationLog(self.config, policy, run_dir, update, told)]

    def record_pairs(
        self,
        players: Sequence[Demonstrator],
        recording: Recording,
        on_segment: Callable[[], None] = lambda: None,
    ) -> int:
        """See `World.record_pairs` and `groundling.worlds.writing.pairs.record`."""
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
        config, writer = self.config, as_writer(policy)
        assert suite in get_args(Split)
        samples = samples_of(config.pool, suite)[:num_episodes]  # type: ignore[arg-type]
        metrics = make_metrics(config.evaluation.metrics, writer)
        reward = make_measured_reward(config.reward, self.spec, writer, config.device)
        written = write_and_measure(writer, config, samples, metrics, reward, on_episode)
        episodes = [
            HeldOutEpisode(number, row["metrics"], {"sample": row["sample_id"]}, row)
            for number, row in enumerate(written.rows())
        ]
        return Played(episodes, written.figures())

    def watch(self, agent: str, policy: Policy | None, suite: str, number: int) -> Iterator[Moment]:
        self.check_agent(agent, policy)
        assert policy is not None
        assert suite in get_args(Split)
        yield from watched(self.config, as_writer(policy), suite, number)  # type: ignore[arg-type]

    def predictions(self, episodes: Sequence[HeldOutEpisode]) -> list[dict[str, Any]]:
        return [episode.record for episode in episodes]
