"""NetHack's part of a report: what the agents' episodes come to, which messages they met, how one of them looked."""

import math
from collections.abc import Mapping
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from groundling.configs.schema import Config
from groundling.errors import GroundlingError
from groundling.evaluation.nethack.taste import Taste, make_taste
from groundling.evaluation.nethack.watching import Moment, moments

_FRAMES = 6
_SHOWN_MESSAGES = 20


def table(evaluation: Mapping[str, Any]) -> list[tuple[str, list[str]]]:
    """One row for each figure, one cell for each agent, of what `evaluate_games` wrote."""
    agents = evaluation["agents"].values()
    names = dict.fromkeys(name for agent in agents for name in agent["figures"])
    return [
        (name.replace("_", " "), [_told(agent["figures"].get(name)) for agent in agents]) for name in names
    ]


def messages(evaluation: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The messages that any of the agents met most often, as text."""
    rows = evaluation["messages"]
    ordered = sorted(rows, key=lambda row: -max(row["per_episode"].values()))[:_SHOWN_MESSAGES]
    return [
        {
            "message": row["message"],
            "reward": _number(row["normalised_reward"]),
            "per_episode": [f"{count:.2f}" for count in row["per_episode"].values()],
        }
        for row in ordered
    ]


def sample(config: Config, run_dir: Path, found: Mapping[str, Any]) -> dict[str, Any]:
    """An episode of ``samples/*.json`` with pictures of some of its moments, evenly spread, the last one among them.

    Without pictures where its actions do not lead to its return again, as with another nle.
    """
    return {
        "figures": {name.replace("_", " "): f"{value:.4g}" for name, value in found["figures"].items()},
        "pictures": _pictures(found, _taste(config, run_dir, found)),
        "messages": [
            {
                **row,
                "normalised_reward": _number(row["normalised_reward"]),
                "message": row["message"] or "(none)",
            }
            for row in found["messages"][:_SHOWN_MESSAGES]
        ],
    }


def _taste(config: Config, run_dir: Path, found: Mapping[str, Any]) -> Taste | None:
    """The reward model's of the checkpoint that played, if it is still there: pictures need none."""
    checkpoint = run_dir / "checkpoints" / (found.get("checkpoint") or "none")
    if config.nethack.online.judge is not None and not checkpoint.exists():
        return None  # what had been learnt online is gone
    try:
        return make_taste(config, checkpoint)
    except GroundlingError:
        return None


def _pictures(found: Mapping[str, Any], taste: Taste | None) -> list[tuple[np.ndarray, str]]:
    actions: list[int] = found["actions"]
    chosen = {int(step) for step in np.linspace(0, len(actions) - 1, _FRAMES)}
    replayed, args = iter(actions), {**found["args"], "save_ttyrec_every": 0}
    played = moments(lambda shown: next(replayed), found["task"], args, found["seed"], taste)
    pictures = []
    with closing(played):
        for moment in islice(played, len(actions) + 1):  # no action is left for the last of them
            if moment.step in chosen:
                pictures.append(_picture(moment))
    as_before = moment.ended and moment.step == len(actions)
    return pictures if as_before and math.isclose(moment.episode_return, found["figures"]["return"]) else []


def _picture(moment: Moment) -> tuple[np.ndarray, str]:
    image: Image.Image = moment.screen.image()
    return np.asarray(image), moment.told()


def _told(estimate: Mapping[str, float] | None) -> str:
    if estimate is None:
        return "–"
    return f"{estimate['value']:.4g} [{estimate['low']:.4g}, {estimate['high']:.4g}]"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:+.2f}"
