"""Probes: action probabilities of a policy in fixed situations during training, as GLAM logs them."""

import math
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from groundling.envs.babyai_text import ACTIONS
from groundling.envs.observation import TextObservation
from groundling.errors import ConfigError
from groundling.io.documents import read_bundled
from groundling.io.row_files import BEFORE_ALL, RowFile, read_rows
from groundling.policies.policy import Policy
from groundling.worlds.text.config import TextConfig
from groundling.worlds.text.episodes import actions_of, known_actions_of

_FILE = "probes.jsonl"


class Probe(NamedTuple):
    title: str
    goal: str
    descriptions: tuple[tuple[str, ...], ...]  # the recent observations, oldest first
    past_actions: tuple[str, ...]
    right: tuple[str, ...]  # the right actions, by their names in `ACTIONS`


@cache
def load_probes() -> dict[int, tuple[Probe, ...]]:
    """Return the two sets by number."""
    sets: dict[int, tuple[Probe, ...]] = {}
    for number, probes in read_bundled(Path(__file__).with_name("probes.yaml")).items():
        turns = [(probe, probe["turns"]) for probe in probes]  # descriptions and actions in turn
        sets[number] = tuple(
            Probe(
                probe["title"], probe["goal"], tuple(map(tuple, said[::2])), tuple(said[1::2]), tuple(probe["right"])
            )
            for probe, said in turns
        )
    return sets


def observations(probes: Sequence[Probe], actions: tuple[str, ...], history: int | None) -> list[TextObservation]:
    """Return the probes as observations with these actions and at most ``history`` descriptions."""
    return [
        TextObservation(p.goal, p.descriptions, p.past_actions, actions, {"mission": p.goal}).recent(history)
        for p in probes
    ]


def right_actions(config: TextConfig) -> dict[str, list[str]]:
    """Return the right actions by a probe's title, under the config's names."""
    names = dict(zip(ACTIONS["english"], known_actions_of(config).names or (), strict=False))
    return {p.title: [names[a] for a in p.right if a in names] for probes in load_probes().values() for p in probes}


def read_probes(run_dir: Path) -> list[dict[str, Any]]:
    """Read a run's ``probes.jsonl``: ``update``, ``step``, and probabilities by probe and action."""
    return read_rows(run_dir / _FILE)


class ProbeLog:
    """Appends to a run's ``probes.jsonl`` after the update that the run resumes from."""

    def __init__(self, config: TextConfig, policy: Policy, run_dir: Path, update: int) -> None:
        self._policy = policy
        names = actions_of(config).names
        if names is None:
            raise ConfigError(
                f"the probes are situations of BabyAI's, and env {config.env} has other actions at each step: set "
                "world.probes=null"
            )
        sets = load_probes()
        probes = [probe for number in sets if config.probes in (number, "both") for probe in sets[number]]
        self._titles = [probe.title for probe in probes]
        self._observations = observations(probes, names, config.history)
        if policy.outputs(self._observations[:1]) is None:
            raise ConfigError(
                f"{type(policy).__name__} has no action probabilities before it has written or remembered something: "
                "set world.probes=null"
            )
        self._rows = RowFile(run_dir / _FILE, update or BEFORE_ALL)
        if not update:
            self.log({"update": 0, "step": 0})

    def log(self, row: dict[str, Any]) -> None:
        outputs = self._policy.outputs(self._observations)
        assert outputs is not None
        by_probe = [
            {action: round(p, 6) if math.isfinite(p) else None for action, p in zip(o.actions, values, strict=True)}
            for o, values in zip(self._observations, outputs.log_probs.exp().tolist(), strict=True)
        ]
        probabilities = dict(zip(self._titles, by_probe, strict=True))
        self._rows.append({"update": row["update"], "step": row["step"], "probabilities": probabilities})
