"""The messages that agents meet, and their rewards."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from groundling.envs.nethack.observation import message_text
from groundling.worlds.display import ReportTable
from groundling.worlds.nethack.episodes import Game
from groundling.worlds.nethack.message_scores import MessageScores

_MOST = 15
"""Most frequent messages of each agent."""
_MOST_IN_REPORTS = 20


def most_frequent(games: Mapping[str, Sequence[Game]], scores: MessageScores | None) -> list[dict[str, Any]]:
    """Return the most frequent messages of all agents, with their rewards, as JSON."""
    occurrences: dict[str, Counter[bytes]] = {}
    episodes: dict[str, Counter[bytes]] = {}
    for name, played in games.items():
        occurrences[name], episodes[name] = Counter(), Counter()
        for game in played:
            occurrences[name].update(game.messages)
            episodes[name].update(game.messages.keys())
    top = [m for counts in occurrences.values() for m, _ in counts.most_common(_MOST + 1) if message_text(m)]
    return [
        {
            "message": message_text(message),
            "normalised_reward": None if scores is None else scores.of([message])[0].normalised,
            "per_episode": {name: occurrences[name][message] / len(played) for name, played in games.items()},
            "share_of_episodes": {name: episodes[name][message] / len(played) for name, played in games.items()},
        }
        for message in dict.fromkeys(top)
    ]


def top_messages(counts: Mapping[bytes, int], scores: MessageScores | None, limit: int = 100) -> list[dict[str, Any]]:
    """Return an episode's messages, the most frequent first, with the sum of each one's rewards."""
    return [
        {
            "message": message_text(message),
            "count": count,
            "normalised_reward": None if scores is None else scores.of([message])[0].normalised,
            "paid": None if scores is None else scores.intrinsic_return({message: count}),
        }
        for message, count in Counter(counts).most_common(limit)
    ]


def table_of(suite: str, evaluation: Mapping[str, Any]) -> ReportTable:
    """Return the table of an evaluation's most frequent messages."""
    ordered = sorted(evaluation["messages"], key=lambda row: -max(row["per_episode"].values()))
    rows = [
        [
            row["message"],
            "–" if row["normalised_reward"] is None else f"{row['normalised_reward']:+.2f}",
            *(f"{count:.2f}" for count in row["per_episode"].values()),
        ]
        for row in ordered[:_MOST_IN_REPORTS]
    ]
    return ReportTable(
        "Which messages the agents see",
        [[(name, 1) for name in ("message", "normalised reward", *evaluation["agents"])]],
        rows,
        "How often an episode shows a message, on average; the most frequent messages. Normalised reward: the "
        "reward model's, in standard deviations from its mean.",
        suite,
    )
