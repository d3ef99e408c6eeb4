"""`groundling evaluate` of a run that plays NetHack: held-out episodes of the agent and its baselines, measured."""

import csv
import io
import json
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from groundling.envs.nethack import recording_in
from groundling.envs.nethack.observation import message_text
from groundling.errors import ConfigError
from groundling.evaluation.aggregate import Estimate
from groundling.evaluation.evaluate import Target, agents_of
from groundling.evaluation.nethack.agents import make_agent
from groundling.evaluation.nethack.episodes import SUMMARISED, Game, play, summarise
from groundling.evaluation.nethack.taste import Taste, make_taste
from groundling.files import write_atomically

SUITE = "held-out"
"""The only test: GLAM's other ones are about words."""
_TOP_MESSAGES = 15
"""Of each agent, those that came up most often."""


def evaluate_games(
    target: Target,
    num_episodes: int,
    on_agent: Callable[[str], Callable[[], None]] = lambda name: lambda: None,
    warn: Callable[[str], None] = warnings.warn,
) -> dict[str, dict[str, Estimate]]:
    """Let the target and each of its baselines play the same held-out episodes.

    Writes ``evaluation/held-out.json`` (means with intervals, the messages that came up most often, and why which
    baseline is left out), ``evaluation/held-out.csv`` (one row per episode) and ``samples/held-out.json`` (the target's
    episode of median return, which the report shows) into the run's folder, anew after each agent.

    Args:
        target: Who is evaluated.
        num_episodes: How many episodes each agent plays.
        on_agent: Called with each agent's name; what it gives is called after each episode.
        warn: Is told of a baseline that does not play NetHack.

    Returns:
        By agent (the target first), by figure, its mean over the episodes with a bootstrap 95 % interval.

    Raises:
        ConfigError: nle is missing, or the agent does not play NetHack.
    """
    config, taste = target.config, make_taste(target.config, target.checkpoint)
    games: dict[str, list[Game]] = {}
    left_out: dict[str, str] = {}
    for name in agents_of(target):
        try:
            agent = make_agent(target, name)
        except ConfigError as error:
            if name == target.agent:
                raise
            left_out[name] = str(error)
            warn(f"{name} is left out: {error}")
        else:
            games[name] = play(
                agent,
                config.env.id,
                recording_in(config.env.args, name),
                num_episodes,
                config.evaluation.num_envs,
                config.seed,
                taste,
                on_agent(name),
            )
        _write(target, games, left_out, taste)
    _write_sample(target, games[target.agent], taste)
    return {name: summarise(own) for name, own in games.items()}


def _write(
    target: Target,
    games: Mapping[str, Sequence[Game]],
    left_out: Mapping[str, str],
    taste: Taste | None,
) -> None:
    folder, config = target.run_dir / "evaluation", target.config
    folder.mkdir(parents=True, exist_ok=True)
    content = {
        "suite": SUITE,
        "env": config.env.id,
        "world": asdict(config.env),
        "checkpoint": target.checkpoint.name if target.checkpoint else None,
        "deterministic": config.evaluation.deterministic,
        "agents": {
            name: {
                "episodes": len(own),
                "figures": {figure: asdict(found) for figure, found in summarise(own).items()},
            }
            for name, own in games.items()
        },
        "messages": _messages(games, taste),
        "left_out": left_out,
    }
    columns = ["seed", *SUMMARISED, "turns", "end_status"]
    table = io.StringIO()
    writer = csv.writer(table, lineterminator="\n")
    writer.writerow(["agent", "episode", *columns])
    for name, own in games.items():
        for game in own:
            values = [game.figures.get(column) for column in columns[1:]]
            told = ["" if value is None else f"{value:.6g}" for value in values]
            writer.writerow([name, game.number, game.seed, *told])
    stem = f"{SUITE}{target.suffix}"
    write_atomically(folder / f"{stem}.csv", table.getvalue())
    write_atomically(folder / f"{stem}.json", json.dumps(content, indent=1) + "\n")


def _messages(games: Mapping[str, Sequence[Game]], taste: Taste | None) -> list[dict[str, Any]]:
    """The messages that come up most often with any of the agents, the target's first, and what they are worth."""
    often: dict[str, Counter[bytes]] = {}
    present: dict[str, Counter[bytes]] = {}
    for name, own in games.items():
        often[name], present[name] = Counter(), Counter()
        for game in own:
            often[name].update(game.messages)
            present[name].update(game.messages.keys())
    top = [
        m for counts in often.values() for m, _ in counts.most_common(_TOP_MESSAGES + 1) if message_text(m)
    ]
    return [
        {
            "message": message_text(message),
            "normalised_reward": None if taste is None else taste.of([message])[0].normalised,
            "per_episode": {name: often[name][message] / len(own) for name, own in games.items()},
            "share_of_episodes": {name: present[name][message] / len(own) for name, own in games.items()},
        }
        for message in dict.fromkeys(top)
    ]


def _write_sample(target: Target, games: Sequence[Game], taste: Taste | None) -> None:
    """Keep the episode of median return: its seed and actions are all that it takes to show it again."""
    game = sorted(games, key=lambda game: game.figures["return"])[len(games) // 2]
    sample = {
        "task": target.config.env.id,
        "args": target.config.env.args,
        "seed": game.seed,
        "checkpoint": target.checkpoint.name if target.checkpoint else None,
        "figures": game.figures,
        "actions": game.actions,
        "messages": top_messages(game.messages, taste),
    }
    folder = target.run_dir / "samples"
    folder.mkdir(exist_ok=True)
    write_atomically(folder / f"{SUITE}{target.suffix}.json", json.dumps([sample]) + "\n")


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
