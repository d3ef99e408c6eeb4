"""Pairs of episode segments from text envs for a judge, collected as in Motif."""

from collections.abc import Callable, Sequence

import numpy as np

from groundling.envs.text_env import TextObservation
from groundling.errors import ConfigError
from groundling.judges.preferences import parquet
from groundling.judges.preferences.pairs import TextSegment
from groundling.judges.preferences.recording import Recorded, TextRecording, in_context
from groundling.worlds.protocols import PairSettings
from groundling.worlds.text.config import TextConfig
from groundling.worlds.text.episodes import play_training_episodes
from groundling.worlds.world import Demonstrator

_EPISODES_PER_ROUND = 16  # After a round, the recording is saved and the next agent plays


def caption(observation: TextObservation, action: str) -> str:
    """Return a step as a judge reads it: the descriptions and the action."""
    return "\n".join([*observation.descriptions[-1], f"Action: {action}"])


def context(observation: TextObservation) -> str:
    """Return the text that precedes a step's caption: the episode's goal, if it has one."""
    return f"Goal: {observation.goal}" if observation.goal else ""


def caption_in_context(observation: TextObservation, action: str) -> str:
    """Return the text that a reward model distilled from this world's pairs reads to score an action."""
    return in_context(context(observation), caption(observation, action))


def record(
    players: Sequence[Demonstrator], settings: PairSettings, on_segment: Callable[[], None] = lambda: None
) -> int:
    """Play training episodes with each agent in turn, write pairs of their segments, and return the number of pairs.

    One segment is kept per ``stride`` steps of an episode. It starts at a random step, and may be shorter at the
    episode's end. Without a length, each segment is a whole episode. Segments are paired at random, with the same goal
    if possible. The config's seed determines all random choices. If the process is killed, repeating the call
    continues with the unfinished round. Agents sample their actions unless ``evaluation.deterministic`` is set.
    ``on_segment`` is called once for each segment, including those recorded earlier. Raise `ConfigError` if the
    settings are inconsistent or the folder contains anything else.
    """
    length, stride = settings.length or 0, settings.stride
    if stride is not None and not length:
        raise ConfigError(f"--stride {stride} has no effect on segments of whole episodes: add --length N")
    if stride is not None and stride < length:
        raise ConfigError(f"--stride {stride} must be at least the segments' --length {length}")
    stride = stride or length
    settings.check_texts()
    parquet.pyarrow_modules()  # before anything is played
    for player in players:
        player.world.check_player(player)
    world = players[0].world
    config: TextConfig = world.config
    description = {
        "world": "text",
        "player": settings.name,
        "players": [player.identity for player in players],
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
    rounds = TextRecording(settings.output, description, settings.pairs)
    if rounds.is_written:
        return settings.pairs
    for _ in rounds.segments[: 2 * settings.pairs]:
        on_segment()
    while rounds.missing:
        number, missing = rounds.rounds, rounds.missing
        segments = _play_round(players[number % len(players)], number, length, stride)
        rounds.add(segments)
        for _ in segments[:missing]:
            on_segment()
    goals = [one.segment.context for one in rounds.segments[: 2 * settings.pairs]]
    return len(rounds.write(_paired(goals, np.random.default_rng(world.seed))))


def _paired(goals: Sequence[str], rng: np.random.Generator) -> list[int]:
    """Return the segments' indices in the order of the pairs, two for each pair."""
    alone: dict[str, int] = {}
    pairs: list[tuple[int, int]] = []
    for place in rng.permutation(len(goals)).tolist():
        if (other := alone.pop(goals[place], None)) is None:
            alone[goals[place]] = place
        else:
            pairs.append((other, place))
    rest = list(alone.values())  # at most one per goal
    pairs += zip(rest[::2], rest[1::2], strict=True)
    return [place for pair in rng.permutation(len(pairs)) for place in pairs[pair]]


def _play_round(player: Demonstrator, number: int, length: int, stride: int) -> list[Recorded]:
    """Play a round's episodes, and return their segments in the order in which the episodes ended."""
    segments: list[Recorded] = []
    seed = player.world.training_seed(1, number)
    rng = np.random.default_rng(seed)
    first = number * _EPISODES_PER_ROUND
    for _, _, episode in play_training_episodes(player, first, _EPISODES_PER_ROUND, seed):
        begins = [0]
        if length:
            begins = [start + int(rng.integers(stride - length + 1)) for start in range(0, len(episode), stride)]
        for begin in begins:
            if steps := episode[begin : begin + (length or len(episode))]:
                captions = [caption(one.observation, one.observation.action_text(one.action)) for one in steps]
                outcome = "\n".join(steps[-1].reached.descriptions[-1])
                figures = {"return": sum(one.reward for one in steps), "steps": float(begin + len(steps))}
                segments.append(Recorded(TextSegment(context(steps[0].observation), captions, outcome), figures))
    return segments
