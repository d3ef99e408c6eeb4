"""The tables of reports that show whether agents read: first interactions, and controls of the mission."""

import json
from collections.abc import Mapping
from typing import Any

from groundling.envs.babyai_text import CONTROLS
from groundling.worlds.display import ReportTable, ShareCurve

FIRST_INTERACTION = ShareCurve(
    "first_precision",
    "first thing is the named one",
    "first_chance",
    "Right: does the agent read its mission? Of the training episodes in which the agent dealt with anything, the "
    "share in which the first thing was the one that the mission names. Success alone does not show this: an agent "
    "may try everything. Chance: a blind choice among the things within reach.",
)
MEANINGS = {
    "first_named": "First named: share of the episodes in which the first thing that the agent deals with is the "
    "one that the mission names; none: it deals with nothing; precision: the share among the episodes in which it "
    "deals with anything, to be compared with chance."
}
_USUAL = "held-out"


def control_table(settings: Mapping[str, Any], evaluations: Mapping[str, Mapping[str, Any]]) -> ReportTable | None:
    """Compare evaluations with original and changed missions of this task and language; None without changed ones."""
    if not evaluations.keys() & set(CONTROLS):
        return None
    here = _without_control(json.loads(json.dumps(settings)))
    by_suite = {
        suite: evaluations[suite]
        for suite in (_USUAL, *CONTROLS)
        if suite in evaluations and _without_control(evaluations[suite]["world"]) == here
    }
    if not by_suite:
        return None
    agents = list(next(iter(by_suite.values()))["agents"])
    header = [
        [("", 1), *((name, 2) for name in agents), ("", 1)],
        [("mission", 1), *((word, 1) for _ in agents for word in ("success", "precision")), ("chance", 1)],
    ]
    rows = [
        [
            "original" if suite == _USUAL else suite,
            *(_share(one["agents"].get(name), figure) for name in agents for figure in ("success", "first_precision")),
            _share(next(iter(one["agents"].values())), "first_chance"),
        ]
        for suite, one in by_suite.items()
    ]
    return ReportTable(
        "Does the agent read its mission? Original and changed missions",
        header,
        rows,
        "Precision: of the episodes in which the agent deals with anything, the share in which the first thing is "
        "the mission's. Swapped: the mission names another thing in the room, which then counts as the mission's; "
        "an agent that reads goes to it, and fails. Dropped, scrambled: the mission does not say which thing, or "
        "its letters are shuffled; what the env wants counts as the mission's, and an agent that reads is left "
        "with chance. The expert sees the world and what the env wants, and reads no mission.",
    )


def _without_control(env: Mapping[str, Any]) -> tuple[Any, ...]:
    """Settings that decide what an env shows and asks for, without the control of its missions."""
    args = {name: value for name, value in env["args"].items() if name != "control"}
    return env["env"], args, env["language"], env["actions"]


def _share(agent: Mapping[str, Any] | None, figure: str) -> str:
    value = (agent or {"figures": {}})["figures"].get(figure)
    return "–" if value is None else f"{value['value']:.3f}"
