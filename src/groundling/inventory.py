"""What there is (`groundling list`), and whether this machine is set up for it (`groundling doctor`)."""

import importlib.metadata
import importlib.util
import inspect
import os
import platform
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from groundling.registry import Registry

_EXTRAS = {
    "peft": "lora",
    "submitit": "slurm",
    "datasets": "data",
    "sacrebleu": "metrics",
    "httpx2": "judge",
    "nle": "nethack",
}
"""By module, the extra that installs it."""


def inventory() -> dict[str, Callable[[], dict[str, str]]]:
    """By kind, a function that gives each thing's name and the first line of what is said about it."""
    from groundling.algorithms.algorithm import algorithms
    from groundling.configs import experiments
    from groundling.configs.studies import studies
    from groundling.envs.text_generation import pools
    from groundling.judges.asking.judge import judges
    from groundling.lm.loading import STARTERS
    from groundling.policies.policy import policies
    from groundling.prompts.prompt import prompts
    from groundling.rewards import measures, parts
    from groundling.worlds import agents, kind, worlds

    return {
        "worlds": lambda: _components(worlds),
        "envs": _envs,
        "algorithms": lambda: _components(algorithms),
        "policies": lambda: _components(policies),
        "prompts": lambda: _components(prompts),
        "pools": lambda: _components(pools),
        "metrics": lambda: _components(measures),
        "rewards": lambda: _components(parts),
        "judges": lambda: _components(judges),
        "models": lambda: dict.fromkeys(STARTERS, "bundled") | {"NAME or PATH": "any Transformers model"},
        "agents": lambda: agents() | {"RUN, CHECKPOINT or EXPERIMENT": "trained, or as training begins"},
        "suites": lambda: {
            name: about for id in reversed(worlds.in_order()) for name, about in kind(id).suites.items()
        },
        "experiments": experiments,
        "studies": studies,
    }


def checkup() -> Iterator[tuple[str, bool | None, str]]:
    """Name, whether it is fine (None: optional and not there), and what was found."""
    import torch

    version = platform.python_version()
    yield "python", sys.version_info >= (3, 11), f"{version} (3.11 or newer is needed)"
    for package in ("torch", "transformers", "accelerate", "gymnasium", "minigrid", "hydra-core"):
        yield package, *_version(package)
    threads, cores = torch.get_num_threads(), os.cpu_count()
    yield "cpu", True, f"{cores} cores, {threads} threads for torch (OMP_NUM_THREADS sets them)"
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    yield "accelerator", True if accelerator else None, str(accelerator or "none: everything runs on the CPU")
    for module, extra in _EXTRAS.items():
        there = importlib.util.find_spec(module) is not None
        yield (
            module,
            there or None,
            "installed" if there else f"not installed: pip install 'groundling[{extra}]'",
        )
    yield "starter model", *_starter_works()
    yield "env", *_env_works()
    free = shutil.disk_usage(Path.cwd()).free / 2**30
    writable = os.access(Path.cwd(), os.W_OK)
    yield (
        "disk",
        writable and free > 1,
        f"{free:.0f} GiB free here" + ("" if writable else ", but not writable"),
    )


def _envs() -> dict[str, str]:
    import gymnasium

    from groundling import envs

    def said(entry_point: str) -> str:
        ours = (about for module, about in envs.ABOUT.items() if entry_point.startswith(module))
        return next(ours, "" if entry_point.startswith("minigrid.") else "yours")

    entry_points = {
        id: spec.entry_point
        if isinstance(spec.entry_point, str)
        else str(getattr(spec.entry_point, "__module__", ""))
        for id, spec in gymnasium.registry.items()
    }
    others = ("gymnasium.", "shimmy.")  # Gymnasium's own, which speak no words
    return {id: said(entry) for id, entry in sorted(entry_points.items()) if not entry.startswith(others)}


def _components(registry: Registry[Any]) -> dict[str, str]:
    return {id: (inspect.getdoc(registry.get(id)) or "").partition("\n")[0] for id in registry}


def _version(package: str) -> tuple[bool, str]:
    try:
        return True, importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return False, "not installed: run make install"


def _starter_works() -> tuple[bool, str]:
    from groundling.lm import LanguageModel

    try:
        scores = LanguageModel.from_pretrained("starter").score(["You see a"], ["red ball", "green key"])
    except Exception as error:  # whatever it is, it is the finding
        return False, f"{type(error).__name__}: {error}"
    return True, f"scored {len(scores[0])} candidates"


def _env_works() -> tuple[bool, str]:
    from groundling import envs

    try:
        return True, envs.try_one()
    except Exception as error:  # whatever it is, it is the finding
        return False, f"{type(error).__name__}: {error}"
