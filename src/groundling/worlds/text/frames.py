"""Frames of a text env's episode: descriptions, action probabilities and pictures."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal

import numpy as np

from groundling.envs.seeds import held_out_seed
from groundling.envs.text_episode import Step, TextEpisode
from groundling.errors import UnknownEnv
from groundling.worlds.display import EpisodeView, Frame, Summary
from groundling.worlds.text.config import TextConfig
from groundling.worlds.text.episodes import chooser_of
from groundling.worlds.text.samples import drawing_env, picture_of, pictures_of
from groundling.worlds.world import Player

_MOST_ACTIONS = 8
"""Actions of a frame: the chosen one, and the likeliest of the others."""
_MOST_FRAMES = 30


def view(config: TextConfig, sample: Mapping[str, Any]) -> EpisodeView:
    """Return an episode of ``samples/*.json`` with a picture before each action.

    Args:
        config: The section ``world``, changed by the sample's overrides.
        sample: A result of `groundling.worlds.text.samples.sample_of`.
    """
    first = sample.get("first")
    steps, actions = sample["steps"][:_MOST_FRAMES], sample["actions"][:_MOST_FRAMES]
    pictures: list[np.ndarray | None] = [None] * len(actions)
    with suppress(UnknownEnv):  # the module that registers it is not imported: show the recording only
        pictures = pictures_of(config, {**sample, "actions": actions})
    frames = [
        Frame(
            step["descriptions"] or ["(nothing in sight)"],
            _drawing(picture),
            step["action"],
            likeliest(step["probabilities"], step["action"]),
            prompt=step["prompt"],
            mark=_mark(first, number),
        )
        for number, (step, picture) in enumerate(zip(steps, pictures, strict=False), start=1)
    ]
    notes = [] if first is None else [_about_first(first)]
    if sample["suite"] != "held-out":
        notes.append(f"Suite {sample['suite']}.")
    return EpisodeView(
        _marked(f"“{sample['mission']}”", first["named"] if first else []),
        frames,
        sample["success"],
        notes,
        len(sample["steps"]) - len(frames),
        steps[0]["prompt"] if steps else None,
    )


def likeliest(probabilities: Mapping[str, float] | None, action: str) -> Mapping[str, float] | None:
    """Return the probabilities of the chosen and the likeliest actions; of few actions all, in their order."""
    if probabilities is None or len(probabilities) <= _MOST_ACTIONS:
        return probabilities
    ranked = sorted(probabilities, key=lambda name: (name != action, -probabilities[name]))
    return {
        name: probabilities[name] for name in sorted(ranked[:_MOST_ACTIONS], key=lambda name: -probabilities[name])
    }


def watch(config: TextConfig, player: Player, number: int, *, deterministic: bool, seed: int) -> Iterator[Frame]:
    """Play a held-out episode step by step; the last frame has the outcome.

    Args:
        config: The section ``world``.
        player: A policy, or a baseline.
        number: Number of the held-out episode.
        deterministic: Take the likeliest action.
        seed: Seed of the run.
    """
    envs = drawing_env(config, held_out_seed(number))
    try:
        with chooser_of(player, deterministic, seed + number) as choose:
            (observation,), step = envs.reset(), 0
            while True:
                choice = choose(envs, [0], [observation])
                action = observation.actions[choice.actions[0]]
                outputs = None if player.policy is None else player.policy.outputs([observation])
                probabilities = None
                if outputs is not None:
                    values = outputs.log_probs[0].exp().tolist()
                    probabilities = likeliest(dict(zip(observation.actions, values, strict=False)), action)
                written = [] if choice.texts is None else choice.texts[0].splitlines()
                step += 1
                heading = f"{observation.goal} · step {step}"
                lines = [heading, *observation.descriptions[-1], *written, f"> {action}"]
                yield Frame(lines, _drawing(picture_of(envs.envs[0])), action, probabilities)
                taken = envs.step(choice.actions)
                if taken.episodes:
                    yield _last_frame(taken.episodes[0], taken, number)
                    return
                observation = taken.observations[0]
    finally:
        envs.close()


def _last_frame(episode: TextEpisode, step: Step, number: int) -> Frame:
    outcome = "success" if episode.success else "failure"
    title = f"episode {number} · {outcome} · return {episode.episode_return:.4g} · {len(episode.actions)} steps"
    lines = [episode.mission, *step.final_observations[0].descriptions[-1]]
    return Frame(lines, summary=Summary(title))


def _drawing(picture: np.ndarray | None) -> Any:
    return lambda: picture


def _mark(first: Mapping[str, Any] | None, step: int) -> Literal["", "named", "other"]:
    if first is None or first.get("step") != step:
        return ""
    return "named" if first["target"] == "named" else "other"


def _about_first(first: Mapping[str, Any]) -> str:
    """Describe the first interaction."""
    if first["target"] == "none":
        return "The agent dealt with nothing."
    which = "which the mission names" if first["target"] == "named" else "which the mission does not name"
    when = f", at step {first['step']}" if first.get("step") else ""
    return f"First dealt with: {first.get('thing') or 'a thing'}, {which}{when}."


def _marked(mission: str, named: Sequence[str]) -> list[tuple[str, bool]]:
    """Split a mission into parts, each with True if it names the thing to interact with first."""
    if not named:
        return [(mission, False)]
    parts = re.split(f"({'|'.join(map(re.escape, named))})", mission)
    return [(part, part in named) for part in parts if part]
