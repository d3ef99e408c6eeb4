"""What a policy thinks of fixed situations while it learns: each action's probability, as GLAM logs it.

The situations are our own. The right action is evident from each; the agent faces forward.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from groundling.envs.babyai_text import ACTIONS
from groundling.envs.observation import TextObservation
from groundling.errors import ConfigError
from groundling.io.row_files import BEFORE_ALL, RowFile, read_rows
from groundling.policies.policy import Policy
from groundling.worlds.text.config import PROBE_SETS, TextConfig
from groundling.worlds.text.envs import actions_of, known_actions_of

_FILE = "probes.jsonl"


@dataclass(frozen=True, slots=True)
class Probe:
    """A fixed situation."""

    title: str
    goal: str
    descriptions: tuple[tuple[str, ...], ...]
    """The recent observations, oldest first."""
    past_actions: tuple[str, ...]
    right: tuple[str, ...]
    """The actions that are right here, as `ACTIONS` calls them."""


def _probe(title: str, goal: str, *turns: str | Sequence[str], right: str | Sequence[str]) -> Probe:
    """A probe from what was told and done in turn: observation, action, observation, …"""
    descriptions = tuple((d,) if isinstance(d, str) else tuple(d) for d in turns[::2])
    past = tuple(str(action) for action in turns[1::2])
    return Probe(title, goal, descriptions, past, (right,) if isinstance(right, str) else tuple(right))


_GREY_THEN_GREEN = "pick up the grey key, then go to the green ball"
_RED_AFTER_BLUE = "go to the red key after you pick up the blue box"
PROBES: dict[int, tuple[Probe, ...]] = {
    1: (
        _probe(
            "ball ahead",
            "go to the red ball",
            ["You see a wall 2 steps left", "You see a red ball 3 steps forward"],
            right="go forward",
        ),
        _probe(
            "box to the left",
            "go to the green box",
            ["You see a wall 1 step forward", "You see a green box 2 steps left"],
            right="turn left",
        ),
        _probe(
            "key to the right",
            "go to the blue key",
            ["You see a wall 3 steps forward", "You see a blue key 3 steps right and 1 step forward"],
            "go forward",
            ["You see a wall 2 steps forward", "You see a blue key 3 steps right"],
            right="turn right",
        ),
        _probe(
            "key to pick up in front",
            "pick up the yellow key",
            ["You see a wall 1 step right", "You see a yellow key 2 steps forward"],
            "go forward",
            ["You see a wall 1 step right", "You see a yellow key 1 step forward"],
            right="pick up",
        ),
        _probe(
            "ball to pick up beside",
            "pick up the purple ball",
            ["You see a wall 2 steps forward", "You see a purple ball 1 step left"],
            right="turn left",
        ),
        _probe(
            "closed door in front",
            "open the blue door",
            ["You see a wall 3 steps right", "You see a closed blue door 1 step forward"],
            right="toggle",
        ),
        _probe(
            "locked door in front, key carried",
            "open the red door",
            [
                "You carry a red key",
                "You see a wall 2 steps left",
                "You see a locked red door 1 step forward",
            ],
            right="toggle",
        ),
        _probe(
            "put next to: place in front",
            "put the red ball next to the green box",
            [
                "You carry a red ball",
                "You see a wall 4 steps forward",
                "You see a green box 1 step right and 1 step forward",
            ],
            right="drop",
        ),
        _probe(
            "sequence, first half",
            _GREY_THEN_GREEN,
            ["You see a grey key 1 step forward", "You see a green ball 3 steps right and 2 steps forward"],
            right="pick up",
        ),
        _probe(
            "sequence, second half",
            _GREY_THEN_GREEN,
            ["You see a grey key 1 step forward", "You see a green ball 4 steps forward"],
            "pick up",
            ["You carry a grey key", "You see a green ball 4 steps forward"],
            right="go forward",
        ),
        _probe(
            "nothing in view",
            "go to the yellow box",
            "You see a wall 2 steps forward",
            "go forward",
            "You see a wall 1 step forward",
            right=("turn left", "turn right"),
        ),
    ),
    2: (
        _probe(
            "goal to the left, other ahead",
            "go to the purple key",
            ["You see a purple key 2 steps left", "You see a red ball 2 steps forward"],
            right="turn left",
        ),
        _probe(
            "goal ahead, other to the left",
            "go to the grey ball",
            ["You see a blue box 1 step left", "You see a grey ball 2 steps forward"],
            right="go forward",
        ),
        _probe(
            "same colour, other kind",
            "go to the green key",
            [
                "You see a wall 3 steps forward",
                "You see a green ball 1 step left",
                "You see a green key 2 steps right",
            ],
            right="turn right",
        ),
        _probe(
            "box to pick up in front",
            "pick up the red box",
            ["You see a red box 1 step forward", "You see a red key 2 steps right and 1 step forward"],
            right="pick up",
        ),
        _probe(
            "other in front",
            "pick up the blue ball",
            ["You see a grey box 1 step forward", "You see a blue ball 1 step right"],
            right="turn right",
        ),
        _probe(
            "door to the right",
            "open the green door",
            ["You see a wall 3 steps forward", "You see a closed green door 2 steps right"],
            right="turn right",
        ),
        _probe(
            "locked door, key in front",
            "open the yellow door",
            [
                "You see a yellow key 1 step forward",
                "You see a locked yellow door 3 steps right and 2 steps forward",
            ],
            right="pick up",
        ),
        _probe(
            "put next to: still on the floor",
            "put the green key next to the purple ball",
            ["You see a green key 1 step forward", "You see a purple ball 2 steps right and 3 steps forward"],
            right="pick up",
        ),
        _probe(
            "put next to: still far",
            "put the green key next to the purple ball",
            ["You see a green key 1 step forward", "You see a purple ball 5 steps forward"],
            "pick up",
            ["You carry a green key", "You see a purple ball 5 steps forward"],
            right="go forward",
        ),
        _probe(
            "after, first half",
            _RED_AFTER_BLUE,
            ["You see a red key 2 steps left", "You see a blue box 1 step forward"],
            right="pick up",
        ),
        _probe(
            "after, second half",
            _RED_AFTER_BLUE,
            ["You see a red key 2 steps left", "You see a blue box 1 step forward"],
            "pick up",
            ["You carry a blue box", "You see a wall 4 steps forward", "You see a red key 2 steps left"],
            right="turn left",
        ),
        _probe(
            "a wall after three steps",
            "go to the purple box",
            "You see a wall 3 steps forward",
            "go forward",
            "You see a wall 2 steps forward",
            "go forward",
            "You see a wall 1 step forward",
            right=("turn left", "turn right"),
        ),
    ),
}
"""The two sets, by their number."""
SETS = dict(zip(PROBE_SETS, (PROBES[1], PROBES[2], PROBES[1] + PROBES[2]), strict=True))
"""What world.probes may be."""


def observations(
    probes: Sequence[Probe], actions: tuple[str, ...], history: int | None
) -> list[TextObservation]:
    """The probes as a policy sees them that has these actions, and sees so many observations at most."""
    return [
        TextObservation(p.goal, p.descriptions, p.past_actions, actions, {"mission": p.goal}).recent(history)
        for p in probes
    ]


def right_actions(config: TextConfig) -> dict[str, list[str]]:
    """By a probe's title, what the config calls the actions that are right there."""
    names = dict(zip(ACTIONS["english"], known_actions_of(config).names or (), strict=False))
    return {p.title: [names[a] for a in p.right if a in names] for probes in PROBES.values() for p in probes}


def read_probes(run_dir: Path) -> list[dict[str, Any]]:
    """The rows of a run's ``probes.jsonl``: ``update``, ``step``, and by probe and action its probability.

    Raises:
        RunError: a line is no such row.
    """
    return read_rows(run_dir / _FILE)


class ProbeLog:
    """Appends to a run's ``probes.jsonl``, going on after the update that it resumes from.

    It is idle where world.probes is null.

    Raises:
        ConfigError: no such set, the env does not speak its language, or the policy needs more than it tells.
    """

    def __init__(self, config: TextConfig, policy: Policy, run_dir: Path, update: int) -> None:
        self._policy = policy
        self._observations: list[TextObservation] = []
        name = config.probes
        if name is None:
            return
        names = actions_of(config).names
        if names is None:
            raise ConfigError(
                f"the probes are situations of BabyAI's, and env {config.env} has other actions at each step: set "
                "world.probes=null"
            )
        self._titles = [probe.title for probe in SETS[name]]
        self._observations = observations(SETS[name], names, config.history)
        if policy.outputs(self._observations[:1]) is None:
            raise ConfigError(
                f"{type(policy).__name__} has no action probabilities before it has written or remembered something: "
                "set world.probes=null"
            )
        self._rows = RowFile(run_dir / _FILE, update or BEFORE_ALL)
        if not update:
            self.log({"update": 0, "step": 0})

    def log(self, row: dict[str, Any]) -> None:
        """Write what the policy thinks after the update whose figures are ``row``; once before the first."""
        if not self._observations:
            return
        outputs = self._policy.outputs(self._observations)
        assert outputs is not None
        by_probe = [
            {
                action: round(p, 6) if math.isfinite(p) else None
                for action, p in zip(o.actions, values, strict=True)
            }
            for o, values in zip(self._observations, outputs.log_probs.exp().tolist(), strict=True)
        ]
        probabilities = dict(zip(self._titles, by_probe, strict=True))
        self._rows.append({"update": row["update"], "step": row["step"], "probabilities": probabilities})
