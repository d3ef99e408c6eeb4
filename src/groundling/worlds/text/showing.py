"""An episode of a text env as it is shown: what was told before each action, how likely each was, and pictures."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal

from groundling.envs.seeds import held_out_seed
from groundling.errors import UnknownEnv
from groundling.policies.policy import Policy
from groundling.worlds.showing import Moment, ShownEpisode, Summary
from groundling.worlds.text.config import TextConfig
from groundling.worlds.text.episodes import player_of
from groundling.worlds.text.samples import drawing_env, frames, picture_of

_MOST_ACTIONS = 8
"""Of a moment: the chosen one, and the likeliest of the others."""
_MOST_MOMENTS = 30


def shown(config: TextConfig, sample: Mapping[str, Any]) -> ShownEpisode:
    """An episode of ``samples/*.json`` with a picture before each action.

    Args:
        config: The section ``world``, as the sample's overrides change it.
        sample: What `groundling.worlds.text.samples.record` gave.
    """
    first = sample.get("first")
    steps, actions = sample["steps"][:_MOST_MOMENTS], sample["actions"][:_MOST_MOMENTS]
    pictures: list[Any] = [None] * len(actions)
    with suppress(UnknownEnv):  # the module that registers it is not imported: what was recorded is shown
        pictures = frames(config, {**sample, "actions": actions})  # what is left out need not be drawn
    moments = [
        Moment(
            step["descriptions"] or ["(nothing in sight)"],
            lambda picture=picture: picture,  # type: ignore[misc]
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
    return ShownEpisode(
        _marked(f"“{sample['mission']}”", first["named"] if first else []),
        moments,
        sample["success"],
        notes,
        len(sample["steps"]) - len(moments),
        steps[0]["prompt"] if steps else None,
    )


def likeliest(probabilities: Mapping[str, float] | None, action: str) -> Mapping[str, float] | None:
    """The chosen action's probability and those of the likeliest others; of few actions all, in their order."""
    if probabilities is None or len(probabilities) <= _MOST_ACTIONS:
        return probabilities
    ranked = sorted(probabilities, key=lambda name: (name != action, -probabilities[name]))
    return {
        name: probabilities[name]
        for name in sorted(ranked[:_MOST_ACTIONS], key=lambda name: -probabilities[name])
    }


def watched(
    config: TextConfig, agent: str, policy: Policy | None, number: int, *, deterministic: bool, seed: int
) -> Iterator[Moment]:
    """An agent plays a held-out episode, step by step; the last moment tells how it ended.

    Args:
        config: The section ``world``.
        agent: What it is called, as in `World.play`.
        policy: Whom it follows; None of agents that need none.
        number: Which of the held-out episodes.
        deterministic: Take the likeliest action.
        seed: The run's.
    """
    envs = drawing_env(config, held_out_seed(number))
    try:
        with player_of(agent, policy, deterministic, seed + number) as player:
            (observation,), step = envs.reset(), 0
            while True:
                choice = player(envs, [0], [observation])
                action = observation.actions[choice.actions[0]]
                outputs = None if policy is None else policy.outputs([observation])
                probabilities = None
                if outputs is not None:
                    values = outputs.log_probs[0].exp().tolist()
                    probabilities = likeliest(dict(zip(observation.actions, values, strict=False)), action)
                written = [] if choice.texts is None else choice.texts[0].splitlines()
                step += 1
                heading = f"{observation.goal} · step {step}"
                picture = picture_of(envs.envs[0])
                yield Moment(
                    [heading, *observation.descriptions[-1], *written, f"> {action}"],
                    lambda picture=picture: picture,  # type: ignore[misc]
                    action,
                    probabilities,
                )
                taken = envs.step(choice.actions)
                if taken.episodes:
                    (episode,) = taken.episodes
                    outcome = "success" if episode.success else "failure"
                    summary = (
                        f"episode {number} · {outcome} · return {episode.episode_return:.4g} · {step} steps"
                    )
                    final = taken.final_observations[0].descriptions[-1]
                    yield Moment([episode.mission, *final], summary=Summary(summary))
                    return
                observation = taken.observations[0]
    finally:
        envs.close()


def _mark(first: Mapping[str, Any] | None, step: int) -> Literal["", "named", "other"]:
    if first is None or first.get("step") != step:
        return ""
    return "named" if first["target"] == "named" else "other"


def _about_first(first: Mapping[str, Any]) -> str:
    """Which thing was first dealt with."""
    if first["target"] == "none":
        return "The agent dealt with nothing."
    which = "which the mission names" if first["target"] == "named" else "which the mission does not name"
    when = f", at step {first['step']}" if first.get("step") else ""
    return f"First dealt with: {first.get('thing') or 'a thing'}, {which}{when}."


def _marked(mission: str, named: Sequence[str]) -> list[tuple[str, bool]]:
    """A mission in parts, each with whether it names the thing that is to be dealt with first."""
    if not named:
        return [(mission, False)]
    parts = re.split(f"({'|'.join(map(re.escape, named))})", mission)
    return [(part, part in named) for part in parts if part]
