"""Write a folder with an OpenEnv environment, for `openenv push` and `docker build`."""

import re
import shutil
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

import gymnasium

import groundling
from groundling.errors import ConfigError
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
_FILES = {
    "openenv.yaml": """\
spec_version: 1
name: {name}
type: space
runtime: fastapi
app: server.app:app
port: 8000
""",
    "README.md": """\
---
title: {env}
sdk: docker
app_port: 8000
tags: [openenv, groundling]
---

# {env}

A Groundling text world. `docker build -t {name} . && docker run -p 8000:8000 {name}` serves it; `openenv push`
publishes it. If this folder contains a groundling-*.whl, it is installed instead of the release on PyPI.

```python
from openenv.core import GenericEnvClient

with GenericEnvClient(base_url="http://localhost:8000").sync() as env:
    result = env.reset(seed=0)  # or with suite=, one of: {suites}
    while not result.done:
        result = env.step({{"action": result.observation["actions"][0]}})  # the text of an action or its index
```
""",
    "pyproject.toml": """\
[project]
name = "openenv-{name}"
version = "0.1.0"
requires-python = ">=3.11"
dependencies = ["groundling[{extras}]>={version}"]

[project.scripts]
server = "server.app:main"

[tool.setuptools]
packages = ["server"]
py-modules = {modules}
""",
    "Dockerfile": """\
FROM python:3.11-slim
{java}WORKDIR /app
COPY . .
RUN pip install --no-cache-dir --find-links . --extra-index-url https://download.pytorch.org/whl/cpu .
CMD ["python", "-m", "server.app"]
""",
    "server/app.py": '''\
"""{env} as an OpenEnv environment."""

import uvicorn
{imports}
from groundling.serving.openenv import make_app

app = make_app({env!r}, {overrides}, max_sessions={max_sessions})


def main() -> None:
    uvicorn.run(app, host="0.0.0.0", port=8000, ws_max_size=1_000_000)


if __name__ == "__main__":
    main()
''',
    "server/__init__.py": "",
    "client.py": "from openenv.core import GenericEnvClient as Client  # actions and observations are dictionaries\n",
    "__init__.py": "",
}
"""The files that `openenv push` requires."""


def write_folder(folder: Path, env: str, overrides: Sequence[str], modules: Sequence[str], max_sessions: int) -> None:
    """Write a new folder that serves an env; copy the ``modules`` that register it. For the rest, see `make_app`.

    Raises:
        ConfigError: The folder contains files, a module is not a single file, or the env cannot be served.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"--output {folder} already exists: choose a new folder")
    files = [Path(import_module(module).__file__ or "") for module in modules]
    for module, file in zip(modules, files, strict=True):
        if file.name != f"{module}.py":
            raise ConfigError(f"--import {module} is not a single file that can be copied: move the env to one")
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
    for name, text in _FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text.format(**values), encoding="utf-8")
    for file in files:
        shutil.copyfile(file, folder / file.name)
