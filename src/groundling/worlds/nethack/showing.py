"""An episode of NetHack as a report shows it: pictures of some of its moments, and the messages that it met."""

import math
from collections.abc import Mapping
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from groundling.errors import GroundlingError
from groundling.rewards.part import RewardPartConfig
from groundling.worlds.nethack.message_scores import Taste, make_taste
from groundling.worlds.nethack.watching import Sight, sights
from groundling.worlds.showing import Moment, ShownEpisode, Summary

_FRAMES = 6
_PIXELS = 640
_SHOWN_MESSAGES = 20


def shown(
    reward: Mapping[str, RewardPartConfig | None], device: str, run_dir: Path, sample: Mapping[str, Any]
) -> ShownEpisode:
    """An episode of ``samples/*.json`` with pictures of some of its moments, evenly spread, the last one among them.

    Without pictures where its actions do not lead to its return again, as with another nle.
    """
    figures = (f"{name.replace('_', ' ')} {value:.4g}" for name, value in sample["figures"].items())
    moments = _moments(sample, _taste(reward, device, run_dir, sample))
    notes = [f"The held-out episode of median return: {' · '.join(figures)}"]
    if not moments:
        notes.append("No pictures: the episode, played again with the installed nle, takes another course.")
    rows = [
        [row["message"] or "(none)", f"{row['count']}", number(row["normalised_reward"])]
        for row in sample["messages"][:_SHOWN_MESSAGES]
    ]
    table = Summary("", ["message", "times", "normalised reward"], rows)
    return ShownEpisode(
        [(f"Seed {sample['seed']}", False)], moments, notes=notes, pixels=_PIXELS, table=table
    )


def number(value: float | None) -> str:
    """A normalised reward; a dash where there is none."""
    return "–" if value is None else f"{value:+.2f}"


def _taste(
    reward: Mapping[str, RewardPartConfig | None], device: str, run_dir: Path, sample: Mapping[str, Any]
) -> Taste | None:
    """The reward model's of the checkpoint that played, if it is still there: pictures need none."""
    checkpoint = run_dir / "checkpoints" / (sample.get("checkpoint") or "none")
    learns = any(part is not None and part.args.get("online") for part in reward.values())
    if learns and not checkpoint.exists():
        return None  # what had been learnt online is gone
    try:
        return make_taste(reward, device, checkpoint)
    except GroundlingError:
        return None


def _moments(sample: Mapping[str, Any], taste: Taste | None) -> list[Moment]:
    actions: list[int] = sample["actions"]
    chosen = {int(step) for step in np.linspace(0, len(actions) - 1, _FRAMES)}
    replayed, args = iter(actions), {**sample["args"], "save_ttyrec_every": 0}
    played = sights(lambda shown: next(replayed), sample["task"], args, sample["seed"], taste)
    moments = []
    with closing(played):
        for sight in islice(played, len(actions) + 1):  # no action is left for the last of them
            if sight.step in chosen:
                moments.append(_moment(sight))
    as_before = sight.ended and sight.step == len(actions)
    return moments if as_before and math.isclose(sight.episode_return, sample["figures"]["return"]) else []


def _moment(sight: Sight) -> Moment:
    picture = np.asarray(sight.screen.image())
    return Moment([sight.figures_line()], lambda: picture)
