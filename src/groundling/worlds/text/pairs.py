"""Pairs of segments of play in text envs, for a judge: Motif's phase 0 in worlds that are told in words."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from groundling.envs.observation import TextObservation
from groundling.envs.seeds import training_seed
from groundling.envs.vector import Step
from groundling.errors import ConfigError
from groundling.judges.preferences import parquet
from groundling.judges.preferences.recording import Recorded, TextRecording
from groundling.judges.preferences.segments import TextSegment
from groundling.judges.preferences.texts import in_context
from groundling.worlds.recording import Recording
from groundling.worlds.text.config import TextConfig
from groundling.worlds.text.envs import make_envs
from groundling.worlds.text.episodes import Choice, play, player_of
from groundling.worlds.world import Demonstrator

_EPISODES_PER_ROUND = 16
"""After so many episodes another agent takes its turn, and what was played is on the disk."""


def caption(observation: TextObservation, action: str) -> str:
    """What a step looks like to a judge: what was seen, and the action that was taken."""
    return "\n".join([*observation.descriptions[-1], f"Action: {action}"])


def context(observation: TextObservation) -> str:
    """What stands before a step's caption: the episode's goal."""
    return f"Goal: {observation.goal}"


def caption_in_context(observation: TextObservation, action: str) -> str:
    """What a reward model reads that was distilled from this world's pairs, to reward this action."""
    return in_context(context(observation), caption(observation, action))


def record(
    players: Sequence[Demonstrator], recording: Recording, on_segment: Callable[[], None] = lambda: None
) -> int:
    """Let agents play training episodes in turns, and write pairs of segments of them.

    Of every ``stride`` steps of an episode one segment is kept, which begins at a random place among them and may be
    shorter where the episode ends; or a segment is a whole episode. Segments are paired at random, with one of the same
    goal as long as there is one. Everything follows from the config's seed; after a kill the same call goes on with the
    round that was cut off.

    Args:
        players: Who plays; they draw their actions unless ``evaluation.deterministic``.
        recording: What is wanted. Without a length whole episodes are; without a stride, every step.
        on_segment: Called once for each segment that is recorded, or was before.

    Returns:
        How many pairs there are.

    Raises:
        ConfigError: the numbers do not fit, or the folder holds something else.
    """
    length, stride = _checked(recording)
    world = players[0].world
    config: TextConfig = world.config
    description = {
        "world": "text",
        "player": recording.name,
        "players": [player.about for player in players],
        "env": config.env,
        "env_args": config.args,
        "language": config.language,
        "actions": config.actions,
        "history": config.history,
        "length": length or "episode",
        "stride": stride,
        "deterministic": world.evaluation.deterministic,
        "seed": world.seed,
    }
    rounds = TextRecording(recording.output, description, recording.pairs)
    if rounds.is_written:
        return recording.pairs
    for _ in rounds.segments[: 2 * recording.pairs]:
        on_segment()
    while rounds.missing:
        number, missing = rounds.rounds, rounds.missing
        segments = _play(players[number % len(players)], number, length, stride)
        rounds.add(segments)
        for _ in segments[:missing]:
            on_segment()
    goals = [one.segment.context for one in rounds.segments[: 2 * recording.pairs]]
    return len(rounds.write(_paired(goals, np.random.default_rng(world.seed))))


def _paired(goals: Sequence[str], rng: np.random.Generator) -> list[int]:
    """The places of these segments in another order, two for each pair."""
    alone: dict[str, int] = {}
    pairs: list[tuple[int, int]] = []
    for place in rng.permutation(len(goals)).tolist():
        if (other := alone.pop(goals[place], None)) is None:
            alone[goals[place]] = place
        else:
            pairs.append((other, place))
    rest = list(alone.values())  # at most one of each goal
    pairs += zip(rest[::2], rest[1::2], strict=True)
    return [place for pair in rng.permutation(len(pairs)) for place in pairs[pair]]


def _checked(recording: Recording) -> tuple[int, int]:
    """Length (0: whole episodes) and stride.

    Raises:
        ConfigError: they do not fit, or the format is not that of texts.
    """
    length, stride = recording.length or 0, recording.stride
    if stride is not None and not length:
        raise ConfigError(
            f"--stride {stride} does nothing where segments are whole episodes: give --length N, too"
        )
    if stride is not None and stride < length:
        raise ConfigError(
            f"--stride {stride} is less than the segments' --length {length}: give at least as much"
        )
    if recording.format not in (None, "parquet"):
        raise ConfigError(f"--format {recording.format} is NetHack's: pairs of texts are written as parquet")
    parquet.check_installed()  # before anything is played
    return length, stride or length


def _play(player: Demonstrator, number: int, length: int, stride: int) -> list[Recorded]:
    """The segments of a round's episodes."""
    world, first = player.world, number * _EPISODES_PER_ROUND
    count = min(world.evaluation.num_envs, _EPISODES_PER_ROUND)
    # The first env's training episodes, dealt to all: an episode is the same, whatever the number of envs.
    envs = make_envs(
        world.config, count, lambda env, k: training_seed(world.seed, 0, first + k * count + env)
    )
    seed = training_seed(world.seed, 1, number)
    plays = player_of(player.agent, player.policy, world.evaluation.deterministic, seed)
    witness = _Witness()
    try:
        with plays as playing:
            play(playing, envs, _EPISODES_PER_ROUND, on_step=witness)
    finally:
        envs.close()
    rng = np.random.default_rng(seed)
    return [segment for episode in witness.episodes for segment in _cut(episode, length, stride, rng)]


@dataclass(frozen=True)
class _Moment:
    """A step of an episode."""

    context: str
    caption: str
    outcome: str
    """What was seen after it."""
    reward: float


class _Witness:
    """Notes the episodes that are played, in the order in which they end."""

    def __init__(self) -> None:
        self._present: dict[int, list[_Moment]] = {}  # by env
        self.episodes: list[list[_Moment]] = []

    def __call__(
        self, indices: Sequence[int], observations: Sequence[TextObservation], choice: Choice, step: Step
    ) -> None:
        for env, observation, action in zip(indices, observations, choice.actions, strict=True):
            seen = step.final_observations.get(env, step.observations[env])
            moment = _Moment(
                context(observation),
                caption(observation, observation.actions[action]),
                "\n".join(seen.descriptions[-1]),
                float(step.rewards[env]),
            )
            self._present.setdefault(env, []).append(moment)
        self.episodes += [self._present.pop(episode.env_index) for episode in step.episodes]


def _cut(episode: list[_Moment], length: int, stride: int, rng: np.random.Generator) -> list[Recorded]:
    """An episode's segments."""
    if not length:
        return [_segment(episode, 0, len(episode))]
    begins = [start + int(rng.integers(stride - length + 1)) for start in range(0, len(episode), stride)]
    return [_segment(episode, begin, begin + length) for begin in begins if begin < len(episode)]


def _segment(episode: list[_Moment], begin: int, end: int) -> Recorded:
    steps = episode[begin:end]
    segment = TextSegment(steps[0].context, [one.caption for one in steps], steps[-1].outcome)
    return Recorded(segment, {"return": sum(one.reward for one in steps), "steps": float(begin + len(steps))})
