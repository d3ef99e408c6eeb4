"""The world of NetHack's tasks."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from groundling.algorithms.algorithm import Algorithm
from groundling.envs import nethack
from groundling.envs.seeds import SCHEME, held_out_seed
from groundling.envs.spec import WorldSpec
from groundling.errors import ConfigError
from groundling.policies.policy import Policy
from groundling.worlds.collector import Collector
from groundling.worlds.episode import Played
from groundling.worlds.nethack.config import NetHackConfig, NetHackEvaluation
from groundling.worlds.recording import Recording
from groundling.worlds.showing import Moment, ReportTable, ShownEpisode
from groundling.worlds.world import Actor, Demonstrator, World

if TYPE_CHECKING:
    from groundling.worlds.nethack.message_scores import Taste


class NetHackWorld(World[NetHackConfig, NetHackEvaluation]):
    """One of NetHack's tasks (`groundling.envs.nethack.TASKS`), played with nle."""

    config_class = NetHackConfig
    evaluation_class = NetHackEvaluation
    offers = WorldSpec(
        "NetHack",
        frozenset({"glyphs"}),
        "choice",
        evidence=frozenset({"env", "captions", "counts"}),
        subject="nethack",
    )
    unit = "frames"
    curves: ClassVar[Mapping[str, str | None]] = {
        "return_mean": "return",
        "score": "score",
        "dlvl": "depth",
        "gold": "gold",
        "xlvl": "experience_level",
        "episode_length": None,
        "messages": "messages",
        "intrinsic_return": None,
    }
    learning_figures = ("return_mean", "loss", "score", "dlvl", "gold", "xlvl", "messages")
    baselines: ClassVar[Mapping[str, str]] = {
        "random": "uniform over the actions",
        "explorer": "NetHack's, by rules: it looks for the stairs and goes down",
    }
    experiment = "motif/score"

    @classmethod
    def has(cls, place: str) -> bool:
        return place in nethack.TASKS

    @classmethod
    def start_from(cls, model: str | None) -> str:
        return "motif/score"

    @cached_property
    def spec(self) -> WorldSpec:
        return replace(self.offers, name=self.config.env, num_actions=len(nethack.ACTIONS))

    @property
    def settings(self) -> dict[str, Any]:
        return {
            "env": self.config.env,
            "args": self.config.args,
            "deterministic": self.evaluation.deterministic,
            "episode_seeds": SCHEME,
        }

    @property
    def entropy_floor(self) -> float:
        return self.config.entropy_floor

    @cached_property
    def taste(self) -> "Taste | None":
        """What the run's reward model thinks of messages; None where it has none.

        Raises:
            ConfigError: there is no such reward model, or the config's options do not fit it.
        """
        from groundling.worlds.nethack.message_scores import make_taste

        return make_taste(self.reward_parts, self.device, self.checkpoint)

    def collector(self, policy: Policy, algorithm: Algorithm, rows: slice) -> Collector:
        from groundling.worlds.nethack.collect import make_nethack_collector

        reward = self.begin_reward(policy, algorithm.processes)
        bootstrap = algorithm.gamma if self.config.bootstrap_truncated else None
        return make_nethack_collector(self.config, self.seed, rows, reward, bootstrap)

    def record_pairs(
        self,
        players: Sequence[Demonstrator],
        recording: Recording,
        on_segment: Callable[[], None] = lambda: None,
    ) -> int:
        """See `World.record_pairs` and `groundling.worlds.nethack.pairs.record`."""
        from groundling.worlds.nethack.agents import make_player, mixed
        from groundling.worlds.nethack.pairs import KEYS, SCREENS, record

        if recording.length == 0:
            raise ConfigError(
                "--length episode is for text worlds, NetHack's segments have one length: give --length N"
            )

        acting = [
            make_player(
                one.agent,
                one.policy,
                one.world.config.args,
                deterministic=one.world.evaluation.deterministic,
            )
            for one in players
        ]
        with ExitStack() as stack:
            for one in players:
                stack.enter_context(_unchanged(one.policy))
            pairs = record(
                acting[0] if len(acting) == 1 else mixed(acting),
                recording.output,
                name=recording.name,
                players=[one.about for one in players],
                num_pairs=recording.pairs,
                segment_length=recording.length or 1,
                stride=recording.stride or 10,
                task=self.config.env,
                task_args=self.config.args,
                seed=self.seed,
                deterministic=self.evaluation.deterministic,
                keys=KEYS + SCREENS if recording.screens else KEYS,
                format=recording.format or "motif",
                on_segment=on_segment,
            )
        return len(pairs)

    def play(
        self,
        agent: str,
        policy: Policy | None,
        suite: str,
        num_episodes: int,
        on_episode: Callable[[], None] = lambda: None,
    ) -> Played:
        from groundling.worlds.nethack.agents import make_agent
        from groundling.worlds.nethack.episodes import play, record_of

        config, evaluation = self.config, self.evaluation
        self.check_agent(agent, policy)
        with _unchanged(policy):
            games = play(
                make_agent(
                    agent,
                    policy,
                    config.args,
                    deterministic=evaluation.deterministic,
                    seed=self.seed,
                ),
                config.env,
                nethack.recording_in(config.args, agent),
                num_episodes,
                evaluation.num_envs,
                self.seed,
                self.taste,
                on_episode,
            )
        return Played([record_of(game) for game in games])

    def watch(self, agent: str, policy: Policy | None, suite: str, number: int) -> Iterator[Moment]:
        from groundling.worlds.nethack.agents import make_player
        from groundling.worlds.nethack.watching import sights, watched

        self.check_agent(agent, policy)
        config, seed = self.config, held_out_seed(number)
        act = make_player(agent, policy, config.args, deterministic=self.evaluation.deterministic)(seed)
        yield from watched(sights(act, config.env, config.args, seed, self.taste), number, self.taste)

    def actor(self, policy: Policy, generator: torch.Generator) -> Actor:
        from groundling.worlds.nethack.agents import PolicyActor

        return PolicyActor(
            policy, self.config.env, self.config.args, self.evaluation.deterministic, generator
        )

    def shown(self, run_dir: Path, sample: Mapping[str, Any]) -> ShownEpisode:
        from groundling.worlds.nethack.showing import shown

        return shown(self.reward_parts, self.device, run_dir, sample)

    def details(self, played: Mapping[str, Played]) -> dict[str, Any]:
        """The messages that came up most often, and what they are worth."""
        from groundling.worlds.nethack.messages import most_frequent

        games = {name: [e.record for e in outcome.episodes] for name, outcome in played.items()}
        return {"messages": most_frequent(games, self.taste)}

    def tables(self, evaluations: Mapping[str, Mapping[str, Any]]) -> list[ReportTable]:
        from groundling.worlds.nethack.messages import table_of

        return [table_of(suite, one) for suite, one in evaluations.items() if "messages" in one]

    def samples(self, policy: Policy | None, played: Played) -> list[dict[str, Any]]:
        """The episode of median return: its seed and actions are all that it takes to show it again."""
        from groundling.worlds.nethack.messages import top_messages

        game = sorted((e.record for e in played.episodes), key=lambda game: game.figures["return"])[
            len(played.episodes) // 2
        ]
        return [
            {
                "task": self.config.env,
                "args": self.config.args,
                "seed": game.seed,
                "checkpoint": self.checkpoint.name if self.checkpoint else None,
                "figures": game.figures,
                "actions": game.actions,
                "messages": top_messages(game.messages, self.taste),
            }
        ]


def _unchanged(policy: Policy | None) -> AbstractContextManager[None]:
    return nullcontext() if policy is None else policy.unchanged()
