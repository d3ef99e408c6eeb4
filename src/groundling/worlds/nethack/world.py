"""The world of NetHack tasks."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar

import torch

from groundling.algorithms.algorithm import Algorithm
from groundling.envs import nethack
from groundling.envs.nethack import RECORDING, TASKS
from groundling.envs.nethack.vector import NetHackVectorEnv
from groundling.envs.seeds import held_out_seed
from groundling.envs.text_env import WorldSpec
from groundling.errors import ConfigError, unknown
from groundling.fields import CommandLineOnly, Ge, MayChangeOnResume, NoEffectOnResults, OfEvaluation, TrainingOnly
from groundling.policies.policy import Policy
from groundling.worlds.config import EvaluationConfig, Use, WorldConfig, unused_in_play
from groundling.worlds.episode import PRESENTATIONS, Episode, EpisodeView, Frame, Played, ReportTable
from groundling.worlds.nethack import episodes, frames, pairs
from groundling.worlds.nethack.collect import NetHackCollector
from groundling.worlds.protocols import PairSettings
from groundling.worlds.world import Collector, Demonstrator, Player, World


class NetHackConfig(WorldConfig):
    """A NetHack task."""

    PLACE: ClassVar[str] = "env"

    id: str = "nethack"
    env: Annotated[str, OfEvaluation]
    """The task, such as NetHackScore-v1; see `groundling list envs`."""
    args: Annotated[dict[str, Any], OfEvaluation, CommandLineOnly.of(*RECORDING), TrainingOnly.of(*RECORDING)] = {}
    """Keyword arguments of the task, such as vector."""
    num_envs: Annotated[int, Ge(1)] = 32
    """Number of games played in parallel; it must be even if workers are used. Motif used 480."""
    num_steps: Annotated[int, Ge(1)] = 40
    """Number of steps of each game between two updates; Motif used 32."""
    num_workers: Annotated[int, Ge(0), NoEffectOnResults] = 0
    """Number of worker processes per learner. If 0, the learner steps its envs, which is fastest on a CPU."""
    ahead: Annotated[bool, MayChangeOnResume] = False
    """Collect the next rollout while the learner trains on the current one; useful on a GPU, with workers."""
    bootstrap_truncated: bool = False
    """Bootstrap the value at a time-out (the usual practice), instead of treating it as a termination (Motif)."""
    entropy_floor: Annotated[float, Ge(0), MayChangeOnResume] = 0.001
    """Stop training if games with a goal fail while policy entropy in nats is below this; 0 disables the check."""

    def check(self) -> None:
        if self.env not in TASKS:
            raise ConfigError(unknown("NetHack task", self.env, TASKS))
        if self.num_workers and self.num_envs % 2:
            raise ConfigError(
                f"world.num_envs={self.num_envs} must be even with world.num_workers={self.num_workers}, because the "
                f"workers alternate between two halves of the envs: set world.num_envs={self.num_envs + 1}"
            )
        limit = self.args.get("max_episode_steps", 1)
        if type(limit) is not int or limit < 1:  # nle would end each game immediately, or never
            raise ConfigError(f"world.args.max_episode_steps must be a whole number of at least 1, got {limit!r}")

    def unused(self, use: Use) -> Mapping[str, str]:
        idle = unused_in_play(use)
        if TASKS.get(self.env, {}).get("goal") == "score":
            idle["world.entropy_floor"] = f"{self.env} has a score but no failures"
        return idle


class NetHackEvaluation(EvaluationConfig):
    """Settings for held-out games."""

    baselines: list[str] = ["zero-shot", "random", "explorer"]
    """Agents to compare the trained policy with on the same games: zero-shot, random, explorer."""
    num_envs: Annotated[int, Ge(1), NoEffectOnResults] = 32
    """Number of games played in parallel."""
    deterministic: Annotated[bool, OfEvaluation] = False
    """Choose the most likely action instead of sampling."""


class NetHackWorld(World):
    """A NetHack task (one of `groundling.envs.nethack.TASKS`), played through nle."""

    config: NetHackConfig
    evaluation: NetHackEvaluation
    offers = WorldSpec(
        "NetHack",
        frozenset({"glyphs"}),
        "choice",
        evidence=frozenset({"env", "captions", "counts"}),
        subject="nethack",
    )
    baselines: ClassVar[Mapping[str, str]] = {
        "random": "uniform over the actions",
        "explorer": "a rule-based agent for NetHack, which looks for the stairs and descends",
    }
    experiment = "motif/score"
    presentation = PRESENTATIONS["nethack"]

    @classmethod
    def has(cls, place: str) -> bool:
        return place in nethack.TASKS

    @cached_property
    def spec(self) -> WorldSpec:
        return replace(self.offers, name=self.config.env, num_actions=len(nethack.ACTIONS))

    @cached_property
    def message_scores(self) -> frames.MessageScores | None:
        """Scores for messages from the run's reward model; None if the run has none."""
        return frames.make_message_scores(self.reward_parts, self.device, self.checkpoint)

    def collector(self, policy: Policy, algorithm: Algorithm, rows: slice) -> Collector:
        config, reward = self.config, self.begin_reward(policy, algorithm.processes)
        envs = NetHackVectorEnv(
            config.env,
            rows.stop - rows.start,
            num_workers=config.num_workers,
            num_groups=2 if config.num_workers else 1,
            seed=self.seed,
            first_env=rows.start,
            args=config.args,
        )
        return NetHackCollector(
            envs,
            config.num_steps,
            reward,
            task=config.env,
            rank=rows.start,
            ahead=config.ahead,
            bootstrap=algorithm.gamma if config.bootstrap_truncated else None,
        )

    def record_pairs(
        self, players: Sequence[Demonstrator], settings: PairSettings, on_segment: Callable[[], None] = lambda: None
    ) -> int:
        if settings.length == 0:
            raise ConfigError("--length episode applies only to text worlds: use --length N for NetHack")
        acting = [
            episodes.make_act_for_seed(one, one.world.config.args, deterministic=one.world.evaluation.deterministic)
            for one in players
        ]
        with ExitStack() as stack:
            for one in players:
                stack.enter_context(_unchanged(one.policy))
            recorded = pairs.record(
                episodes.mixed(acting),
                settings.output,
                name=settings.name,
                players=[one.identity for one in players],
                num_pairs=settings.pairs,
                segment_length=settings.length or 1,
                stride=settings.stride or 10,
                task=self.config.env,
                task_args=self.config.args,
                seed=self.seed,
                deterministic=self.evaluation.deterministic,
                screens=settings.screens,
                format=settings.format or "motif",
                on_segment=on_segment,
            )
        return len(recorded)

    def play(self, player: Player, num_episodes: int) -> Iterator[Episode]:
        self.check_player(player)
        args, deterministic = self.config.args, self.evaluation.deterministic
        agent = episodes.make_agent(player, args, deterministic=deterministic, seed=self.seed)
        args, num_envs = nethack.recording_in(args, player.name), self.evaluation.num_envs
        games = episodes.play(agent, self.config.env, args, num_episodes, num_envs, self.seed, self.message_scores)
        with _unchanged(player.policy):
            yield from map(episodes.episode_of, games)

    def watch(self, player: Player, number: int) -> Iterator[Frame]:
        self.check_player(player)
        config, seed = self.config, held_out_seed(number)
        act = episodes.make_act_for_seed(player, config.args, deterministic=self.evaluation.deterministic)(seed)
        steps = frames.play_steps(act, config.env, config.args, seed, self.message_scores)
        yield from frames.frames_of(steps, number, self.message_scores)

    def actor(self, policy: Policy, generator: torch.Generator) -> episodes.PolicyActor:
        return episodes.PolicyActor(
            policy, self.config.env, self.config.args, self.evaluation.deterministic, generator
        )

    def view(self, run_dir: Path, sample: Mapping[str, Any]) -> EpisodeView:
        return frames.view(self.reward_parts, self.device, run_dir, sample)

    def details(self, played: Mapping[str, Played]) -> dict[str, Any]:
        messages = {name: [e.record.messages for e in outcome.episodes] for name, outcome in played.items()}
        return {"messages": frames.most_frequent(messages, self.message_scores)}

    def tables(self, evaluations: Mapping[str, Mapping[str, Any]]) -> list[ReportTable]:
        return [frames.table_of(suite, one) for suite, one in evaluations.items() if "messages" in one]

    def samples(self, player: Player, played: Played) -> list[dict[str, Any]]:
        """Return all episodes, the one with the median return first; seed and actions suffice to replay them."""
        games = sorted(played.episodes, key=lambda e: e.record.figures["return"])
        games.insert(0, games.pop(len(games) // 2))
        return [
            {
                "number": e.number,
                "chosen": e is games[0],
                "task": self.config.env,
                "args": self.config.args,
                "seed": game.seed,
                "checkpoint": self.checkpoint.name if self.checkpoint else None,
                "figures": game.figures,
                "actions": game.actions,
                "messages": frames.top_messages(game.messages, self.message_scores) if e is games[0] else [],
            }
            for e in games
            for game in (e.record,)
        ]


def _unchanged(policy: Policy | None) -> AbstractContextManager[None]:
    return nullcontext() if policy is None else policy.unchanged()
