"""Write a folder with an OpenEnv environment, for `openenv push` and `docker build`."""

import re
import shutil
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

import gymnasium

import groundling
from groundling.errors import ConfigError
from groundling.io.documents import read_bundled
from groundling.serving.text_worlds import served_worlds

_EXTRAS = {  # extras of Groundling that envs need, by the module that creates them
    "groundling.envs.engines.gem": "gem",
    "groundling.envs.engines.reasoning_gym": "reasoning-gym",
    "groundling.envs.engines.scienceworld": "scienceworld",
    "groundling.envs.engines.text_arena": "textarena",
    "groundling.envs.engines.textworld": "textworld",
    "groundling.envs.engines.textworld_express": "worlds",
    "groundling.envs.nethack.words": "nethack",
}
_APT = "apt-get update && apt-get install -y --no-install-recommends"
_JAVA = ("scienceworld", "worlds")  # extras of engines that need a Java runtime


def write_folder(folder: Path, env: str, overrides: Sequence[str], modules: Sequence[str], max_sessions: int) -> None:
    """Write a new folder with a server for an env and copies of the ``modules`` that register it (see also `make_app`).

    Raises:
        ConfigError: The folder contains files, a module is not a single file, or the env cannot be served.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"--output {folder} already exists: choose a new folder")
    files = [Path(import_module(module).__file__ or "") for module in modules]
    for module, file in zip(modules, files, strict=True):
        if file.name != f"{module}.py":
            raise ConfigError(f"--import {module} cannot be copied, since it is not one file: move the env into one")
    suites = ", ".join(filter(None, served_worlds(env, overrides))) or "none"
    extra = _EXTRAS.get(str(gymnasium.spec(env).entry_point).partition(":")[0])
    values = {
        "env": env,
        "name": re.sub(r"[^a-z0-9]+", "_", env.lower()).strip("_"),
        "version": groundling.__version__,
        "extras": f"openenv,{extra}" if extra else "openenv",
        "java": f"RUN {_APT} default-jre-headless\n" if extra in _JAVA else "",
        "suites": suites,
        "overrides": [*overrides],
        "max_sessions": max_sessions,
        "modules": [*modules],
        "imports": "\n".join(f"import {module}  # registers the env" for module in modules),
    }
    for name, text in read_bundled(Path(__file__).with_suffix(".yaml")).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text.format(**values), encoding="utf-8")
    for file in files:
        shutil.copyfile(file, folder / file.name)
