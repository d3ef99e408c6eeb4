"""Which messages agents meet, and what a reward model makes of them."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from groundling.envs.nethack.observation import message_text
from groundling.worlds.nethack.episodes import Game
from groundling.worlds.nethack.message_scores import Taste
from groundling.worlds.showing import ReportTable

_MOST = 15
"""Of each agent, those that came up most often."""
_MOST_IN_REPORTS = 20


def most_frequent(games: Mapping[str, Sequence[Game]], taste: Taste | None) -> list[dict[str, Any]]:
    """The messages that come up most often with any of the agents, and what they are worth, as JSON."""
    often: dict[str, Counter[bytes]] = {}
    present: dict[str, Counter[bytes]] = {}
    for name, played in games.items():
        often[name], present[name] = Counter(), Counter()
        for game in played:
            often[name].update(game.messages)
            present[name].update(game.messages.keys())
    top = [m for counts in often.values() for m, _ in counts.most_common(_MOST + 1) if message_text(m)]
    return [
        {
            "message": message_text(message),
            "normalised_reward": None if taste is None else taste.of([message])[0].normalised,
            "per_episode": {name: often[name][message] / len(played) for name, played in games.items()},
            "share_of_episodes": {
                name: present[name][message] / len(played) for name, played in games.items()
            },
        }
        for message in dict.fromkeys(top)
    ]


def top_messages(counts: Mapping[bytes, int], taste: Taste | None, limit: int = 100) -> list[dict[str, Any]]:
    """An episode's messages, the most frequent first, and what all occurrences of each were worth."""
    return [
        {
            "message": message_text(message),
            "count": count,
            "normalised_reward": None if taste is None else taste.of([message])[0].normalised,
            "paid": None if taste is None else taste.intrinsic_return({message: count}),
        }
        for message, count in Counter(counts).most_common(limit)
    ]


def table_of(suite: str, evaluation: Mapping[str, Any]) -> ReportTable:
    """The messages that any of the agents met most often, what they are worth, and how often each agent met them."""
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
