"""Experiments and files as nested values, which hold nothing that no file may hold."""

import functools
import os
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

import hydra
from hydra._internal.core_plugins.file_config_source import FileConfigSource
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.plugins import Plugins
from hydra.plugins.config_source import ConfigResult
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from groundling.config.renamed import check_renamed
from groundling.config.schema import Config
from groundling.config.trust import check_plain
from groundling.config.wording import one_line
from groundling.errors import ConfigError
from groundling.io.documents import DocumentError, read_yaml
from groundling.registry import unknown


@dataclass(frozen=True, slots=True)
class Read:
    """What an experiment or a file says."""

    values: dict[str, Any]
    """Nested, not resolved, of any keys."""
    where: str
    """Where they stand, for messages."""


@dataclass
class _Unsettled(Config):
    """A `Config` as Hydra composes it: until its kind of world is known, that world's sections hold anything."""

    world: Any = field(default_factory=dict)
    evaluation: Any = field(default_factory=dict)


ConfigStore.instance().store(name="schema", node=_Unsettled)


class _UsersFiles(FileConfigSource):
    """A folder of ``--config-dir``: Hydra's own source of files, but for what no file may hold."""

    @staticmethod
    def scheme() -> str:
        return "users"

    def load_config(self, config_path: str) -> ConfigResult:
        path = Path(self.path) / self._normalize_file_name(config_path)
        if path.is_file():  # otherwise Hydra says what is missing
            read_yaml(path)  # within limits; Hydra reads it itself
        loaded = super().load_config(config_path)
        from_values(loaded.config, str(path))
        return loaded


def from_values(values: Any, where: str) -> Read:
    """What OmegaConf has loaded.

    Args:
        values: Of a whole file.
        where: The file.

    Raises:
        ConfigError: old keys, or a resolver.
    """
    plain: Any = OmegaConf.to_container(values, resolve=False)
    check_plain(plain, where)
    check_renamed(plain, where)
    return Read({str(name): value for name, value in plain.items()}, where)


def from_file(path: Path) -> Read:
    """A run's ``config.yaml``, which may be another's.

    Raises:
        ConfigError: it is missing or broken, or as `from_values`.
    """
    try:
        return from_values(read_yaml(path), str(path))
    except FileNotFoundError:
        raise ConfigError(f"there is no {path}: expected a run's folder, made by `groundling train`") from None
    except (OSError, DocumentError, OmegaConfBaseException) as error:
        raise ConfigError(f"cannot read {path}: {one_line(error)}") from error


def from_experiment(experiment: str, config_dir: Path | None = None) -> Read:
    """An experiment over the schema's defaults, as Hydra composes it.

    Args:
        experiment: A bundled experiment, or one of ``config_dir/experiment/``.
        config_dir: A folder of the user's own YAML files, searched beside the bundled ones.

    Raises:
        ConfigError: there is no such folder or experiment, or one of the user's files is as `from_values` refuses it.
        HydraException: Hydra cannot compose it.
        OmegaConfBaseException: as Hydra's.
    """
    check_config_dir(config_dir)
    known = experiments(config_dir)
    if experiment not in known:
        if os.path.isfile(f"{experiment}/config.yaml"):  # noqa: PTH113 (pathlib raises where a name is too long)
            raise ConfigError(f"{experiment} is a run's folder: name its settings, {experiment}/config.yaml")
        raise ConfigError(unknown("experiment", experiment, known))
    if config_dir is None:
        composed = _bundled(experiment)
    else:
        Plugins.instance().register(_UsersFiles)
        # A file could have Hydra copy variables of the environment into its own part of a config.
        search = [f"hydra.searchpath=[users://{config_dir.resolve()}]", "hydra.job.env_copy=[]"]
        composed = _composed(experiment, *search)
    values: Any = OmegaConf.to_container(composed, resolve=False)
    return Read(values, f"the experiment {experiment}")


def _composed(experiment: str, *words: str) -> DictConfig:
    try:
        with hydra.initialize_config_module("groundling.config", version_base="1.3"):
            return hydra.compose("config", [f"experiment={experiment}", *words])
    finally:
        GlobalHydra.instance().clear()


# Hydra takes a tenth of a second, and a study composes the same experiment for every seed.
_bundled = functools.cache(_composed)


def check_config_dir(config_dir: Path | None) -> None:
    """Raise `ConfigError` if there is no such folder, though one is named."""
    if config_dir is not None and not config_dir.is_dir():
        raise ConfigError(
            f"--config-dir {config_dir} is no folder: name the one that holds your experiment/*.yaml, or leave it out"
        )


def experiments(config_dir: Path | None = None) -> dict[str, str]:
    """The bundled experiments by name, each with its headline; those of a user's folder with none."""
    known = dict(_bundled_experiments())
    if config_dir is not None:
        folder = config_dir / "experiment"
        known |= {p.relative_to(folder).with_suffix("").as_posix(): "" for p in folder.rglob("*.yaml")}
    return known


@functools.cache
def _bundled_experiments() -> dict[str, str]:
    root = resources.files("groundling.config") / "experiment"
    with resources.as_file(root) as folder:
        return {
            path.relative_to(folder).with_suffix("").as_posix(): headline(path)
            for path in sorted(folder.rglob("*.yaml"))
        }


def headline(path: Path) -> str:
    """The first sentence of the comment at the head of an experiment's file."""
    for line in path.read_text(encoding="utf-8").splitlines():
        text = line.lstrip("# ").strip()
        if line.startswith("#") and text and not text.startswith("@package"):
            return text
    return ""
