"""An episode of NetHack in a report: pictures of some of its steps, and its messages."""

import math
from collections.abc import Mapping
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from groundling.errors import GroundlingError
from groundling.rewards.part import RewardPartConfig
from groundling.worlds.display import EpisodeView, Frame, Summary
from groundling.worlds.nethack.frames import NetHackStep, play_steps
from groundling.worlds.nethack.message_scores import MessageScores, make_message_scores

_FRAMES = 6
_PIXELS = 640
_SHOWN_MESSAGES = 20


def view(
    reward: Mapping[str, RewardPartConfig | None], device: str, run_dir: Path, sample: Mapping[str, Any]
) -> EpisodeView:
    """Return an episode of ``samples/*.json`` with pictures of evenly spread steps, the last one included.

    It has no pictures if its actions do not lead to its return again, as with another version of nle.
    """
    figures = (f"{name.replace('_', ' ')} {value:.4g}" for name, value in sample["figures"].items())
    frames = _frames(sample, _scores(reward, device, run_dir, sample))
    notes = [f"The held-out episode of median return: {' · '.join(figures)}"]
    if not frames:
        notes.append("No pictures: the episode, played again with the installed nle, takes another course.")
    rows = [
        [row["message"] or "(none)", f"{row['count']}", _signed(row["normalised_reward"])]
        for row in sample["messages"][:_SHOWN_MESSAGES]
    ]
    table = Summary("", ["message", "times", "normalised reward"], rows)
    return EpisodeView([(f"Seed {sample['seed']}", False)], frames, notes=notes, pixels=_PIXELS, table=table)


def _signed(value: float | None) -> str:
    return "–" if value is None else f"{value:+.2f}"


def _scores(
    reward: Mapping[str, RewardPartConfig | None], device: str, run_dir: Path, sample: Mapping[str, Any]
) -> MessageScores | None:
    """Load the reward model of the checkpoint that played; None if it is gone, since pictures need none."""
    checkpoint = run_dir / "checkpoints" / (sample.get("checkpoint") or "none")
    is_online = any(part is not None and part.args.get("online") for part in reward.values())
    if is_online and not checkpoint.exists():
        return None
    try:
        return make_message_scores(reward, device, checkpoint)
    except GroundlingError:
        return None


def _frames(sample: Mapping[str, Any], scores: MessageScores | None) -> list[Frame]:
    actions: list[int] = sample["actions"]
    chosen = {int(step) for step in np.linspace(0, len(actions) - 1, _FRAMES)}
    replayed, args = iter(actions), {**sample["args"], "save_ttyrec_every": 0}
    steps = play_steps(lambda shown: next(replayed), sample["task"], args, sample["seed"], scores)
    frames = []
    with closing(steps):
        for step in islice(steps, len(actions) + 1):  # no action is left for the last one
            if step.step in chosen:
                frames.append(_frame(step))
    is_same = step.ended and step.step == len(actions)
    return frames if is_same and math.isclose(step.episode_return, sample["figures"]["return"]) else []


def _frame(step: NetHackStep) -> Frame:
    picture = np.asarray(step.screen.image())
    return Frame([step.figures_line()], lambda: picture)
