"""The world of text envs."""

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch

from groundling.algorithms.algorithm import Algorithm
from groundling.algorithms.bc import BehaviouralCloning
from groundling.envs.make import inspect_env, is_available, step_limit
from groundling.envs.seeds import training_seed
from groundling.envs.text_env import SUCCESSES, Experience, Offer, TextObservation, TranslationError, WorldSpec
from groundling.envs.text_episode import random_action
from groundling.errors import ConfigError, GroundlingError, UnknownEnv, warn_caller
from groundling.io.row_files import Log, ValidationListener
from groundling.policies import RandomPolicy
from groundling.policies.policy import Policy
from groundling.worlds.config import Use, ValidationLog
from groundling.worlds.episode import PRESENTATIONS, Episode, EpisodeView, Frame, Played, ProbeHistory, ReportTable
from groundling.worlds.protocols import Collected
from groundling.worlds.text import dataset, episodes, frames, pairs
from groundling.worlds.text.collect import EnvCollector
from groundling.worlds.text.config import TextConfig, TextEvaluation
from groundling.worlds.text.demonstrations import Demonstrations
from groundling.worlds.text.suites import SUITE_GROUPS, SUITES, control_table, suite_overrides
from groundling.worlds.text.thoughts import TurnSampler, with_information
from groundling.worlds.world import CannotPlay, Collector, Player, World

_BY_REWARD = (
    "the info of {} of {} episodes does not report success, so these episodes count as successful if the env "
    "ended them with a positive reward. If that is wrong (e.g. if partial progress is also rewarded), report success in "
    f"info under one of the keys {', '.join(SUCCESSES)}"
)


class TextWorld(World):
    """A Gymnasium env described as text, or a dataset of episodes played in it."""

    config: TextConfig
    evaluation: TextEvaluation
    offers = WorldSpec(
        "a text env",
        frozenset({"words", "symbols"}),
        "choice",
        evidence=frozenset({"env", "captions", "counts"}),
        subject="text",
    )
    suites: ClassVar[Mapping[str, str]] = {name: suite.about for name, suite in SUITES.items()}
    suite_groups: ClassVar[Mapping[str, Sequence[str]]] = SUITE_GROUPS
    baselines: ClassVar[Mapping[str, str]] = {
        "random": "uniform over the admissible actions",
        "expert": "BabyAI's bot, which sees the full state",
        "explorer": "a rule-based agent for NetHack, which looks for the stairs and descends",
    }
    experiment = "glam/mixed"
    open_experiment = "text"
    presentation = PRESENTATIONS["text"]

    @classmethod
    def has(cls, place: str) -> bool:
        return is_available(place)

    @classmethod
    def policy_for(cls, place: str, args: Mapping[str, Any] = {}) -> str | None:
        with suppress(GroundlingError):  # raised again, with the arguments, when the world is created
            return "action_generating" if inspect_env(place, args).takes_any_text else None
        return None

    @cached_property
    def spec(self) -> WorldSpec:
        config = self.config
        known = episodes.known_actions_of(config)
        action: Literal["free_text", "choice"] = "free_text" if known.names == () else "choice"
        if config.dataset is not None:
            return WorldSpec(
                f"dataset {Path(config.dataset).name}",
                frozenset({"words"}),
                action,
                known.most,
                config.language,
                experience=frozenset[Experience]({"demonstrated"}),
                subject=self.offers.subject,
            )
        offers: set[Offer] = {"words"}
        with suppress(UnknownEnv):  # a saved run whose env is defined in a module that is not imported
            if inspect_env(config.env, config.args, config.language).has_symbols:
                offers.add("symbols")
        return replace(
            self.offers,
            name=config.env,
            observation=frozenset(offers),
            action=action,
            num_actions=known.most,
            language=config.language,
            group_size=config.group_size,
        )

    def settled(self) -> TextConfig:
        config = self.config
        names = episodes.actions_of(config).names
        if config.dataset is not None or not names or inspect_env(config.env, config.args, config.language).is_grid:
            return config
        return config.model_copy(update={"actions": [*names]})

    @property
    def longest_episode(self) -> int | None:
        config = self.config
        return config.step_limit or step_limit(config.env, config.args, config.language)

    # Training

    def collector(self, policy: Policy, algorithm: Algorithm, rows: slice) -> Collector:
        config, seed = self.config, self.seed
        if config.dataset is not None:
            names, folder = episodes.actions_of(config).names, Path(config.dataset)
            dataset.check_env(folder, config.env)
            return Demonstrations(folder, config.num_envs, rows, names, config.history, seed, config.num_steps)
        if algorithm.compares_episodes and config.group_size is None:
            warn_caller(
                f"{type(algorithm).__name__} compares all episodes of a rollout, though their tasks may differ: set "
                "world.group_size=8 to compare episodes with the same start, and world.num_steps to their maximum length"
            )
        count, group = rows.stop - rows.start, config.group_size or 1
        envs = episodes.make_envs(config, count, lambda i, k: training_seed(seed, (rows.start + i) // group, k))
        envs.reset()
        limit = config.step_limit
        return EnvCollector(
            envs,
            config.num_steps,
            policy.initial_memory(count),
            others=(rows.start, config.num_envs - rows.stop),
            reward=self.begin_reward(policy, algorithm.processes),
            bootstrap=algorithm.gamma if config.bootstrap_truncated else None,
            group_size=config.group_size,
            step_limits=None if limit is None else (limit, config.last_step_limit or limit),
        )

    def random_play(self, count: int) -> list[TextObservation]:
        envs = episodes.make_envs(self.config, 1, partial(training_seed, self.seed))
        generator = random.Random(self.seed)
        observations = envs.reset()
        while len(observations) < count:
            observations += envs.step([random_action(observations[-1], generator.randrange)]).observations
        envs.close()
        return observations

    def check_measures(self, policy: Policy) -> None:
        """Do nothing: the validation split of a dataset needs no checks."""

    def logs(
        self,
        policy: Policy,
        algorithm: Algorithm,
        run_dir: Path,
        update: int,
        last_step: int,
        listeners: Sequence[ValidationListener],
    ) -> Iterator[Log]:
        config, evaluation = self.config, self.evaluation
        if config.probes is not None:
            yield frames.ProbeLog(config, policy, run_dir, update)
        if config.dataset is None or evaluation.every is None or not isinstance(algorithm, BehaviouralCloning):
            return
        folder = Path(config.dataset)
        if count := min(dataset.count_transitions(folder, "validation"), evaluation.episodes):
            names = episodes.actions_of(config).names
            split = Demonstrations(folder, 1, slice(0, 1), names, config.history, self.seed, split="validation")
            rollout = split.rollout(count)  # the whole split, or a random sample of it
            measure = lambda update: algorithm.measure(policy, rollout)  # noqa: E731
            yield ValidationLog(measure, evaluation.every, run_dir, update, last_step, listeners)

    # Recording

    def learning_from(self, dataset: Path) -> TextConfig:
        config = self.config.model_copy(update={"dataset": str(dataset)})
        use = Use(demonstrated=True, learns_values=False, tells_entropy=False)
        idle = {key.partition("world.")[2] for key in config.unused(use)}
        usual = TextConfig.defaults()
        return config.model_copy(update={name: usual[name] for name in idle if name in usual})

    record_episodes = staticmethod(dataset.collect_dataset)
    record_pairs = staticmethod(pairs.record)

    def recorded(self, output: Path) -> Collected:
        return Collected(dataset.count_episodes(output), transitions=dataset.count_transitions(output))

    # Evaluation

    def suite_overrides(self, suite: str, overrides: Sequence[str]) -> list[str | Mapping[str, Any]]:
        return suite_overrides(self.config, self.policy_config, suite, overrides)

    def check_suite(self) -> None:
        if self.suite is None or not SUITES[self.suite].needs_env:
            return
        try:
            envs = episodes.make_envs(self.config, 1, episodes.held_out_seed_of(1))
            envs.reset()
            envs.close()
        except TranslationError as error:
            raise ConfigError(str(error)) from error

    def check_player(self, player: Player) -> None:
        super().check_player(player)
        if player.name == "random" and self.spec.action == "free_text":
            raise CannotPlay(f"any text is an action in {self.spec.name}, so there is no list to choose from")

    def play(self, player: Player, num_episodes: int) -> Iterator[Episode]:
        self.check_player(player)
        num_envs = min(self.evaluation.num_envs, num_episodes)
        envs = episodes.make_envs(self.config, num_envs, episodes.held_out_seed_of(num_envs))
        with closing(envs), episodes.chooser_of(player, self.evaluation.deterministic, self.seed) as choose:
            sampler = TurnSampler()
            for number, episode in episodes.play(choose, envs, num_episodes, sampler):
                yield replace(episodes.episode_of(number, episode), turn=sampler.turns.pop(episode.seed, None))

    def measure(self, player: Player, episodes: Sequence[Episode]) -> Played:
        return Played(with_information(player.policy, episodes))

    def watch(self, player: Player, number: int) -> Iterator[Frame]:
        self.check_player(player)
        yield from frames.watch(self.config, player, number, self.evaluation.deterministic, self.seed)

    def actor(self, policy: Policy, generator: torch.Generator) -> episodes.TextActor:
        return episodes.TextActor(self.config, policy, self.evaluation.deterministic, generator)

    def details(self, played: Mapping[str, Played]) -> dict[str, Any]:
        """Note how many episodes do not report success. Grid envs need no note, because they reward only success."""
        records = [one.record for outcome in played.values() for one in outcome.episodes]
        if inspect_env(self.config.env, self.config.args, self.config.language).is_grid:
            return {}
        count = sum(record.success_key is None for record in records)
        return {"notes": [_BY_REWARD.format(count, len(records))]} if count else {}

    def samples(self, player: Player, played: Played) -> list[dict[str, Any]]:
        """Return the chosen episodes with prompts and probabilities, and then the others."""
        policy, by_record = player.policy or RandomPolicy(), {id(e.record): e for e in played.episodes}
        chosen = [by_record.pop(id(record)) for record in frames.select([e.record for e in played.episodes])]
        return [
            *({"number": e.number, **frames.sample_of(self.config, policy, e.record)} for e in chosen),
            *({"number": e.number, "chosen": False, **frames.outline(e.record)} for e in by_record.values()),
        ]

    def view(self, run_dir: Path, sample: Mapping[str, Any]) -> EpisodeView:
        return frames.view(self.config, sample)

    def tables(self, evaluations: Mapping[str, Mapping[str, Any]]) -> list[ReportTable]:
        table = control_table(self.settings, evaluations)
        return [] if table is None else [table]

    def probe_history(self, run_dir: Path) -> ProbeHistory | None:
        rows = frames.read_probes(run_dir)
        return ProbeHistory(rows, frames.right_actions(self.config)) if rows else None
