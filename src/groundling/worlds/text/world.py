"""The world of text envs."""

import inspect
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, fields, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import torch

from groundling.algorithms.algorithm import Algorithm
from groundling.envs.babyai_text import CONTROLS, ExpertError
from groundling.envs.languages import TranslationError
from groundling.envs.make import has_symbols, is_grid
from groundling.envs.observation import TextObservation
from groundling.envs.seeds import SCHEME, training_seed
from groundling.envs.spec import Experience, Offer, WorldSpec
from groundling.envs.text_env import SUCCESSES
from groundling.errors import ConfigError, UnknownEnv
from groundling.io.row_files import Log, ValidationListener
from groundling.lm.load.loading import STARTERS
from groundling.policies.policy import Policy, policies
from groundling.policies.random import RandomPolicy
from groundling.prompts import PromptReader
from groundling.prompts.prompt import BLANK
from groundling.registry import unknown
from groundling.worlds.collector import Collector
from groundling.worlds.config import Use
from groundling.worlds.episode import Played
from groundling.worlds.recording import Collected, Recording
from groundling.worlds.showing import Moment, Probed, ReportTable, ShownEpisode
from groundling.worlds.text import pairs
from groundling.worlds.text.actor import TextActor
from groundling.worlds.text.collect import EnvCollector
from groundling.worlds.text.config import TextConfig, TextEvaluation
from groundling.worlds.text.dataset import check_env, count_episodes, count_transitions
from groundling.worlds.text.demonstrations import Demonstrations
from groundling.worlds.text.envs import actions_of, known_actions_of, make_envs
from groundling.worlds.text.episodes import held_out_seed_of, play, player_of, record_of
from groundling.worlds.text.held_out import HeldOutLog
from groundling.worlds.text.probes import ProbeLog, read_probes, right_actions
from groundling.worlds.text.recording import collect_dataset
from groundling.worlds.text.samples import record, selected
from groundling.worlds.text.showing import shown, watched
from groundling.worlds.text.suites import SUITES, Suite, find_suites
from groundling.worlds.text.telling import FIRST, MEANINGS, controls_table
from groundling.worlds.world import Actor, CannotPlay, Demonstrator, World

_BY_REWARD = (
    "success: the info of {} of {} episodes does not report it, so such an episode counts as a success if the env "
    "ended it with a positive reward; if that is wrong (a step cost, a prize for something else), report it as one of "
    f"info's keys {', '.join(SUCCESSES)}"
)


class TextWorld(World[TextConfig, TextEvaluation]):
    """Any Gymnasium env that is described in words, or a dataset of episodes that somebody played there."""

    config_class = TextConfig
    evaluation_class = TextEvaluation
    offers = WorldSpec(
        "a text env",
        frozenset({"words", "symbols"}),
        "choice",
        evidence=frozenset({"env", "captions", "counts"}),
        subject="text",
    )
    suites: ClassVar[Mapping[str, str]] = {name: suite.about for name, suite in SUITES.items()}
    controls = tuple(CONTROLS)
    learning_figures = ("return_mean", "first_named", "first_other", "first_none")
    beside = FIRST
    meanings: ClassVar[Mapping[str, str]] = MEANINGS
    study_measures = "success"
    curves: ClassVar[Mapping[str, str | None]] = {
        "success_rate": "success rate",
        "return_mean": None,
        "episode_length": None,
        "loss": None,
    }
    baselines: ClassVar[Mapping[str, str]] = {
        "random": "uniform over the admissible actions",
        "expert": "BabyAI's bot, which sees the whole world",
    }
    experiment = "glam/mixed"

    @classmethod
    def has(cls, place: str) -> bool:
        return place in gymnasium.registry

    @classmethod
    def start_from(cls, model: str | None) -> str:
        return "demo" if model is None or model in STARTERS else "glam/mixed"

    @cached_property
    def spec(self) -> WorldSpec:
        config = self.config
        most = known_actions_of(config).most
        if config.dataset is not None:
            return WorldSpec(
                f"dataset {Path(config.dataset).name}",
                frozenset({"words"}),
                "choice",
                most,
                config.language,
                experience=frozenset[Experience]({"demonstrated"}),
                subject=self.offers.subject,
            )
        offers: set[Offer] = {"words"}
        with suppress(UnknownEnv):  # a recorded run whose module is not imported
            if has_symbols(config.env, config.args, config.language):
                offers.add("symbols")
        return replace(
            self.offers,
            name=config.env,
            observation=frozenset(offers),
            num_actions=most,
            language=config.language,
            group_size=config.group_size,
        )

    @property
    def entropy_floor(self) -> float:
        return self.config.entropy_floor

    @property
    def settings(self) -> dict[str, Any]:
        keys = ("env", "args", "actions", "language", "history")
        settings = {key: value for key, value in asdict(self.config).items() if key in keys}
        return {**settings, "deterministic": self.evaluation.deterministic, "episode_seeds": SCHEME}

    # --------------------------------------------------------------------------------------------- training

    def collector(self, policy: Policy, algorithm: Algorithm, rows: slice) -> Collector:
        config, seed = self.config, self.seed
        if config.dataset is not None:
            names, folder = actions_of(config).names, Path(config.dataset)
            check_env(folder, config.env)
            return Demonstrations(
                folder, config.num_envs, rows, names, config.history, seed, config.num_steps
            )
        count, alike = rows.stop - rows.start, config.group_size or 1
        envs = make_envs(config, count, lambda i, k: training_seed(seed, (rows.start + i) // alike, k))
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
        envs, generator = (
            make_envs(self.config, 1, partial(training_seed, self.seed)),
            random.Random(self.seed),
        )
        observations = envs.reset()
        while len(observations) < count:
            observations += envs.step([generator.randrange(len(observations[-1].actions))]).observations
        envs.close()
        return observations

    def logs(
        self,
        policy: Policy,
        algorithm: Algorithm,
        run_dir: Path,
        update: int,
        last_step: int,
        listeners: Sequence[ValidationListener],
    ) -> list[Log]:
        logs: list[Log] = [ProbeLog(self.config, policy, run_dir, update)]
        if self.config.dataset is not None:
            measured = (self.config, self.evaluation, self.seed, policy, algorithm)
            logs.append(HeldOutLog(*measured, run_dir, update, last_step, listeners))
        return logs

    # -------------------------------------------------------------------------------------------- recording

    def learning_from(self, dataset: Path) -> TextConfig:
        config = replace(self.config, dataset=str(dataset))
        use = Use(demonstrated=True, learns_values=False, tells_entropy=False)
        idle = {key.partition("world.")[2] for key in config.unused(use)}
        usual = {f.name: getattr(TextConfig(env=config.env), f.name) for f in fields(config)}
        return replace(config, **{name: usual[name] for name in idle if name in usual})

    def record_episodes(
        self,
        player: Demonstrator,
        num_episodes: int,
        output: Path,
        *,
        only_success: bool = False,
        validation_fraction: float = 0.0,
        on_episode: Callable[[], None] = lambda: None,
    ) -> Collected:
        """See `collect_dataset`."""
        return collect_dataset(
            player,
            num_episodes,
            output,
            only_success=only_success,
            validation_fraction=validation_fraction,
            on_episode=on_episode,
        )

    def recorded(self, output: Path) -> Collected:
        return Collected(count_episodes(output), transitions=count_transitions(output))

    def record_pairs(
        self,
        players: Sequence[Demonstrator],
        recording: Recording,
        on_segment: Callable[[], None] = lambda: None,
    ) -> int:
        """See `World.record_pairs` and `groundling.worlds.text.pairs.record`."""
        for one in players:
            self.check_agent(one.agent, one.policy)
        recording.refuse_screens()
        return pairs.record(players, recording, on_segment)

    # ------------------------------------------------------------------------------------------- evaluation

    @classmethod
    def find_suites(cls, names: str) -> list[str]:
        return find_suites(names)

    def changes(self, suite: str, overrides: Sequence[str] = ()) -> list[str | Mapping[str, Any]]:
        """See `World.changes`.

        Where each env of the run keeps a task drawn by chance, held-out episodes draw theirs by their seeds instead: as
        often each, and the same for all agents.
        """
        if suite not in SUITES:
            raise ConfigError(unknown("suite", suite, SUITES))
        if suite in CONTROLS and any("world.args.control" in text for text in overrides):
            raise ConfigError("it sets world.args.control itself: take yours out, or evaluate held-out")
        config = self.config
        self._check_suite(SUITES[suite])
        if any(text.startswith("world.actions=") for text in overrides):
            config = replace(config, actions=None)  # the caller's need no translation
        by_seed = ["world.args.draw_task=reset"] if config.args.get("draw_task") == "construction" else []
        try:
            return [*SUITES[suite].changes(config), *overrides, *by_seed]
        except TranslationError as error:
            raise ConfigError(str(error)) from error

    def _check_suite(self, suite: Suite) -> None:
        """Raise `ConfigError` where a suite would change nothing, or set another world in the place of the run's."""
        config, args = self.config, self.acting.args
        if suite.of_grids and not is_grid(config.env, config.args, config.language):
            raise ConfigError(
                f"it replaces words of BabyAI's and MiniGrid's envs, and the run's env is {config.env}: to test other "
                "words, evaluate held-out with policy.args.replacements={word: other}, or world.actions=[…]"
            )
        levels = (text.partition("=")[2] for text in suite.overrides if text.startswith("world.env="))
        level = next(levels, None)
        if level is not None and not config.env.startswith("BabyAI-"):
            raise ConfigError(f"it is BabyAI's level {level}, and the run's env is {config.env}")
        if suite.form and self.acting.id != "symbolic":
            prompt = args.get("prompt", "glam")
            texts, form = PromptReader(prompt, config.language).forms(BLANK), suite.form[config.language]
            if not all(form in text for text in texts):
                every = "" if isinstance(prompt, str) else ", all of them,"
                raise ConfigError(f"it replaces {form!r}, which the prompt {prompt!r}{every} does not say")
        if suite.prompt is not None:
            if "prompt" not in inspect.signature(policies.get(self.acting.id)).parameters:
                raise ConfigError(f"it changes the prompt, and policy {self.acting.id!r} reads none")
            if args.get("system") is not None:
                raise ConfigError(
                    "it is a text, and the run reads conversations, with a system prompt of its own"
                )

    def try_suite(self, suite: str) -> None:
        if not SUITES[suite].is_tried:
            return
        try:
            envs = make_envs(self.config, 1, held_out_seed_of(1))
            envs.reset()
            envs.close()
        except TranslationError as error:
            raise ConfigError(str(error)) from error

    def play(
        self,
        agent: str,
        policy: Policy | None,
        suite: str,
        num_episodes: int,
        on_episode: Callable[[], None] = lambda: None,
    ) -> Played:
        self.check_agent(agent, policy)
        plays = player_of(agent, policy, self.evaluation.deterministic, self.seed)
        num_envs = min(self.evaluation.num_envs, num_episodes)
        envs = make_envs(self.config, num_envs, held_out_seed_of(num_envs))
        try:
            with plays as player:
                episodes = play(player, envs, num_episodes, on_episode)
        except ExpertError as error:
            raise CannotPlay(str(error)) from error
        finally:
            envs.close()
        return Played([record_of(number, episode) for number, episode in enumerate(episodes)])

    def details(self, played: Mapping[str, Played]) -> dict[str, Any]:
        """A note where success was not reported by the env; MiniGrid's envs pay a reward only for success."""
        episodes = [one.record for outcome in played.values() for one in outcome.episodes]
        if is_grid(self.config.env, self.config.args, self.config.language):
            return {}
        count = sum(episode.success_key is None for episode in episodes)
        return {"notes": [_BY_REWARD.format(count, len(episodes))]} if count else {}

    def watch(self, agent: str, policy: Policy | None, suite: str, number: int) -> Iterator[Moment]:
        self.check_agent(agent, policy)
        try:
            yield from watched(
                self.config,
                agent,
                policy,
                number,
                deterministic=self.evaluation.deterministic,
                seed=self.seed,
            )
        except ExpertError as error:
            raise CannotPlay(str(error)) from error

    def actor(self, policy: Policy, generator: torch.Generator) -> Actor:
        return TextActor(self.config, policy, self.evaluation.deterministic, generator)

    def shown(self, run_dir: Path, sample: Mapping[str, Any]) -> ShownEpisode:
        return shown(self.config, sample)

    def tables(self, evaluations: Mapping[str, Mapping[str, Any]]) -> list[ReportTable]:
        table = controls_table(self.settings, evaluations)
        return [] if table is None else [table]

    def probed(self, run_dir: Path) -> Probed | None:
        rows = read_probes(run_dir)
        return Probed(rows, right_actions(self.config)) if rows else None

    def samples(self, policy: Policy | None, played: Played) -> list[dict[str, Any]]:
        chosen = selected([e.record for e in played.episodes])
        return [record(self.config, policy or RandomPolicy(), episode) for episode in chosen]
